import math
import subprocess
import sys
import textwrap
from dataclasses import fields, replace

import pytest
import torch

from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.encodings import ENCODINGS
from lengthgen.evaluation import accuracy
from lengthgen.task import TestSequences
from lengthgen.training import (
    OPTIMIZERS,
    TrainingConfig,
    TrainingError,
    TrainingWarning,
    _Batches,
    default_steps,
    fit,
    load_heads,
    train,
    trained_heads,
)

TABLE = "encoding.table"
every_encoding = pytest.mark.parametrize("encoding", ENCODINGS)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


# -- seed 7 alone, and in a stack of eighty ------------------------------------------------------


@pytest.fixture(scope="module", params=list(ENCODINGS))
def alone_and_stacked(request):
    """Seed 7 at offset 3 alone and among seeds 0..9 at offsets 1..8, in the book's sizes."""
    stacked = TrainingConfig(
        HeadConfig(request.param), tuple(range(10)), tuple(range(1, 9)), steps=8
    )
    alone = replace(stacked, seeds=(7,), offsets=(3,))
    assert len(stacked.models) == 80
    return alone, stacked, stacked.models.index((7, 3))


def test_seed_7_starts_from_the_same_bits(alone_and_stacked):
    alone, stacked, index = alone_and_stacked
    together = stacked.stack().parameters
    for name, value in alone.stack().parameters.items():
        assert torch.equal(together[name][index], value[0])


def test_seed_7_sees_the_same_data(alone_and_stacked):
    alone, stacked, index = alone_and_stacked
    one, many = (_Batches(config, config.stack()) for config in (alone, stacked))
    for part in ("tokens", "last", "starts"):
        assert torch.equal(getattr(many, part)[:, index], getattr(one, part)[:, 0])


def test_seed_7_trains_to_the_same_numbers(alone_and_stacked):
    alone, stacked, index = alone_and_stacked
    (one, losses), (many, all_losses) = train(alone), train(stacked)
    # Bit for bit where the matrix library sums a batch of products in one order; elsewhere
    # float32 rounding (6e-8) grown over 8 steps of 3e-3, each divided by the gradient's size.
    torch.testing.assert_close(all_losses[index], losses[0], rtol=1e-5, atol=1e-6)
    # The gradients of FIRE's scale and threshold are nearly cancelling sums over all pairs.
    atol = 1e-3 if stacked.head.encoding == "fire" else 1e-4
    for name, value in one.parameters.items():
        torch.testing.assert_close(many.parameters[name][index], value[0], rtol=0, atol=atol)
    test = TestSequences(300)
    row = accuracy(one, [3], [16, 48], test)
    rows = accuracy(many.select([index]), [3], [16, 48], test)
    assert torch.equal(row, rows)


# -- data ----------------------------------------------------------------------------------------


def test_data_depend_on_seed_and_offset_and_not_on_the_encoding(small_training):
    def tokens(encoding, **values):
        config = small_training(encoding, **values)
        return _Batches(config, config.stack())

    first, second = tokens("rotary"), tokens("learned-random-offset")
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.last, second.last)
    flat = first.tokens.transpose(0, 1).flatten(1)
    assert len(flat.unique(dim=0)) == 4  # each seed and offset its own


def test_training_lengths_are_uniform_on_the_range_and_drawn_per_model_and_step(small_training):
    config = small_training(seeds=(0, 1, 2), lengths=(5, 8), steps=1000)
    lengths = _Batches(config, config.stack()).last + 1
    counts = lengths.flatten().bincount(minlength=9)
    assert counts[:5].sum() == 0 and len(counts) == 9
    # 6,000 draws over four lengths: standard deviation 34
    assert (counts[5:] - 1500).abs().max() < 140
    assert not torch.equal(lengths[:, 0], lengths[:, 1])


