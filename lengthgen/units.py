"""Units of work and their cache: whatever takes long is computed once, and a crash loses little.

A *unit* is a function of one configuration whose value is kept in the cache under a key made of
the configuration, the code it depends on and the version of PyTorch.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from lengthgen.code_hash import class_code, classes, code_hash
from lengthgen.files import cache_folder, to_json, write_atomically

__all__ = ["Unit", "one_thread", "run_units", "unit"]


class Unit:
    """A function of one configuration whose value is computed once and then read from the cache.

    The value is a dictionary of tensors or a list of JSON rows. It is computed on one thread:
    the same bits on any number of cores, and no fight for them.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __reduce__(self) -> tuple:
        return _find_unit, (self.function.__module__, self.function.__name__)

    def key(self, config: Any) -> str:
        """Return the name of the value: configuration, code and PyTorch version, hashed.

        A class in the configuration, such as a reader's own encoding, counts with its code.
        """
        parts = [to_json(config), code_hash(self.function.__module__), torch.__version__]
        parts += [class_code(found) for found in classes(config)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def path(self, config: Any) -> Path:
        """Return where the value is kept."""
        return cache_folder() / self.function.__name__ / f"{self.key(config)}.safetensors"

    def done(self, config: Any) -> bool:
        """Tell whether the value is in the cache."""
        return self.path(config).exists()

    def seconds(self, config: Any) -> float:
        """Return what computing the kept value took, on one thread."""
        with safe_open(self.path(config), framework="pt") as file:
            return float(file.metadata()["seconds"])

    def __call__(self, config: Any) -> Any:
        """Return the value, from the cache if it is there and whole."""
        path = self.path(config)
        if path.exists():
            try:
                return _read_unit(path)
            except (SafetensorError, OSError, ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)  # damaged: compute it again
        began = time.perf_counter()
        with one_thread():
            value = self.function(config)
        _write_unit(path, value, config, time.perf_counter() - began)
        return _read_unit(path)  # what any later call gets


def unit(function: Callable[[Any], Any]) -> Unit:
    """Turn a module-level function of one frozen dataclass into a `Unit`."""
    return Unit(function)


def run_units(
    work: Sequence[tuple[Unit, Any]],
    jobs: int = 1,
    advance: Callable[[Unit, Any], None] | None = None,
) -> list[Any]:
    """Return the values of many units, computing those that are missing, `jobs` at a time.

    A unit is written as soon as it is computed: an interrupted run loses only those in progress.

    Args:
        work: pairs of a unit and its configuration.
        jobs: number of processes; 1 computes here.
        advance: called with each pair as it is done.

    Raises:
        ValueError: `jobs` below 1.
    """
    if jobs < 1:
        raise ValueError(f"jobs={jobs} is not allowed: it must be at least 1")
    advance = advance or (lambda unit, config: None)
    missing = [pair for pair in work if not pair[0].done(pair[1])]
    for pair in work:
        if pair not in missing:
            advance(*pair)
    if jobs > 1 and len(missing) > 1:
        from joblib import Parallel, delayed

        pool = Parallel(n_jobs=min(jobs, len(missing)), return_as="generator_unordered")
        for index in pool(delayed(_compute)(i, *pair) for i, pair in enumerate(missing)):
            advance(*missing[index])
    else:
        for index, pair in enumerate(missing):
            advance(*missing[_compute(index, *pair)])
    return [work_unit(config) for work_unit, config in work]


def _compute(index: int, work_unit: Unit, config: Any) -> int:
    work_unit(config)
    return index


@contextmanager
def one_thread() -> Iterable[None]:
    """Let PyTorch use a single thread for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _find_unit(module: str, name: str) -> Unit:
    return getattr(importlib.import_module(module), name)


def _write_unit(path: Path, value: Any, config: Any, seconds: float) -> None:
    tensors = value if isinstance(value, dict) else {}
    metadata = {
        "config": json.dumps(to_json(config)),
        "seconds": f"{seconds:.3f}",
        "rows": "" if isinstance(value, dict) else json.dumps(to_json(value)),
    }
    tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(tensors, metadata))


def _read_unit(path: Path) -> Any:
    with safe_open(path, framework="pt") as file:
        rows, names = file.metadata()["rows"], list(file.keys())
        return json.loads(rows) if rows else {name: file.get_tensor(name) for name in names}
