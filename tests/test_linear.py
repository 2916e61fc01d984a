import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthgen.linear import (
    as_coefficients,
    conditioning,
    descent,
    descent_closed_form,
    design_matrix,
    impulse,
    largest_step,
    loss_metric,
    minimum_norm,
    scaled_midpoints,
    squared_loss,
)
from lengthgen.position_head import kernel

MAIN, BENIGN = 0.8, 1.0
OFFSETS = torch.arange(16)


def problem(top, offset=(1, 2, 4, 8)):
    frequencies = scaled_midpoints(16, top)
    return design_matrix(frequencies, OFFSETS), impulse(torch.tensor(offset), 16)


def iterate(steps, *arguments, **options):
    return next(itertools.islice(descent(*arguments, **options), steps, None))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    steps=st.integers(0, 300),
    share=st.floats(0.05, 0.99),
    vocabulary=st.sampled_from([None, 2, 16]),
    top=st.sampled_from([0.5, 0.8, 1.0]),
)
def test_iterate_equals_closed_form(seed, steps, share, vocabulary, top):
    design, target = problem(top)
    metric = loss_metric(vocabulary=vocabulary)
    start = torch.randn(4, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    step_size = share * largest_step(design, metric)
    walked = iterate(steps, design, target, metric, step_size, start=start)
    jumped = descent_closed_form(
        design, target, metric, step_size, torch.tensor([steps]), start=start
    )
    assert (walked - jumped[0]).abs().max() < 1e-8


def test_iterate_equals_closed_form_after_twenty_thousand_steps():
    design, target = problem(MAIN)
    metric = loss_metric()
    step_size = 0.5 * largest_step(design, metric)
    walked = iterate(20_000, design, target, metric, step_size)
    jumped = descent_closed_form(design, target, metric, step_size, torch.tensor([20_000]))
    assert (walked - jumped[0]).abs().max() < 1e-8


def test_closed_form_holds_on_a_numerically_singular_spectrum():
    frequencies = 10_000.0 ** (-torch.arange(16, dtype=torch.float64) / 16)
    design, target = design_matrix(frequencies, OFFSETS), impulse(torch.tensor([2]), 16)
    metric = loss_metric()
    step_size = 0.5 * largest_step(design, metric)
    walked = iterate(500, design, target, metric, step_size)
    jumped = descent_closed_form(design, target, metric, step_size, torch.tensor([500]))
    assert (walked - jumped[0]).abs().max() < 1e-8


@pytest.mark.parametrize("vocabulary", [None, 16])
@pytest.mark.parametrize("top", [MAIN, BENIGN])
def test_limit_equals_pseudo_inverse(top, vocabulary):
    # The metric differs (centred or not, weights by length); the limit does not.
    design, target = problem(top)
    metric = loss_metric(vocabulary=vocabulary)
    step_size = 0.5 * largest_step(design, metric)
    limit = descent_closed_form(design, target, metric, step_size, torch.tensor([10**8]))[0]
    expected = minimum_norm(design, target)
    assert (limit - expected).norm() / expected.norm() < 1e-6


def test_walking_reaches_the_pseudo_inverse():
    # Condition number 3,466 of the Gram matrix: 14 decay times (1e-6) are 50,000 steps.
    design, target = problem(MAIN)
    metric = loss_metric([16])
    walked = iterate(50_000, design, target, metric, 0.9 * largest_step(design, metric))
    expected = minimum_norm(design, target)
    assert (walked - expected).norm() / expected.norm() < 1e-6


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), offset=st.integers(0, 15), size=st.floats(0.01, 10))
def test_any_other_interpolant_has_a_larger_norm(seed, offset, size):
    design, target = problem(MAIN, [offset])
    least = minimum_norm(design, target)
    generator = torch.Generator().manual_seed(seed)
    change = size * torch.randn(1, 32, dtype=torch.float64, generator=generator)
    change = change - change @ (torch.linalg.pinv(design) @ design)  # into the null space
    other = least + change
    assert (design @ other[0] - target[0]).abs().max() < 1e-9 * (1 + size)
    assert other.norm() > least.norm()
    # Pythagoras: the minimum-norm interpolant is orthogonal to every such change.
    excess = other.square().sum() - least.square().sum()
    assert math.isclose(excess, change.square().sum(), rel_tol=1e-6)


