import itertools

import pytest
import torch

from lengthgen.linear import as_coefficients, design_matrix, impulse, minimum_norm, scaled_midpoints
from lengthgen.normalization import (
    NORMALIZATIONS,
    _autograd_gradient,
    _bilinear_gradient,
    descent,
    group_l1_interpolant,
    group_l1_norm,
    position_weights,
    squared_loss,
)
from lengthgen.position_head import TRAINING_LENGTHS, initialize, kernel

MAIN = scaled_midpoints(16, 0.8)


def after(steps, *arguments, **options):
    return next(itertools.islice(descent(*arguments, **options), steps, None))


@pytest.mark.parametrize("normalization", ["sum", "softmax"])
def test_divided_weights_sum_to_one_at_every_length(normalization):
    weights = position_weights(initialize([0, 1], 0.5, MAIN), [3, 7, 16], normalization)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 3).double(), rtol=1e-9)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_weights_beyond_the_length_are_zero(normalization):
    weights = position_weights(initialize([0], 0.5, MAIN), [3, 16], normalization)
    assert torch.equal(weights[0, 0, 3:], torch.zeros(13).double())


@pytest.mark.parametrize("normalization", ["exponential", "softmax"])
def test_exponential_weights_are_positive(normalization):
    assert (position_weights(initialize([0], 2.0, MAIN), [16], normalization) > 0).all()


def test_linear_attention_gives_the_query_itself_weight_one_over_length():
    # The normalizer carries no rotation: it is L times the numerator at offset 0.
    weights = position_weights(initialize([0, 1], 0.5, MAIN), [5, 16], "linear-attention")
    assert torch.allclose(weights[:, :, 0], torch.tensor([1 / 5, 1 / 16]).double().expand(2, 2))


def test_only_a_shift_of_the_kernel_separates_softmax_from_exponential():
    head = initialize([3], 1.0, MAIN)
    softmax, exponential = (
        position_weights(head, [16], name)[0, 0] for name in ("softmax", "exponential")
    )
    ratio = exponential / softmax
    assert torch.allclose(ratio, ratio[0].expand(16), rtol=1e-12)


def test_gradient_by_hand_equals_automatic_differentiation():
    head, offset = initialize(range(4), 0.7, MAIN), torch.tensor([1, 2, 4, 8])
    by_hand = _bilinear_gradient(MAIN, offset, TRAINING_LENGTHS)(head.query, head.key)
    automatic = _autograd_gradient(MAIN, offset, "none", TRAINING_LENGTHS)(head.query, head.key)
    for one, other in zip(by_hand, automatic, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("normalization", ["none", "softmax", "linear-attention"])
def test_descent_lowers_the_loss_and_does_not_mix_models(normalization):
    offset = torch.tensor([2, 4])
    head, loss = after(50, initialize([0, 1], 0.1, MAIN), offset, normalization)
    assert (loss < squared_loss(initialize([0, 1], 0.1, MAIN), offset, normalization)).all()
    alone, _ = after(50, initialize([1], 0.1, MAIN), offset[1:], normalization)
    assert torch.allclose(head.query[1], alone.query[0], rtol=1e-9)


def test_bilinear_descent_interpolates_but_reaches_neither_minimum():
    # Six frequencies and four training offsets: the same phenomenon, converged in a second.
    frequencies, offset = scaled_midpoints(6, 0.8), torch.tensor([1, 1, 2, 2])
    start = initialize([0, 1, 0, 1], 0.01, frequencies)
    head, loss = after(1500, start, offset, "none", lengths=[4])
    assert loss.max() < 1e-8
    c = head.coefficients
    design, target = design_matrix(frequencies, torch.arange(4)), impulse(offset, 4)
    least = as_coefficients(minimum_norm(design, target))
    sparse = torch.stack([group_l1_interpolant(frequencies, int(k), 4) for k in offset])
    assert (c.norm(dim=-1) / least.norm(dim=-1)).min() > 1.05
    assert (group_l1_norm(c) / group_l1_norm(sparse)).max() > 1.05
    # The limit depends on the seed, so it minimizes no function of the coefficients alone: at
    # zero all frequencies grow equally fast, and the ratios of the start survive at any scale.
    assert ((c[0::2] - c[1::2]).norm(dim=-1) / least[0::2].norm(dim=-1)).min() > 0.1


@pytest.mark.parametrize("offset", [1, 8])
def test_group_l1_interpolant_interpolates_with_the_least_group_norm(offset):
    sparse = group_l1_interpolant(MAIN, offset, 16)
    target = impulse(torch.tensor([offset]), 16)
    assert (kernel(sparse, MAIN, torch.arange(16)) - target[0]).abs().max() < 1e-7
    design = design_matrix(MAIN, torch.arange(16))
    least = as_coefficients(minimum_norm(design, target))[0]
    assert group_l1_norm(sparse) < group_l1_norm(least)
    assert sparse.norm() > least.norm()


def test_bad_input_is_named_with_what_is_allowed():
    head, offset = initialize([0], 0.1, MAIN), torch.tensor([2])
    with pytest.raises(ValueError, match=r"normalization='max' .*none, sum, exponential, softmax"):
        position_weights(head, [16], "max")
    with pytest.raises(ValueError, match=r"lengths=\[0\] .*>= 1"):
        position_weights(head, [0], "none")
    with pytest.raises(ValueError, match=r"offset=\[10\] .*0\.\.9"):
        squared_loss(head, torch.tensor([10]), "none")
    with pytest.raises(ValueError, match=r"safety=2\.0.*0 < safety < 2"):
        next(descent(head, offset, "none", safety=2.0))
    with pytest.raises(ValueError, match=r"length=40 .*at most 32 offsets"):
        group_l1_interpolant(MAIN, 2, 40)
