import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthgen.linear import (
    descent,
    design_matrix,
    impulse,
    largest_step,
    loss_metric,
    minimum_norm,
    scaled_midpoints,
)
from lengthgen.superoscillation import (
    chebyshev_dual,
    efficiency,
    growth_rate,
    interpolant_energy,
    interpolant_energy_bound,
    mean_square,
    mean_square_error_bound,
)

ALL = torch.arange(16)


def random_parameters(seed, n_models=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_models, 32, dtype=torch.float64, generator=generator)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), start=st.integers(0, 1000), exponent=st.integers(6, 15))
def test_mean_square_tends_to_half_the_norm_at_the_stated_rate(seed, start, exponent):
    # Uneven spectrum: base 10 keeps all sixteen frequencies distinct and inside (0, pi).
    frequencies = 10.0 ** (-torch.arange(16, dtype=torch.float64) / 16)
    theta, length = random_parameters(seed), 2**exponent
    limit = theta.square().sum(-1) / 2
    error = (mean_square(theta, frequencies, start, start + length) - limit).abs() / limit
    assert (error <= mean_square_error_bound(frequencies, length)).all()


@pytest.mark.parametrize(("top", "half_period"), [(0.5, 64), (0.8, 40), (1.0, 32)])
def test_parseval_is_exact_over_half_a_period(top, half_period):
    theta = random_parameters(0)
    energy = mean_square(theta, scaled_midpoints(16, top), 5, 5 + half_period)
    assert torch.allclose(energy, theta.square().sum(-1) / 2, rtol=1e-12)


@pytest.mark.parametrize("top", [0.5, 0.8, 0.9, 1.0])
def test_energy_is_the_squared_norm_of_the_minimum_norm_interpolant(top):
    frequencies = scaled_midpoints(16, top)
    theta = minimum_norm(design_matrix(frequencies, ALL), impulse(ALL, 16))
    # Relative error at most of order machine epsilon times the squared condition number (2e11).
    assert torch.allclose(interpolant_energy(frequencies, 16), theta.square().sum(-1), rtol=1e-4)


@settings(max_examples=30, deadline=None)
@given(n_frequencies=st.integers(8, 24), top=st.floats(0.4, 1.0), length=st.integers(2, 12))
def test_bound_lies_below_every_interpolant(n_frequencies, top, length):
    frequencies = scaled_midpoints(n_frequencies, top)
    try:
        energy = interpolant_energy(frequencies, length)
    except ValueError:  # too few frequencies for this band: nothing to bound
        return
    bound = interpolant_energy_bound(frequencies, top, length)
    assert (bound <= energy * (1 + 1e-6)).all()


@pytest.mark.parametrize("top", [0.5, 0.6, 0.7, 0.8])
def test_bound_is_within_a_factor_of_six(top):
    frequencies = scaled_midpoints(16, top)
    ratio = interpolant_energy(frequencies, 16) / interpolant_energy_bound(frequencies, top, 16)
    assert ratio.min() >= 1 and ratio.max() < 6


@settings(max_examples=30, deadline=None)
@given(length=st.integers(1, 20), top=st.floats(0.3, 1.0))
def test_dual_is_small_in_the_band_and_grows_at_the_stated_rate_outside(length, top):
    dual = chebyshev_dual(length, top)
    grid = torch.linspace(0, math.pi * top, 501, dtype=torch.float64)
    waves = torch.polar(torch.ones(501, length).double(), -grid[:, None] * torch.arange(length))
    # Rounding is relative to the largest coefficient.
    assert (waves @ (dual + 0j)).abs().max() <= 1 + 1e-11 * (1 + dual.abs().max())
    signs = 1 - 2 * (torch.arange(length) % 2)
    peak = float((dual * signs).sum().abs())
    assert peak >= math.exp(growth_rate(top) * (length - 1)) / 2 * (1 - 1e-9)


def test_first_step_of_descent_is_the_most_efficient_kernel_and_the_interpolant_is_not():
    frequencies, offset = scaled_midpoints(16, 0.8), torch.tensor([1, 2, 4, 8])
    design, target = design_matrix(frequencies, ALL), impulse(offset, 16)
    walk = descent(design, target, loss_metric(), 0.5 * largest_step(design, loss_metric()))
    next(walk)
    assert torch.allclose(efficiency(next(walk), frequencies, offset), torch.ones(4).double())
    limit = minimum_norm(design, target)
    expected = 1 / (16 * interpolant_energy(frequencies, 16)[offset])
    assert torch.allclose(efficiency(limit, frequencies, offset), expected, rtol=1e-9)
    assert expected.max() < 0.06


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), offset=st.integers(0, 40))
def test_efficiency_lies_between_zero_and_one(seed, offset):
    share = efficiency(
        random_parameters(seed), scaled_midpoints(16, 0.8), torch.tensor([offset] * 3)
    )
    assert (share >= 0).all() and (share <= 1).all()


def test_bad_input_is_named_with_what_is_allowed():
    frequencies = scaled_midpoints(16, 0.8)
    with pytest.raises(ValueError, match=r"stop=3 .*start=3"):
        mean_square(random_parameters(0), frequencies, 3, 3)
    with pytest.raises(ValueError, match=r"length=0.*length >= 1"):
        mean_square_error_bound(frequencies, 0)
    with pytest.raises(ValueError, match=r"distinct"):
        mean_square_error_bound(torch.tensor([1.0, 1.0]).double(), 10)
    with pytest.raises(ValueError, match=r"length=9 .*interpolate only 8"):
        interpolant_energy(scaled_midpoints(4, 1.0), 9)
    with pytest.raises(ValueError, match=r"top=0\.7"):
        interpolant_energy_bound(frequencies, 0.7, 16)
    with pytest.raises(ValueError, match=r"top=0\.0 .*\(0, 1\]"):
        growth_rate(0.0)
    with pytest.raises(ValueError, match=r"length=0 .*>= 1"):
        chebyshev_dual(0, 0.8)
