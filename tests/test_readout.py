import itertools

import pytest
import torch

from lengthgen.linear import design_matrix, impulse, minimum_norm, scaled_midpoints
from lengthgen.readout import predicted_accuracy, sampled_accuracy, signal_accuracy


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def interpolants(top, length, offset):
    frequencies = scaled_midpoints(16, top)
    theta = minimum_norm(design_matrix(frequencies, torch.arange(16)), impulse(offset, 16))
    return theta @ design_matrix(frequencies, torch.arange(length)).T


def test_sampled_accuracy_agrees_with_enumeration():
    weights = torch.tensor([[0.5, 1.0, -0.7, 0.6]], dtype=torch.float64)
    tokens = torch.tensor(list(itertools.product(range(3), repeat=4)))
    one_hot = torch.nn.functional.one_hot(tokens, 3).to(torch.float64)
    exact = (torch.einsum("d,ndv->nv", weights[0], one_hot).argmax(-1) == tokens[:, 1]).double()
    measured = sampled_accuracy(weights, torch.tensor([1]), 3, 20_000, seeded())
    # Five standard errors of a share measured on 20,000 sequences.
    assert abs(float(measured) - float(exact.mean())) < 5 * (0.25 / 20_000) ** 0.5


def test_sampled_accuracy_ignores_block_size_and_positive_factors():
    offset = torch.tensor([2, 4])
    weights = interpolants(0.8, 48, offset)
    # Blocks cut one stream of tokens: the same sequences in any block size that divides evenly.
    one = sampled_accuracy(weights, offset, 16, 512, seeded(), block=512)
    other = sampled_accuracy(4 * weights, offset, 16, 512, seeded(), block=512)
    assert torch.equal(one, other)
    split = sampled_accuracy(weights, offset, 16, 4096, seeded(), block=64)
    whole = sampled_accuracy(weights, offset, 16, 4096, seeded(), block=4096)
    assert (split - whole).abs().max() < 5 * (0.25 / 4096) ** 0.5 * 2**0.5


def test_main_spectrum_fails_and_benign_spectrum_extrapolates_at_length_48():
    offset = torch.tensor([1, 2, 4, 8])
    main = sampled_accuracy(interpolants(0.8, 48, offset), offset, 16, 4000, seeded())
    benign = sampled_accuracy(interpolants(1.0, 48, offset), offset, 16, 4000, seeded())
    inside = sampled_accuracy(interpolants(0.8, 16, offset), offset, 16, 4000, seeded())
    assert main.max() <= 0.15 and benign.min() >= 0.9 and inside.min() == 1


def test_one_alias_of_the_other_sign_costs_a_sixteenth():
    # w(K) = 1, w(K + 32) = -1, zero elsewhere: wrong (up to a tie of 16) when both tokens agree.
    weights = torch.zeros(1, 48, dtype=torch.float64)
    weights[0, 2], weights[0, 34] = 1, -1
    exact = 15 / 16 + 1 / 16**2
    predicted = predicted_accuracy(weights, torch.tensor([2]), 16, 1, 5000, seeded())
    assert abs(float(predicted) - exact) < 5 * (exact * (1 - exact) / 5000) ** 0.5


def test_signal_accuracy_has_the_right_ends_and_is_increasing():
    signal = torch.linspace(0, 12, 50, dtype=torch.float64)
    accuracy = signal_accuracy(signal, 16)
    assert abs(float(accuracy[0]) - 1 / 16) < 1e-12 and abs(float(accuracy[-1]) - 1) < 1e-12
    assert (accuracy.diff() >= 0).all()


def test_gaussian_prediction_is_exact_in_the_limit_of_many_small_weights():
    weights = torch.full((1, 1000), 0.05, dtype=torch.float64)
    weights[0, 3] = 1
    signal = (torch.tensor(16 / (999 * 0.05**2)).double()).sqrt()
    predicted = predicted_accuracy(weights, torch.tensor([3]), 16, 0, 1, seeded())
    assert abs(float(predicted) - float(signal_accuracy(signal, 16))) < 1e-9
    measured = sampled_accuracy(weights, torch.tensor([3]), 16, 1000, seeded())
    assert abs(float(measured - predicted)) < 5 * (0.25 / 1000) ** 0.5


def test_prediction_with_eight_exact_offsets_meets_the_measurement():
    offset = torch.tensor([1, 2, 4, 8])
    for top in (0.8, 1.0):
        weights = interpolants(top, 48, offset)
        predicted = predicted_accuracy(weights, offset, 16, 8, 1000, seeded(1))
        measured = sampled_accuracy(weights, offset, 16, 8000, seeded())
        assert (predicted - measured).abs().max() < 0.04  # 3 sigma of 1,000 draws


def test_bad_input_is_named_with_what_is_allowed():
    weights, offset = torch.zeros(1, 4, dtype=torch.float64), torch.tensor([4])
    with pytest.raises(ValueError, match=r"offset=\[4\] .*0\.\.3"):
        sampled_accuracy(weights, offset, 16, 10, seeded())
    with pytest.raises(ValueError, match=r"vocabulary=1 .*>= 2"):
        sampled_accuracy(weights, offset - 1, 1, 10, seeded())
    with pytest.raises(ValueError, match=r"n_sequences=0"):
        sampled_accuracy(weights, offset - 1, 16, 0, seeded())
    with pytest.raises(ValueError, match=r"n_exact=3.*0\.\.2"):
        predicted_accuracy(weights, offset - 1, 16, 3, 10, seeded())
    with pytest.raises(ValueError, match=r"vocabulary=1 .*>= 2"):
        signal_accuracy(torch.zeros(1).double(), 1)
