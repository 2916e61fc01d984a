import math

import torch

from lengthgen.carrier import correlation
from lengthgen.descent import Descent, snapshots, trajectory
from lengthgen.early_carrier import early_head, first_step_coefficients, growth_rates
from lengthgen.encodings import rotary_frequencies
from lengthgen.position_head import TRAINING_LENGTHS, initialize, kernel
from lengthgen.position_loss import attention_error, equation_of_motion

FREQUENCIES = rotary_frequencies(32)
OFFSETS = torch.arange(1, 9)
UNIFORM_LOSS = sum(map(math.log, TRAINING_LENGTHS)) / len(TRAINING_LENGTHS)


def test_growth_rates_are_the_fourier_transform_of_the_uniform_error():
    head = initialize(range(8), 1e-9, FREQUENCIES)
    d_query, _, _ = equation_of_motion(head, OFFSETS)
    # attention is uniform to 1e-18 here
    rates = d_query * 32**0.5 / head.key
    torch.testing.assert_close(rates, growth_rates(FREQUENCIES, OFFSETS), rtol=1e-10, atol=1e-14)


def test_the_closed_form_is_the_iterate_while_attention_is_uniform():
    head = initialize(range(8), 1e-12, FREQUENCIES)
    for steps in (1, 7, 40):
        trained, _ = trajectory(head, OFFSETS, [steps], Descent("loss", 1.0))[0]
        predicted = early_head(head, OFFSETS, 1.0, torch.full((8,), steps).double())
        scale = trained.query.abs().max()
        # the kernel stays below 1e-20, so only rounding of `steps` products is left
        assert (trained.query - predicted.query).abs().max() < 1e-13 * scale
        assert (trained.key - predicted.key).abs().max() < 1e-13 * scale


def test_a_fraction_of_a_step_is_a_shorter_step():
    head = initialize(range(8), 1e-12, FREQUENCIES)
    half = early_head(head, OFFSETS, 1.0, torch.full((8,), 0.5).double())
    short, _ = trajectory(head, OFFSETS, [1], Descent("loss", 0.5))[0]
    assert (half.query - short.query).abs().max() < 1e-14 * short.query.abs().max()


def test_growth_and_decay_are_exact_modes():
    head = initialize(range(8), 1e-3, FREQUENCIES)
    g = growth_rates(FREQUENCIES, OFFSETS)
    turn = g / g.abs()
    later = early_head(head, OFFSETS, 1.0, torch.full((8,), 10.0).double())
    rate = g.abs() / 32**0.5
    for sign in (1, -1):
        before = head.query + sign * turn * head.key
        after = later.query + sign * turn * later.key
        torch.testing.assert_close(after, before * (1 + sign * rate) ** 10)


def test_the_closed_form_predicts_the_kernel_when_the_loss_begins_to_fall():
    # the bar of the book is 0.995 in every run; no parameter is fitted
    for std in (1e-5, 0.04):
        head = initialize(range(8), std, FREQUENCIES)
        shot = snapshots(head, OFFSETS, [0.95 * UNIFORM_LOSS], 500, Descent("loss", 1.0))[0]
        predicted = early_head(head, OFFSETS, 1.0, shot.steps)
        kernels = [
            kernel(x.coefficients, FREQUENCIES, torch.arange(16)) for x in (shot.head, predicted)
        ]
        assert correlation(*kernels).min() > 0.999


def test_the_first_step_moves_the_coefficients_along_the_naive_carrier_on_average():
    heads = initialize(range(4000), 1e-3, FREQUENCIES)
    offset = torch.full((4000,), 3)
    d_query, d_key, _ = equation_of_motion(heads, offset)
    moved = (d_query.conj() * heads.key + heads.query.conj() * d_key).mean(0)
    naive = first_step_coefficients(FREQUENCIES, offset[:1])[0]
    ratio = moved / naive
    # mean of |q|^2 + |k|^2 over 4000 draws: relative standard error 1 / sqrt(8000) = 1.1 %
    assert (ratio / ratio.mean() - 1).abs().max() < 0.06


def test_the_error_sums_to_zero_so_the_constant_wave_never_grows():
    error, _ = attention_error(initialize(range(8), 1.0, FREQUENCIES), OFFSETS)
    assert error.sum(-1).abs().max() < 1e-14
    still = torch.zeros(1, dtype=torch.float64)
    assert growth_rates(still, OFFSETS).abs().max() < 1e-15
