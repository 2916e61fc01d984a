import dataclasses

import pytest
import torch
from torch import nn

from lengthgen.encodings import ENCODINGS
from lengthgen.training import TrainingError
from lengthgen.transformer import TransformerConfig, TransformerStack
from lengthgen.transformer_training import (
    TransformerTraining,
    load_transformers,
    train_transformers,
)

SMALL = {"vocabulary": 5, "d_model": 8, "n_heads": 2, "max_length": 64}


def small(encoding="rotary", **values):
    return TransformerConfig(encoding, **SMALL | values)


def small_training(encoding="rotary", model=None, **values):
    defaults = {"seeds": (0, 1), "length": 8, "steps": 3, "batch_size": 6}
    return TransformerTraining(model or small(encoding), **defaults | values)


class BiasPerHead:
    """A plain class: a penalty on distance, steeper in each further head."""

    def __init__(self, n_heads):
        self.slopes = torch.arange(1, n_heads + 1)[:, None, None] / 4

    def bias(self, query_positions, key_positions):
        return -self.slopes * (query_positions[:, None] - key_positions).abs()


class BiasForAll:
    """A plain class: one penalty for every head."""

    def bias(self, query_positions, key_positions):
        return -0.3 * (query_positions[:, None] - key_positions).abs().float()


class LearnedBias(nn.Module):
    """A trained bias per head and offset, a trained scale of queries."""

    def __init__(self, n_heads, max_length, generator):
        super().__init__()
        self.by_offset = nn.Parameter(torch.randn(n_heads, 2 * max_length, generator=generator))
        self.scale = nn.Parameter(torch.rand(max_length, generator=generator))
        self.middle = max_length

    def bias(self, query_positions, key_positions):
        return self.by_offset[:, query_positions[:, None] - key_positions + self.middle]

    def transform_query(self, x, positions):
        return x * self.scale[positions][:, None]


class OwnDraw:
    """A plain class whose values differ from seed to seed."""

    def __init__(self, d_model, generator):
        self.phase = torch.rand(d_model, generator=generator)

    def embed(self, positions):
        return torch.cos(positions[:, None] * 0.7 + 6 * self.phase)


EVERY = (*ENCODINGS, BiasPerHead, BiasForAll, LearnedBias, OwnDraw)
every_encoding = pytest.mark.parametrize("encoding", EVERY)


def double(stack):
    return stack.map(lambda p: p.detach().double().requires_grad_(True))


def random_tokens(*shape, seed=3):
    return torch.randint(5, shape, generator=torch.Generator().manual_seed(seed))


def gradients(stack, output):
    weights = torch.randn(
        output.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )
    values = list(stack.parameters.values())
    return torch.autograd.grad((output * weights).sum(), values)


def assert_same(actual, expected):
    """Equal to 1e-10 of the largest value: float64 sums of some hundred terms in another order."""
    scale = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10 * scale)


@every_encoding
@pytest.mark.parametrize("length", [1, 13])
def test_the_fast_path_is_the_readable_one_in_values_and_gradients(encoding, length):
    fast, plain = (double(TransformerStack.initialize(small(encoding), (0, 7))) for _ in "ab")
    tokens, positions = random_tokens(2, 3, length), 5 + torch.arange(length)
    expected, actual = plain.trace(tokens, positions).answers, fast.forward(tokens, positions)
    assert expected.dtype == actual.dtype == torch.float64
    assert_same(actual, expected)
    pairs = zip(gradients(fast, actual), gradients(plain, expected), strict=True)
    for found, wanted in pairs:
        assert_same(found, wanted)


@every_encoding
def test_an_answer_does_not_depend_on_later_tokens(encoding):
    stack = double(TransformerStack.initialize(small(encoding), (0, 7)))
    tokens = random_tokens(2, 3, 12)
    whole, part = stack.forward(tokens), stack.forward(tokens[..., :5])
    assert_same(whole[:, :, :5], part)


@every_encoding
def test_attention_sums_to_one_over_the_query_and_the_keys_before_it(encoding):
    found = double(TransformerStack.initialize(small(encoding), (0, 7))).trace(
        random_tokens(2, 3, 9)
    )
    assert found.attention.shape == (2, 2, 3, 2, 9, 9)
    assert bool((found.attention.triu(1) == 0).all())
    assert bool((found.attention[..., torch.ones(9, 9, dtype=torch.bool).tril()] > 0).all())
    # nine numbers below 1: rounding of at most 9 * 2^-53
    ones = torch.ones(found.attention.shape[:-1], dtype=torch.float64)
    torch.testing.assert_close(found.attention.sum(-1), ones, rtol=0, atol=1e-14)


