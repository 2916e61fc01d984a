"""The mathematics of the figures to touch: the page's numbers are the package's."""

import math
from dataclasses import replace

import pytest
import torch

from lengthgen import carrier, dilution, linear, recurrence
from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.descent import Descent, trajectory
from lengthgen.early_carrier import early_head, growth_rates
from lengthgen.encodings import rotary_frequencies
from lengthgen.experiments import transformer
from lengthgen.experiments.heads import OFFSETS
from lengthgen.experiments.transformer_units import MapConfig, attention_maps
from lengthgen.explorables.base import SHARED, pack
from lengthgen.explorables.heads import learned_heads, rotary_heads
from lengthgen.explorables.transformer import LENGTHS, rounded_triangle
from lengthgen.position_head import PositionHead, initialize, kernel
from lengthgen.task import TestSequences
from lengthgen.training import TrainingConfig, train

MATHEMATICS = ("numbers", "heads", "descent", "laws", "spectral", "recurrence")


@pytest.fixture(scope="module")
def mathematics(chromium):
    """`mathematics("rotate(x.q, 3, x.w)", q=..., w=...)`: evaluate the shared files."""
    page = chromium.new_page()
    page.evaluate(
        """async (text) => {
            const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
            window.lx = await import(url);
        }""",
        "\n".join((SHARED / f"{name}.js").read_text(encoding="utf8") for name in MATHEMATICS),
    )

    def evaluate(expression: str, **values):
        packed = {
            k: {"packed": pack(v)} if isinstance(v, torch.Tensor) else v for k, v in values.items()
        }
        answer = page.evaluate(
            """([expression, values]) => {
                const x = Object.fromEntries(Object.entries(values).map(
                    ([k, v]) => [k, v && v.packed ? lx.unpack(v.packed) : v]));
                const plain = (v) => {
                    if (ArrayBuffer.isView(v)) return Array.from(v);
                    if (!v || typeof v != "object" || Array.isArray(v)) return v;
                    return Object.fromEntries(Object.entries(v).map(([k, w]) => [k, plain(w)]));
                };
                const run = new Function("x", ...Object.keys(lx), expression);
                return plain(run(x, ...Object.values(lx)));
            }""",
            [expression if "return" in expression else f"return {expression}", packed],
        )
        return tensors(answer)

    yield evaluate
    page.close()


def tensors(value):
    """Numbers from the browser, lists of them as float64 tensors."""
    if isinstance(value, dict):
        return {name: tensors(part) for name, part in value.items()}
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value


def close(ours, theirs, tolerance=1e-6):
    """Compare with the tolerance relative to the largest number."""
    theirs = theirs.flatten().double()
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max(), (ours, theirs)


def complex_parts(head: PositionHead) -> dict[str, torch.Tensor]:
    parts = {"qr": head.query.real, "qi": head.query.imag, "kr": head.key.real, "ki": head.key.imag}
    return {name: value[0].contiguous() for name, value in parts.items()}


HEAD = "const head = { qr: x.qr, qi: x.qi, kr: x.kr, ki: x.ki };"


def test_kernel_is_the_packages(mathematics):
    w = rotary_frequencies(32)
    c = initialize([3], 1.0, w).coefficients[0]
    ours = mathematics("kernel({ re: x.re, im: x.im }, x.w, 500)", re=c.real, im=c.imag, w=w)
    # Angles up to 500 rad lose three of sixteen digits.
    close(ours, kernel(c, w, torch.arange(500)), 1e-12)
    close(mathematics("rotaryFrequencies(16)"), w, 1e-14)


@pytest.fixture(scope="module")
def briefly_trained():
    """`briefly_trained("rotary", (0,))`: heads at every offset, trained to attend."""

    def briefly_trained(encoding, seeds=(0,), steps=300):
        torch.set_num_threads(1)
        return train(TrainingConfig(HeadConfig(encoding), seeds, OFFSETS, steps=steps))[0]

    return briefly_trained


@pytest.mark.parametrize("encoding", ["rotary", "learned"])
def test_attention_and_answers_are_the_packages(mathematics, briefly_trained, encoding):
    stack, length = briefly_trained(encoding), 60
    packed = rotary_heads(stack) if encoding == "rotary" else learned_heads(stack, 16, 64)
    tokens = TestSequences(4).sequences(length)
    answer, attention = stack.map(torch.Tensor.double).forward(tokens.expand(len(OFFSETS), -1, -1))
    for index in (0, 5):
        for n, sequence in enumerate(tokens):
            ours = mathematics(
                f"attend({encoding}Head(x.packed_heads, {index}), x.tokens, {length})",
                packed_heads=packed,
                tokens=sequence.flip(0).int(),
            )
            # Parameters are exported in single precision.
            close(ours["weights"].flip(0), attention[index, n])
            close(ours["answer"], answer[index, n])


