import ast
import importlib
import json
import math
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import lengthgen
from lengthgen import results
from lengthgen.attention import HeadConfig
from lengthgen.results import (
    Result,
    ResultError,
    cache_folder,
    code_hash,
    run_units,
    to_json,
    unit,
    write_atomically,
)
from lengthgen.training import TrainingConfig, trained_heads

few = settings(max_examples=40, deadline=None)
CALLS = []


@dataclass(frozen=True)
class Config:
    size: int = 3
    options: dict = field(default_factory=dict)
    encoding: str | type = "rotary"


@unit
def tensors(config):
    """A unit of tensors."""
    CALLS.append(config)
    return {
        "values": torch.arange(config.size) / 7,
        "threads": torch.tensor(torch.get_num_threads()),
    }


@unit
def rows(config):
    """A unit of rows."""
    CALLS.append(config)
    return [{"x": i, "y": (i, 0.1), "encoding": config.encoding} for i in range(config.size)]


@unit
def broken(config):
    return [{"loss": math.nan}]


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


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


# -- files are whole or not there ----------------------------------------------------------------


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_crash_in_mid_write_leaves_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "base.json"
    write_atomically(path, b"old")

    def crash(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, step, crash)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new and longer")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_is_one_clear_error_and_leaves_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "base.json"
    write_atomically(path, b"old")

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(ResultError, match=r"cannot write .*base.json: No space left"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_written_in_a_folder_that_did_not_exist_and_others_may_read_it(tmp_path):
    path = tmp_path / "a" / "b" / "c.json"
    write_atomically(path, b"data")
    assert path.read_bytes() == b"data"
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("folder", ["file/below", "/proc/lengthgen"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path, folder):
    (tmp_path / "file").write_text("not a folder")
    path = tmp_path / folder / "x.json"
    with pytest.raises(ResultError, match=rf"cannot write .*{folder}/x.json"):
        write_atomically(path, b"data")


# -- plain data ----------------------------------------------------------------------------------


numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
plain = st.recursive(
    st.one_of(st.none(), numbers, st.text()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)


@few
@given(plain)
def test_plain_data_pass_through_json_unchanged(value):
    assert json.loads(json.dumps(to_json(value))) == value


def test_dataclasses_tuples_tensors_classes_and_paths_become_plain():
    value = {
        "config": Config(2, {"std": 0.5}, int),
        "t": torch.tensor([1.5]),
        "p": Path("a"),
        3: (),
    }
    assert to_json(value) == {
        "config": {"size": 2, "options": {"std": 0.5}, "encoding": "builtins.int"},
        "t": [1.5],
        "p": "a",
        "3": [],
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"a": [(x,)]}, torch.tensor])
def test_a_number_that_is_not_finite_is_refused(bad, wrap):
    with pytest.raises(ResultError, match="not a finite number"):
        to_json(wrap(bad))
    with pytest.raises(ResultError):
        a_result(rows=[{"y": bad}]).to_bytes()


# -- units and their cache -----------------------------------------------------------------------


@pytest.mark.parametrize("work", [tensors, rows], ids=["tensors", "rows"])
def test_a_unit_is_computed_once_and_every_call_returns_the_same(work, private_cache):
    config = Config()
    assert not work.done(config)
    first, second = work(config), work(config)
    assert work.done(config)
    assert len(CALLS) == 1
    assert str(first) == str(second)
    assert work.path(config).is_relative_to(private_cache)


def test_the_first_call_returns_what_later_calls_read():
    """Not the tuple, or the class, that JSON turns into something else."""
    config = Config(2, {}, Config)
    first, second = rows(config), rows(config)
    assert first == second
    assert first[0] == {"x": 0, "y": [0, 0.1], "encoding": to_json(Config)}


@pytest.mark.parametrize("work", [tensors, rows], ids=["tensors", "rows"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: b"\xff" * len(data),
        lambda data: data.replace(b"rows", b"rowz"),
    ],
    ids=["empty", "half", "one byte short", "overwritten", "no rows"],
)
def test_a_damaged_unit_is_computed_again(work, damage):
    config = Config()
    expected = str(work(config))
    path = work.path(config)
    path.write_bytes(damage(path.read_bytes()))
    assert str(work(config)) == expected
    assert len(CALLS) == 2
    assert str(work(config)) == expected
    assert len(CALLS) == 2


def test_a_foreign_safetensors_file_in_the_cache_is_replaced():
    config = Config()
    tensors(config)
    save_file({"values": torch.zeros(1)}, tensors.path(config))  # without metadata
    assert len(tensors(config)["values"]) == 3


def test_a_unit_that_fails_leaves_nothing(private_cache):
    with pytest.raises(ResultError, match="nan is not a finite number"):
        broken(Config())
    assert not broken.done(Config())
    assert not [path for path in private_cache.rglob("*") if path.is_file()]


def test_a_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LENGTHGEN_CACHE", str(tmp_path / "file"))
    with pytest.raises(ResultError, match=r"cannot write .*file/tensors"):
        tensors(Config())


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("LENGTHGEN_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("LENGTHGEN_CACHE")
    assert cache_folder() == Path(lengthgen.__file__).parents[1] / ".cache"


def test_a_unit_runs_on_one_thread_and_gives_the_others_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert tensors(Config())["threads"] == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_key_depends_on_configuration_code_and_version(monkeypatch):
    default = Config()
    key = tensors.key(default)
    assert tensors.key(Config()) == key
    for changed in (Config(4), Config(3, {"std": 0.1}), Config(encoding="learned")):
        assert tensors.key(changed) != key
    monkeypatch.setattr(results, "code_hash", lambda module: "other")
    assert tensors.key(default) != key
    monkeypatch.undo()
    monkeypatch.setattr(torch, "__version__", "0.0")
    assert tensors.key(default) != key


def test_the_key_depends_on_the_code_of_a_readers_class():
    """Edit the class in a notebook, and the same name must not bring back the old numbers."""

    def a_class(source):
        space = {"__name__": "__main__", "torch": torch}
        exec(source, space)
        return space["Mine"]

    def key(source):
        return tensors.key(Config(encoding=a_class(source)))

    body = "class Mine:\n    slope = 2\n    def bias(self, q, k):\n        return {}\n"
    original = key(body.format("q * 0.5"))
    assert key(body.format("q * 0.5")) == original
    assert key(body.format("q * 0.25")) != original
    assert key(body.format("k * 0.5")) != original
    assert key(body.format("(lambda: q * 0.5)()")) != key(body.format("(lambda: q * 0.6)()"))
    assert key(body.replace("slope = 2", "slope = 3").format("q * 0.5")) != original
    assert tensors.key(Config()) != tensors.key(Config(encoding=str))


def test_many_units_are_computed_here_or_in_processes():
    head = HeadConfig("rotary", vocabulary=4, d_model=4, d_head=4)
    configs = [TrainingConfig(head, (seed,), (1,), (3, 4), 2, 4) for seed in range(2)]
    advanced = []
    values = run_units(
        [(trained_heads, c) for c in configs], 2, lambda work, config: advanced.append(config)
    )
    assert sorted(c.seeds for c in advanced) == [(0,), (1,)]
    assert all(trained_heads.done(c) for c in configs)
    for config, value in zip(configs, values, strict=True):
        here = trained_heads.function(config)
        assert all(torch.equal(value[name], here[name]) for name in here)


def test_units_that_are_done_are_reported_and_not_computed():
    tensors(Config(1))
    CALLS.clear()
    advanced = []
    work = [(tensors, Config(size)) for size in (1, 2)]
    values = run_units(work, 1, lambda unit, config: advanced.append(config.size))
    assert advanced == [1, 2]
    assert [c.size for c in CALLS] == [2]
    assert [len(value["values"]) for value in values] == [1, 2]


@pytest.mark.parametrize("jobs", [0, -1])
def test_fewer_than_one_job_is_refused(jobs):
    with pytest.raises(ValueError, match=f"jobs={jobs} .*at least 1"):
        run_units([(tensors, Config())], jobs)


# -- the hash of the code ------------------------------------------------------------------------

LEAF = '''"""A leaf."""

def value(x):
    """Twice x."""
    return 2 * x  # doubled
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of three modules, `top` imports `middle` imports `leaf`; and how to edit one."""
    monkeypatch.setattr(results, "PACKAGE", "toy")
    monkeypatch.setattr(results, "WITHOUT_NUMBERS", {"toy.plots"})
    folder = tmp_path / "toy"
    folder.mkdir()
    sources = {
        "__init__": "",
        "leaf": LEAF,
        "middle": "from toy import leaf\n",
        "plots": "COLOR = 1\n",
        "other": "OTHER = 1\n",
        "top": "import numpy\nimport toy.middle\nfrom toy.plots import COLOR\n",
    }
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))

    def hash_with(module="top", **changed):
        for name, source in sources.items():
            (folder / f"{name}.py").write_text(changed.get(name, source))
        code_hash.cache_clear()
        importlib.invalidate_caches()
        return code_hash(f"toy.{module}")

    yield hash_with
    code_hash.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "toy"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s.replace("# doubled", "# multiplied by two"),
        lambda s: s.replace("Twice x.", "Two times x."),
        lambda s: s.replace('"""A leaf."""', '"""Another leaf,\n\nlonger."""'),
        lambda s: s.replace('    """Twice x."""\n', ""),
        lambda s: s.replace("2 * x", "(2\n        * x)"),
        lambda s: s + "\n\n# the end\n",
        lambda s: s + '\n"""A note on the module."""\n',
    ],
)
def test_comments_docstrings_and_layout_do_not_change_the_hash(package, edit):
    assert edit(LEAF) != LEAF
    assert package(leaf=edit(LEAF)) == package()


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s.replace("2 * x", "3 * x"),
        lambda s: s.replace("2 * x", "x * 2"),
        lambda s: s.replace("value", "valeur"),
        lambda s: s + "\nX = 'text'\n",
        lambda s: s.replace("def value(x)", "def value(x=1)"),
    ],
)
def test_code_anywhere_below_changes_the_hash(package, edit):
    assert package(leaf=edit(LEAF)) != package()


def test_only_what_a_module_imports_counts(package):
    assert package(other="OTHER = 2\n") == package()
    assert package(plots="COLOR = 2\n") == package()
    assert package(module="leaf") != package(module="top")
    assert package(other="OTHER = 2\n", module="other") != package(module="other")


def test_a_package_and_its_submodules_named_in_one_import_are_found(package):
    assert package(top="from toy import middle\n", leaf=LEAF) != package(
        top="from toy import middle\n", leaf=LEAF + "X = 1\n"
    )


def test_every_number_depends_on_the_modules_that_make_it():
    found = results._dependencies("lengthgen.experiments.mechanics")
    wanted = "task encodings encodings.base encodings.learned encodings.rotary attention training"
    wanted += " evaluation pinning experiments.heads experiments.mechanics"
    assert {f"lengthgen.{name}" for name in wanted.split()} <= found
    assert not found & results.WITHOUT_NUMBERS


def test_the_package_imports_itself_by_full_name():
    """The hash follows absolute imports only; a relative one would escape it."""
    for path in Path(lengthgen.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path


# -- results -------------------------------------------------------------------------------------


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
    with pytest.raises(ResultError, match=r"base.json is damaged .*--fresh"):
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
