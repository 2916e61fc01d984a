"""Functions called in a process of their own: threads, memory and imports are theirs alone."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["LIMIT_GB", "ChildFailed", "call", "forget_peak", "peak_memory_mb"]

ROOT = Path(__file__).resolve().parent.parent
LIMIT_GB = 8.0
"""Address space of a process that evaluates: who needs more has no result."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class ChildFailed(RuntimeError):
    """The process ended without a value."""


def call(
    function: str, *, threads: int | None = 1, limit_gb: float | None = None, **arguments: Any
) -> dict[str, Any]:
    """Call a function of this package in a new process and return what it returns.

    The process is bound to as many cores as it has threads: that holds every library to the
    same setting, whatever it thinks of environment variables.

    Args:
        function: `MODULE:NAME` below `benchmarks`.
        threads: cores and threads, or `None` for what there is.
        limit_gb: address space it may use, or `None` for no limit.
        arguments: JSON values.

    Raises:
        ChildFailed: it did not end well; the last line says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        request = {"function": function, "threads": threads, "limit_gb": limit_gb}
        request |= {"arguments": arguments, "answer": str(answer)}
        variables = {} if threads is None else dict.fromkeys(THREAD_VARIABLES, str(threads))
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.children", json.dumps(request)],
            cwd=ROOT,
            env={**os.environ, **variables},
            stderr=subprocess.PIPE,
            text=True,
        )
        if ended.returncode:
            lines = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
            raise ChildFailed(f"{function}: {lines[-1]}")
        return json.loads(answer.read_text())


def peak_memory_mb() -> float:
    """Return the most memory this process ever held, in MB (1e6 bytes)."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux counts in ru_maxrss what the process held that started this one
        (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        return int(peak) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def forget_peak() -> float:
    """Forget what an import held for a moment; return the peak from here on, in MB.

    Only Linux can forget. Elsewhere the peak of the imports stays, and hides as much of what
    comes after.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_memory_mb()


def _main(request: dict[str, Any]) -> None:
    threads, limit_gb = request["threads"], request["limit_gb"]
    if limit_gb is not None:
        resource.setrlimit(resource.RLIMIT_AS, (int(limit_gb * 1e9),) * 2)
    if threads is not None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
        import torch

        torch.set_num_threads(threads)
    module, name = request["function"].split(":")
    function = getattr(importlib.import_module(f"benchmarks.{module}"), name)
    value = function(**request["arguments"])
    Path(request["answer"]).write_text(json.dumps(value, allow_nan=False))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
