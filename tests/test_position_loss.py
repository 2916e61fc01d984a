import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthgen.encodings import rotary_frequencies
from lengthgen.position_head import TRAINING_LENGTHS, PositionHead, initialize, kernel, waves
from lengthgen.position_loss import attention_error, equation_of_motion, log_loss

FREQUENCIES = rotary_frequencies(32)
OFFSETS = torch.arange(1, 9)
SEEDS = tuple(range(8))
few = settings(max_examples=25, deadline=None)
stds = st.sampled_from((1e-3, 0.3, 1.0, 3.0))


@few
@given(st.integers(0, 2**31), stds, st.booleans())
def test_equation_of_motion_is_minus_the_gradient(seed, std, log):
    head = initialize([seed + i for i in range(8)], std, FREQUENCIES)
    query, key = (x.clone().requires_grad_() for x in (head.query, head.key))
    loss = _plain_loss(query, key)
    (loss.log() if log else loss).sum().backward()
    d_query, d_key, log_value = equation_of_motion(head, OFFSETS, log=log)
    scale = max(query.grad.abs().max(), key.grad.abs().max())
    # a few hundred products in float64; the naive loss is rounded at 1e-16 absolute, its log worse
    tolerance = 1e-13 / loss.detach().min().clamp(max=1)
    assert (d_query + query.grad).abs().max() < tolerance * scale
    assert (d_key + key.grad).abs().max() < tolerance * scale
    assert (log_value - loss.detach().log()).abs().max() < tolerance


def _plain_loss(query, key):
    """The loss as one writes it down, by log_softmax over each length."""
    coefficients = query.conj() * key / 32**0.5
    values = (coefficients[:, None, :] * waves(FREQUENCIES, torch.arange(16))).sum(-1).real
    rows = torch.arange(8)
    return -torch.stack([values[:, :n].log_softmax(-1)[rows, OFFSETS] for n in range(10, 17)]).mean(
        0
    )


@few
@given(st.integers(0, 2**31), stds)
def test_flow_conserves_the_balance_of_query_and_key(seed, std):
    head = initialize([seed + i for i in range(8)], std, FREQUENCIES)
    d_query, d_key, _ = equation_of_motion(head, OFFSETS)
    # d/dt (|q_f|^2 - |k_f|^2) = 0 for every frequency
    left, right = (head.query.conj() * d_query).real, (head.key.conj() * d_key).real
    assert (left - right).abs().max() < 1e-14 * (1 + left.abs().max())


@few
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
