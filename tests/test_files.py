import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lengthgen
from lengthgen.files import ResultError, cache_folder, to_json, write_atomically

few = settings(max_examples=40, deadline=None)
numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans())


@dataclass(frozen=True)
class Config:
    size: int = 3
    options: dict = field(default_factory=dict)
    encoding: str | type = "rotary"


# -- files are whole or not there ----------------------------------------------------------------


def test_two_writers_of_one_file_at_once_both_end_well(tmp_path, monkeypatch):
    """The second writes while the first has written but not yet put its file in place."""
    path, fsync = tmp_path / "result.json", os.fsync

    def second_writer_passes(handle):
        monkeypatch.setattr(os, "fsync", fsync)
        write_atomically(path, b"second")
        assert path.read_bytes() == b"second"
        fsync(handle)

    monkeypatch.setattr(os, "fsync", second_writer_passes)
    write_atomically(path, b"the first one")
    assert path.read_bytes() == b"the first one"
    assert list(tmp_path.iterdir()) == [path]


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


# -- places --------------------------------------------------------------------------------------


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("LENGTHGEN_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("LENGTHGEN_CACHE")
    assert cache_folder() == Path(lengthgen.__file__).parents[1] / ".cache"
