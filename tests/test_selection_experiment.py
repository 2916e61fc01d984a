import dataclasses

import torch

from lengthgen.attention import HeadConfig
from lengthgen.experiments import selection
from lengthgen.experiments.selection import ScaledTraining, Setting, kept_share
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
        rows = selection.run_rows(selection._RunConfig(setting, std, 2, (4, 6)))
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
    a = selection.run_rows(selection._RunConfig(base, 0.1, **few))
    b = selection.run_rows(selection._RunConfig(plain, 0.1 * 32**0.25, **few))
    assert abs(a[0]["alignment"] - b[0]["alignment"]) < 1e-9


def test_a_twin_has_the_same_loss_and_margin_and_fails():
    (row,) = selection.twin_rows(selection._TwinConfig(2, (44, 48), 1e-4))
    assert abs(row["twin_loss"] / row["good_loss"] - 1) < 1e-6
    assert abs(row["twin_margin"] - 1) < 1e-6 and abs(row["good_margin"] - 1) < 1e-6
    assert row["good_keeps_48"] and not row["twin_keeps_48"]
    assert row["twin_first_lost"] <= row["wrong_offset"]
    assert 1 < row["norm_ratio"] < 2 and row["twin_equivariance_error"] < 1e-10


def test_token_rows_report_who_reached_the_loss():
    training = ScaledTraining(HeadConfig("rotary"), (0,), (2,), steps=30, scale=2.0)
    rows = selection.token_rows(selection._TokenConfig(training, 10.0, (16, 24), 100))
    assert [row["length"] for row in rows] == [16, 24]
    assert all(row["reached"] and row["steps"] == 20 for row in rows)  # window of 20 losses
    rows = selection.token_rows(selection._TokenConfig(training, 1e-9, (16,), 100))
    assert not rows[0]["reached"]


def test_every_profile_plans_work():
    for profile in ("quick", "paper"):
        config = selection.EXPERIMENT.config(profile)
        assert len(list(selection._work(config))) > 5