@pytest.mark.parametrize("centred", [True, False])
def test_loss_is_the_expected_squared_error_over_all_sequences(centred):
    # Every sequence of length 2 and 3 over 3 tokens, enumerated: no sampling error.
    weights = torch.tensor([0.3, 0.9, -0.4], dtype=torch.float64)
    vocabulary, offset, errors = 3, 1, []
    for length in (2, 3):
        tokens = torch.tensor(list(itertools.product(range(vocabulary), repeat=length)))
        x = torch.nn.functional.one_hot(tokens, vocabulary).to(torch.float64)
        x = x - 1 / vocabulary if centred else x
        output = torch.einsum("d,ndv->nv", weights[:length], x)
        errors.append((output - x[:, offset]).square().sum(-1).mean() / 2)
    expected = sum(errors) / len(errors) / (1 - 1 / vocabulary)
    metric = loss_metric([2, 3], None if centred else vocabulary)
    identity = torch.eye(3, dtype=torch.float64)
    loss = squared_loss(weights[None], identity, impulse(torch.tensor([offset]), 3), metric)
    assert torch.allclose(loss, expected[None], rtol=1e-12)


def test_weight_of_an_offset_is_the_share_of_lengths_that_reach_it():
    weights = loss_metric(range(10, 17)).diag() * 7
    assert torch.allclose(weights, torch.tensor([7.0] * 10 + [6, 5, 4, 3, 2, 1]).double())


def test_condition_number_separates_the_spectra():
    assert math.isclose(conditioning(problem(BENIGN)[0]).condition_number, 1, rel_tol=1e-9)
    assert 58 < conditioning(problem(MAIN)[0]).condition_number < 60
    rotary = 10_000.0 ** (-torch.arange(16, dtype=torch.float64) / 16)
    assert conditioning(design_matrix(rotary, OFFSETS), tolerance=1e-6).rank == 10


def test_benign_design_is_orthogonal():
    design = problem(BENIGN)[0]
    assert torch.allclose(design @ design.T, 16 * torch.eye(16, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize(("top", "half_period"), [(0.5, 64), (0.8, 40), (1.0, 32)])
def test_kernels_on_scaled_midpoints_repeat_with_the_other_sign(top, half_period):
    frequencies = scaled_midpoints(16, top)
    here = design_matrix(frequencies, OFFSETS)
    assert torch.allclose(design_matrix(frequencies, OFFSETS + half_period), -here, atol=1e-11)


def test_parameters_are_the_coefficients_of_the_position_head():
    frequencies = scaled_midpoints(16, MAIN)
    theta = torch.randn(3, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = kernel(as_coefficients(theta), frequencies, OFFSETS)
    assert torch.allclose(theta @ design_matrix(frequencies, OFFSETS).T, expected, atol=1e-12)


def test_bad_input_is_named_with_what_is_allowed():
    design, target = problem(MAIN)
    metric = loss_metric()
    with pytest.raises(ValueError, match=r"top=1\.5 .*\(0, 1\]"):
        scaled_midpoints(4, 1.5)
    with pytest.raises(ValueError, match=r"n_frequencies=0 .*>= 1"):
        scaled_midpoints(0, 1.0)
    with pytest.raises(ValueError, match=r"offset=\[16\] .*0\.\.15"):
        impulse(torch.tensor([16]), 16)
    with pytest.raises(ValueError, match=r"lengths=\[\]"):
        loss_metric([])
    with pytest.raises(ValueError, match=r"vocabulary=1 .*>= 2"):
        loss_metric(vocabulary=1)
    with pytest.raises(ValueError, match=r"step_size=1\.0 .*0 < step_size < 0\.1"):
        next(descent(design, target, metric, 1.0))
    with pytest.raises(ValueError, match=r"steps=\[-1\] .*>= 0"):
        descent_closed_form(design, target, metric, 0.01, torch.tensor([-1]))
