"""Units on a dask cluster: the same values, from many machines that share one cache folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

from lengthgen.files import ResultError
from lengthgen.units import Pool

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["dask_cluster"]

PATIENCE = 10
"""Seconds within which a scheduler must answer and have a worker."""


@contextmanager
def dask_cluster(scheduler: str | None = None, jobs: int = 1) -> Iterator[Pool]:
    """Connect to a dask cluster; yield it as a pool for `lengthgen.units.computed`.

    A unit whose worker dies is computed by another one. Every machine needs the package in one
    version, and the cache folder under one path.

    Args:
        scheduler: address of a running scheduler; without one, a cluster of `jobs` processes
            runs on this machine.
        jobs: number of processes of that cluster.

    Raises:
        ValueError: dask is not installed, no scheduler answers, it has no workers, or one of
            several threads.
    """
    try:
        from distributed import LocalCluster
    except ImportError:
        raise ValueError(
            "--backend dask needs dask: pip install 'lengthgen[scale]', or use --backend loky"
        ) from None
    with ExitStack() as stack:
        if scheduler is None:
            local = LocalCluster(
                n_workers=jobs, threads_per_worker=1, memory_limit=None, dashboard_address=None
            )
            scheduler = stack.enter_context(local).scheduler_address
        client = stack.enter_context(_connect(scheduler))
        _check_workers(client, scheduler)
        yield lambda function, calls: _outcomes(client, function, calls)


def _outcomes(client: Client, function: Callable[..., Any], calls: list[tuple]) -> Iterator[Any]:
    # Not through joblib: its dask backend waits for ever for a call whose worker died too often.
    from distributed import as_completed
    from distributed.client import FutureCancelledError
    from distributed.scheduler import KilledWorker

    futures = client.map(function, *zip(*calls, strict=True), pure=False)
    try:
        for future in as_completed(futures):
            yield future.result()
    except KilledWorker as error:
        raise ResultError(
            f"a unit killed one worker after another, the last at {error.last_worker.address}, "
            "perhaps for want of memory: finished units are kept"
        ) from None
    except FutureCancelledError:
        raise ResultError(
            "the dask scheduler is gone: finished units are kept; start it again, then run the "
            "same command"
        ) from None
    finally:
        client.cancel(futures)


def _connect(address: str) -> Client:
    """Return a client of a scheduler, or say that none answers; a silent port must not hang."""
    from distributed import Client

    answers: list[Client | Exception] = []

    def connect() -> None:
        try:
            answers.append(Client(address, timeout=PATIENCE))
        except Exception as error:  # of many kinds, down to what noise on the port decodes to
            answers.append(error)

    thread = Thread(target=connect, daemon=True)
    thread.start()
    thread.join(PATIENCE + 1)
    if answers and not isinstance(answers[0], Exception):
        return answers[0]
    reason = f" ({answers[0]})" if answers else ""
    raise ValueError(
        f"no dask scheduler answers at {address!r} within {PATIENCE} s{reason}; its address looks "
        "like tcp://host:8786, and `dask scheduler` starts one"
    )


def _check_workers(client: Client, scheduler: str) -> None:
    """Refuse a cluster without workers, or with one in which units would meet."""
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError:
        raise ValueError(
            f"the scheduler at {scheduler} has no worker: start some with "
            f"`dask worker {scheduler} --nthreads 1`"
        ) from None
    for worker, number in client.nthreads().items():
        if number != 1:
            raise ValueError(
                f"worker {worker} has {number} threads, and a unit needs a process of its own: "
                "start it with --nthreads 1"
            )
