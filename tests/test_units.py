import hashlib
import importlib
import json
import math
import sys
import types
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load, save_file

from lengthgen import units
from lengthgen.attention import HeadConfig
from lengthgen.code_hash import code_hash
from lengthgen.files import ResultError, to_json
from lengthgen.training import TrainingConfig, trained_heads
from lengthgen.units import computed, processes, unit

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


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(work=st.sampled_from([tensors, rows]), share=st.floats(0, 1), bit=st.integers(0, 7))
def test_no_flipped_bit_reaches_a_value(work, share, bit, private_cache):
    """Wherever it is: in the values, their names and shapes, the rows, or the digest itself."""
    config = Config()
    expected = str(work(config))
    path = work.path(config)
    data = bytearray(path.read_bytes())
    data[round(share * (len(data) - 1))] ^= 1 << bit
    path.write_bytes(data)
    assert str(work(config)) == expected


def test_the_format_alone_does_not_see_a_flipped_bit():
    tensors(Config())
    data = bytearray(tensors.path(Config()).read_bytes())
    data[-1] ^= 1
    assert not torch.equal(load(bytes(data))["values"], tensors(Config())["values"])


def test_a_unit_without_a_digest_is_computed_again():
    """Or else one flipped bit in the digest's name would take the guard from all that follow."""
    tensors(Config())
    path = tensors.path(Config())
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert len(metadata.pop("digest")) == 64
    save_file(tensors(Config()), path, metadata)
    tensors(Config())
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
    monkeypatch.setattr(units, "code_text", lambda function: "other")
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


READER = """
from dataclasses import dataclass
from lengthgen.units import unit

@dataclass(frozen=True)
class Mine:
    size: int = 3

    @property
    def double(self):
        return 2 * self.size

@unit
def numbers(config):
    return [{"number": config.double}]
"""


def test_a_readers_own_unit_is_computed_again_when_its_code_was_edited(tmp_path, monkeypatch):
    """In a module that is loaded again, and in a notebook."""
    monkeypatch.syspath_prepend(tmp_path)

    def loaded(source):
        (tmp_path / "reader_of_units.py").write_text(source)
        sys.modules.pop("reader_of_units", None)
        importlib.invalidate_caches()
        return vars(importlib.import_module("reader_of_units"))

    def run(source):
        space = {"__name__": "__main__"}
        monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
        exec(source, space)
        return space

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for size, define in enumerate((loaded, run), 3):
        values = []
        for old, new in (("", ""), ("# a note", ""), ("2 * self", "4 * self"), ("[{", "2 * [{")):
            names = define(READER.replace(old, new) if old else READER)
            unit, config = names["numbers"], names["Mine"](size)
            values.append((unit.done(config), unit(config)))
        once, twice = [{"number": 2 * size}], [{"number": 4 * size}]
        assert values == [(False, once), (True, once), (False, twice), (False, 2 * once)]
    sys.modules.pop("reader_of_units")


def test_units_of_the_package_have_the_key_of_their_module():
    """What is frozen hangs on it."""
    config = TrainingConfig(HeadConfig("rotary"), (0,), (1,))
    parts = [to_json(config), code_hash("lengthgen.training"), torch.__version__]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    assert trained_heads.key(config) == digest[:24]


def test_many_units_are_computed_here_or_in_processes():
    head = HeadConfig("rotary", vocabulary=4, d_model=4, d_head=4)
    configs = [TrainingConfig(head, (seed,), (1,), (3, 4), 2, 4) for seed in range(2)]
    done = list(computed([(trained_heads, c) for c in configs], processes(2)))
    assert sorted(c.seeds for _, c in done) == [(0,), (1,)]
    for config in configs:
        assert trained_heads.done(config)
        value, here = trained_heads(config), trained_heads.function(config)
        assert all(torch.equal(value[name], here[name]) for name in here)


def test_units_that_are_done_are_reported_and_not_computed():
    tensors(Config(1))
    CALLS.clear()
    work = [(tensors, Config(size)) for size in (1, 2)]
    assert [config.size for _, config in computed(work)] == [1, 2]
    assert [c.size for c in CALLS] == [2]


@pytest.mark.parametrize("jobs", [0, -1])
def test_fewer_than_one_job_is_refused(jobs):
    with pytest.raises(ValueError, match=f"jobs={jobs} .*at least 1"):
        processes(jobs)
