import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lengthgen.encodings import Rotary, rotary_frequencies
from lengthgen.position_head import (
    TRAINING_LENGTHS,
    PositionHead,
    attention_error,
    equation_of_motion,
    equivariance_error,
    initialize,
    keeps_argmax,
    kernel,
    log_loss,
    margin,
    waves,
)

FREQUENCIES = rotary_frequencies(32)
OFFSETS = torch.arange(1, 9)
SEEDS = tuple(range(8))
stds = st.sampled_from((1e-3, 0.3, 1.0, 3.0))


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


@given(st.integers(0, 2**31), stds, st.booleans())
def test_equation_of_motion_is_minus_the_gradient(seed, std, log):
    head = initialize([seed + i for i in range(8)], std, FREQUENCIES)
    query, key = (x.clone().requires_grad_() for x in (head.query, head.key))
    loss = _plain_loss(query, key)
    (loss.log() if log else loss).sum().backward()
    d_query, d_key, log_value = equation_of_motion(head, OFFSETS, log=log)
    scale = max(query.grad.abs().max(), key.grad.abs().max())
    # both sides are sums of a few hundred products in float64
    assert (d_query + query.grad).abs().max() < 1e-12 * scale
    assert (d_key + key.grad).abs().max() < 1e-12 * scale
    torch.testing.assert_close(log_value, loss.detach().log(), rtol=1e-12, atol=1e-12)


def _plain_loss(query, key):
    """The loss as one writes it down, by log_softmax over each length."""
    coefficients = query.conj() * key / 32**0.5
    values = (coefficients[:, None, :] * waves(FREQUENCIES, torch.arange(16))).sum(-1).real
    rows = torch.arange(8)
    return -torch.stack([values[:, :n].log_softmax(-1)[rows, OFFSETS] for n in range(10, 17)]).mean(
        0
    )


@given(st.integers(0, 2**31), stds)
def test_flow_conserves_the_balance_of_query_and_key(seed, std):
    head = initialize([seed + i for i in range(8)], std, FREQUENCIES)
    d_query, d_key, _ = equation_of_motion(head, OFFSETS)
    # d/dt (|q_f|^2 - |k_f|^2) = 0 for every frequency
    left, right = (head.query.conj() * d_query).real, (head.key.conj() * d_key).real
    assert (left - right).abs().max() < 1e-14 * (1 + left.abs().max())


@given(st.integers(0, 2**31), stds)
def test_attention_error_is_the_target_minus_mean_attention(seed, std):
    head = initialize([seed + i for i in range(8)], std, FREQUENCIES)
    error, log_value = attention_error(head, OFFSETS)
    values = kernel(head.coefficients, FREQUENCIES, torch.arange(16))
    attention = torch.zeros(8, 16, dtype=torch.float64)
    for n in TRAINING_LENGTHS:
        attention[:, :n] += values[:, :n].softmax(-1) / len(TRAINING_LENGTHS)
    target = torch.nn.functional.one_hot(OFFSETS, 16)
    torch.testing.assert_close(error, target - attention, rtol=0, atol=1e-14)
    relative, _ = attention_error(head, OFFSETS, log=True)
    torch.testing.assert_close(relative * log_value.exp()[:, None], error)


@pytest.mark.parametrize("scale", [30.0, 1e3, 1e6])
def test_log_loss_is_exact_where_the_loss_underflows(scale):
    # one frequency, K = 1, lengths 2: a = kappa(0) - kappa(1), loss = log(1 + e^a) = e^a
    frequencies = torch.tensor([1.0], dtype=torch.float64)
    amplitude = (scale * 2**0.5) ** 0.5
    query = torch.full((1, 1), amplitude, dtype=torch.complex128)
    head = PositionHead(query, query * torch.exp(1j * frequencies), frequencies)
    expected = -scale * (1 - math.cos(1.0))
    value = log_loss(head, torch.tensor([1]), lengths=(2,))
    assert math.isclose(value.item(), expected, rel_tol=1e-6 if scale == 30 else 1e-12)
    _, _, again = equation_of_motion(head, torch.tensor([1]), (2,), log=True)
    assert torch.equal(value, again)


def test_uniform_attention_costs_the_mean_log_length():
    head = initialize(SEEDS, 1e-9, FREQUENCIES)
    expected = sum(map(math.log, TRAINING_LENGTHS)) / len(TRAINING_LENGTHS)
    torch.testing.assert_close(
        log_loss(head, OFFSETS).exp(), torch.full((8,), expected, dtype=torch.float64)
    )


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


@given(st.integers(0, 2**31), st.sampled_from((1, 100, 2**20)), stds)
def test_equivariance_holds_for_every_head_trained_or_not(seed, shift, std):
    head = initialize([seed], std, FREQUENCIES)
    # angles up to 2^20 carry 2^20 * 2^-53 = 1e-10; cancellation in max |logit| is mild at 64 keys
    assert equivariance_error(head, shift).item() < 1e-9
    if shift == 1:
        assert equivariance_error(head, shift).item() < 1e-13


def test_stacking_does_not_mix_models():
    head = initialize(SEEDS, 1.0, FREQUENCIES)
    together = equation_of_motion(head, OFFSETS)
    for i in range(8):
        alone = equation_of_motion(head[i], OFFSETS[i : i + 1])
        for one, all_ in zip(alone, together, strict=True):
            torch.testing.assert_close(one[0], all_[i], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("offset", [0, 10, -1])
def test_an_offset_outside_the_shortest_length_is_refused(offset):
    head = initialize([0], 0.1, FREQUENCIES)
    with pytest.raises(ValueError, match=rf"\[{offset}\] is not allowed.*1\.\.9"):
        log_loss(head, torch.tensor([offset]))
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
