import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthgen import results
from lengthgen.code_hash import code_hash
from lengthgen.results import Result, ResultError

few = settings(max_examples=40, deadline=None)
numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans())


def a_result(**changes):
    base = Result(
        experiment="base",
        profile="quick",
        config={"n_seeds": 1},
        seeds=[0],
        rows=[{"x": 1, "y": 0.1}, {"x": 2, "y": 0.2}],
        summary={"mean": 0.15},
        seconds=1.5,
        environment={"code": "abc"},
    )
    return replace(base, **changes)


def test_a_result_comes_back_as_it_was_saved(tmp_path):
    result = a_result()
    path = result.save(tmp_path)
    assert path == tmp_path / "base.json"
    assert Result.load(path) == result
    assert a_result(rows=[]).save(tmp_path / "empty").exists()
    assert Result.load(tmp_path / "empty" / "base.json").rows == []


@few
@given(st.lists(st.dictionaries(st.text(), numbers, max_size=3), max_size=4))
def test_any_rows_come_back(rows):
    content = json.loads(a_result(rows=rows).to_bytes())
    assert content["rows"] == rows


def test_the_file_has_the_keys_of_the_design_and_one_line_a_row():
    data = a_result().to_bytes()
    content = json.loads(data)
    wanted = "schema_version experiment profile config seeds environment seconds rows summary"
    assert set(content) == set(wanted.split())
    assert content["schema_version"] == 1
    assert b'\n{"x":1,"y":0.1},\n{"x":2,"y":0.2}\n' in data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged"),
        (b"{", "damaged"),
        (b"[]", "damaged"),
        (b"17", "damaged"),
        (b"\xff\xfe", "damaged"),
        (b"{}", "damaged.*schema_version"),
        (b'{"schema_version": 2}', "schema version 2; this package reads 1"),
        (b'{"schema_version": "1"}', "schema version 1; this package reads 1"),
        (b'{"schema_version": 1}', "damaged.*'config'"),
    ],
)
def test_a_damaged_result_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "base.json"
    path.write_bytes(content)
    with pytest.raises(ResultError, match=rf"base.json .*{message}"):
        Result.load(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_result_is_refused(tmp_path, share):
    data = a_result().to_bytes()
    path = tmp_path / "base.json"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ResultError, match=r"base.json is damaged .*reproduce base --fresh"):
        Result.load(path)


@pytest.mark.parametrize("name", ["rows", "config", "summary", "environment", "seeds"])
def test_a_result_whose_parts_are_of_another_kind_is_refused(tmp_path, edit_json, name):
    path = a_result().save(tmp_path)
    edit_json(path, **{name: 5})
    with pytest.raises(ResultError, match=f"damaged.*{name}"):
        Result.load(path)


def test_a_result_with_a_number_that_is_not_finite_is_refused(tmp_path):
    path = a_result().save(tmp_path)
    path.write_text(path.read_text().replace("0.2", "NaN"))
    with pytest.raises(ResultError, match=r"damaged .*NaN"):
        Result.load(path)


def test_a_missing_result_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        Result.load(tmp_path / "base.json")


def test_rows_are_selected_by_value():
    result = a_result(rows=[{"length": 16, "seed": 0}, {"length": 17, "seed": 0}, {"seed": 1}])
    assert result.select(length=17) == [{"length": 17, "seed": 0}]
    assert len(result.select(seed=0)) == 2
    assert result.select(seed=0, length=18) == []
    assert len(result.select()) == 3


def test_the_environment_names_versions_and_code():
    found = results.environment("lengthgen.experiments.base")
    assert found["torch"] == torch.__version__
    assert found["code"] == code_hash("lengthgen.experiments.base")
    assert json.dumps(found)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_with_a_number_that_is_not_finite_is_not_written(bad):
    with pytest.raises(ResultError, match="not a finite number"):
        a_result(rows=[{"y": bad}]).to_bytes()
