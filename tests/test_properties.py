"""Properties that hold for every input, across modules; those of one module are in its own file.

Tolerances are rounding: 1e-5 in float32 and 1e-9 in float64, relative to the size of the numbers.
"""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.carrier import (
    alignment,
    effective_rank,
    explained_share,
    mean_kernel,
    spectrum,
    support_size,
)
from lengthgen.dilution import attention_law
from lengthgen.dilution.bessel import reach_constant
from lengthgen.early_carrier import early_head, growth_rates
from lengthgen.encodings import ENCODINGS
from lengthgen.equivariance import shift_effect
from lengthgen.evaluation import accuracy, attention
from lengthgen.late_carrier import max_margin
from lengthgen.pinning import peak, pinning_index
from lengthgen.position_head import PositionHead, initialize, kernel, waves
from lengthgen.rasp import compiled_rotary, guaranteed_length, retrieve, shift_right
from lengthgen.results import Result
from lengthgen.task import FixedOffsetTask, TestSequences

some = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
seeds = st.integers(0, 2**31)
ABSOLUTE = ("learned", "learned-random-offset", "sinusoidal")
OFFSET_ONLY = [name for name in ENCODINGS if name not in (*ABSOLUTE, "fire")]
FREQUENCIES = torch.tensor([2.0, 1.1, 0.37, 0.05], dtype=torch.float64)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def random_heads(encoding, seed, n_models=2):
    """Small heads at their initial values, as a stack."""
    config = HeadConfig(encoding, vocabulary=4, d_model=8, d_head=8, max_length=64)
    return HeadStack.initialize(config, range(seed % 1000, seed % 1000 + n_models))


def coefficients(seed, n_models=3):
    draw = torch.randn(n_models, len(FREQUENCIES), 2, generator=generator(seed), dtype=torch.double)
    return torch.view_as_complex(draw)


# -- heads ---------------------------------------------------------------------------------------


@settings(some, max_examples=60)
@given(st.sampled_from(list(ENCODINGS)), seeds, st.integers(2, 24), st.integers(0, 40))
def test_tables_are_the_plain_head_at_any_length_and_first_position(encoding, seed, length, first):
    stack = random_heads(encoding, seed)
    tokens = torch.randint(4, (2, 3, length), generator=generator(seed))
    positions = torch.arange(first, first + length)
    answer, weights = stack.forward(tokens, positions)
    tables = stack.tables(positions[-1:], positions)
    found = tables.attention(tokens, tokens[..., -1])
    torch.testing.assert_close(found, weights, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(tables.answer(tokens, found), answer, rtol=1e-5, atol=1e-5)


@settings(some, max_examples=60)
@given(st.sampled_from(OFFSET_ONLY), seeds, st.integers(2, 20), st.integers(0, 1000))
def test_a_joint_shift_changes_no_relative_head(encoding, seed, length, shift):
    stack = random_heads(encoding, seed)
    tokens = torch.randint(4, (5, length), generator=generator(seed))
    effect = shift_effect(stack, tokens, shift)
    assert float(effect["logit_change"].max()) < 1e-5
    assert float(effect["attention_change"].max()) < 1e-5


@some
@given(st.sampled_from(("learned", "sinusoidal")), seeds, st.integers(3, 20), st.integers(1, 40))
def test_a_joint_shift_changes_every_absolute_head(encoding, seed, length, shift):
    tokens = torch.randint(4, (5, length), generator=generator(seed))
    assert (
        float(shift_effect(random_heads(encoding, seed), tokens, shift)["logit_change"].min()) > 0
    )


@some
@given(st.sampled_from(list(ENCODINGS)), seeds, st.integers(3, 20), st.permutations(range(4)))
def test_renaming_tokens_renames_answers_and_leaves_accuracy(encoding, seed, length, names):
    """A head whose rows are permuted sees permuted tokens as the old head saw the old ones."""
    stack = random_heads(encoding, seed)
    order = torch.tensor(names)
    renamed = stack.with_parameters(
        token=stack.parameters["token"][:, order], output=stack.parameters["output"][..., order]
    )
    back = order.argsort()  # token b of the old head is token back[b] of the new
    tokens = torch.randint(4, (5, length), generator=generator(seed))
    torch.testing.assert_close(
        attention(renamed, back[tokens]), attention(stack, tokens), rtol=1e-5, atol=1e-6
    )
    shared = tokens.expand(2, -1, -1)
    old, new = stack.forward(shared)[0], renamed.forward(back[shared])[0]
    torch.testing.assert_close(new, old[..., order], rtol=1e-5, atol=1e-6)


# -- task, results -------------------------------------------------------------------------------


@some
@given(st.integers(1, 8), st.integers(2, 256), st.integers(0, 40), seeds)
def test_a_sample_is_a_prefix_of_a_larger_one_and_all_tokens_occur(offset, vocabulary, more, seed):
    task, length = FixedOffsetTask(offset, vocabulary), offset + 1 + more
    few, many = (task.sample(n, length, generator(seed)) for n in (3, 300))
    assert few.shape == (3, length) and few.dtype == torch.uint8
    assert int(many.max()) < vocabulary
    assert torch.equal(task.target(many), many[:, length - 1 - offset].long())


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
objects = st.dictionaries(
    st.text(max_size=8),
    st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(st.text(), scalars)),
    max_size=4,
)


