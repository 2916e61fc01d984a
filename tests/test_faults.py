"""Faults of machines and of readers: one clear line, nothing half written, nothing lost.

A kill at a random moment and two runs into one folder at once are in `test_experiments.py`; losses
that are not finite in `test_training.py`; damaged units in `test_units.py`; damaged and foreign
results in `test_cli.py`.
"""

from __future__ import annotations

import ast
import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import lengthgen
from lengthgen import files
from lengthgen.cli import main
from lengthgen.results import Result
from lengthgen.units import _read_unit

ROOT = Path(lengthgen.__file__).parent.parent
QUICK = ["reproduce", "base", "--profile", "quick", "--jobs", "1", "--out"]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fails_with_one_line(capsys, *arguments):
    assert main([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err.splitlines()[-1]  # progress bars come before
    assert error.startswith("lengthgen: ") and "Traceback" not in error
    return error


# -- killed while writing ------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from lengthgen import files

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

class Half:
    '''A file that dies with half of the data in it.'''
    def __init__(self, file):
        self.file = file
    def __enter__(self):
        return self
    def __exit__(self, *reason):
        self.file.close()
    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        die()

def killed(step, path):
    fdopen, write = os.fdopen, Path.write_bytes
    if step == "write":
        os.fdopen = lambda *arguments: Half(fdopen(*arguments))
        Path.write_bytes = lambda self, data: Half(self.open("wb")).write(data)
    else:
        setattr(os, step, die)
    files.write_atomically(path, b"new" * 1000)

for folder in map(Path, sys.argv[1:]):
    child = os.fork()  # one import of the package for all
    if not child:
        killed(folder.name, folder / "base.json")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


@pytest.fixture(scope="module", params=[b"old", None])
def killed(tmp_path_factory, request):
    """Folders in which a process was killed at each step of writing, and what was there before."""
    top = tmp_path_factory.mktemp("killed")
    folders = [top / step for step in ("write", "fsync", "replace")]
    for folder in folders:
        folder.mkdir()
        if request.param is not None:
            (folder / "base.json").write_bytes(request.param)
    subprocess.run([sys.executable, "-c", KILLED, *folders], check=True)
    return top, request.param


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_kill_while_writing_leaves_the_old_file_or_none(killed, step):
    top, before = killed
    path = top / step / "base.json"
    assert (path.read_bytes() if path.exists() else None) == before
    # What the kill left behind has a name that nothing reads, and does not hinder the next run.
    left = path.parent.glob(".*")
    assert not any(other.suffix in (".json", ".safetensors") for other in left)
    files.write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


# -- no space, no permission ---------------------------------------------------------------------


class FullFile:
    """A file on a full disk."""

    def __init__(self, file, error):
        self.file, self.error = file, error

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        self.file.close()

    def write(self, data):
        self.file.write(data[:7])
        raise self.error


def refuse(patch, step, code):
    """Let one step of writing a file fail with an error of the operating system."""
    error = OSError(code, os.strerror(code))

    def failing(*arguments, **options):
        raise error

    if step == "write":
        fdopen = os.fdopen
        patch.setattr(os, "fdopen", lambda *a: FullFile(fdopen(*a), error))
    else:
        patch.setattr(files.tempfile if step == "mkstemp" else os, step, failing)


FAULTS = [
    *[(step, errno.ENOSPC) for step in ("mkstemp", "write", "fsync", "replace")],
    *[("mkstemp", code) for code in (errno.EACCES, errno.EROFS)],
]


@pytest.mark.parametrize(("step", "code"), FAULTS)
def test_a_folder_that_fails_is_one_line_and_a_later_run_finishes(
    done, private_cache, capsys, step, code
):
    out, whole, units = done, content(done), sorted(private_cache.rglob("*"))
    (out / "base.png").unlink()  # so that there is something to write
    before = content(out)
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch, step, code)
        error = fails_with_one_line(capsys, *QUICK, out)
    assert "cannot write" in error and str(out) in error and os.strerror(code) in error
    assert content(out) == before
    assert main([*QUICK, str(out)]) == 0
    assert content(out).keys() == whole.keys()
    assert content(out)["base.json"] == whole["base.json"]
    assert sorted(private_cache.rglob("*")) == units


@pytest.mark.parametrize(("step", "code"), FAULTS)
def test_a_cache_that_fails_is_one_line_and_keeps_nothing_half(
    tiny_base, private_cache, tmp_path, monkeypatch, capsys, step, code
):
    write = files.write_atomically

    def into_the_cache(path, data):
        if private_cache in path.parents:
            with pytest.MonkeyPatch.context() as patch:
                refuse(patch, step, code)
                write(path, data)
        write(path, data)

    monkeypatch.setattr("lengthgen.units.write_atomically", into_the_cache)
    error = fails_with_one_line(capsys, *QUICK, tmp_path / "out")
    assert "cannot write" in error and str(private_cache) in error
    assert os.strerror(code) in error
    assert not [path for path in private_cache.rglob("*") if path.is_file()]
    assert not list((tmp_path / "out").iterdir())


def test_a_complete_cache_that_is_read_only_is_read(done, tiny_base, monkeypatch):
    expected = Result.load(done / "base.json")
    monkeypatch.setattr(
        "lengthgen.units.write_atomically", lambda *arguments: pytest.fail("writes")
    )
    assert tiny_base.run("quick").rows == expected.rows


# -- a process is killed -------------------------------------------------------------------------

KILLER = """
import os, signal, sys
from dataclasses import dataclass
from lengthgen.units import computed, processes, unit

@dataclass(frozen=True)
class Config:
    number: int

@unit
def kills(config):
    if config.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [{"number": config.number}]
"""


def test_a_killed_process_is_one_line_and_not_a_hang(tmp_path):
    (tmp_path / "killer.py").write_text(KILLER)
    (tmp_path / "run.py").write_text(
        "import lengthgen.cli as cli\nimport killer\n"
        "work = [(killer.kills, killer.Config(n)) for n in (0, 1)]\n"
        "cli._claims = lambda options: list(killer.computed(work, killer.processes(2)))\n"
        'if __name__ == "__main__":\n    raise SystemExit(cli.main(["claims"]))\n'
    )
    child = subprocess.run(
        [sys.executable, str(tmp_path / "run.py")],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        timeout=300,
    )
    assert child.returncode == 2
    last = child.stderr.splitlines()[-1]
    assert last.startswith("lengthgen: a process was killed") and "--jobs" in last
    assert "Traceback" not in child.stderr


# -- results that someone edited -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rows": [1, 2]}, "a row"),
        ({"rows": {"a": 1}}, "rows"),
        ({"seconds": "long"}, "seconds"),
        ({"experiment": 3}, "experiment"),
        ({"experiment": "prop1"}, "holds results of 'prop1'"),
        ({"profile": None}, "profile"),
    ],
)
@pytest.mark.parametrize("command", ["claims", "reproduce"])
def test_an_edited_result_is_one_line_and_kept(
    done, tmp_path, edit_json, capsys, command, changes, named
):
    name = "shift" if command == "claims" else "base"  # no claim is about `base`
    path = replace(Result.load(done / "base.json"), experiment=name).save(tmp_path)
    edit_json(path, **changes)
    before = path.read_bytes()
    arguments = ["claims", "--results", tmp_path] if command == "claims" else [*QUICK, tmp_path]
    error = fails_with_one_line(capsys, *arguments)
    assert str(path) in error and named in error
    assert path.read_bytes() == before


