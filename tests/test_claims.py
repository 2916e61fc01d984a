import copy
import dataclasses
import json
from pathlib import Path
from random import Random

import pytest

import lengthgen
from lengthgen.claims import CLAIMS, check_claims, markdown_table, text_table
from lengthgen.cli import main
from lengthgen.results import Result, ResultError

IDS = [claim.id for claim in CLAIMS]
EXPERIMENTS = sorted({claim.experiment for claim in CLAIMS})


def result(experiment, config, rows, summary=None):
    return Result(experiment, "paper", config, [0, 1], rows, summary or {})


def good_results():
    """Made-up results that meet every criterion: two offsets, two seeds."""
    models = [(seed, offset) for seed in (0, 1) for offset in (1, 2)]
    accuracy = {
        ("rotary", 16): 1.0,
        ("rotary", 17): 1.0,
        ("rotary", 48): 0.99,
        ("learned", 16): 1.0,
        ("learned", 17): 0.2,
        ("learned", 48): 0.07,
        ("learned-random-offset", 16): 1.0,
        ("learned-random-offset", 32): 0.97,
    }
    multiseed = [
        {"encoding": e, "length": n, "accuracy": a, "seed": s, "offset": k}
        for (e, n), a in accuracy.items()
        for s, k in models
    ]
    errors = {
        ("rotary", "float64", 2**20): 1e-12,
        ("rotary", "float32", 2**20): 1e-6,
        ("learned", "float64", 0): 0.8,
        ("rotary-rounded-product", "float64", 2**20): 0.04,
    }
    prop1 = [
        {"encoding": e, "precision": p, "first_position": f, "error": x, "seed": s, "offset": k}
        for (e, p, f), x in errors.items()
        for s, k in models
    ]
    shift = [
        {
            "encoding": e,
            "shift": 16,
            "logit_change": c,
            "answers_changed": a,
            "seed": s,
            "offset": k,
        }
        for e, c, a in (
            ("rotary", 1e-7, 0.0),
            ("learned", 1.0, 0.9),
            ("learned-random-offset", 0.3, 0.1),
        )
        for s, k in models
    ]
    mechanics = [
        {
            "setting": "default",
            "seed": s,
            "offset": k,
            "untrained_rows_moved": 0.0,
            "copied_row_mass": 1.0,
            "exchanged_peak_follows": 1.0,
            "agreement": 0.9,
            "agreement_without_mean_content": 0.2,
        }
        for s, k in models
    ]
    mechanics += [
        {"setting": "L2 penalty 1e-4", "seed": s, "offset": 2, "untrained_rows_moved": 0.09}
        for s in (0, 1)
    ]
    share = {"pinned": 1.0, "peak_in_range": 1.0, "predicted": 0.9}
    summary = {
        "by_offset": {"1": dict(share), "2": dict(share)},
        "by_setting": {"fixed length 16": dict(share)},
    }
    config = {"offsets": [1, 2], "n_seeds": 2}
    return {
        "multiseed": result("multiseed", config, multiseed),
        "prop1": result("prop1", config, prop1),
        "shift": result("shift", config, shift),
        "mechanics": result("mechanics", config, mechanics, summary),
    }


def set_rows(name, value, one=False, **wanted):
    """Change a column where a sceptic would look: in all rows wanted, or in a single one."""

    def doctor(result):
        rows = result.select(**wanted)
        for row in rows[-1:] if one else rows:
            row[name] = value

    return doctor


def set_share(name, value):
    def doctor(result):
        for share in result.summary["by_offset"].values():
            share[name] = value

    return doctor


def unpin(result):
    result.summary["by_setting"]["fixed length 16"]["pinned"] = 0.5