@settings(some, max_examples=50)
@given(st.lists(objects, max_size=4), objects, objects, st.lists(st.integers(0, 99)))
def test_any_result_comes_back_from_its_file_to_the_byte(tmp_path, rows, summary, config, seeds):
    result = Result("base", "quick", config, seeds, rows, summary, 1.5, {"code": "a"})
    path = result.save(tmp_path)
    found = Result.load(path)
    assert found == result and found.to_bytes() == path.read_bytes()
    assert len(path.read_text(encoding="utf-8").split('"rows": [\n')) == 2
    assert json.loads(path.read_bytes())["rows"] == rows


# -- carriers ------------------------------------------------------------------------------------


@some
@given(seeds, st.floats(0.01, 100), st.integers(-50, 50), st.integers(0, 20))
def test_carrier_measures_ignore_scale_and_move_with_the_offset(seed, scale, shift, offset):
    c, target = coefficients(seed), torch.full((3,), offset)
    torch.testing.assert_close(spectrum(scale * c), spectrum(c))
    assert torch.equal(support_size(c * scale), support_size(c))
    before = alignment(c, FREQUENCIES, target)
    torch.testing.assert_close(alignment(scale * c, FREQUENCIES, target), before)
    # Turning every wave by its own frequency moves the whole kernel.
    moved = c * waves(FREQUENCIES, torch.tensor([-shift]))
    torch.testing.assert_close(alignment(moved, FREQUENCIES, target + shift), before)
    offsets = torch.arange(60)
    torch.testing.assert_close(
        kernel(moved, FREQUENCIES, offsets + shift), kernel(c, FREQUENCIES, offsets)
    )


@some
@given(seeds, st.integers(2, 6), st.floats(0.01, 100))
def test_effective_rank_ignores_rotations_and_scale(seed, width, scale):
    draw = generator(seed)
    matrix = torch.randn(width, width, generator=draw, dtype=torch.double)
    turn = torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.double)).Q
    for other in (scale * matrix, turn @ matrix, matrix @ turn, matrix.mT):
        torch.testing.assert_close(effective_rank(other), effective_rank(matrix))


@some
@given(seeds, st.floats(0.01, 100))
def test_the_explained_share_ignores_scale_and_what_softmax_ignores(seed, scale):
    logits = torch.randn(2, 3, 3, 10, generator=generator(seed), dtype=torch.double)
    share = explained_share(logits)
    constants = torch.randn(2, 3, 3, 1, generator=generator(seed + 1), dtype=torch.double)
    torch.testing.assert_close(explained_share(scale * logits + constants), share)
    assert bool(((share >= 0) & (share <= 1)).all())
    alone = mean_kernel(logits)[:, None, None].expand(2, 3, 3, 10)
    torch.testing.assert_close(explained_share(alone), torch.ones(2, dtype=torch.double))