def test_random_starts_cover_the_table_uniformly(small_head, small_training):
    """For every sequence length all starts 0 .. R - L, so that the last rows are trained too."""
    head = small_head("learned-random-offset", rows=20)
    config = small_training(head=head, steps=4000, lengths=(5, 8), batch_size=2)
    batches = _Batches(config, config.stack())
    starts = batches.starts
    lengths = (batches.last + 1)[..., None].expand_as(starts)
    for length in range(5, 9):
        counts = starts[lengths == length].bincount(minlength=20 - length + 1)
        assert len(counts) == 20 - length + 1
        mean = counts.sum() / len(counts)
        # at least 4,000 draws over 13 to 16 starts: Poisson, five standard deviations
        assert (counts - mean).abs().max() < 5 * mean.sqrt()
    assert int((starts + lengths).max()) == 20


@pytest.mark.parametrize("encoding", ["none", "learned", "rotary"])
def test_other_encodings_start_at_position_zero(small_training, encoding):
    config = small_training(encoding)
    assert not _Batches(config, config.stack()).starts.any()


# -- training ------------------------------------------------------------------------------------


@every_encoding
def test_two_runs_are_identical(small_training, encoding):
    (one, losses), (other, again) = (train(small_training(encoding)) for _ in range(2))
    assert same(one.parameters, other.parameters)
    assert torch.equal(losses, again)


def test_training_does_not_use_or_change_global_random_state(small_training):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one, _ = train(small_training())
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert same(one.parameters, train(small_training())[0].parameters)


def test_a_small_rotary_head_learns_and_extrapolates(small_head):
    head = small_head("rotary", {"d_model": 16, "d_head": 16})
    config = TrainingConfig(
        head, (0, 1), (1,), (5, 8), steps=200, batch_size=32, learning_rate=1e-2
    )
    stack, losses = train(config)
    assert losses.shape == (2, 200)
    assert losses[:, 0].mean() > 1.4 > 0.3 > losses[:, -10:].mean()  # log 5 = 1.61
    assert accuracy(stack, [1, 1], [8, 16], TestSequences(300, 5)).min() > 0.9
    assert not any(p.requires_grad for p in stack.parameters.values())


def untrained_change(config):
    initial, (trained, _) = config.stack(), train(config)
    longest = config.lengths[1]
    moved = (trained.parameters[TABLE] - initial.parameters[TABLE]).abs()
    assert bool((moved[:, :longest].amax(2) > 0).all())  # every trained row of every model moved
    return moved[:, longest:].amax((1, 2))


@pytest.mark.parametrize(("optimizer", "decay"), [("adam", 0.0), ("adamw", 0.0), ("sgd", 0.0)])
def test_rows_beyond_the_training_range_stay_bit_identical(small_training, optimizer, decay):
    config = small_training("learned", optimizer=optimizer, weight_decay=decay, steps=12)
    assert (untrained_change(config) == 0).all()


@pytest.mark.parametrize(("optimizer", "decay"), [("adam", 1e-4), ("adamw", 0.01), ("sgd", 0.01)])
def test_weight_decay_moves_them(small_training, optimizer, decay):
    config = small_training("learned", optimizer=optimizer, weight_decay=decay, steps=12)
    assert (untrained_change(config) > 0).all()


def test_random_offsets_train_every_row(small_head, small_training):
    head = small_head("learned-random-offset", rows=12)
    config = small_training(head=head, steps=30)
    initial, (trained, _) = config.stack(), train(config)
    moved = (trained.parameters[TABLE] - initial.parameters[TABLE]).abs().amax(2)
    assert bool((moved > 0).all())


def test_report_is_called_after_every_step_with_the_losses_so_far(small_training):
    seen = []
    _, losses = train(
        small_training(),
        lambda step, steps, stack, so_far: seen.append((step, steps, so_far.clone())),
    )
    assert [(step, steps) for step, steps, _ in seen] == [(1, 3), (2, 3), (3, 3)]
    for step, _, so_far in seen:
        assert torch.equal(so_far, losses[:, :step])


