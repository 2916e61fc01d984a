import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthgen.carrier import (
    aligned_coefficients,
    alignment,
    complex_channels,
    correlation,
    effective_rank,
    explained_share,
    first_lost_offset,
    log_bessel_constant,
    mean_kernel,
    spectrum,
    support_size,
    token_coefficients,
)
from lengthgen.encodings import Rotary, rotary_frequencies
from lengthgen.position_head import initialize, keeps_argmax, kernel

FREQUENCIES = rotary_frequencies(32)
OFFSETS = torch.arange(1, 9)
few = settings(max_examples=25, deadline=None)
bases = st.sampled_from((2.0, 100.0, 10_000.0, 1e6))


def generator(seed):
    return torch.Generator().manual_seed(seed)


@few
@given(st.integers(0, 2**31), st.integers(0, 40), bases)
def test_aligned_phases_put_the_maximum_at_the_target_for_every_offset(seed, offset, base):
    frequencies = rotary_frequencies(32, base)
    amplitudes = torch.rand(1, 16, dtype=torch.float64, generator=generator(seed))
    k = torch.tensor([offset])
    c = aligned_coefficients(amplitudes, frequencies, k)
    values = kernel(c, frequencies, torch.arange(-2_000, 20_000))[0]
    total = amplitudes.sum()
    assert values.max() <= total * (1 + 1e-14)
    assert values.argmax() == 2_000 + offset
    # strict: frequency 1 is algebraic, so D - K is never a multiple of its period 2 pi
    assert values.topk(2).values.diff().item() < 0
    torch.testing.assert_close(alignment(c, frequencies, k), torch.ones(1, dtype=torch.float64))


def test_aligned_phases_have_no_uniform_margin():
    # |710 - 113 * 2 pi| = 6.03e-5, so the wave of frequency 1 nearly returns: 1 - cos = 1.8e-9
    frequencies = torch.tensor([1.0], dtype=torch.float64)
    c = aligned_coefficients(torch.ones(1, 1).double(), frequencies, torch.tensor([3]))
    top, other = kernel(c, frequencies, torch.tensor([3, 713]))[0]
    assert 0 < top - other < 2e-9


@few
@given(st.integers(0, 2**31))
def test_alignment_is_at_most_one_and_changes_sign_with_the_kernel(seed):
    c = initialize([seed + i for i in range(8)], 1.0, FREQUENCIES).coefficients
    value = alignment(c, FREQUENCIES, OFFSETS)
    assert (value.abs() <= 1).all()
    torch.testing.assert_close(alignment(-c, FREQUENCIES, OFFSETS), -value)


@few
@given(st.integers(0, 2**31), st.sampled_from((17, 100, 4_096)))
def test_the_first_lost_offset_decides_retrieval_at_every_length(seed, block):
    head = initialize([seed + i for i in range(8)], 0.5, FREQUENCIES)
    lost = first_lost_offset(head.coefficients, FREQUENCIES, OFFSETS, limit=400, block=block)
    for length in (9, 16, 48, 300, 400):
        assert torch.equal(keeps_argmax(head, OFFSETS, length), lost >= length)


def test_a_nearly_aligned_wave_loses_its_argmax_at_its_first_near_return():
    # the wave peaks 1e-4 rad past K = 3; 710 = 113 * 2 pi + 6.03e-5 is its first return this close
    frequencies, k = torch.tensor([1.0], dtype=torch.float64), torch.tensor([3])
    c = torch.polar(torch.ones(1, 1).double(), torch.full((1, 1), 3 + 1e-4).double())
    assert first_lost_offset(c, frequencies, k, limit=1000).item() == 713
    assert first_lost_offset(c, frequencies, k, limit=713).item() == 713
    assert first_lost_offset(c, frequencies, k, limit=100).item() == 100


@few
@given(st.integers(0, 2**31))
def test_the_bessel_constant_is_the_mean_of_exp_kappa(seed):
    # square roots of primes are rationally independent of each other and of 2 pi
    frequencies = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64).sqrt()
    phases = 2 * math.pi * torch.rand(1, 3, dtype=torch.float64, generator=generator(seed))
    amplitudes = torch.tensor([[2.0, 1.0, 0.5]], dtype=torch.float64)
    c = torch.polar(amplitudes, phases)
    mean = kernel(c, frequencies, torch.arange(100_000)).exp().mean().item()
    # Weyl sums over 1e5 points: the error is of order 1e5^-1 per strong harmonic
    assert math.isclose(mean, log_bessel_constant(c).exp().item(), rel_tol=2e-3)


