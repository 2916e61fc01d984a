"""Units of work and their cache: whatever takes long is computed once, and a crash loses little.

A *unit* is a function of one configuration whose value is kept in the cache under a key made of
the configuration, the code it depends on and the version of PyTorch.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from lengthgen.code_hash import classes, code_text
from lengthgen.device import DEVICE, chosen_device, on_device
from lengthgen.files import ResultError, cache_folder, to_json, write_atomically

__all__ = [
    "Pool",
    "Unit",
    "computed",
    "longest_first",
    "one_thread",
    "processes",
    "unit",
]

Pool = Callable[[Callable[..., Any], list[tuple]], Iterator[Any]]
"""Calls a function with many arguments side by side; yields what each returns, as it does."""

PATIENCE = 60
"""Seconds within which a shared folder must show a file that another machine has written."""


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

        A class in the configuration, such as a reader's own encoding, counts with its code, and so
        does a device other than the processor.

        Raises:
            ResultError: the package was edited after it was imported; see `code_hash`.
        """
        parts = [to_json(config), code_text(self.function), torch.__version__]
        parts += [code_text(found) for found in classes(config)]
        if (device := chosen_device().type) != "cpu":
            parts.append(device)
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
                pass  # damaged: computed again, and replaced
        began = time.perf_counter()
        with one_thread(), on_device(chosen_device()):
            value = self.function(config)
        _write_unit(path, value, config, time.perf_counter() - began)
        return _read_unit(path)  # what any later call gets


def unit(function: Callable[[Any], Any]) -> Unit:
    """Turn a module-level function of one frozen dataclass into a `Unit`."""
    return Unit(function)


def computed(
    work: Sequence[tuple[Unit, Any]], pool: Pool | None = None
) -> Iterator[tuple[Unit, Any]]:
    """Compute the units whose value is missing; yield every pair of `work`, once, when it is done.

    A unit is written as soon as it is computed: an interrupted run loses only those in progress.

    Args:
        work: pairs of a unit and its configuration, taken in this order.
        pool: where to compute; here by default.

    Raises:
        ResultError: a process was killed, or does not share the cache folder.
    """
    pairs = {pair[0].path(pair[1]).absolute(): pair for pair in work}
    missing = {path: pair for path, pair in pairs.items() if not path.exists()}
    yield from (pair for path, pair in pairs.items() if path not in missing)
    if missing:
        place = cache_folder().absolute(), os.environ.get(DEVICE)
        calls = [(*place, *pair) for pair in missing.values()]
        with closing((pool or processes(1))(_compute, calls)) as paths:
            for path in paths:
                _check_arrived(path, missing)
                yield missing[path]


def processes(jobs: int) -> Pool:
    """Return a pool of processes of this machine; one job computes here.

    Raises:
        ValueError: `jobs` below 1.
    """
    if jobs < 1:
        raise ValueError(f"jobs={jobs} is not allowed: it must be at least 1")

    def pool(function: Callable[..., Any], calls: list[tuple]) -> Iterator[Any]:
        from joblib import Parallel, delayed
        from joblib.externals.loky.process_executor import BrokenProcessPool

        # One call at a time: a process that dies takes one unit with it.
        parallel = Parallel(min(jobs, len(calls)), return_as="generator_unordered", batch_size=1)
        outcomes = parallel(delayed(function)(*call) for call in calls)
        try:
            yield from outcomes
        except BrokenProcessPool:
            raise ResultError(
                "a process was killed, perhaps for want of memory: finished units are kept; run "
                "the same command again, or with fewer --jobs"
            ) from None
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # who stops early knows that calls are cancelled
                outcomes.close()

    return pool


def longest_first(work: Iterable[tuple[Unit, Any]]) -> list[tuple[Unit, Any]]:
    """Order units by the training they ask for, so that no long one is left alone at the end.

    The guess is optimizer steps times models. Units that train equally keep their order: one that
    trains heads stays before those that only read them. Values do not depend on the order.
    """
    return sorted(work, key=lambda pair: -_training_steps(pair[1]))


def _training_steps(config: Any) -> int:
    training = getattr(config, "training", config)
    steps = getattr(training, "steps", 0)
    models = getattr(training, "models", None) or getattr(training, "seeds", ())
    return steps * len(models) if isinstance(steps, int) else 0


def _compute(folder: Path, device: str | None, work_unit: Unit, config: Any) -> Path:
    """Compute a unit, perhaps in a process that was started with another cache folder or device."""
    if cache_folder().absolute() != folder:
        os.environ["LENGTHGEN_CACHE"] = str(folder)
    os.environ.pop(DEVICE, None)
    if device is not None:
        os.environ[DEVICE] = device
    work_unit(config)
    return work_unit.path(config).absolute()


def _check_arrived(path: Path, wanted: Iterable[Path]) -> None:
    """Make sure that what another process computed is what was asked for, and can be read here."""
    if path not in wanted:
        raise ResultError(
            f"a worker computed {path}, which is none of the units wanted here: every machine "
            "must run the same version of the package and of PyTorch"
        )
    until = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > until:
            raise ResultError(
                f"a worker wrote {path}, which is not to be seen here: LENGTHGEN_CACHE must name "
                "a folder that all machines share, under one absolute path"
            )
        time.sleep(0.2)


@contextmanager
def one_thread() -> Iterator[None]:
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
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    _, digest = _checked(save(tensors, metadata))
    write_atomically(path, save(tensors, metadata | {"digest": digest}))


def _read_unit(path: Path) -> Any:
    data = path.read_bytes()
    metadata, digest = _checked(data)
    if metadata["digest"] != digest:
        raise ValueError(f"{path} does not hold what was written")
    if metadata["rows"]:
        return json.loads(metadata["rows"])
    device = torch.get_default_device()
    return {name: tensor.to(device) for name, tensor in sorted(load(data).items())}


def _checked(data: bytes) -> tuple[dict[str, str], str]:
    """Return a safetensors file's metadata, and a hash of all it holds but the digest in them."""
    end = 8 + int.from_bytes(data[:8], "little")
    if end > len(data):
        raise ValueError(f"a header of {end} bytes in a file of {len(data)}")
    header = json.loads(data[8:end])
    metadata = header["__metadata__"]
    content = header | {"__metadata__": {k: v for k, v in metadata.items() if k != "digest"}}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    digest.update(data[end:])
    return metadata, digest.hexdigest()