def test_every_field_of_the_training_changes_it_and_its_key(small_training, small_head):
    default = small_training("learned")
    changes = {
        "head": small_head("learned", std=0.5),
        "seeds": (1, 2),
        "offsets": (1, 2),
        "lengths": (6, 8),
        "steps": 4,
        "batch_size": 9,
        "learning_rate": 1e-2,
        "optimizer": "sgd",
        "weight_decay": 0.1,
    }
    assert set(changes) == {field.name for field in fields(TrainingConfig)}
    trained = train(default)[0].parameters
    for name, value in changes.items():
        changed = replace(default, **{name: value})
        assert trained_heads.key(changed) != trained_heads.key(default), name
        assert not same(train(changed)[0].parameters, trained), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": (1, 5)}, "length=5 .*offset=5.*at least 6"),
        ({"offsets": (0,)}, "offset=0 .*at least 1"),
        ({"offsets": (-2,)}, "offset=-2 .*at least 1"),
        ({"offsets": ()}, r"offsets=\(\) .*at least one"),
        ({"seeds": ()}, r"seeds=\(\) .*at least one of 0, 1, 2"),
        ({"seeds": (0, -1)}, r"seeds=\(0, -1\) .*0, 1, 2"),
        ({"lengths": (9, 8)}, r"lengths=\(9, 8\) .*shortest, longest"),
        ({"steps": 0}, "steps=0.*at least 1"),
        ({"batch_size": 0}, "batch_size=0.*at least 1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 .*exceed 0"),
        ({"learning_rate": math.nan}, "learning_rate=nan .*exceed 0"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1 .*at least 0"),
        ({"optimizer": "adan"}, "'adan'; choose from adam, adamw, sgd"),
    ],
)
def test_a_bad_configuration_is_refused_with_the_value_and_what_is_allowed(
    small_training, changes, message
):
    with pytest.raises(ValueError, match=message):
        small_training(**changes)


