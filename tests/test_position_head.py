import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthgen.encodings import Rotary, rotary_frequencies
from lengthgen.position_head import (
    PositionHead,
    equivariance_error,
    initialize,
    keeps_argmax,
    kernel,
    margin,
)

FREQUENCIES = rotary_frequencies(32)
OFFSETS = torch.arange(1, 9)
SEEDS = tuple(range(8))
few = settings(max_examples=25, deadline=None)
stds = st.sampled_from((1e-3, 0.3, 1.0, 3.0))


@few
@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=4), st.integers(0, 2**31), stds)
def test_initialization_depends_on_the_seed_alone_to_the_bit(others, seed, std):
    alone = initialize([seed], std, FREQUENCIES)
    stacked = initialize([*others, seed], std, FREQUENCIES)[-1:]
    assert torch.equal(alone.query, stacked.query)
    assert torch.equal(alone.key, stacked.key)


def test_std_is_a_scale_of_the_logit_at_every_width():
    for d_head in (16, 128):
        head = initialize(range(200), 0.3, rotary_frequencies(d_head))
        mean_square = head.coefficients.abs().square().mean()
        # E|c|^2 = (2 std^2)^2; the mean of >= 1600 products, each with relative variance 3
        assert math.isclose(mean_square, 4 * 0.3**4, rel_tol=0.2)


def test_same_seed_at_another_std_is_the_same_draw_rescaled():
    small, large = (initialize(SEEDS, std, FREQUENCIES) for std in (0.25, 1.0))
    torch.testing.assert_close(4 * small.query, large.query, rtol=1e-15, atol=0)


@few
@given(st.integers(0, 2**31), st.integers(0, 5000), st.integers(0, 63))
def test_kernel_is_the_rotary_logit(seed, position, offset):
    head = initialize([seed], 1.0, FREQUENCIES)
    rotary = Rotary(32, layout="half-split")
    query, key = (torch.cat([x.real, x.imag], -1) for x in (head.query, head.key))
    positions = torch.tensor([position, position + offset])
    rotated_key = rotary.transform_key(key.expand(2, -1), positions)[0]
    rotated_query = rotary.transform_query(query.expand(2, -1), positions)[1]
    logit = rotated_query @ rotated_key / 32**0.5
    value = kernel(head.coefficients, FREQUENCIES, torch.tensor([offset]))[0, 0]
    # angles up to 5e3 carry 5e3 * 2^-53 = 6e-13, times at most |q||k|/sqrt(d) = 60
    assert abs(logit - value) < 1e-10


@few
@given(st.integers(0, 2**31), st.integers(9, 200))
def test_argmax_is_kept_exactly_when_the_margin_is_positive(seed, length):
    head = initialize([seed + i for i in range(8)], 1.0, FREQUENCIES)
    values = kernel(head.coefficients, FREQUENCIES, torch.arange(length))
    assert torch.equal(keeps_argmax(head, OFFSETS, length), values.argmax(-1) == OFFSETS)
    top = values.topk(2).values
    won = margin(head.coefficients, FREQUENCIES, OFFSETS, length)
    torch.testing.assert_close(won.abs()[won > 0], (top[:, 0] - top[:, 1])[won > 0])


def test_a_kernel_repeats_verbatim_so_argmax_lost_is_lost_for_good():
    head = initialize(SEEDS, 1.0, FREQUENCIES)
    kept = torch.stack([keeps_argmax(head, OFFSETS, n) for n in range(9, 200)]).int()
    assert (kept.diff(dim=0) <= 0).all()


@few
@given(st.integers(0, 2**31), st.sampled_from((1, 100, 2**20)), stds)
def test_equivariance_holds_for_every_head_trained_or_not(seed, shift, std):
    head = initialize([seed], std, FREQUENCIES)
    # angles up to 2^20 carry 2^20 * 2^-53 = 1e-10; cancellation in max |logit| is mild at 64 keys
    assert equivariance_error(head, shift).item() < 1e-9
    if shift == 1:
        assert equivariance_error(head, shift).item() < 1e-13


@pytest.mark.parametrize("offset", [0, 10, -1])
def test_an_offset_outside_the_shortest_length_is_refused(offset):
    head = initialize([0], 0.1, FREQUENCIES)
    with pytest.raises(ValueError, match=rf"\[{offset}\] is not allowed.*1\.\.9"):
        keeps_argmax(head, torch.tensor([offset]), 10)
    with pytest.raises(ValueError, match=r"1\.\.9"):
        keeps_argmax(head, torch.tensor([offset]), 10)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan])
def test_a_std_that_is_not_positive_is_refused(std):
    with pytest.raises(ValueError, match="std="):
        initialize([0], std, FREQUENCIES)


def test_wrong_shapes_and_no_seeds_are_refused():
    with pytest.raises(ValueError, match="at least one seed"):
        initialize([], 0.1, FREQUENCIES)
    head = initialize([0, 1], 0.1, FREQUENCIES)
    with pytest.raises((ValueError, TypeError)):
        PositionHead(head.query, head.key[:1], FREQUENCIES)