def test_a_copied_and_an_exchanged_row_are_the_packages(mathematics, briefly_trained):
    stack = briefly_trained("learned").select([1])
    for operation in ("copy", "exchange"):
        table = stack.parameters["encoding.table"].clone()
        table[0, [40]], old = table[0, [13]], table[0, [40]]
        if operation == "exchange":
            table[0, [13]] = old
        tokens = TestSequences(1).sequences(50)
        changed = stack.with_parameters(encoding__table=table).map(torch.Tensor.double)
        _, attention = changed.forward(tokens[None])
        ours = mathematics(
            f"attend(learnedHead(x.h, 0).withRows('{operation}', 13, 40), x.tokens, 50)",
            h=learned_heads(stack, 16, 64),
            tokens=tokens[0].flip(0).int(),
        )
        close(ours["weights"].flip(0), attention[0, 0])


@pytest.mark.parametrize(("std", "lengths"), [(0.03, range(10, 17)), (1.0, range(10, 25))])
def test_a_thousand_steps_of_descent_are_the_packages(mathematics, std, lengths):
    w, offset = rotary_frequencies(32), torch.tensor([4])
    start = initialize([1], std, w)
    [(head, log_loss)] = trajectory(start, offset, [1_000], Descent(lengths=tuple(lengths)))
    ours = mathematics(
        HEAD
        + """const descent = new PositionDescent(x.w, 4, head, { lengths: x.lengths });
        for (let t = 0; t < 1000; t++) descent.step();
        return { ...coefficients(descent.head), logLoss: descent.logLoss };""",
        w=w,
        lengths=list(lengths),
        **complex_parts(start),
    )
    assert ours["logLoss"] == pytest.approx(float(log_loss), rel=1e-6)
    scale = float(head.coefficients.abs().max())
    for part, theirs in (("re", head.coefficients.real), ("im", head.coefficients.imag)):
        # Rounding differs in the last digit and a thousand steps amplify it a little.
        assert (ours[part] - theirs[0]).abs().max() < 1e-6 * scale


def test_the_early_carrier_is_the_packages(mathematics):
    w, offset = rotary_frequencies(32), torch.tensor([4])
    start = initialize([2], 0.01, w)
    rates = mathematics("growthRates(x.w, 4)", w=w)
    close(rates["re"], growth_rates(w, offset)[0].real, 1e-12)
    close(rates["im"], growth_rates(w, offset)[0].imag, 1e-12)
    ours = mathematics(
        HEAD
        + """const descent = new PositionDescent(x.w, 4, head);
        for (let t = 0; t < 20; t++) descent.early.advance(1);
        return descent.early.coefficients();""",
        w=w,
        **complex_parts(start),
    )
    theirs = early_head(start, offset, 1.0, torch.tensor([20.0]).double()).coefficients[0]
    close(ours["re"], theirs.real, 1e-12)
    close(ours["im"], theirs.imag, 1e-12)
    ours = mathematics(
        "alignment({ re: x.re, im: x.im }, x.w, 4)", w=w, re=theirs.real, im=theirs.imag
    )
    assert ours == pytest.approx(float(carrier.alignment(theirs[None], w, offset)), rel=1e-9)


LAW = """const places = { offsets: Float64Array.from({ length: x.n }, (_, D) => D),
        counts: new Float64Array(x.n).fill(1) };
    const logits = offsetLogits(x.query, x.key, rotaryFrequencies(16), places.offsets);
    const weights = logits.map(Math.exp);"""


def law_arguments(stack: HeadStack) -> dict[str, torch.Tensor]:
    p = stack.map(torch.Tensor.double).parameters
    query, key = (p["token"] @ p[name] for name in ("query", "key"))
    return {"query": query[0], "key": key[0], "readout": (p["token"] @ p["value"] @ p["output"])[0]}


def test_the_dilution_laws_are_the_packages(mathematics, briefly_trained):
    lengths = [16, 40, 200]
    stack = briefly_trained("rotary").select([1])
    logits = dilution.offset_logits(stack, max(lengths))[0]
    call = "weights, 16, places, 2, x.lengths"
    ours = mathematics(
        f"{LAW} return attentionLaw({call})", n=200, lengths=lengths, **law_arguments(stack)
    )
    theirs = dilution.attention_law(logits, 2, lengths, step=math.log(2)).mean((1, 2))
    close(ours, theirs)

    ours = mathematics(
        f"{LAW} return accuracyLaw({call}, x.readout, 1024)",
        n=200,
        lengths=lengths,
        **law_arguments(stack),
    )
    model = dilution.mass_model(logits, 2, lengths)
    readout = law_arguments(stack)["readout"][None].float()
    theirs = dilution.predicted_accuracy(model[None], readout, dilution.Draws(64_000))[0]
    # 16,384 draws here and 64,000 there: four standard errors of the difference.
    assert ((ours - theirs).abs() < 4 * 0.5 / math.sqrt(13_000)).all(), (ours, theirs)