# What must refute each claim. `one=True`: a single bad model among all is enough.
DOCTORED = {
    "gap.rotary": set_rows("accuracy", 0.9, encoding="rotary", length=48, offset=2),
    "gap.rotary_mean": set_rows("accuracy", 0.975, encoding="rotary", length=48),
    "gap.absolute": set_rows("accuracy", 0.3, encoding="learned", length=48, offset=1),
    "gap.first_unseen": set_rows("accuracy", 0.6, encoding="learned", length=17, offset=1),
    "gap.every_model": set_rows("accuracy", 0.2, True, encoding="rotary", length=48),
    "gap.fit": set_rows("accuracy", 0.98, True, length=16),
    "gap.control": set_rows("accuracy", 0.3, encoding="learned-random-offset", offset=1),
    "equivariance.float64": set_rows("error", 1e-9, True, encoding="rotary", precision="float64"),
    "equivariance.float32": set_rows("error", 1e-4, True, encoding="rotary", precision="float32"),
    "equivariance.absolute": set_rows("error", 0.01, True, encoding="learned"),
    "equivariance.rounding": set_rows("error", 1e-6, True, encoding="rotary-rounded-product"),
    "equivariance.shift": set_rows("logit_change", 1e-3, True, encoding="rotary"),
    "equivariance.shift_answers": set_rows("answers_changed", 0.01, True, encoding="rotary"),
    "equivariance.shift_absolute": set_rows("answers_changed", 0.1, encoding="learned"),
    "equivariance.shift_trained": set_rows(
        "logit_change", 1e-3, True, encoding="learned-random-offset"
    ),
    "pinning.untrained_rows": set_rows("untrained_rows_moved", 1e-8, True, setting="default"),
    "pinning.in_range": set_share("peak_in_range", 0.5),
    "pinning.predicted": set_share("predicted", 0.7),
    "pinning.fixed_point": unpin,
    "pinning.fixed_mix": set_share("pinned", 0.4),
    "pinning.copy": set_rows("copied_row_mass", 0.1, setting="default"),
    "pinning.exchange": set_rows("exchanged_peak_follows", 0.0, setting="default"),
    "pinning.content": set_rows("agreement_without_mean_content", 0.9, setting="default"),
    "pinning.decay": set_rows("untrained_rows_moved", 0.0, setting="L2 penalty 1e-4"),
}


@pytest.fixture
def folder(tmp_path):
    for good in good_results().values():
        good.save(tmp_path)
    return tmp_path


def mine(verdicts):
    return {v.id: v for v in verdicts if v.id in DOCTORED}


# The other claims are held against the frozen results, with every measurement in them spoiled.
FROZEN = Path(__file__).parent.parent / "results"
NAMES_A_ROW = {
    *("offset", "seed", "length", "n_sequences"),
    *("top", "std", "scale", "base", "width", "share", "level", "step", "layer"),
    *("balanced", "too_narrow"),
}


def spoiled(value, bad, key=""):
    """Replace every number and truth value that does not name a row."""
    if isinstance(value, dict):
        return {k: spoiled(item, bad, k) for k, item in value.items()}
    if isinstance(value, list):
        return [spoiled(item, bad, key) for item in value]
    if key in NAMES_A_ROW or not isinstance(value, (bool, int, float)):
        return value
    return bad() if callable(bad) else bad


@pytest.mark.parametrize("name", sorted(set(IDS) - set(DOCTORED)))
def test_a_claim_fails_on_spoiled_measurements(name):
    claim = next(claim for claim in CLAIMS if claim.id == name)
    frozen = Result.load(FROZEN / f"{claim.experiment}.json")
    assert claim.passes(float(claim.measure(frozen)))
    random = Random(0)
    for bad in (lambda: random.uniform(-1e6, 1e6), -1e6, 1e6, 0.0):
        rows, summary = spoiled(frozen.rows, bad), spoiled(frozen.summary, bad)
        try:
            value = float(claim.measure(dataclasses.replace(frozen, rows=rows, summary=summary)))
        except (ValueError, TypeError, ZeroDivisionError):
            continue  # no number, no verdict
        if not claim.passes(value):
            return
    pytest.fail(f"{name} holds whatever was measured")


def test_good_results_pass(folder):
    assert all(v.passed for v in mine(check_claims(folder)).values())


@pytest.mark.parametrize("name", DOCTORED)
def test_a_doctored_result_fails_its_claim(folder, name):
    claim = next(claim for claim in CLAIMS if claim.id == name)
    doctored = copy.deepcopy(good_results()[claim.experiment])
    DOCTORED[name](doctored)
    doctored.save(folder)
    assert mine(check_claims(folder))[name].passed is False
    assert main(["claims", "--results", str(folder)]) in (1, 2)