def test_a_training_length_past_the_table_is_refused_with_both_numbers(small_head, small_training):
    for name, sizes, options, message in (
        ("learned", {"max_length": 6}, {}, r"position 7 .*6 rows"),
        ("learned-random-offset", {}, {"rows": 6}, r"length=7 .*6 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            train(small_training(head=small_head(name, sizes, **options)))


def test_losses_that_are_not_finite_name_seed_offset_and_step(small_training):
    with (
        pytest.warns(TrainingWarning),
        pytest.raises(TrainingError, match=r"all 4 .*seed 0 at offset 1 .*step 1: .*now 1e\+30"),
    ):
        train(small_training(learning_rate=1e30))


@pytest.mark.parametrize("last", [4, 8], ids=["recovers", "stays broken"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_a_model_that_breaks_stops_and_leaves_the_others_to_the_bit(optimizer, decay, last):
    """Three parabolas; from step 4 to the last one the loss of the second is not a number."""

    def run(breaks):
        x = torch.tensor([[1.0], [2.0], [3.0]])
        seen = []

        def losses(step):
            seen.append(x.detach().clone())
            scale = torch.ones(3)
            scale[1] = torch.nan if breaks and 4 <= step <= last else 1.0
            return (x[:, 0] - 5) ** 2 * scale

        settings = {"optimizer": optimizer, "learning_rate": 0.1, "weight_decay": decay}
        history = fit([x], losses, ["a", "b", "c"], 9, **settings)
        return x, history, seen

    whole, expected, _ = run(breaks=False)
    with pytest.warns(TrainingWarning, match="loss of b is not finite at step 4") as caught:
        broken, history, seen = run(breaks=True)
    assert len(caught) == 1
    for model in (0, 2):
        assert torch.equal(broken[model], whole[model])
        assert torch.equal(history[model], expected[model])
    assert torch.equal(history[1, :4], expected[1, :4]) and not history[1, 4:].isfinite().any()
    # It stays where its loss broke, whatever its loss would be later and however weights decay.
    assert torch.equal(broken[1], seen[4][1])


CLASSES = {
    "adam": lambda p, decay: torch.optim.Adam(p, 0.1, weight_decay=decay, fused=True),
    "adamw": lambda p, decay: torch.optim.AdamW(p, 0.1, weight_decay=decay, fused=True),
    "sgd": lambda p, decay: torch.optim.SGD(p, 0.1, weight_decay=decay),
}


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_steps_are_those_of_pytorchs_classes_to_the_bit(optimizer, decay):
    """Two precisions, a parameter that never has a gradient and one that has it now and then."""

    def start():
        return [torch.linspace(1, 2, 6, dtype=torch.float64).view(3, 2), *torch.ones(3, 3, 4)]

    def losses(parameters, step):
        wide, narrow, sometimes, _ = parameters
        loss = (wide - 5).pow(2).sum(1) + (narrow[:, :3] + 1).pow(4).sum(1)
        return loss + (sometimes.sum(1) if step % 3 == 1 else 0)

    expected = [parameter.requires_grad_() for parameter in start()]
    method = CLASSES[optimizer](expected, decay)
    for step in range(7):
        method.zero_grad()
        losses(expected, step).sum().backward()
        method.step()

    found = start()
    settings = {"optimizer": optimizer, "learning_rate": 0.1, "weight_decay": decay}
    fit(found, lambda step: losses(found, step), ["a", "b", "c"], 7, **settings)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(found[3], start()[3])


def test_training_imports_no_compiler():
    """PyTorch's optimizer classes do, for seconds in every process that trains."""
    code = """
        import sys
        from lengthgen.attention import HeadConfig
        from lengthgen.training import TrainingConfig, train

        for encoding in ("rotary", "learned"):
            train(TrainingConfig(HeadConfig(encoding), (0,), (1,), steps=2))
        sys.exit("torch._dynamo" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)]).returncode == 0


def test_default_steps_are_those_of_the_book():
    steps = {name: default_steps(name) for name in ENCODINGS}
    assert steps.pop("learned-random-offset") == 4000
    assert set(steps.values()) == {1000}


# -- kept in the cache ---------------------------------------------------------------------------


@every_encoding
def test_heads_from_the_cache_are_the_trained_ones_to_the_bit(small_training, encoding):
    config = small_training(encoding)
    fresh, losses = train(config)
    stored = trained_heads(config)
    assert torch.equal(stored["losses"], losses)
    for _ in range(2):  # computed, then read
        assert same(load_heads(config).parameters, fresh.parameters)
    assert trained_heads.done(config)


class Buffered(torch.nn.Module):
    """A reader's class with constants in buffers, as ALiBi's slopes often are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("slope", torch.tensor(0.5))
        self.register_buffer("reach", torch.tensor(3))

    def bias(self, query_positions, key_positions):
        distance = (query_positions[:, None] - key_positions).abs().clamp(max=int(self.reach))
        return -self.slope * distance


class OwnConstant(torch.nn.Module):
    """A reader's module whose constant is drawn from the seed and kept as a plain attribute."""

    def __init__(self, generator):
        super().__init__()
        self.slope = torch.rand(1, generator=generator)

    def bias(self, query_positions, key_positions):
        return -self.slope * (query_positions[:, None] - key_positions).abs()


def test_buffers_of_a_readers_class_are_not_trained(small_training, small_head):
    stack, losses = train(small_training(head=small_head(Buffered)))
    assert not any(name.startswith("encoding.") for name in stack.parameters)
    assert all(encoding.slope == 0.5 for encoding in stack.encodings)
    assert losses.isfinite().all()


def test_constants_that_a_readers_module_draws_do_not_depend_on_the_stack(small_head):
    tokens = TestSequences(5, 5).sequences(9)[None]
    together = HeadStack.initialize(small_head(OwnConstant), (0, 1))
    alone = HeadStack.initialize(small_head(OwnConstant), (1,))
    weights = together.forward(tokens.expand(2, -1, -1))[1][1]
    # float32 softmax of numbers of order 1
    torch.testing.assert_close(weights, alone.forward(tokens)[1][0], rtol=0, atol=1e-6)