def test_the_bessel_constant_does_not_overflow():
    c = torch.full((1, 1), 1e4, dtype=torch.complex128)
    # log I0(A) = A - log(2 pi A) / 2 + 1 / (8 A) + ...
    expected = 1e4 - math.log(2 * math.pi * 1e4) / 2 + 1 / 8e4
    assert math.isclose(log_bessel_constant(c).item(), expected, rel_tol=1e-12)


@few
@given(st.integers(0, 2**31), st.sampled_from(("interleaved", "half-split")))
def test_the_mean_kernel_has_the_mean_coefficients(seed, layout):
    query, key = torch.randn(2, 5, 8, dtype=torch.float64, generator=generator(seed))
    rotary, n = Rotary(8, layout=layout), 12
    turned_query = rotary.transform_query(query[:, None, :], torch.tensor([n - 1]))  # (5, 1, 8)
    turned_keys = rotary.transform_key(key[:, None, :].expand(-1, n, -1), torch.arange(n))
    logits = torch.einsum("aid,bjd->abj", turned_query, turned_keys).flip(-1) / 8**0.5
    c = token_coefficients(query, key, layout)
    torch.testing.assert_close(kernel(c, rotary.frequencies, torch.arange(n)), logits)
    mean = kernel(c.mean((0, 1)), rotary.frequencies, torch.arange(n))
    torch.testing.assert_close(mean, mean_kernel(logits))


@few
@given(st.integers(0, 2**31))
def test_the_mean_kernel_explains_most_and_exactly_the_offset_part(seed):
    logits = torch.randn(2, 4, 4, 9, dtype=torch.float64, generator=generator(seed))
    best = explained_share(logits)
    assert ((best >= 0) & (best <= 1)).all()
    other = mean_kernel(logits) + torch.randn(2, 9, generator=generator(seed)).double()
    assert (explained_share(logits, other) <= best).all()
    pure = torch.randn(9, dtype=torch.float64, generator=generator(seed)).expand(1, 4, 4, 9)
    token_part = torch.randn(1, 4, 4, 1, dtype=torch.float64, generator=generator(seed))
    one = torch.ones(1, dtype=torch.float64)
    torch.testing.assert_close(explained_share(pure + token_part), one)


@few
@given(st.integers(0, 2**31), st.integers(1, 6))
def test_effective_rank_lies_between_one_and_the_rank(seed, rank):
    left, right = torch.randn(2, 3, 8, rank, dtype=torch.float64, generator=generator(seed))
    value = effective_rank(left @ right.mT)
    assert (value >= 1 - 1e-12).all() and (value <= rank + 1e-9).all()
    torch.testing.assert_close(effective_rank(7 * left @ right.mT), value)


def test_effective_rank_of_a_gaussian_product_is_a_third_of_the_width():
    # Fuss-Catalan moments 1 and 3 of the squared singular values; 1/d corrections
    left, right = torch.randn(2, 50, 64, 64, dtype=torch.float64, generator=generator(0))
    assert abs(effective_rank(left @ right.mT).mean() - 64 / 3) < 1.0


@few
@given(st.integers(0, 2**31))
def test_correlation_ignores_constants_and_positive_scales(seed):
    first, second = torch.randn(2, 3, 16, dtype=torch.float64, generator=generator(seed))
    torch.testing.assert_close(correlation(first, 3 * first + 5), torch.ones(3).double())
    torch.testing.assert_close(correlation(first, second), correlation(second, first))


def test_spectrum_and_support_count_amplitudes():
    c = torch.tensor([[3.0, 4.0j, 0.039, 0.05]], dtype=torch.complex128)
    torch.testing.assert_close(spectrum(c).sum(-1), torch.ones(1).double())
    assert support_size(c).item() == 3  # 0.039 is below 1 % of 4
    assert support_size(c, threshold=0.9).item() == 1


def test_what_cannot_be_asked_is_refused():
    c = initialize(range(8), 1.0, FREQUENCIES).coefficients
    with pytest.raises(ValueError, match="limit=8 "):
        first_lost_offset(c, FREQUENCIES, OFFSETS, limit=8)
    with pytest.raises(ValueError, match="threshold=0"):
        support_size(c, threshold=0.0)
    with pytest.raises(ValueError, match="d_head=5"):
        complex_channels(torch.ones(5))
    with pytest.raises(ValueError, match="'pairs' is unknown; choose from interleaved, half-split"):
        complex_channels(torch.ones(4), "pairs")
