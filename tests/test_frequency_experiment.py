import pytest
import torch

from lengthgen import carrier
from lengthgen.attention import HeadStack
from lengthgen.experiments import frequency
from lengthgen.experiments.frequency import INTERVENTIONS, Spectrum, intervene

MODELS = [(0, 2), (1, 5)]


@pytest.fixture(scope="module")
def stack():
    from lengthgen.attention import HeadConfig

    return HeadStack.initialize(HeadConfig("rotary"), [0, 1]).map(lambda p: p.double())


def mean_coefficients(stack):
    return frequency._coefficients(stack).mean((1, 2))


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
    pairs = frequency._coefficients(alone)
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
    strongest = frequency._strongest(stack, 4)
    alone = mean_coefficients(intervene(stack, MODELS, "strongest 4 alone")).abs() > 0
    without = mean_coefficients(intervene(stack, MODELS, "without strongest 4")).abs() > 0
    assert (alone == strongest).all() and (without == ~strongest).all()


def test_phases_change_and_amplitudes_stay(stack):
    before = frequency._coefficients(stack)
    for name in ("random phases", "aligned phases"):
        after = frequency._coefficients(intervene(stack, MODELS, name))
        assert torch.allclose(after.abs(), before.abs(), atol=1e-6)
    after = mean_coefficients(intervene(stack, MODELS, "aligned phases"))
    offset = torch.tensor([offset for _, offset in MODELS])
    assert (carrier.alignment(after, Spectrum().frequencies, offset) - 1).abs().max() < 1e-5


def test_an_intervention_must_exist(stack):
    with pytest.raises(ValueError, match="rank 99"):
        intervene(stack, MODELS, "rank 99")
    assert intervene(stack, MODELS, "none") is stack
    assert "none" in INTERVENTIONS


def test_position_rows_show_the_early_and_the_late_carrier():
    few = {"n_seeds": 2, "offsets": (2, 6), "std": 0.04, "shares": (0.95,)}
    early = frequency.early_rows(frequency._PositionConfig(**few))
    assert [(row["seed"], row["offset"]) for row in early] == [(0, 2), (0, 6), (1, 2), (1, 6)]
    assert min(row["correlation"] for row in early) > 0.995
    late = frequency.late_rows(frequency._PositionConfig(**few, steps=(0, 300)))
    end = [row for row in late if row["step"] == 300]
    assert min(row["correlation"] for row in end) > 0.99
    assert all(row["normalized_margin"] <= 1 + 1e-6 for row in late)


def test_the_certificate_row():
    (row,) = frequency.carrier_rows(frequency._CarrierConfig(Spectrum(), (2,), 2_000))
    assert abs(row["certificate"] - 1) < 1e-5 and row["certificate_off_support"] < 1
    assert row["first_lost"] == 1711 and row["support"] == 3


def test_every_profile_plans_work_and_quick_offsets_are_paper_offsets():
    for profile in ("quick", "paper"):
        config = frequency.EXPERIMENT.config(profile)
        assert len(list(frequency._work(config))) > 5
    quick, paper = (frequency.EXPERIMENT.config(p) for p in ("quick", "paper"))
    assert set(quick.lengths) <= set(paper.lengths) and quick.n_sequences == paper.n_sequences
