import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lengthgen import pinning
from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.evaluation import attention
from lengthgen.task import TestSequences
from lengthgen.training import TrainingConfig, train

few = settings(max_examples=40, deadline=None)


@pytest.fixture(scope="module")
def stack():
    config = HeadConfig("learned", {"std": 0.5}, vocabulary=5, d_model=8, d_head=8, max_length=40)
    return HeadStack.initialize(config, (0, 1, 2)).map(Tensor.double)


@pytest.fixture(scope="module")
def tokens():
    return TestSequences(40, 5).sequences(20)


@pytest.mark.parametrize("length", [1, 7, 40])
def test_the_four_parts_sum_to_the_logit(stack, length):
    parts = pinning.logit_parts(stack, length)
    positions = torch.arange(length)
    expected = stack.tables(positions[-1:], positions).logit
    # products of 8 numbers of order 1 in float64
    torch.testing.assert_close(parts.logit(), expected, rtol=0, atol=1e-12)


def test_attention_of_unchanged_parts_is_the_heads_own(stack, tokens):
    parts = pinning.logit_parts(stack, 20)
    torch.testing.assert_close(
        pinning.attention_with(stack, parts, tokens), attention(stack, tokens), rtol=0, atol=1e-12
    )


def test_removing_the_mean_content_removes_it_and_nothing_else(stack):
    """The same as a head whose token embeddings, at the query alone, have mean zero."""
    token = stack.parameters["token"]
    form = stack.parameters["query"] @ stack.parameters["key"].transpose(1, 2) / 8**0.5
    rows = stack.parameters["encoding.table"][:, :20]
    query = token - token.mean(1, keepdim=True)
    keys = token[:, :, None] + rows[:, None]  # (models, token, position, d_model)
    query = query + rows[:, 19:]
    expected = torch.einsum("mad,mde,mbje->mabj", query, form, keys)
    found = pinning.logit_parts(stack, 20).without_mean_content()
    torch.testing.assert_close(found.logit(), expected, rtol=0, atol=1e-12)
    assert found.content_position.mean(1).abs().max() < 1e-12


def test_removing_the_query_position_leaves_a_query_of_content_alone(stack):
    """The same as a head whose last row, used as a query, is zero."""
    table = stack.parameters["encoding.table"].clone()
    table[:, 39] = 0
    blank = stack.with_parameters(encoding__table=table)
    positions = torch.arange(20)
    expected = blank.tables(torch.tensor([39]), positions).logit
    found = pinning.logit_parts(stack, 20).without_query_position().logit()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_content_profile_is_the_mean_contents_preference(stack):
    mean = stack.parameters["token"].mean(1)
    form = stack.parameters["query"] @ stack.parameters["key"].transpose(1, 2) / 8**0.5
    rows = stack.parameters["encoding.table"][:, :25]
    expected = torch.einsum("md,mde,mje->mj", mean, form, rows)
    torch.testing.assert_close(pinning.content_profile(stack, 25), expected, rtol=0, atol=1e-12)


@few
@given(st.integers(2, 40), st.integers(0, 20), st.data())
def test_the_first_step_profile_sums_to_zero_and_peaks_at_a_target(shortest, more, data):
    longest = shortest + more
    offset = data.draw(st.integers(1, shortest - 1))
    profile = pinning.first_step_profile((shortest, longest), offset)
    assert profile.shape == (longest,)
    assert abs(profile.sum()) < 1e-12  # what targets gain, all visible positions pay
    targets = {length - 1 - offset for length in range(shortest, longest + 1)}
    assert int(profile.argmax()) in targets
    # From target to target it falls by 1/L(L+1) while no shorter length ends between the two, then
    # rises by 1/(L-K)^2 - 1/L(L+1) > 0: the maximum is the first target or the last.
    ends = torch.stack([profile[shortest - 1 - offset], profile[longest - 1 - offset]])
    assert ends.max() > profile.max() - 1e-12  # up to rounding


def test_the_first_step_of_training_moves_the_profile_as_predicted():
    """One plain gradient step on many sequences; correlation limited by sampling them."""
    head = HeadConfig("learned", {"std": 1e-3}, vocabulary=8, d_model=32, d_head=32, max_length=12)
    config = TrainingConfig(
        head, (0, 1, 2), (2,), (8, 8), steps=1, batch_size=8000, learning_rate=1.0, optimizer="sgd"
    )
    before, (after, _) = config.stack(), train(config)
    change = pinning.content_profile(after, 8) - pinning.content_profile(before, 8)
    predicted = pinning.first_step_profile((8, 8), 2).float()
    for model in change:
        assert torch.corrcoef(torch.stack([model, predicted]))[0, 1].abs() > 0.9


def test_peak_is_of_the_mean_weight():
    weights = torch.tensor([[[0.6, 0.4, 0.0], [0.0, 0.4, 0.6], [0.0, 0.7, 0.3]]])
    assert pinning.peak(weights).tolist() == [1]
    assert pinning.agreement(weights, torch.tensor([1])).item() == pytest.approx(1 / 3)
    assert pinning.agreement(weights, torch.tensor([2])).item() == pytest.approx(1 / 3)


def test_the_pinning_index_counts_lengths_with_the_peak_in_the_training_range():
    peaks = torch.tensor([[15, 3, 0, 15], [16, 100, 15, 20], [40, 60, 90, 16]])
    assert pinning.pinning_index(peaks, 16).tolist() == [1.0, 0.25, 0.0]


def test_copied_and_exchanged_rows(stack):
    table = stack.parameters["encoding.table"]
    source, target = torch.tensor([3, 5, 7]), torch.tensor([30, 20, 39])
    for swap in (False, True):
        changed = pinning.with_rows(stack, source, target, swap=swap).parameters["encoding.table"]
        for m, (s, t) in enumerate(zip(source, target, strict=True)):
            assert torch.equal(changed[m, t], table[m, s])
            assert torch.equal(changed[m, s], table[m, t] if swap else table[m, s])
            others = [i for i in range(40) if i not in (s, t)]
            assert torch.equal(changed[m, others], table[m, others])
    assert torch.equal(stack.parameters["encoding.table"], table)
    assert table is stack.parameters["encoding.table"]  # the stack itself is unchanged


def test_exchanging_rows_exchanges_attention(stack, tokens):
    """Away from the query's own row, exchanging rows is exchanging the keys' positions."""
    source, target = torch.tensor([3, 3, 3]), torch.tensor([12, 12, 12])
    swapped = pinning.with_rows(stack, source, target, swap=True)
    order = torch.arange(20)
    order[3], order[12] = 12, 3
    moved = attention(swapped, tokens[:, order])
    torch.testing.assert_close(moved, attention(stack, tokens)[..., order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("encoding", ["rotary", "none"])
def test_an_encoding_without_a_table_is_refused(small_head, encoding):
    stack = HeadStack.initialize(small_head(encoding), (0,))
    with pytest.raises(ValueError, match=f"'{encoding}' has no position table"):
        pinning.logit_parts(stack, 5)


def test_a_length_past_the_table_is_refused_with_both_numbers(stack):
    with pytest.raises(ValueError, match=r"length=41 .*40 rows"):
        pinning.logit_parts(stack, 41)