# -- a reader's encoding -------------------------------------------------------------------------

READER = """
import torch

class Raises:
    def bias(self, query_positions, key_positions):
        raise RuntimeError("first line\\nsecond line")

class NotANumber:
    def bias(self, query_positions, key_positions):
        return torch.full((len(query_positions), len(key_positions)), float("nan"))

class WrongShape:
    def transform_key(self, x, positions):
        return x[..., :-1]
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Raises", ("Raises.bias", "RuntimeError: first line", "(3, 14)")),
        ("NotANumber", ("NotANumber.bias", "not finite", "positions 0..15")),
        ("WrongShape", ("WrongShape.transform_key", "(2, 3, 16, 31)", "(2, 3, 16, 32)")),
    ],
)
def test_a_readers_encoding_that_breaks_is_one_line(tmp_path, capsys, name, words):
    (tmp_path / "mine.py").write_text(READER)
    error = fails_with_one_line(capsys, "diagnose", f"{tmp_path}/mine.py:{name}")
    assert all(word in error for word in words), error


# -- no pickle -----------------------------------------------------------------------------------

PICKLES = {".pkl", ".pickle", ".pt", ".pth", ".joblib", ".npy", ".npz", ".ckpt", ".bin"}
FORBIDDEN = {"pickle", "cloudpickle", "dill", "shelve", "marshal"}
SOURCES = sorted(
    path
    for folder in ("lengthgen", "book", "tests", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)


def test_the_project_holds_no_pickle_file():
    folders = ("lengthgen", "book", "tests", "results", "notebooks", "benchmarks")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    found = [path for path in found if "__pycache__" not in path.parts]
    assert len(found) > 100
    assert not [path for path in found if path.suffix in PICKLES]
    assert not [path for path in found if path.read_bytes()[:1] == b"\x80"]  # protocol 2 and up


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_reads_or_writes_pickle(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not FORBIDDEN & {name.split(".")[0] for name in names}, path
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            call = (node.value.id, node.attr)
            assert call not in {
                (m, f) for m in ("torch", "joblib") for f in ("save", "load", "dump")
            }


def test_a_run_leaves_no_pickle_in_the_cache(finished_base):
    kept = [path for path in (finished_base / "cache").rglob("*") if path.is_file()]
    assert kept and {path.suffix for path in kept} == {".safetensors"}
    for path in kept:
        _read_unit(path)
        assert path.read_bytes()[8:9] == b"{"  # a safetensors header
