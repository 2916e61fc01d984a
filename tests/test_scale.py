"""Many processes, here or on a cluster: the same numbers, in any order, whoever dies."""

from __future__ import annotations

import importlib
import socket
import sys
from dataclasses import dataclass

import dask
import pytest
from distributed import LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthgen import cluster as clusters
from lengthgen.cli import main
from lengthgen.experiments import NAMES, get
from lengthgen.experiments.experiment import Experiment
from lengthgen.files import ResultError
from lengthgen.reproduce import _ready, reproduce
from lengthgen.results import Result
from lengthgen.units import _check_arrived, computed, longest_first, processes, unit

pytestmark = pytest.mark.filterwarnings(
    # dask's own loops and sockets, closed late when a worker was killed on purpose
    "ignore:unclosed:ResourceWarning",
    "ignore:Port .* is already in use:UserWarning",
)


@dataclass(frozen=True)
class Training:
    steps: int
    models: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Config:
    number: int
    training: Training | None = None


ORDER = []


@unit
def numbers(config):
    """A unit of one number."""
    ORDER.append(config.number)
    return [{"number": config.number}]


@pytest.fixture(autouse=True)
def nothing_computed():
    ORDER.clear()


# -- order ---------------------------------------------------------------------------------------

works = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=12).map(
    lambda sizes: [
        (numbers, Config(i, Training(steps, tuple(range(models)))))
        for i, (steps, models) in enumerate(sizes)
    ]
)


@settings(max_examples=50, deadline=None)
@given(works)
def test_more_training_goes_first_and_equals_keep_their_order(work):
    ordered = longest_first(work)
    sizes = [c.training.steps * len(c.training.models) for _, c in ordered]
    assert sizes == sorted(sizes, reverse=True)
    assert sorted(c.number for _, c in ordered) == list(range(len(work)))
    for size in set(sizes):
        same = [c.number for (_, c), s in zip(ordered, sizes, strict=True) if s == size]
        assert same == sorted(same)


@pytest.mark.parametrize("name", NAMES)
def test_every_plan_can_be_ordered_and_keeps_all_its_units(name):
    plan = list(get(name).plan(get(name).config("paper")))
    ordered = longest_first(plan)
    assert {u.path(c) for u, c in ordered} == {u.path(c) for u, c in plan}


def test_the_heads_that_train_longest_start_first():
    base = get("base")
    ordered = longest_first(base.plan(base.config("quick")))
    assert ordered[0][1].training.head.encoding == "learned-random-offset"


def test_numbers_do_not_depend_on_the_order(tiny_base, finished_base, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(f"{Experiment.__module__}.longest_first", lambda work: list(work)[::-1])
        backwards = tiny_base.run("quick")
    forwards = Result.load(finished_base / "out" / "base.json")
    assert forwards.rows == backwards.rows and forwards.summary == backwards.summary


def test_a_unit_asked_for_twice_is_computed_and_yielded_once():
    work = [(numbers, Config(1)), (numbers, Config(2)), (numbers, Config(1))]
    assert [c.number for _, c in computed(work)] == [1, 2] == ORDER
    assert [c.number for _, c in computed(work)] == [1, 2] == ORDER


def test_an_experiment_is_ready_before_the_units_of_the_next_are_computed():
    def planned(name, wanted):
        work = [(numbers, Config(n)) for n in wanted]
        return Experiment(
            name, "", "", {"quick": 1}, lambda config: work, lambda config: ([], {}), lambda r: None
        )

    seen = []
    experiments = [planned("a", (1, 2)), planned("b", (2, 1)), planned("c", (3,))]
    for _ in _ready(experiments, "quick", None, processes(1)):
        seen.append(list(ORDER))
    assert seen == [[1, 2], [1, 2], [1, 2, 3]]


def test_stopping_early_is_silent(recwarn):
    pairs = computed([(numbers, Config(n)) for n in range(3)])
    next(pairs)
    pairs.close()
    assert ORDER == [0] and not recwarn.list


# -- a folder that is not shared -----------------------------------------------------------------


def test_what_another_version_computed_is_refused(tmp_path):
    with pytest.raises(ResultError, match=r"none of the units wanted .*same version"):
        _check_arrived(tmp_path / "other", [tmp_path / "wanted"])


def test_a_file_that_does_not_show_up_names_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("lengthgen.units.PATIENCE", 0)
    with pytest.raises(ResultError, match=r"not to be seen here: LENGTHGEN_CACHE"):
        _check_arrived(tmp_path / "wanted", [tmp_path / "wanted"])
    (tmp_path / "wanted").write_text("")
    _check_arrived(tmp_path / "wanted", [tmp_path / "wanted"])


# -- a cluster -----------------------------------------------------------------------------------

FRAGILE = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
from lengthgen.units import unit

@dataclass(frozen=True)
class Config:
    number: int
    folder: str

@unit
def fragile(config):
    '''Kills its process the first time it is computed, or every time.'''
    with open(f"{config.folder}/calls", "a") as calls:
        calls.write(f"{config.number}\\n")
    kills = Path(config.folder, f"kills-{config.number}")
    if kills.exists():
        if kills.read_text() == "once":
            kills.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return [{"number": config.number, "square": config.number**2}]
"""


@pytest.fixture(scope="module")
def module_folder(tmp_path_factory):
    """A folder with `fragile.py`, importable here and in the workers started after this."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "fragile.py").write_text(FRAGILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("LENGTHGEN_CACHE", str(folder / "elsewhere"))  # must not be used
        patch.setenv("OMP_NUM_THREADS", "1")
        yield folder
    sys.modules.pop("fragile", None)


@pytest.fixture(scope="module")
def scheduler(module_folder):
    """The address of a cluster of two processes, in which a unit may kill one worker."""
    options = {"distributed.scheduler.allowed-failures": 1}
    with (
        dask.config.set(options),
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=None, dashboard_address=None
        ) as local,
    ):
        yield local.scheduler_address


