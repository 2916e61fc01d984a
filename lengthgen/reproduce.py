"""Run experiments into a folder: JSON, picture and log each, then one page of results."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import matplotlib.pyplot as plt
from tqdm import tqdm

from lengthgen import figures
from lengthgen.claims import check_claims, markdown_table
from lengthgen.cluster import dask_cluster
from lengthgen.experiments import NAMES, get
from lengthgen.experiments.experiment import Experiment
from lengthgen.results import Result, ResultError, environment, to_json, write_atomically
from lengthgen.units import Pool, computed, longest_first, processes

__all__ = ["BACKENDS", "default_folder", "reproduce"]

BACKENDS = ("loky", "dask")
"""Where units are computed: in processes of this machine, or on a cluster."""


def default_folder(profile: str, root: Path) -> Path:
    """Return where a profile's results go: `results`, or `_build/results/quick`."""
    return root / "results" if profile == "paper" else root / "_build" / "results" / profile


def reproduce(
    names: Sequence[str],
    profile: str,
    out: Path,
    *,
    n_seeds: int | None = None,
    jobs: int = 1,
    backend: str = "loky",
    scheduler: str | None = None,
    fresh: bool = False,
    echo: Callable[[str], None] = print,
) -> list[Result]:
    """Run experiments and write their results.

    A result that is there, whole, of the same configuration and computed by the same code on the
    same device is kept. Interrupted, the same call goes on where it stopped, as finished units are
    cached. Processes do not wait for the end of an experiment: they go on with the units of the
    next.

    Args:
        names: experiments; all if empty.
        profile: `quick` or `paper`.
        out: folder of the results.
        n_seeds: number of seeds instead of the profile's.
        jobs: number of processes.
        backend: `loky`, processes of this machine, or `dask`, see `lengthgen.cluster`.
        scheduler: address of a dask scheduler, instead of a cluster on this machine.
        fresh: replace results that are damaged or of another configuration.
        echo: called with a line for the user.

    Raises:
        ValueError: an unknown name, profile or backend, fewer than one job, or no cluster.
        ResultError: `out` cannot be written, or holds damaged or foreign results.
    """
    experiments = [get(name) for name in names or NAMES]
    pool = processes(jobs)
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; choose from {', '.join(BACKENDS)}")
    if scheduler is not None and backend != "dask":
        raise ValueError(f"a scheduler ({scheduler}) needs --backend dask")
    for experiment in experiments:
        experiment.config(profile, n_seeds)  # refused before anything is written
    _check_writable(out)
    _check_others(names or NAMES, out)
    kept = {e.name: None if fresh else _kept(e, profile, out, n_seeds) for e in experiments}
    missing = [e for e in experiments if kept[e.name] is None]
    results = []
    with ExitStack() as stack:
        if backend == "dask" and missing:
            pool = stack.enter_context(dask_cluster(scheduler, jobs))
        ready = stack.enter_context(closing(_ready(missing, profile, n_seeds, pool)))
        for experiment in experiments:
            result = kept[experiment.name]
            if result is None:
                next(ready)
                result = _compute(experiment, profile, out, n_seeds)
                work = f"{result.seconds:.1f} s of computing"
                echo(f"{experiment.name}: {len(result.rows)} rows from {work}")
            else:
                echo(f"{experiment.name}: complete, {len(result.rows)} rows kept")
            results.append(result)
    write_atomically(out / "RESULTS.md", _results_page(out).encode())
    echo(f"results in {out}")
    return results


def _ready(
    experiments: Sequence[Experiment], profile: str, n_seeds: int | None, pool: Pool
) -> Iterator[None]:
    """Compute the units of all experiments; yield as soon as the next experiment has its own."""
    plans = [longest_first(e.plan(e.config(profile, n_seeds))) for e in experiments]
    work = [pair for plan in plans for pair in plan]
    wanted = [{unit.path(config) for unit, config in plan} for plan in plans]
    done: set[Path] = set()
    with (
        tqdm(total=len(set().union(*wanted)), unit="unit", leave=False) as bar,
        closing(computed(work, pool)) as pairs,
    ):
        for experiment, paths in zip(experiments, wanted, strict=True):
            bar.set_description(experiment.name)
            while not paths <= done:
                unit, config = next(pairs)
                done.add(unit.path(config))
                bar.update()
            bar.clear()
            yield


