"""The self-check passes what agrees and sees every kind of spoiled row."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from lengthgen import selfcheck as checking
from lengthgen.cli import main
from lengthgen.results import Result, ResultError
from lengthgen.selfcheck import compare, selfcheck, text_table

HERE = {"code": "a", "torch": "2", "machine": "one"}
ELSEWHERE = HERE | {"machine": "two"}
ROW = {
    "encoding": "rotary",
    "seed": 0,
    "accuracy": 0.5,
    "error": 2.0,
    "small": 1e-9,
    "pinned": True,
    "law": None,
    "peaks": {"32": 7, "64": 8},
    "kernel": [1.0, 2.0],
}


def a_result(rows=None, environment=HERE, **changes):
    rows = [ROW | {"seed": seed} for seed in range(100)] if rows is None else rows
    result = Result("base", "paper", {"n_seeds": 1}, [0], copy.deepcopy(rows), {}, 1.0, environment)
    return replace(result, **changes)


def spoiled(index=3, environment=HERE, **changes):
    result = a_result(environment=environment)
    result.rows[index] = result.rows[index] | changes
    return result


SPOILS = {
    "a name": {"encoding": "learned"},
    "a count": {"seed": 77},
    "a truth value": {"pinned": False},
    "a value instead of none": {"law": 0.5},
    "none instead of a value": {"error": None},
    "an integer instead of a float": {"error": 2},
    "an accuracy": {"accuracy": 0.53},
    "a number": {"error": 2.2},
    "another sign": {"error": -2.0},
    "within a dictionary": {"peaks": {"32": 7, "64": 9}},
    "a key more": {"peaks": {"32": 7, "64": 8, "128": 8}},
    "within a list": {"kernel": [1.0, 2.5]},
    "a shorter list": {"kernel": [1.0]},
    "a column more": {"depth": 1},
}
every_spoil = pytest.mark.parametrize("change", SPOILS.values(), ids=SPOILS)


def test_equal_results_agree_here_and_elsewhere():
    for environment in (HERE, ELSEWHERE):
        check = compare(a_result(), a_result(environment=environment))
        assert check.passed and not check.first
        assert (check.n_rows, check.n_values, check.n_different) == (100, 1100, 0)
        assert check.same_environment == (environment is HERE)


@every_spoil
def test_here_one_spoiled_value_is_a_difference_and_is_named(change):
    check = compare(a_result(), spoiled(**change))
    assert not check.passed and check.n_different == 1
    assert check.first.startswith(f"row 3, {next(iter(change))}")


def test_here_the_last_digit_counts():
    assert not compare(a_result(), spoiled(accuracy=0.5000000001)).passed
    assert not compare(a_result(), spoiled(small=1.1e-9)).passed


@every_spoil
def test_elsewhere_a_few_spoiled_values_are_counted_and_many_are_a_difference(change):
    one = compare(a_result(), spoiled(environment=ELSEWHERE, **change))
    assert one.passed and one.n_beyond == 1 and one.first
    many = [row | change for row in a_result().rows]
    assert not compare(a_result(), a_result(many, ELSEWHERE)).passed


@pytest.mark.parametrize(
    "change", [{"accuracy": 0.519}, {"error": 2.09}, {"small": -1e-5}, {"kernel": [1.0, 2.05]}]
)
def test_elsewhere_a_difference_within_the_tolerance_is_none(change):
    many = [row | change for row in a_result().rows]
    check = compare(a_result(), a_result(many, ELSEWHERE))
    assert check.passed and check.n_beyond == 0 and check.n_different >= 100
    assert not check.first


@pytest.mark.parametrize(
    "change",
    [
        {"rows": []},
        {"rows": [ROW]},
        {"config": {"n_seeds": 2}},
        {"seeds": [1]},
        {"profile": "quick"},
        {"experiment": "shift"},
    ],
)
def test_what_cannot_be_compared_does_not_agree(change):
    for environment in (HERE, ELSEWHERE):
        check = compare(a_result(), a_result(environment=environment, **change))
        assert not check.passed and check.first


def test_nothing_compared_is_no_agreement():
    assert not compare(a_result([]), a_result([])).passed


def test_rows_in_another_order_do_not_agree():
    assert not compare(a_result(), a_result(a_result().rows[::-1])).passed


def test_an_unknown_environment_is_another_one():
    assert not compare(a_result(environment={}), a_result()).same_environment
    assert compare(a_result(environment=HERE | {"code": "b"}), a_result()).same_environment


@pytest.fixture
def frozen(done, tmp_path):
    """A folder with the small `base`, frozen."""
    folder = tmp_path / "frozen"
    replace(Result.load(done / "base.json"), profile="paper").save(folder)
    return folder


def test_the_command_computes_again_and_compares(frozen, private_cache, capsys, monkeypatch):
    kept = {path: path.stat().st_mtime_ns for path in private_cache.rglob("*")}
    arguments = ["selfcheck", "base", "--results", str(frozen), "--jobs", "1"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "agrees (same environment)" in printed and "1 of 1 experiments agree" in printed
    assert [path.name for path in frozen.iterdir()] == ["base.json"]
    # neither read from the cache nor written into it
    assert {path: path.stat().st_mtime_ns for path in private_cache.rglob("*")} == kept
    content = json.loads((frozen / "base.json").read_text())
    again = Result.load(frozen / "base.json")  # what would be computed once more
    monkeypatch.setattr(checking, "reproduce", lambda *arguments, **options: [again])
    content["rows"][5]["accuracy"] += 1e-6
    (frozen / "base.json").write_text(json.dumps(content))
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert "DIFFERS" in printed and "row 5, accuracy" in printed and "0 of 1" in printed


def test_a_missing_or_unknown_result_is_refused_before_anything_is_computed(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(checking, "reproduce", lambda *arguments, **options: pytest.fail("runs"))
    with pytest.raises(ResultError, match=r"there is no .*base.json"):
        selfcheck(["base"], tmp_path)
    assert main(["selfcheck", "baze", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("lengthgen: unknown experiment 'baze'")


def test_the_table_has_a_line_for_each_experiment():
    checks = [compare(a_result(), a_result()), compare(a_result(), spoiled(seed=9))]
    lines = text_table(checks).splitlines()
    assert len(lines) == 4
    assert "agrees" in lines[1] and "DIFFERS" in lines[2] and "row 3, seed" in lines[2]
