import math
from dataclasses import replace

import pytest
import torch

from lengthgen.experiments import linear as experiment
from lengthgen.experiments.linear_limit import LinearConfig, descent_rows, limit_rows
from lengthgen.experiments.linear_trained import TrainedConfig, Training, trained_rows
from lengthgen.linear import scaled_midpoints
from lengthgen.panels import linear_panel
from lengthgen.token_linear import TokenLinearHead, train_token_linear


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LENGTHGEN_CACHE", str(tmp_path))


def test_one_tiny_run_has_every_head_and_a_picture():
    tiny = replace(
        experiment.EXPERIMENT.config("quick"),
        n_seeds=2,
        offsets=(2,),
        lengths=(16, 48),
        tops=(0.5,),
        trainings=(
            Training("none", (5, 20)),
            Training("softmax", (20,), safety=0.5),
            Training("token-linear", (3,), offsets=(2,), std=0.1),
        ),
        n_exact_sequences=300,
        n_sequences=200,
        n_draws=20,
        walked_steps=200,
    )
    small = replace(experiment.EXPERIMENT, profiles={"quick": tiny, "paper": tiny})
    result = small.run("quick")
    heads = {row["head"] for row in result.rows}
    assert heads == {"min-norm", "linear", "none", "softmax", "token-linear"}
    assert len(result.select(head="none")) == 2 * (2 + 2 + 1)  # two checkpoints and the geometry
    assert result.summary["by_spectrum"]["midpoints 1"]["accuracy_48"]["min"] > 0.85
    assert set(result.summary["by_head"]) == {"none", "softmax", "token-linear"}
    assert small.plot(result).axes


def test_quick_cells_are_cells_of_the_paper_profile():
    quick, paper = (experiment.EXPERIMENT.config(name) for name in ("quick", "paper"))
    assert quick.n_sequences == paper.n_sequences and set(quick.tops) <= set(paper.tops)
    long = {training.head: training for training in paper.trainings}
    for training in quick.trainings:
        assert set(training.steps) <= set(long[training.head].steps)
        assert replace(training, steps=()) == replace(long[training.head], steps=())


def test_limit_and_first_step_on_the_main_spectrum():
    config = LinearConfig(experiment.MAIN, (1, 8), (48,), 2_000, 50, (1,), 500)
    limit = [row["accuracy"] for row in limit_rows(config) if "length" in row]
    first = [row["accuracy"] for row in descent_rows(config) if "length" in row]
    assert max(limit) < 0.15 and min(first) > 0.85
    assert max(row.get("iterate_error", 0) for row in descent_rows(config)) < 1e-8


def test_trained_rows_of_a_model_do_not_depend_on_the_stack():
    training = Training("exponential", (30,))
    alone, both = (TrainedConfig(training, seeds, (2,), (16,), 100) for seeds in [(1,), (0, 1)])
    one, other = trained_rows(alone)[0], trained_rows(both)[1]
    assert one["seed"] == other["seed"] == 1
    assert math.isclose(one["loss"], other["loss"], rel_tol=1e-9)


def test_token_head_scores_are_sums_of_pair_weights():
    frequencies = scaled_midpoints(3, 0.8)
    head = TokenLinearHead.initialize([(1, 0)], 1.0, frequencies, vocabulary=2)
    query, key = head.tables[0]
    tokens = torch.tensor([[[1, 0, 1]]])
    expected = torch.zeros(2)
    for D, token in enumerate(tokens[0, 0].tolist()):
        wave = torch.exp(-1j * frequencies * D)
        expected[token] += ((query[1].conj() * key[token] * wave).sum().real / 6**0.5).float()
    assert torch.allclose(head.scores(tokens)[0, 0], expected, atol=1e-6)


def test_token_head_trains_alone_as_in_a_stack():
    def end(models):
        head = TokenLinearHead.initialize(models, 0.1, scaled_midpoints(4, 0.8), vocabulary=4)
        return list(train_token_linear(head, 5, batch=8))[-1]

    (alone, loss), (both, losses) = end([(2, 1)]), end([(2, 0), (2, 1)])
    assert torch.allclose(alone.tables[0], both.tables[1], atol=1e-6)
    assert torch.allclose(loss[0], losses[1], rtol=1e-5)


def test_unknown_spectrum_is_named():
    with pytest.raises(ValueError, match=r"spectrum='white'.*midpoints TOP"):
        experiment.spectrum("white")


def test_panel_shows_the_fall():
    panel = linear_panel()
    assert "in the limit 0.1" in panel.status.value
    panel.controls["top"].value = 1.0
    panel.update()
    assert "in the limit 0.9" in panel.status.value