def _check_writable(out: Path) -> None:
    probe = out / ".writable"
    write_atomically(probe, b"")
    probe.unlink(missing_ok=True)  # another process may have been here


def _check_others(names: Sequence[str], out: Path) -> None:
    """Refuse damaged results that are not asked for but that RESULTS.md would list."""
    for name in set(NAMES) - set(names):
        path = out / f"{name}.json"
        if path.exists():
            Result.load(path)


def _kept(experiment: Experiment, profile: str, out: Path, n_seeds: int | None) -> Result | None:
    """Return a result that need not be computed again, or `None`."""
    path = out / f"{experiment.name}.json"
    if not path.exists():
        return None
    result, wanted = Result.load(path), to_json(experiment.config(profile, n_seeds))
    if result.profile != profile or result.config != wanted:
        raise ResultError(f"{path} {_difference(result, profile, wanted)}")
    now, parts = environment(experiment.module), ("code", "torch", "device")
    same_code = all(result.environment.get(part) == now.get(part) for part in parts)
    complete = all((out / f"{experiment.name}.{end}").exists() for end in ("png", "log"))
    return result if same_code and complete else None


def _difference(result: Result, profile: str, wanted: dict) -> str:
    if result.profile != profile:
        found = f"profile {result.profile}, not {profile}"
    else:
        names = [n for n in wanted if result.config.get(n) != wanted[n]] or [
            "another set of fields"
        ]
        values = f" = {result.config.get(names[0])}, not {wanted.get(names[0])}"
        found = f"{names[0]}{values if names[0] in wanted else ''}"
    return f"holds results of another configuration ({found}): choose another --out or pass --fresh"


def _compute(experiment: Experiment, profile: str, out: Path, n_seeds: int | None) -> Result:
    lines = [f"{experiment.name}: {experiment.title}", f"profile {profile}"]
    result = experiment.run(profile, n_seeds=n_seeds, log=lines.append)
    lines += [f"{name}: {value}" for name, value in result.environment.items()]
    lines += [f"config: {result.config}", f"summary: {result.summary}"]
    lines += [f"{len(result.rows)} rows from {result.seconds:.2f} s of computing", ""]
    write_atomically(out / f"{experiment.name}.png", _png(experiment, result))
    write_atomically(out / f"{experiment.name}.log", "\n".join(lines).encode())
    result.save(out)  # last: a result is complete when its JSON is there
    return result


def _png(experiment: Experiment, result: Result) -> bytes:
    with figures.style():
        figure = experiment.plot(result)
        buffer = io.BytesIO()
        figure.savefig(
            buffer, format="png", dpi=150, facecolor="white", metadata={"Software": None}
        )
        plt.close(figure)
    return buffer.getvalue()


def _results_page(out: Path) -> str:
    """Return RESULTS.md: what is in the folder, and the ledger of claims over it."""
    lines = ["# Results", "", "| experiment | what | profile | seeds | rows | seconds |"]
    lines.append("|---|---|---|---:|---:|---:|")
    results = {}
    for name in NAMES:
        path = out / f"{name}.json"
        if path.exists():
            r = results[name] = Result.load(path)
            lines.append(
                f"| [{name}]({name}.json) ([picture]({name}.png), [log]({name}.log)) "
                f"| {get(name).title} | {r.profile} | {len(r.seeds)} | {len(r.rows)} "
                f"| {r.seconds:.1f} |"
            )
    lines += ["", "Seconds are of one thread, added up over units.", "", "## Claims", ""]
    lines += [markdown_table(check_claims(out, results=results)), ""]
    return "\n".join(lines)