def test_few_offsets_stand_for_many(mathematics, briefly_trained):
    stack = briefly_trained("rotary").select([1])
    length = 4096
    close_to = dilution.attention_law(
        dilution.offset_logits(stack, length)[0], 2, [length], step=math.log(2)
    ).mean()
    ours = mathematics(
        """const places = representativeOffsets(x.n, 128, 40);
        const logits = offsetLogits(x.query, x.key, rotaryFrequencies(16), places.offsets);
        const [law] = attentionLaw(logits.map(Math.exp), 16, places, 2, [x.n]);
        return [law, places.counts.reduce((a, b) => a + b)];""",
        n=length,
        **law_arguments(stack),
    )
    assert ours[1] == length
    # 328 of 4,096 offsets: a mean of oscillating weights, not an exact sum.
    assert float(ours[0]) == pytest.approx(float(close_to), rel=0.1)


def test_the_linear_trajectory_is_the_packages(mathematics):
    frequencies, target = linear.scaled_midpoints(16, 0.8), torch.tensor([3])
    design = linear.design_matrix(frequencies, torch.arange(16))
    metric, wanted = linear.loss_metric(), linear.impulse(target, 16)
    step = 0.5 * linear.largest_step(design, metric)
    steps = torch.tensor([0, 1, 30, 1_000, 1_000_000])
    theirs = linear.descent_closed_form(design, wanted, metric, step, steps)[:, 0]
    for t, theta in zip(steps.tolist(), theirs, strict=True):
        ours = mathematics(f"new LinearTrajectory(scaledMidpoints(16, 0.8), 3).at({t})")
        ours = torch.cat([ours["re"], ours["im"]])
        # The condition number is 59, so little is lost.
        assert (ours - theta).abs().max() < 1e-6
    ours = mathematics("new LinearTrajectory(scaledMidpoints(16, 0.8), 3).at(Infinity)")
    close(torch.cat([ours["re"], ours["im"]]), linear.minimum_norm(design, wanted)[0])


@pytest.mark.parametrize("std", [0.03, 1.0])
def test_the_descent_of_a_recurrent_model_is_the_packages(mathematics, std):
    start = recurrence.initialize([1], 16, std)
    (caught,) = recurrence.descend(start, torch.tensor([2]), [1e-4], max_steps=1_500)
    assert caught.reached.all()
    ours = mathematics(
        """const descent = new RecurrenceDescent(x.start, 16, 2);
        let steps = 0;
        for (; descent.loss > 1e-4 && steps < 1500; steps++) descent.step();
        const [A] = recurrenceParts(descent.parameters, 16);
        const values = response(descent.parameters, 16, 1024);
        const radius = spectralRadius(A);
        return { steps, loss: descent.loss, values, radius, ...effectiveRank(A) };""",
        start=start.parameters[0],
    )
    model = caught.model
    assert ours["steps"] == caught.steps.item()
    loss = recurrence.training_loss(model, torch.tensor([2]))
    assert ours["loss"] == pytest.approx(loss.item(), rel=1e-6)
    close(ours["values"], recurrence.response(model, 1_024)[0])
    assert ours["radius"] == pytest.approx(model.eigenvalues.abs().max().item(), rel=1e-6)
    singular = torch.linalg.svdvals(model.transition[0])
    close(ours["s"], singular)
    energy = singular.square()
    rank = (energy.sum().square() / energy.square().sum()).item()
    assert ours["rank"] == pytest.approx(rank, rel=1e-6)


def test_a_response_without_bound_is_cut_as_in_the_package(mathematics):
    model = recurrence.initialize([0], 4, 5.0)
    ours = mathematics("response(x.p, 4, 400)", p=model.parameters[0])
    theirs = recurrence.response(model, 400)[0]
    assert theirs.abs().max() == recurrence.CEILING
    close(ours, theirs)


@pytest.fixture(scope="module")
def maps():
    """What two decoders do after a few steps of training."""
    training = {
        e: replace(transformer.training(transformer.Config(), e, 0), steps=5, batch_size=2)
        for e in ("rotary", "learned")
    }
    return {e: attention_maps(MapConfig(t, LENGTHS)) for e, t in training.items()}


def test_rounded_weights_are_the_packages(mathematics, maps):
    rounded = rounded_triangle(maps["rotary"]["attention_64"])
    close(mathematics("row(x.w, 5)", w=rounded), rounded[5], 0)