def test_copied_mass_may_be_neither_too_small_nor_too_large():
    claim = next(claim for claim in CLAIMS if claim.id == "pinning.copy")
    assert [claim.passes(x) for x in (0.89, 0.9, 1.0, 1.1, 1.11)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert claim.criterion == ">= 0.9 and <= 1.1"


@pytest.mark.parametrize("claim", CLAIMS, ids=IDS)
def test_claims_are_complete_and_a_number_that_is_not_one_fails(claim):
    assert claim.source in ("abstract", "book")
    assert claim.least is not None or claim.most is not None
    assert not claim.passes(float("nan"))
    assert claim.statement.strip() and claim.criterion


def test_identifiers_are_unique_and_have_the_prefixes_of_the_design():
    prefixes = "gap equivariance pinning carrier dilution linear transfer variants connections"
    assert len(set(IDS)) == len(IDS)
    assert {name.split(".")[0] for name in IDS} <= set(prefixes.split())


@pytest.mark.parametrize("missing", EXPERIMENTS)
def test_a_missing_result_is_no_verdict_and_exit_code_2(folder, capsys, missing):
    (folder / f"{missing}.json").unlink(missing_ok=True)
    verdicts = check_claims(folder)
    assert all((v.passed is None) == (v.value is None) for v in verdicts)
    assert all(v.passed is None for v in verdicts if v.experiment == missing)
    assert main(["claims", "--results", str(folder), "--json"]) == 2
    printed = json.loads(capsys.readouterr().out)
    assert all(v["passed"] is None for v in printed if v["experiment"] == missing)


def test_a_folder_without_results_is_exit_code_2(tmp_path, capsys):
    assert main(["claims", "--results", str(tmp_path)]) == 2
    assert "no result" in capsys.readouterr().out
    assert main(["claims", "--results", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_exit_codes_over_results_that_are_all_there(folder, monkeypatch, capsys):
    known = tuple(claim for claim in CLAIMS if claim.id in DOCTORED)
    monkeypatch.setattr("lengthgen.claims.CLAIMS", known)
    assert main(["claims", "--results", str(folder)]) == 0
    assert f"{len(known)} of {len(known)} claims hold" in capsys.readouterr().out
    doctored = good_results()["mechanics"]
    unpin(doctored)
    doctored.save(folder)
    assert main(["claims", "--results", str(folder)]) == 1
    assert "FAILS" in capsys.readouterr().out


def test_json_has_the_keys_of_the_design(folder, capsys):
    main(["claims", "--results", str(folder), "--json"])
    printed = json.loads(capsys.readouterr().out)
    keys = ["id", "statement", "source", "experiment", "value", "criterion", "passed"]
    assert [list(verdict) for verdict in printed] == [keys] * len(CLAIMS)
    assert [verdict["id"] for verdict in printed] == IDS


def test_a_damaged_result_is_one_line_and_exit_code_2(folder, capsys):
    (folder / "prop1.json").write_text("{")
    assert main(["claims", "--results", str(folder)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and "prop1.json is damaged" in captured.err


@pytest.mark.parametrize("rows", [[], [{"encoding": "rotary", "length": 48, "offset": 1}]])
def test_a_result_without_what_a_claim_needs_is_named(folder, capsys, edit_json, rows):
    edit_json(folder / "multiseed.json", rows=rows)
    with pytest.raises(ResultError, match=r"multiseed.json .*gap.rotary"):
        check_claims(folder)
    assert main(["claims", "--results", str(folder)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_tables_show_every_claim(folder):
    verdicts = check_claims(folder)
    assert all(v.id in text_table(verdicts) and v.id in markdown_table(verdicts) for v in verdicts)
    table = markdown_table(verdicts).splitlines()
    assert {line.count("|") - line.count("\\|") for line in table} == {7}


def test_numbers_that_a_claim_cannot_divide_by_are_named(tmp_path, capsys):
    result = Result.load(FROZEN / "connections.json")
    dead = dataclasses.replace(result, rows=[row | {"tail": 0} for row in result.rows])
    without_levels = dataclasses.replace(result, config=result.config | {"levels": []})
    for changed, error in ((dead, "ZeroDivisionError"), (without_levels, "IndexError")):
        changed.save(tmp_path)
        assert main(["claims", "--results", str(tmp_path)]) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1 and error in message and "connections.json" in message


def test_a_result_is_read_once_and_not_at_all_if_it_is_there(folder, monkeypatch):
    load, seen = Result.load, []
    monkeypatch.setattr(Result, "load", lambda path: seen.append(path.stem) or load(path))
    results = {"shift": load(folder / "shift.json")}
    verdicts = check_claims(folder, results=results)
    assert sorted(seen) == ["mechanics", "multiseed", "prop1"]
    assert results.keys() == good_results().keys() and verdicts == check_claims(folder)


def test_the_frozen_results_of_this_repository_pass():
    frozen = Path(lengthgen.__file__).parents[1] / "results"
    if not all((frozen / f"{name}.json").exists() for name in EXPERIMENTS):
        pytest.skip("no complete frozen results in results/: run `lengthgen reproduce`")
    failed = [(v.id, v.value, v.criterion) for v in check_claims(frozen) if not v.passed]
    assert not failed
    assert all(Result.load(frozen / f"{name}.json").profile == "paper" for name in EXPERIMENTS)
