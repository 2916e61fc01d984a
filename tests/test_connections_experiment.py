from dataclasses import replace

import pytest

from lengthgen.claims import connections as claims
from lengthgen.experiments import connections as experiment
from lengthgen.experiments.connections import Config, Training
from lengthgen.panels.connections import connections_panel

TINY = Config(
    n_seeds=2,
    trainings=(
        Training((0.03, 1.0, 1.25), 6, (2,), max_steps=300),
        Training((0.3,), None, (2,), max_steps=40),
        Training((0.3,), 6, (2,), balanced=True, max_steps=40),
    ),
    lengths=(16, 17, 64),
    n_sequences=60,
    program_offsets=(2,),
    rows=64,
)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("LENGTHGEN_CACHE", str(tmp_path_factory.mktemp("connections")))
    small = replace(experiment.EXPERIMENT, profiles={"quick": TINY, "paper": TINY})
    yield small.run("quick")
    patch.undo()


def test_a_tiny_run_has_every_row_a_summary_and_a_picture(result):
    runs = [row for row in result.rows if "level" in row]
    assert len(runs) == 2 * 5 * len(TINY.levels)
    answers = [row for row in result.rows if row["kind"] == "recurrence" and "length" in row]
    assert len(answers) == 2 * 5 * len(TINY.lengths)
    programs = {row["program"] for row in result.rows if row["kind"] == "program"}
    assert len(programs) == 6
    assert len(result.summary["recurrence"]) == 5
    assert experiment.EXPERIMENT.plot(result).axes


def test_small_and_large_starts_differ_at_the_same_loss(result):
    tails = {std: max(r["tail"] for r in result.select(std=std, level=1e-4)) for std in (0.03, 1.0)}
    assert 100 * tails[0.03] < tails[1.0]


def test_what_cannot_fit_does_not(result):
    for wanted in ({"too_narrow": True}, {"balanced": True}):
        rows = [row for row in result.select(**wanted) if "loss" in row]
        assert rows and not any(row["reached"] for row in rows)


def test_every_claim_finds_its_number(result):
    values = {claim.id: claim.measure(result) for claim in claims.CLAIMS}
    assert values["connections.program"] == values["connections.compiled_rotary"] == 1
    assert values["connections.small_start"] < 1e-4
    assert values["connections.guarantee"] >= 1_024


def test_quick_cells_are_cells_of_the_paper_profile():
    quick, paper = (experiment.EXPERIMENT.config(name) for name in ("quick", "paper"))
    assert paper.n_seeds >= 20 and quick.n_seeds <= 8
    assert (quick.levels, quick.n_sequences) == (paper.levels, paper.n_sequences)
    assert set(quick.lengths) <= set(paper.lengths)
    assert set(quick.program_offsets) <= set(paper.program_offsets)
    for training in quick.trainings:
        twins = [
            t
            for t in paper.trainings
            if (t.width, t.balanced) == (training.width, training.balanced)
        ]
        assert any(
            set(training.stds) <= set(t.stds)
            and set(training.offsets) <= set(t.offsets)
            and training.max_steps == t.max_steps
            for t in twins
        )


def test_the_panel_shows_the_tail_and_its_absence():
    panel = connections_panel()
    assert "models fit to loss 1e-4" in panel.status.value
    panel.controls["scale"].value = 0.03
    panel.update()
    assert "6 of 6" in panel.status.value
