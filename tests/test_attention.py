import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.encodings import ENCODINGS, HOOKS, has_hook
from lengthgen.head_gradient import loss_and_gradient
from lengthgen.training import TrainingConfig, _Batches

few = settings(max_examples=25, deadline=None)


# -- encodings that a reader might write: no base class, one hook or several --------------------


class OnlyBias:
    """A plain class, no `nn.Module`: distance is a penalty."""

    def bias(self, query_positions, key_positions):
        return -0.3 * (query_positions[:, None] - key_positions).abs().float()


class BiasWithHeads:
    """A bias for each of the heads, as ALiBi has."""

    def __init__(self, n_heads):
        self.slopes = torch.arange(1, n_heads + 1)[:, None, None] / 4

    def bias(self, query_positions, key_positions):
        return -self.slopes * (query_positions[:, None] - key_positions).abs()


class OnlyEmbed:
    """Sinusoidal positions."""

    def __init__(self, d_model):
        self.frequencies = 10 ** -torch.linspace(0, 2, d_model)

    def embed(self, positions):
        return torch.sin(positions[:, None] * self.frequencies)


class OwnDraw:
    """A plain class whose values differ from seed to seed."""

    def __init__(self, d_model, generator):
        self.phase = torch.rand(d_model, generator=generator)

    def embed(self, positions):
        return torch.cos(positions[:, None] * 0.7 + 6 * self.phase)


class QueryAndKey:
    """Grows queries and shrinks keys, as xPos does."""

    def transform_query(self, x, positions):
        return x * 1.02 ** positions[:, None].to(x.dtype)

    def transform_key(self, x, positions):
        return x / 1.02 ** positions[:, None].to(x.dtype)


class OnlyQuery:
    def transform_query(self, x, positions):
        return x * (1 + positions[:, None].to(x.dtype)).log()


class OnlyKey:
    def transform_key(self, x, positions):
        return x * torch.cos(positions[:, None].to(x.dtype))


class ModuleWithParameters(nn.Module):
    """A learned bias per offset and head, a learned scale of queries: two hooks, two parameters."""

    def __init__(self, n_heads, max_length, generator):
        super().__init__()
        self.by_offset = nn.Parameter(torch.randn(n_heads, 2 * max_length, generator=generator))
        self.scale = nn.Parameter(torch.rand(max_length, generator=generator))
        self.middle = max_length

    def bias(self, query_positions, key_positions):
        return self.by_offset[:, query_positions[:, None] - key_positions + self.middle]

    def transform_query(self, x, positions):
        return x * self.scale[positions][:, None]


class ModuleWithoutParameters(nn.Module):
    """All four hooks at once."""

    def embed(self, positions):
        return torch.sin(positions.float())[:, None].expand(-1, 8)

    def transform_query(self, x, positions):
        return x * (1 + positions[:, None].to(x.dtype)).rsqrt()

    def transform_key(self, x, positions):
        return x + positions[:, None].to(x.dtype) / 10

    def bias(self, query_positions, key_positions):
        return (query_positions[:, None] - key_positions).float().sin()[None]


READERS = (
    OnlyBias,
    BiasWithHeads,
    OnlyEmbed,
    OwnDraw,
    QueryAndKey,
    OnlyQuery,
    OnlyKey,
    ModuleWithParameters,
    ModuleWithoutParameters,
)
ROTARY_VARIANTS = (
    {"layout": "half-split"},
    {"width": 4},
    {"width": 2, "layout": "half-split", "base": 50.0},
)
EVERY = [
    *((name, {"std": 0.5} if name.startswith("learned") else {}) for name in ENCODINGS),
    *(("rotary", options) for options in ROTARY_VARIANTS),
    *((reader, {}) for reader in READERS),
]
IDS = [f"{getattr(e, '__name__', e)}{'-'.join(map(str, o.values()))}" for e, o in EVERY]
every_encoding = pytest.mark.parametrize(("encoding", "options"), EVERY, ids=IDS)
# 1 is the shortest there is and 1 + offset the shortest a task allows (offsets 1 .. 8: 2 .. 9)
LENGTHS = (1, 2, 4, 9, 17, 40)


def random_tokens(*shape, vocabulary=5, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, shape, generator=generator, dtype=torch.uint8)


def random_like(x, seed=4):
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)


def leaves(stack):
    """The same stack with parameters that collect gradients."""
    return stack.map(lambda p: p.detach().clone().requires_grad_(True))


def gradients(stack, *outputs):
    """Gradients of a random linear function of the outputs; zero where nothing flows."""
    loss = sum((out * random_like(out)).sum() for out in outputs)
    values = list(stack.parameters.values())
    found = torch.autograd.grad(loss, values, allow_unused=True)
    return {
        name: torch.zeros_like(value) if gradient is None else gradient
        for (name, value), gradient in zip(stack.parameters.items(), found, strict=True)
    }


