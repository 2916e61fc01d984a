import pytest
import torch
from torch import Tensor

from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.equivariance import (
    RoundedProductRotary,
    kernel,
    offset_only_error,
    shift_effect,
)
from lengthgen.task import TestSequences

FAR = 2**20
VARIANTS = ({}, {"layout": "half-split"}, {"width": 16}, {"base": 100.0})


def rotary_stack(options=None, encoding="rotary", dtype=torch.float64):
    """Heads of the book's size, weights scaled up as training does."""
    stack = HeadStack.initialize(HeadConfig(encoding, options or {}, vocabulary=6), (0, 1))
    return stack.map(lambda p: (1.5 * p).to(dtype))


def test_the_kernel_is_the_plain_logit_at_every_offset(small_head):
    """Entry D + m is the logit of a key m positions before the query, for both signs of m."""
    stack = HeadStack.initialize(small_head("rotary"), (0, 1)).map(Tensor.double)
    table = kernel(stack, 6)
    assert table.shape == (2, 5, 5, 13)
    for offset in range(7):  # a two-token sequence: its odds are the difference of two logits
        tokens = torch.tensor([[[2, 4]]] * 2, dtype=torch.uint8)
        _, weights = stack.forward(tokens, torch.tensor([50 - offset, 50]))
        odds = weights[:, 0, 0].log() - weights[:, 0, 1].log()
        expected = table[:, 4, 2, 6 + offset] - table[:, 4, 4, 6]
        # float64 softmax and logarithm of numbers of order 1
        torch.testing.assert_close(odds, expected, rtol=0, atol=1e-12)


def test_negative_offsets_of_the_kernel_are_keys_behind_the_query():
    stack = rotary_stack()
    table = kernel(stack, 4)
    logit = stack.tables(torch.tensor([10]), torch.tensor([14])).logit
    torch.testing.assert_close(table[..., 0], logit[..., 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_rotary_logits_depend_on_the_offset_alone_up_to_two_to_the_twenty(options, dtype, most):
    stack = rotary_stack(options)
    reference = kernel(stack, 40)
    for first in (0, 2**10, 2**15, FAR):
        error = offset_only_error(stack.map(lambda p: p.to(dtype)), reference, first, 40, 13)
        assert error.shape == (2,)
        assert error.max() < most


def test_the_rounded_product_is_seen_far_out_and_only_there():
    sound = rotary_stack()
    reference = kernel(sound, 24)
    config = HeadConfig(RoundedProductRotary, vocabulary=6)
    faulty = HeadStack(config, sound.parameters, [RoundedProductRotary(32)] * 2)
    assert offset_only_error(faulty, reference, FAR, 24).min() > 1e-3
    assert offset_only_error(faulty, reference, 0, 24).max() < 1e-5


def test_absolute_positions_are_not_a_function_of_the_offset():
    stack = rotary_stack({"std": 0.5}, "learned")
    assert offset_only_error(stack, kernel(stack, 20), 30, 20).min() > 0.1


def test_no_encoding_depends_on_nothing():
    stack = rotary_stack(encoding="none")
    assert (offset_only_error(stack, kernel(stack, 9), 500, 10) == 0).all()


def test_every_pair_of_positions_counts():
    """A single wrong logit, at the last query and the first key, must be found."""

    class OneWrong:
        def bias(self, query_positions, key_positions):
            wrong = (query_positions[:, None] == 9) & (key_positions == 0)
            return 0.5 * wrong.float()

    stack = rotary_stack(encoding=OneWrong)
    reference = kernel(rotary_stack(encoding="none"), 9)
    error = offset_only_error(stack, reference, 0, 10)
    largest = reference.abs().amax((1, 2, 3))
    torch.testing.assert_close(error, 0.5 / largest, rtol=1e-12, atol=0)
    assert (offset_only_error(stack, reference, 0, 9) == 0).all()
    assert (offset_only_error(stack, reference, 0, 10, stride=4) == 0).all()  # queries 0, 4, 8


def test_a_span_beyond_the_reference_is_refused():
    stack = rotary_stack()
    reference = kernel(stack, 9)
    assert offset_only_error(stack, reference, 0, 10).max() < 1e-10
    with pytest.raises(ValueError, match=r"span=11 .*offset 10.*ends at 9"):
        offset_only_error(stack, reference, 0, 11)


def test_a_shift_changes_nothing_rotary_and_everything_learned():
    tokens = TestSequences(200, 6).sequences(16)
    for dtype, most in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        for shift in (1, 100, FAR):
            effect = shift_effect(rotary_stack(dtype=dtype), tokens, shift)
            assert effect["logit_change"].max() < most
            assert effect["attention_change"].max() < 10 * most  # times max |logit|, of order 10
            assert effect["answers_changed"].max() == 0
    effect = shift_effect(rotary_stack({"std": 0.5}, "learned"), tokens, 16)
    for measure in effect.values():
        assert measure.shape == (2,)
        assert measure.min() > 0.05


def test_no_shift_is_no_change_and_the_first_position_matters():
    stack = rotary_stack({"std": 0.5}, "learned")
    tokens = TestSequences(50, 6).sequences(9)
    assert all((v == 0).all() for v in shift_effect(stack, tokens, 0).values())
    near, far = (shift_effect(stack, tokens, 5, first=first) for first in (0, 40))
    assert not torch.equal(near["logit_change"], far["logit_change"])


def test_total_variation_is_that_of_the_plain_attention():
    stack = rotary_stack({"std": 0.5}, "learned")
    tokens = TestSequences(30, 6).sequences(9)
    weights = [stack.forward(tokens.expand(2, -1, -1), first + torch.arange(9)) for first in (0, 7)]
    expected = (weights[0][1] - weights[1][1]).abs().sum(-1).mean(-1) / 2
    effect = shift_effect(stack, tokens, 7)
    torch.testing.assert_close(effect["attention_change"], expected, rtol=0, atol=1e-12)
    changed = (weights[0][0].argmax(-1) != weights[1][0].argmax(-1)).float().mean(-1)
    assert torch.equal(effect["answers_changed"], changed)


def test_a_shift_past_the_table_is_refused(small_head):
    stack = HeadStack.initialize(small_head("learned"), (0,))
    with pytest.raises(ValueError, match=r"position 68 .*64 rows"):
        shift_effect(stack, TestSequences(3, 5).sequences(9), 60)