@some
@given(seeds, st.floats(0.1, 3.0), st.integers(1, 8), st.floats(0, 60))
def test_the_early_carrier_commutes_with_turning_query_and_key(seed, angle, offset, steps):
    """The loss sees the kernel alone, and a common phase of query and key leaves it."""
    start = initialize([seed % 1000], 1e-3, FREQUENCIES)
    turn = torch.polar(torch.ones(1, dtype=torch.double), torch.tensor([angle]).double())
    turned = PositionHead(turn * start.query, turn * start.key, FREQUENCIES)
    target, many = torch.tensor([offset]), torch.tensor([steps]).double()
    found = early_head(turned, target, 0.5, many).coefficients
    torch.testing.assert_close(found, early_head(start, target, 0.5, many).coefficients)


@some
@given(seeds, st.floats(0.1, 10.0), st.integers(1, 8), st.floats(0, 60))
def test_the_early_carrier_is_linear_in_its_start(seed, scale, offset, steps):
    start = initialize([seed % 1000], 1e-3, FREQUENCIES)
    scaled = PositionHead(scale * start.query, scale * start.key, FREQUENCIES)
    target, many = torch.tensor([offset]), torch.tensor([steps]).double()
    found, reference = (early_head(head, target, 0.5, many) for head in (scaled, start))
    torch.testing.assert_close(found.query, scale * reference.query)
    torch.testing.assert_close(found.key, scale * reference.key)


@some
@given(st.integers(1, 8), st.lists(st.integers(10, 30), min_size=1, max_size=4))
def test_growth_rates_are_a_mean_over_training_lengths_and_at_most_two(offset, lengths):
    target = torch.tensor([offset])
    rates = growth_rates(FREQUENCIES, target, lengths)
    parts = torch.stack([growth_rates(FREQUENCIES, target, [length]) for length in lengths])
    torch.testing.assert_close(rates, parts.mean(0))
    assert float(rates.abs().max()) <= 2


@settings(some, max_examples=8)
@given(st.integers(1, 6), st.integers(8, 16), st.permutations(range(4)))
def test_the_late_carrier_does_not_know_the_order_of_its_frequencies(offset, length, order):
    """... needs a larger norm for more constraints, and holds every margin at one or more."""
    best = max_margin(FREQUENCIES, offset, length)
    other = max_margin(FREQUENCIES[list(order)], offset, length)
    assert other.norm == pytest.approx(best.norm, rel=1e-5)  # the solver's tolerance
    assert max_margin(FREQUENCIES, offset, length + 1).norm >= best.norm * (1 - 1e-6)
    values = best.kernel(torch.arange(length))
    rivals = torch.cat([values[:offset], values[offset + 1 :]])
    assert float(values[offset] - rivals.max()) >= 1 - 1e-5


# -- pinning -------------------------------------------------------------------------------------


@some
@given(seeds, st.integers(1, 60), st.integers(1, 6))
def test_the_pinning_index_is_a_share_that_grows_with_the_training_range(seed, longest, n_lengths):
    peaks = torch.randint(64, (4, n_lengths), generator=generator(seed))
    index = pinning_index(peaks, longest)
    assert bool(((index >= 0) & (index <= 1)).all())
    assert bool((pinning_index(peaks, longest + 1) >= index).all())
    assert bool((pinning_index(peaks, 64) == 1).all()) and not pinning_index(peaks, 0).any()
    order = torch.randperm(n_lengths, generator=generator(seed))
    torch.testing.assert_close(pinning_index(peaks[:, order], longest), index)