def assert_same(actual, expected):
    """Equal to 1e-10 of the largest value: float64 sums of some hundred terms in another order."""
    torch.testing.assert_close(
        actual, expected, rtol=0, atol=1e-10 * max(1.0, float(expected.detach().abs().max()))
    )


def by_tables(stack, tokens, positions):
    tables = stack.tables(positions[-1:], positions)
    attention = tables.attention(tokens, tokens[..., -1])
    return tables.answer(tokens, attention), attention


@every_encoding
@pytest.mark.parametrize("first", [0, 11])
def test_tables_are_the_plain_head_in_values_and_gradients(small_head, encoding, options, first):
    initial = HeadStack.initialize(small_head(encoding, **options), (0, 5, 9)).map(
        torch.Tensor.double
    )
    stack = initial.with_parameters(query=2 * initial.parameters["query"])  # not all uniform
    for length in LENGTHS:
        tokens = random_tokens(3, 4, length)
        positions = first + torch.arange(length)
        plain, table = leaves(stack), leaves(stack)
        expected, actual = plain.forward(tokens, positions), by_tables(table, tokens, positions)
        assert expected[0].dtype == actual[0].dtype == torch.float64
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
        wanted, found = gradients(plain, *expected), gradients(table, *actual)
        assert wanted.keys() == found.keys()
        for name in wanted:
            assert_same(found[name], wanted[name])


@every_encoding
def test_positions_count_from_zero_unless_given(small_head, encoding, options):
    stack = HeadStack.initialize(small_head(encoding, **options), (0, 1))
    tokens = random_tokens(2, 3, 7)
    for one, other in zip(
        stack.forward(tokens), stack.forward(tokens, torch.arange(7)), strict=True
    ):
        assert torch.equal(one, other)


@every_encoding
def test_the_query_sees_every_key_and_weights_sum_to_one(small_head, encoding, options):
    """A causal mask aligned to the wrong corner hides all keys but the first from the query."""
    stack = HeadStack.initialize(small_head(encoding, **options), (0, 1)).map(torch.Tensor.double)
    _, attention = stack.forward(random_tokens(2, 6, 9))
    assert bool((attention > 0).all())
    # nine numbers below 1: rounding of at most 9 * 2^-53
    torch.testing.assert_close(
        attention.sum(-1), torch.ones(2, 6, dtype=torch.float64), rtol=0, atol=1e-14
    )


@every_encoding
def test_the_tables_of_a_query_beside_others_are_those_of_the_query_alone(
    small_head, encoding, options
):
    """Training builds tables for models whose sequences end at different positions."""
    stack = HeadStack.initialize(small_head(encoding, **options), (0, 1, 2)).map(
        torch.Tensor.double
    )
    positions, last = torch.arange(12), torch.tensor([11, 4, 7])
    together = stack.tables(last, positions)
    for model, index in enumerate(last.tolist()):
        alone = stack.select([model]).tables(positions[index : index + 1], positions)
        assert_same(together.logit[model], alone.logit[0])
        assert_same(together.token_readout[model], alone.token_readout[0])
        if alone.position_readout is not None:
            assert_same(together.position_readout[model], alone.position_readout[0])


@every_encoding
def test_padding_behind_the_last_token_changes_nothing(small_head, encoding, options):
    stack = HeadStack.initialize(small_head(encoding, **options), (0, 1)).map(torch.Tensor.double)
    tokens, positions = random_tokens(2, 4, 12), torch.arange(12)
    for length in (1, 2, 7, 12):
        last = torch.full((2,), length - 1)
        tables = stack.tables(last, positions)
        behind = positions >= length
        mask = torch.zeros(2, 1, 12).masked_fill(behind, -torch.inf).double()
        attention = tables.attention(tokens, tokens[..., length - 1], mask)
        answer, weights = stack.forward(tokens[..., :length])
        assert bool((attention[..., length:] == 0).all())
        assert_same(attention[..., :length], weights)
        assert_same(tables.answer(tokens, attention), answer)


@every_encoding
def test_a_model_is_the_same_alone_and_in_a_stack_to_the_bit(small_head, encoding, options):
    config = small_head(encoding, **options)
    stack, alone = (HeadStack.initialize(config, seeds) for seeds in ((3, 1, 7, 7, 2), (7,)))
    for name, value in alone.parameters.items():
        assert torch.equal(stack.parameters[name][2], value[0])
        assert torch.equal(stack.parameters[name][3], value[0])
        assert name.startswith("encoding.") or not torch.equal(stack.parameters[name][0], value[0])
    tokens = random_tokens(1, 6, 9)
    together, single = stack.forward(tokens.expand(5, -1, -1)), alone.forward(tokens)
    for one, other in zip(together, single, strict=True):
        # float32, products of 8 numbers of size 1 whose order of summation may differ
        torch.testing.assert_close(one[2:3], other, rtol=0, atol=1e-6)