@every_encoding
def test_a_model_is_the_same_alone_and_in_a_stack(encoding):
    stack, alone = (TransformerStack.initialize(small(encoding), s) for s in ((3, 1, 7, 7), (7,)))
    for name, value in alone.parameters.items():
        assert torch.equal(stack.parameters[name][2], value[0])
        assert torch.equal(stack.parameters[name][3], value[0])
    tokens = random_tokens(1, 3, 9)
    together, single = stack.forward(tokens.expand(4, -1, -1)), alone.forward(tokens)
    # float32, two layers of sums of 8 to 32 numbers of size 1 in another order
    torch.testing.assert_close(together[2:3], single, rtol=0, atol=1e-5)


def test_weights_depend_on_the_seed_and_not_on_the_encoding():
    stacks = [TransformerStack.initialize(small(e), (4, 8)) for e in EVERY]
    for name in small().draw(torch.Generator()):
        first = stacks[0].parameters[name]
        assert all(torch.equal(stack.parameters[name], first) for stack in stacks)
        assert not torch.equal(first[0], first[1])


def test_a_block_is_what_the_formula_says():
    """One layer, one head, by hand and without any of the stack's code."""
    config = small(n_layers=1, n_heads=1)
    stack = double(TransformerStack.initialize(config, (0,)))
    weights = {name: value[0] for name, value in stack.parameters.items()}
    tokens = random_tokens(1, 1, 6)

    def norm(x):
        centered = x - x.mean(-1, keepdim=True)
        return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    rotary = config.new_encoding(0)
    x, positions = weights["token"][tokens[0, 0]], torch.arange(6)
    q, k, v = (norm(x) @ weights[name][0] for name in ("query", "key", "value"))
    q, k = rotary.transform_query(q, positions), rotary.transform_key(k, positions)
    rows = []
    for i in range(6):
        alpha = torch.softmax(q[i] @ k[: i + 1].T / 8**0.5, dim=0)
        rows.append(alpha @ v[: i + 1])
    x = x + torch.stack(rows) @ weights["output"][0]
    h = norm(x) @ weights["expand"][0]
    x = x + (h * (1 + torch.erf(h / 2**0.5)) / 2) @ weights["contract"][0]
    assert_same(stack.forward(tokens)[0, 0], norm(x) @ weights["readout"])


def test_a_joint_shift_leaves_rotary_answers_alone():
    stack = double(TransformerStack.initialize(small(), (0, 7)))
    tokens = random_tokens(2, 3, 9)
    far = stack.forward(tokens, 2**20 + torch.arange(9))
    # angles near 2^20 carry 2^20 * 2^-53 = 1.2e-10; two layers of logits of order 1
    torch.testing.assert_close(far, stack.forward(tokens), rtol=0, atol=1e-8)


def test_without_positions_earlier_tokens_are_a_bag_only_in_the_first_layer():
    """The causal mask is a positional signal: a deeper layer sees the order of the past."""
    order = torch.tensor([2, 0, 3, 1, 4, 5])
    for n_layers, same in ((1, True), (2, False)):
        stack = double(TransformerStack.initialize(small("none", n_layers=n_layers), (0,)))
        tokens = random_tokens(1, 4, 6)
        last, moved = (stack.forward(t)[:, :, -1] for t in (tokens, tokens[..., order]))
        assert torch.allclose(last, moved, rtol=0, atol=1e-10) == same


def test_a_head_cut_out_is_a_head_with_output_weights_zero():
    stack = double(TransformerStack.initialize(small(), (0, 7)))
    tokens = random_tokens(2, 3, 9)
    keep = torch.ones(2, 2, 2, dtype=torch.float64)
    keep[1, 0, 1] = 0
    output = stack.parameters["output"].detach().clone()
    output[1, 0, 4:] = 0  # the rows of head 1, width 4
    expected = stack.with_parameters(output=output).forward(tokens)
    assert_same(stack.forward(tokens, keep=keep), expected)


def test_first_positions_move_each_sequence_on_its_own():
    stack = double(TransformerStack.initialize(small("learned"), (0, 7)))
    tokens, starts = random_tokens(2, 3, 9), torch.tensor([[0, 4, 11], [3, 0, 20]])
    answers = stack.forward(tokens, starts=starts)
    for model in range(2):
        for row in range(3):
            positions = starts[model, row] + torch.arange(9)
            alone = stack.forward(tokens[:, row : row + 1], positions)
            assert_same(answers[model, row], alone[model, 0])


@pytest.mark.parametrize("encoding", ["rotary", "none", LearnedBias])
def test_first_positions_are_refused_where_position_is_not_added(encoding):
    stack = TransformerStack.initialize(small(encoding), (0, 7))
    with pytest.raises(ValueError, match="defines the hook embed and no other"):
        stack.forward(random_tokens(2, 3, 9), starts=torch.zeros(2, 3, dtype=torch.long))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"encoding": "rotory"}, "unknown encoding 'rotory'; choose from none, learned"),
        ({"n_layers": 0}, "n_layers=0 .*at least 1"),
        ({"vocabulary": 1}, "vocabulary=1 .*at least 2"),
        ({"n_heads": 3}, "n_heads=3 do not divide d_model=64"),
    ],
)
def test_wrong_sizes_are_refused_with_the_value_and_what_is_allowed(values, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**values)