@some
@given(seeds, st.integers(2, 30))
def test_a_peak_is_a_position_and_follows_a_reordering(seed, length):
    weights = torch.rand(3, 5, length, generator=generator(seed)).softmax(-1)
    found = peak(weights)
    assert bool(((found >= 0) & (found < length)).all())
    order = torch.randperm(length, generator=generator(seed))
    assert torch.equal(order[peak(weights[..., order])], found)


# -- dilution ------------------------------------------------------------------------------------


@some
@given(seeds, st.integers(1, 4), st.floats(0, 5))
def test_the_attention_law_is_a_probability_that_more_tokens_only_dilute(seed, offset, scale):
    logits = scale * torch.randn(3, 3, 24, generator=generator(seed), dtype=torch.double)
    law = attention_law(logits, offset, [6, 12, 24])
    assert bool((law > 0).all()) and bool((law <= 1 + 1e-6).all())  # 1e-6: the quadrature
    assert bool((law[1:] <= law[:-1] * (1 + 1e-6)).all())


@some
@given(seeds, st.integers(1, 4), st.floats(-20, 20), st.floats(0.1, 5.0))
def test_the_attention_law_ignores_constants_and_grows_with_the_target_logit(
    seed, offset, constant, more
):
    logits = torch.randn(3, 3, 12, generator=generator(seed), dtype=torch.double)
    law = attention_law(logits, offset, [12])
    torch.testing.assert_close(
        attention_law(logits + constant, offset, [12]), law, rtol=1e-6, atol=1e-9
    )
    louder = logits.clone()
    louder[:, :, offset] += more
    assert bool((attention_law(louder, offset, [12]) > law).all())


@some
@given(st.integers(2, 5), st.integers(1, 4), st.integers(6, 40))
def test_without_preferences_attention_is_shared_evenly(vocabulary, offset, length):
    logits = torch.zeros(vocabulary, vocabulary, length, dtype=torch.double)
    law = attention_law(logits, offset, [length])
    torch.testing.assert_close(law, torch.full_like(law, 1 / length), rtol=1e-6, atol=0)


@some
@given(seeds, st.floats(-5, 5))
def test_the_bessel_limit_knows_amplitudes_but_no_phases(seed, target):
    c = coefficients(seed)
    phases = torch.rand(c.shape, generator=generator(seed), dtype=torch.double)
    turned = c * torch.polar(torch.ones_like(phases), 2 * math.pi * phases)
    logit = torch.tensor(target, dtype=torch.double)
    limit = reach_constant(c, logit)
    torch.testing.assert_close(reach_constant(turned, logit), limit)
    assert float(limit) <= math.exp(target)  # the mean of exp of waves is at least one
    silent = reach_constant(torch.zeros_like(c), logit)
    torch.testing.assert_close(silent, logit.exp())


# -- the program ---------------------------------------------------------------------------------


@some
@given(st.integers(1, 8), st.integers(0, 60), seeds)
def test_the_program_is_the_task_at_every_length(offset, more, seed):
    task = FixedOffsetTask(offset)
    tokens = task.sample(20, offset + 1 + more, generator(seed))
    assert torch.equal(retrieve(tokens, offset), task.target(tokens))
    shifted = shift_right(tokens, offset)
    assert torch.equal(shifted[:, offset:], tokens[:, :-offset].long())
    assert not shifted[:, :offset].any()


@settings(some, max_examples=10)
@given(st.integers(1, 6), st.floats(1.0, 6.0), seeds)
def test_a_compiled_head_is_right_up_to_its_guaranteed_length(offset, amplitude, seed):
    stack = compiled_rotary(offset, amplitude)
    frequencies = stack.encodings[0].frequencies
    coefficients = amplitude * waves(frequencies, torch.tensor([-offset]))[0]
    length = guaranteed_length(coefficients, frequencies, offset, 128)
    if length > offset:
        test = TestSequences(50, seed=seed % 1000)
        assert float(accuracy(stack, [offset], [length], test)) == 1
