from lengthgen.experiments import frequency
from lengthgen.experiments import frequency_position as position
from lengthgen.experiments.frequency_position import Spectrum


def test_position_rows_show_the_early_and_the_late_carrier():
    few = {"n_seeds": 2, "offsets": (2, 6), "std": 0.04, "shares": (0.95,)}
    early = position.early_rows(position.PositionConfig(**few))
    assert [(row["seed"], row["offset"]) for row in early] == [(0, 2), (0, 6), (1, 2), (1, 6)]
    assert min(row["correlation"] for row in early) > 0.995
    late = position.late_rows(position.PositionConfig(**few, steps=(0, 300)))
    end = [row for row in late if row["step"] == 300]
    assert min(row["correlation"] for row in end) > 0.99
    assert all(row["normalized_margin"] <= 1 + 1e-6 for row in late)


def test_the_certificate_row():
    (row,) = position.carrier_rows(position.CarrierConfig(Spectrum(), (2,), 2_000))
    assert abs(row["certificate"] - 1) < 1e-5 and row["certificate_off_support"] < 1
    assert row["duality_gap"] < 1e-6
    assert row["first_lost"] == 1711 and row["support"] == 3


def test_every_profile_plans_work_and_quick_offsets_are_paper_offsets():
    for profile in ("quick", "paper"):
        config = frequency.EXPERIMENT.config(profile)
        assert len(list(frequency._work(config))) > 5
    quick, paper = (frequency.EXPERIMENT.config(p) for p in ("quick", "paper"))
    assert set(quick.lengths) <= set(paper.lengths) and quick.n_sequences == paper.n_sequences