def test_a_length_past_a_learned_table_is_refused():
    stack = TransformerStack.initialize(small("learned"), (0, 7))
    with pytest.raises(ValueError, match=r"position 64 .*64 rows"):
        stack.forward(random_tokens(2, 1, 65))


# -- training --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "encoding", ["rotary", "learned", "learned-random-offset", LearnedBias, OwnDraw]
)
def test_a_model_trains_the_same_alone_and_in_a_stack(encoding):
    together, losses = train_transformers(small_training(encoding, seeds=(5, 2, 9)))
    alone, own = train_transformers(small_training(encoding, seeds=(2,)))
    # float32; three Adam steps of 1e-3, whose signs of tiny gradients rounding may turn
    torch.testing.assert_close(losses[1:2], own, rtol=0, atol=1e-4)
    for name, value in alone.parameters.items():
        torch.testing.assert_close(together.parameters[name][1:2], value, rtol=0, atol=1e-3)


def test_the_first_loss_is_the_cross_entropy_of_every_position_that_has_a_target():
    training = small_training(seeds=(2,), steps=1)
    seen = []
    train_transformers(training, lambda step, steps, losses: seen.append(losses.clone()))
    stack = training.stack()
    from lengthgen.task import Stream, generator_for

    generator = generator_for(Stream.TRAINING_DATA, 2, 3)
    tokens = torch.randint(5, (6, 8), generator=generator)
    log_p = stack.forward(tokens[None])[0].log_softmax(-1)
    total = [-log_p[s, i, tokens[s, i - 3]] for s in range(6) for i in range(3, 8)]
    # float32 mean of 30 numbers
    torch.testing.assert_close(seen[0][0, 0], torch.stack(total).mean(), rtol=1e-5, atol=0)


def test_training_again_gives_the_same_bits_and_the_cache_keeps_them():
    training = small_training("learned-random-offset")
    (first, losses), (second, again) = (train_transformers(training) for _ in range(2))
    loaded = load_transformers(training)
    assert torch.equal(losses, again)
    for name, value in first.parameters.items():
        assert torch.equal(value, second.parameters[name])
        assert torch.equal(value, loaded.parameters[name])


def test_the_loss_falls():
    _, losses = train_transformers(small_training(steps=60, learning_rate=1e-2))
    assert bool((losses[:, -5:].mean(1) < losses[:, :5].mean(1) - 0.05).all())


def test_untrained_rows_stay_as_they_were_and_random_offsets_reach_every_row():
    training = small_training("learned")
    table = train_transformers(training)[0].parameters["encoding.table"]
    initial = training.stack().parameters["encoding.table"]
    assert torch.equal(table[:, 8:], initial[:, 8:])
    assert bool((table[:, :8] != initial[:, :8]).any(-1).all())
    model = small("learned-random-offset", encoding_options={"rows": 12})
    training = small_training(model=model, steps=20)
    table = train_transformers(training)[0].parameters["encoding.table"]
    initial = training.stack().parameters["encoding.table"]
    assert bool((table != initial).any(-1).all())


def test_a_loss_that_is_not_finite_names_seed_and_step():
    training = small_training(
        seeds=(4,), learning_rate=1e30, steps=6, model=small("none", n_layers=1)
    )
    with (
        pytest.raises(TrainingError, match=r"seed 4 is not finite at step [1-5]"),
        pytest.warns(UserWarning),
    ):
        train_transformers(training)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"offset": 8}, "length=8 is too short for offset=8"),
        ({"seeds": ()}, "at least one"),
        ({"seeds": (-1,)}, r"seeds=\(-1,\)"),
        ({"steps": 0}, "steps=0"),
        ({"optimizer": "adamm"}, "unknown optimizer 'adamm'; choose from adam, adamw, sgd"),
    ],
)
def test_wrong_training_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        small_training(**values)


def test_every_field_of_training_changes_the_numbers():
    base = small_training(seeds=(1,), optimizer="adamw", weight_decay=0.1)
    changes = {
        "model": small(n_layers=1),
        "seeds": (2,),
        "offset": 2,
        "length": 9,
        "steps": 4,
        "batch_size": 7,
        "learning_rate": 2e-3,
        "optimizer": "sgd",
        "weight_decay": 0.0,
    }
    assert set(changes) == {f.name for f in dataclasses.fields(base)}
    _, losses = train_transformers(base)
    for name, value in changes.items():
        _, changed = train_transformers(dataclasses.replace(base, **{name: value}))
        assert changed.shape != losses.shape or not torch.equal(changed, losses), name
