import pytest
import torch

from lengthgen import carrier, interventions
from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.dilution import rotary_coefficients
from lengthgen.encodings import rotary_frequencies
from lengthgen.interventions import INTERVENTIONS, intervene

MODELS = [(0, 2), (1, 5)]


@pytest.fixture(scope="module")
def stack():
    return HeadStack.initialize(HeadConfig("rotary"), [0, 1]).map(lambda p: p.double())


def mean_coefficients(stack):
    return rotary_coefficients(stack).mean((1, 2))


def matrix(stack):
    return stack.parameters["query"] @ stack.parameters["key"].transpose(1, 2)


@pytest.mark.parametrize("rank", [1, 2, 8])
def test_truncation_is_the_best_approximation_of_its_rank(stack, rank):
    cut, full = matrix(intervene(stack, MODELS, f"rank {rank}")), matrix(stack)
    singular = torch.linalg.svdvals(full)
    assert torch.allclose(torch.linalg.svdvals(cut)[:, :rank], singular[:, :rank], atol=1e-10)
    assert torch.linalg.svdvals(cut)[:, rank:].max() < 1e-10
    lost = singular[:, rank:].square().sum(-1).sqrt()  # Eckart and Young
    assert torch.allclose((full - cut).norm(dim=(1, 2)), lost, atol=1e-10)


def test_the_kernel_alone_is_the_mean_kernel_for_every_pair_and_has_rank_one(stack):
    alone = intervene(stack, MODELS, "kernel alone")
    pairs = rotary_coefficients(alone)
    expected = mean_coefficients(stack)[:, None, None].expand_as(pairs)
    assert (pairs - expected).abs().max() < 1e-9
    assert carrier.effective_rank(matrix(alone)).max() < 1 + 1e-9


def test_without_the_means_no_kernel_is_left(stack):
    removed = intervene(stack, MODELS, "means removed")
    assert mean_coefficients(removed).abs().max() < 1e-9


def test_bands_and_strongest_frequencies_are_really_gone(stack):
    for band in range(4):
        left = mean_coefficients(intervene(stack, MODELS, f"without band {band}")).abs() > 0
        expected = torch.arange(16) // 4 != band
        assert (left == expected).all()
    strongest = interventions._strongest(stack, 4)
    alone = mean_coefficients(intervene(stack, MODELS, "strongest 4 alone")).abs() > 0
    without = mean_coefficients(intervene(stack, MODELS, "without strongest 4")).abs() > 0
    assert (alone == strongest).all() and (without == ~strongest).all()


def test_phases_change_and_amplitudes_stay(stack):
    before = rotary_coefficients(stack)
    for name in ("random phases", "aligned phases"):
        after = rotary_coefficients(intervene(stack, MODELS, name))
        assert torch.allclose(after.abs(), before.abs(), atol=1e-6)
    after = mean_coefficients(intervene(stack, MODELS, "aligned phases"))
    offset = torch.tensor([offset for _, offset in MODELS])
    assert (carrier.alignment(after, rotary_frequencies(32), offset) - 1).abs().max() < 1e-5


def test_an_intervention_must_exist(stack):
    with pytest.raises(ValueError, match="rank 99"):
        intervene(stack, MODELS, "rank 99")
    assert intervene(stack, MODELS, "none") is stack
    assert "none" in INTERVENTIONS
