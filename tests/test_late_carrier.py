import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthgen.carrier import support_size
from lengthgen.descent import Descent, scale_to_loss, trajectory
from lengthgen.encodings import rotary_frequencies
from lengthgen.late_carrier import (
    bad_twin,
    kkt_residual,
    max_margin,
    normalized_margin,
    smallest_head,
)
from lengthgen.position_head import PositionHead, initialize, keeps_argmax, kernel, margin

FREQUENCIES = rotary_frequencies(32)
OFFSETS = torch.arange(1, 9)
CARRIERS = {k: max_margin(FREQUENCIES, k) for k in range(1, 9)}


def optimal_heads():
    return smallest_head(torch.stack([c.coefficients for c in CARRIERS.values()]), FREQUENCIES)


@pytest.mark.parametrize("offset", range(1, 9))
def test_the_duals_certify_the_global_optimum(offset):
    carrier = CARRIERS[offset]
    certificate = carrier.certificate()
    active = carrier.coefficients.abs() > 1e-5 * carrier.coefficients.abs().max()
    assert certificate.max() <= 1 + 1e-5  # dual feasible ...
    assert abs(carrier.multipliers.sum() - carrier.norm) < 1e-6  # ... with the primal's value
    assert (carrier.multipliers > -1e-9).all()
    assert (certificate[active] - 1).abs().max() < 1e-5
    assert certificate[~active].max() < 0.95
    gaps = carrier.kernel(carrier.better) - carrier.kernel(carrier.worse)
    assert gaps.min() > 1 - 1e-6
    assert (carrier.multipliers * (gaps - 1)).abs().max() < 1e-5  # complementary slackness


def test_the_support_is_sparse():
    sizes = [int(support_size(c.coefficients)) for c in CARRIERS.values()]
    assert sizes == [3, 3, 3, 2, 2, 2, 2, 2]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(range(1, 9)))
def test_no_random_kernel_beats_the_normalized_margin(seed, offset):
    # weak duality, straight from the definition: margin / norm <= 1 / optimum
    head = initialize(range(seed, seed + 50), 1.0, FREQUENCIES)
    # start from the optimum and disturb it, so that the bound is nearly tight
    near = CARRIERS[offset].coefficients + 0.02 * head.coefficients
    bound = 1 / CARRIERS[offset].norm
    ratio = margin(near, FREQUENCIES, torch.full((50,), offset), 16) / near.abs().sum(-1)
    assert ratio.max() <= bound * (1 + 1e-7)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31))
def test_the_smallest_head_has_the_least_norm_of_all_factorizations(seed):
    head = initialize(range(seed, seed + 8), 1.0, FREQUENCIES)
    smallest = smallest_head(head.coefficients, FREQUENCIES)
    torch.testing.assert_close(smallest.coefficients, head.coefficients)
    torch.testing.assert_close(smallest.size, head.coefficients.abs().sum(-1))
    assert (smallest.size <= head.size * (1 + 1e-12)).all()


def test_the_optimal_head_is_stationary_and_attains_the_margin():
    head = optimal_heads()
    ratio = normalized_margin(head, OFFSETS) * torch.tensor([c.norm for c in CARRIERS.values()])
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=1e-6, atol=0)


def test_the_kkt_residual_falls_along_descent():
    steps, head = [60, 200, 1_000], initialize(range(8), 0.04, FREQUENCIES)
    stack = [h for h, _ in trajectory(head, OFFSETS, steps, Descent(step_size=1.0))]
    stationarity, slackness = (
        torch.stack(x) for x in zip(*(kkt_residual(h, OFFSETS) for h in stack), strict=True)
    )
    assert stationarity[-1].max() < 0.25 and (stationarity[-1] < stationarity[0]).all()
    assert slackness[-1].max() < 0.02 and (slackness[-1] < slackness[0]).all()
    assert (slackness > -1e-9).all()


def test_any_subset_of_frequencies_is_stationary_too():
    # K = 3 on two of the three frequencies it needs: its descent never finds the third
    kept = torch.tensor([0, 1])
    sub = max_margin(FREQUENCIES[kept], 3)
    assert sub.norm > CARRIERS[3].norm * 1.001
    start = initialize([0], 0.3, FREQUENCIES)
    query, key = torch.zeros_like(start.query), torch.zeros_like(start.key)
    query[:, kept], key[:, kept] = start.query[:, kept], start.key[:, kept]
    head, _ = trajectory(
        PositionHead(query, key, FREQUENCIES), torch.tensor([3]), [500], Descent(step_size=1.0)
    )[0]
    assert head.coefficients[:, 2:].abs().max() == 0
    assert normalized_margin(head, torch.tensor([3])) * sub.norm > 0.95


def test_scaling_leaves_the_normalized_margin_alone():
    head = optimal_heads()
    scaled = scale_to_loss(head, OFFSETS, 1e-3)
    torch.testing.assert_close(normalized_margin(scaled, OFFSETS), normalized_margin(head, OFFSETS))


@pytest.mark.parametrize("offset,wrong_offset", [(1, 45), (3, 28), (8, 40)])
def test_a_bad_twin_fits_as_well_and_prefers_the_wrong_offset(offset, wrong_offset):
    twin = bad_twin(FREQUENCIES, offset, wrong_offset)
    head = smallest_head(twin.coefficients[None], FREQUENCIES)
    k = torch.tensor([offset])
    assert margin(head.coefficients, FREQUENCIES, k, 16).item() > 1 - 1e-6
    values = kernel(twin.coefficients, FREQUENCIES, torch.tensor([wrong_offset, offset]))
    assert values[0] > values[1] + 1 - 1e-6
    assert keeps_argmax(head, k, 16).all() and not keeps_argmax(head, k, wrong_offset + 1).any()
    assert twin.certificate().max() <= 1 + 1e-5
    assert 1.0 < twin.norm / CARRIERS[offset].norm < 2.0


def test_what_cannot_be_asked_is_refused():
    for offset in (0, 16):
        with pytest.raises(ValueError, match=rf"offset={offset} .*1\.\.15"):
            max_margin(FREQUENCIES, offset)
    with pytest.raises(ValueError, match=r"wrong_offset=12 .*>= 16"):
        bad_twin(FREQUENCIES, 3, 12)
    with pytest.raises(ValueError, match="no kernel on 1 frequencies"):
        max_margin(torch.tensor([torch.pi], dtype=torch.float64), 3)