@pytest.fixture
def fragile(module_folder, tmp_path):
    """`fragile({2: "once"})`: the work of four units, and who was computed."""
    module = importlib.import_module("fragile")

    def fragile(kills):
        for number, how in kills.items():
            (tmp_path / f"kills-{number}").write_text(how)
        return [(module.fragile, module.Config(n, str(tmp_path))) for n in range(4)]

    return fragile


def test_a_cluster_gives_the_rows_of_one_process(
    tiny_base, finished_base, scheduler, tmp_path, monkeypatch
):
    expected = Result.load(finished_base / "out" / "base.json")
    monkeypatch.setenv("LENGTHGEN_CACHE", str(tmp_path / "cache"))
    arguments = ["reproduce", "base", "--profile", "quick", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--backend", "dask", "--scheduler", scheduler]) == 0
    found = Result.load(tmp_path / "out" / "base.json")
    assert found.rows == expected.rows and found.summary == expected.summary
    # the workers used this run's cache, not the one they were started with
    assert list((tmp_path / "cache" / "accuracy_rows").iterdir())


def test_a_killed_worker_loses_its_unit_and_another_computes_it(fragile, scheduler, tmp_path):
    work = fragile({1: "once"})
    with clusters.dask_cluster(scheduler) as pool:
        assert len(list(computed(work, pool))) == 4
    assert all(work_unit.done(config) for work_unit, config in work)
    values = [work_unit(config) for work_unit, config in work]
    assert values == [[{"number": n, "square": n * n}] for n in range(4)]
    calls = (tmp_path / "calls").read_text().split()
    # What was finished is not computed again; what waited behind the dead worker may be.
    assert calls.count("1") == 2 and set(calls) == set("0123")


def test_a_unit_that_kills_every_worker_is_one_error_and_the_others_are_kept(fragile, scheduler):
    work = fragile({3: "always"})
    with (
        pytest.raises(ResultError, match=r"killed one worker after another"),
        clusters.dask_cluster(scheduler) as pool,
    ):
        list(computed(work, pool))
    assert [work_unit.done(config) for work_unit, config in work] == [True] * 3 + [False]


def test_an_error_in_a_worker_is_the_same_error_here(scheduler, module_folder):
    module = importlib.import_module("fragile")
    work = [(module.fragile, module.Config(n, "/nowhere")) for n in range(2)]
    with (
        pytest.raises(FileNotFoundError, match="/nowhere"),
        clusters.dask_cluster(scheduler) as pool,
    ):
        list(computed(work, pool))


def test_a_worker_with_threads_is_refused(module_folder):
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
        ) as local,
        pytest.raises(ValueError, match=r"has 2 threads.*--nthreads 1"),
        clusters.dask_cluster(local.scheduler_address),
    ):
        pass


def refused(capsys, tmp_path, *options):
    out = str(tmp_path / "out")
    assert main(["reproduce", "base", "--profile", "quick", "--out", out, *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lengthgen: ") and error.count("\n") == 1
    return error


def test_a_scheduler_without_workers_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(clusters, "PATIENCE", 1)
    with LocalCluster(n_workers=0, processes=False, dashboard_address=None) as local:
        address = local.scheduler_address
        error = refused(capsys, tmp_path, "--backend", "dask", "--scheduler", address)
    assert "has no worker" in error and f"dask worker {address} --nthreads 1" in error


@pytest.mark.parametrize("address", ["nonsense", "tcp://127.0.0.1:1", "zzz://host:1"])
def test_an_address_that_does_not_answer_is_refused(tmp_path, monkeypatch, capsys, address):
    monkeypatch.setattr(clusters, "PATIENCE", 1)
    error = refused(capsys, tmp_path, "--backend", "dask", "--scheduler", address)
    assert "no dask scheduler answers" in error and address in error


def test_a_port_that_accepts_and_says_nothing_does_not_hang(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(clusters, "PATIENCE", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        error = refused(capsys, tmp_path, "--backend", "dask", "--scheduler", address)
    assert "no dask scheduler answers" in error


def test_without_dask_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "lengthgen[scale]" in refused(capsys, tmp_path, "--backend", "dask")


def test_an_unknown_backend_or_a_scheduler_for_none_is_refused(tmp_path, capsys):
    assert "'ray'; choose from loky, dask" in refused(capsys, tmp_path, "--backend", "ray")
    assert "needs --backend dask" in refused(capsys, tmp_path, "--scheduler", "tcp://a:1")


def test_nothing_to_compute_needs_no_cluster(done, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    (result,) = reproduce(["base"], "quick", done, backend="dask", echo=lambda line: None)
    assert result.rows


def test_a_cluster_of_this_machine_needs_no_address(module_folder, fragile, monkeypatch):
    connect, clients = clusters._connect, []
    monkeypatch.setattr(clusters, "_connect", lambda a: clients.append(connect(a)) or clients[-1])
    work = fragile({})
    with clusters.dask_cluster(jobs=1) as pool:
        assert len(list(computed(work, pool))) == 4
    work_unit, config = work[3]
    assert work_unit(config) == [{"number": 3, "square": 9}]
    assert [client.status for client in clients] == ["closed"]