def test_weights_depend_on_the_seed_and_not_on_the_encoding(small_head):
    stacks = [HeadStack.initialize(small_head(e), (4, 8)) for e in (*ENCODINGS, *READERS)]
    for name in ("token", "query", "key", "value", "output"):
        assert all(
            torch.equal(stack.parameters[name], stacks[0].parameters[name]) for stack in stacks
        )


def test_initial_weights_have_the_scale_of_the_book():
    stack = HeadStack.initialize(HeadConfig("learned", vocabulary=64), range(20))
    for name in ("token", "query", "key", "value", "output"):
        # N(0, 1/d): at least 20,480 draws, so the sample deviation is off by 0.5 %
        assert stack.parameters[name].std().item() == pytest.approx(32**-0.5, rel=0.02)
    assert stack.parameters["encoding.table"].shape == (20, 1024, 32)


def test_a_rotary_head_shifted_in_position_gives_the_same_answers(small_head):
    stack = HeadStack.initialize(small_head("rotary"), (0, 1)).map(torch.Tensor.double)
    tokens = random_tokens(2, 5, 9)
    near = stack.forward(tokens)
    far = stack.forward(tokens, 2**20 + torch.arange(9))
    # angles near 2^20 carry 2^20 * 2^-53 = 1.2e-10, times |q||k|/sqrt(d) of order 1
    for one, other in zip(far, near, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_a_head_without_positions_sees_a_bag_of_tokens(small_head):
    stack = HeadStack.initialize(small_head("none"), (0,)).map(torch.Tensor.double)
    tokens = random_tokens(1, 5, 9)
    order = torch.tensor([3, 0, 7, 1, 6, 2, 5, 4, 8])  # the query stays last
    answer, attention = stack.forward(tokens)
    moved = stack.forward(tokens[..., order])
    assert_same(moved[0], answer)
    assert_same(moved[1], attention[..., order])


@few
@given(st.integers(1, 12))
def test_a_length_past_a_learned_table_is_refused_with_both_numbers(small_head, excess):
    stack = HeadStack.initialize(small_head("learned"), (0, 1))
    length = 64 + excess
    message = rf"position {length - 1} .*64 rows .*shorter sequences or a larger max_length"
    with pytest.raises(ValueError, match=message):
        stack.forward(random_tokens(2, 1, length))
    with pytest.raises(ValueError, match=message):
        stack.tables(torch.tensor([length - 1]), torch.arange(length))


def test_parts_of_a_stack(small_head):
    stack = HeadStack.initialize(small_head("learned"), (0, 1, 2))
    part = stack.select([2, 0])
    assert stack.n_models == 3 and part.n_models == 2
    assert torch.equal(part.parameters["token"], stack.parameters["token"][[2, 0]])
    assert part.encodings == [stack.encodings[2], stack.encodings[0]]
    table = torch.zeros_like(stack.parameters["encoding.table"])
    changed = stack.with_parameters(encoding__table=table)
    assert torch.equal(changed.parameters["encoding.table"], table)
    assert not torch.equal(stack.parameters["encoding.table"], table)
    with pytest.raises(ValueError, match=r"no parameter 'encoding.tabel'; choose from token, "):
        stack.with_parameters(encoding__tabel=table)
    assert stack.map(torch.Tensor.double).dtype == torch.float64
    assert stack.dtype == torch.float32


@every_encoding
def test_stored_parameters_give_the_same_stack_back(small_head, encoding, options):
    config = small_head(encoding, **options)
    stack = HeadStack.initialize(config, (2, 6))
    again = HeadStack.from_state(config, stack.parameters, (2, 6))
    tokens = random_tokens(2, 3, 8)
    for one, other in zip(again.forward(tokens), stack.forward(tokens), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"encoding": "rotery"}, "'rotery'; choose from none, learned"),
        ({"vocabulary": 1}, "vocabulary=1 .*at least 2"),
        ({"d_model": 0}, "d_model=0 .*at least 1"),
        ({"d_head": -4}, "d_head=-4 .*at least 1"),
        ({"max_length": 0}, "max_length=0 .*at least 1"),
        ({"log_length": 1}, "log_length=1 .*at least 2"),
    ],
)
def test_a_bad_head_is_refused_with_the_value_and_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        HeadConfig(**arguments)


