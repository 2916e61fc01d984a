import dataclasses

import torch

from lengthgen import training as training_of_heads
from lengthgen.attention import HeadConfig
from lengthgen.descent import Descent
from lengthgen.experiments import selection
from lengthgen.experiments import selection_position as position
from lengthgen.experiments import selection_tokens as tokens
from lengthgen.experiments.selection import kept_share
from lengthgen.experiments.selection_position import Setting
from lengthgen.experiments.selection_tokens import ScaledTraining, TokenSetting
from lengthgen.training import TrainingConfig


def test_scaling_touches_queries_and_keys_only_and_only_at_the_start():
    plain = TrainingConfig(HeadConfig("rotary"), (0, 1), (2,))
    scaled = ScaledTraining(HeadConfig("rotary"), (0, 1), (2,), scale=3.0)
    before, after = plain.stack().parameters, scaled.stack().parameters
    for name in before:
        factor = 3 if name in ("query", "key") else 1
        assert torch.equal(after[name], factor * before[name])
    restored = scaled.stack(dict(before)).parameters
    assert all(torch.equal(restored[name], before[name]) for name in before)


def test_a_small_start_keeps_its_argmax_at_matched_loss_and_a_large_one_loses_it():
    setting = Setting(stds=(0.01, 2.0), levels=(1e-2, 1e-4))
    kept = {}
    for std in setting.stds:
        rows = position.run_rows(position.RunConfig(setting, std, 2, (4, 6)))
        assert all(row["reached"] for row in rows)
        assert max(row["equivariance_error"] for row in rows) < 1e-10
        kept[std] = kept_share([row for row in rows if row["level"] == 1e-4], 1_024)
    assert kept[0.01] == 1 and kept[2.0] <= 0.5


def test_kept_share_leaves_out_runs_that_did_not_fit():
    rows = [
        {"reached": True, "first_lost": 48},
        {"reached": True, "first_lost": 20},
        {"reached": False, "first_lost": 3},
    ]
    assert kept_share(rows, 48) == 0.5
    assert kept_share(rows[2:], 48) is None


def test_plain_units_are_smaller_by_the_root_of_the_width():
    few = {"n_seeds": 1, "offsets": (3,)}
    base = Setting(levels=(1e-1,))
    plain = dataclasses.replace(base, plain=True)
    a = position.run_rows(position.RunConfig(base, 0.1, **few))
    b = position.run_rows(position.RunConfig(plain, 0.1 * 32**0.25, **few))
    assert abs(a[0]["alignment"] - b[0]["alignment"]) < 1e-9


def test_a_twin_has_the_same_loss_and_margin_and_fails():
    (row,) = position.twin_rows(position.TwinConfig(2, (44, 48), 1e-4))
    # both losses by bisection to the last bits of a scale: a relative 2^-50 of the loss's exponent
    assert abs(row["loss_difference"]) < 1e-12
    assert abs(row["twin_margin"] - 1) < 1e-6 and abs(row["good_margin"] - 1) < 1e-6
    assert row["good_keeps_48"] and not row["twin_keeps_48"]
    assert row["twin_first_lost"] <= row["wrong_offset"]
    assert 1 < row["norm_ratio"] < 2 and row["twin_equivariance_error"] < 1e-10


def test_token_rows_report_who_reached_the_loss():
    training = ScaledTraining(HeadConfig("rotary"), (0,), (2,), steps=30, scale=2.0)
    rows = tokens.token_rows(tokens.TokenConfig("Adam", training, 10.0, (16, 24), 100))
    assert [row["length"] for row in rows] == [16, 24]
    assert all(row["reached"] and row["steps"] == 20 for row in rows)  # window of 20 losses
    rows = tokens.token_rows(tokens.TokenConfig("Adam", training, 1e-9, (16,), 100))
    assert not rows[0]["reached"]


def test_decay_holds_the_loss_up_at_one_value_and_frees_it_of_the_start():
    """At the end of decayed descent nothing of the initial scale is left; on the way it is."""
    end, way = {}, {}
    for std in (0.01, 1.0):
        descent = Descent(weight_decay=1e-3)
        setting = Setting(
            "decayed", (std,), (0.1,), descent=descent, max_steps=1_500, to_the_end=True
        )
        rows = position.run_rows(position.RunConfig(setting, std, 2, (4,)))
        way[std] = [row for row in rows if row["level"] == 0.1]
        end[std] = [row for row in rows if row["level"] is None]
    assert len(end[1.0]) == len(way[1.0]) == 2 and all(row["reached"] for row in end[1.0])
    assert kept_share(way[0.01], 1_024) == 1 and kept_share(way[1.0], 1_024) == 0
    assert kept_share(end[0.01], 1_024) == kept_share(end[1.0], 1_024) == 1
    small, large = ([row["loss"] for row in end[std]] for std in (0.01, 1.0))
    # the distance from the common end falls by a step's factor; after 1,500 steps it is far below
    assert max(abs(a / b - 1) for a in small for b in large) < 1e-3


def test_training_ends_when_every_head_is_at_its_loss(monkeypatch):
    steps = []

    def train(training, report):
        def watched(step, *rest):
            steps.append(step)
            report(step, *rest)

        return training_of_heads.train(training, watched)

    monkeypatch.setattr(tokens, "train", train)
    training = TokenSetting("Adam", steps=60).training(2.0, (0,), (2,))
    (row,) = tokens.token_rows(tokens.TokenConfig("Adam", training, 10.0, (16,), 100))
    assert steps[-1] == row["steps"] == 20 and row["loss"] <= 10.0


def test_every_part_of_a_token_setting_reaches_the_training():
    setting = TokenSetting("x", (1.0,), 8, "adamw", 1e-2, 0.5, 7)
    training = setting.training(3.0, (0, 1), (2,))
    assert (training.head.vocabulary, training.scale, training.steps) == (8, 3.0, 7)
    assert (training.optimizer, training.learning_rate, training.weight_decay) == (
        "adamw",
        1e-2,
        0.5,
    )


def test_every_profile_plans_work():
    for profile in ("quick", "paper"):
        config = selection.EXPERIMENT.config(profile)
        assert len(list(selection._work(config))) > 5