def test_an_odd_rotary_head_is_refused_with_its_width():
    with pytest.raises(ValueError, match=r"d_head=31 .*even"):
        HeadStack.initialize(HeadConfig("rotary", d_head=31), (0,))


def test_reach_is_the_length_of_the_table(small_head):
    assert small_head("learned").reach == 64
    assert small_head("learned-random-offset", rows=20).reach == 20
    assert small_head("rotary").reach is None
    assert small_head(OnlyBias).reach is None


def test_every_field_of_the_head_changes_it(small_head):
    def fingerprint(encoding="learned", options=None, **sizes):
        stack = HeadStack.initialize(small_head(encoding, sizes, **(options or {})), (0,))
        answer, attention = stack.forward(random_tokens(1, 4, 6, vocabulary=4))
        return [*(v.shape for v in stack.parameters.values()), answer.tolist(), attention.tolist()]

    changes = (
        {},
        {"encoding": "rotary"},
        {"options": {"std": 0.7}},
        {"vocabulary": 6},
        {"d_model": 10},
        {"d_head": 6},
        {"max_length": 20},
        {"log_length": 3},
    )
    prints = [fingerprint(**change) for change in changes]
    assert len({str(p) for p in prints}) == len(changes)
    fields = "encoding encoding_options vocabulary d_model d_head max_length log_length"
    assert fields.split() == list(HeadConfig.__dataclass_fields__)


def test_every_hook_of_the_interface_is_met_by_an_encoding_above():
    assert all(any(has_hook(reader, hook) for reader in READERS) for hook in HOOKS)


# -- the path that training takes: each model has its own window of positions -------------------


@every_encoding
def test_training_losses_are_those_of_the_plain_head_in_values_and_gradients(
    small_head, encoding, options
):
    if encoding == "learned-random-offset":
        options = options | {"rows": 24}
    config = TrainingConfig(
        small_head(encoding, **options), (0, 7), (1, 3), lengths=(4, 9), steps=2, batch_size=3
    )
    stack = config.stack().map(torch.Tensor.double)
    batches = _Batches(config, stack)
    assert bool(batches.starts.any()) == (encoding == "learned-random-offset")
    assert len(set(batches.last.flatten().tolist())) > 1
    for step in range(config.steps):
        fast, plain = leaves(stack), leaves(stack)
        losses = loss_and_gradient(fast, batches[step], batches.positions)
        expected = torch.stack([plain_loss(plain, batches, m, step) for m in range(4)])
        assert_same(losses, expected)
        expected.sum().backward()
        for name, value in plain.parameters.items():
            found = fast.parameters[name].grad
            assert (found is None) == (value.grad is None), name
            if found is not None:
                assert found.is_contiguous(), "fused Adam reads no other right"
                assert_same(found, value.grad)


def plain_loss(stack, batches, model, step):
    """Mean cross-entropy of one model on one batch; sequences that start together go together."""
    length, offset = int(batches.last[step, model]) + 1, (1, 3)[model % 2]
    starts = batches.starts[step, model]
    answers, targets = [], []
    for start in starts.unique().tolist():
        tokens = batches.tokens[step, model, starts == start, :length]
        positions = start + torch.arange(length)
        answers.append(stack.select([model]).forward(tokens[None], positions)[0][0])
        targets.append(tokens[:, length - 1 - offset].long())
    return nn.functional.cross_entropy(torch.cat(answers), torch.cat(targets))


# -- logits that grow with the logarithm of the length -------------------------------------------


@every_encoding
def test_log_length_multiplies_logits_and_changes_nothing_at_its_own_length(
    small_head, encoding, options
):
    plain = HeadStack.initialize(small_head(encoding, **options), (0, 3)).map(torch.Tensor.double)
    config = replace(plain.config, log_length=8)
    warm = HeadStack(config, plain.parameters, plain.encodings)
    for length, factor in ((8, 1.0), (20, math.log(20) / math.log(8))):
        query, keys = torch.tensor([length - 1]), torch.arange(length)
        expected = plain.tables(query, keys).logit * factor
        assert_same(warm.tables(query, keys).logit, expected)
        tokens = random_tokens(2, 3, length)
        answer, weights = warm.forward(tokens)
        tables = warm.tables(query, keys)
        attention = tables.attention(tokens, tokens[..., -1])
        assert_same(attention, weights)
        assert_same(tables.answer(tokens, attention), answer)


def test_query_positions_are_one_or_one_for_each_model(small_head):
    stack = HeadStack.initialize(small_head("rotary"), (0, 1, 2))
    with pytest.raises(ValueError, match="2 query positions for 3 models"):
        stack.tables(torch.tensor([3, 4]), torch.arange(5))
