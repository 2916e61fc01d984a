"""Units of work, their cache, and results on disk: atomic, resumable, with provenance.

A *unit* is a function of one configuration whose value is kept in the cache under a key made of
the configuration, the code it depends on and the version of PyTorch. A *result* is one
experiment's rows and summary as a JSON file.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

__all__ = [
    "Result",
    "ResultError",
    "Unit",
    "cache_folder",
    "code_hash",
    "project_root",
    "run_units",
    "to_json",
    "unit",
    "write_atomically",
]

SCHEMA_VERSION = 1
PACKAGE = "lengthgen"
WITHOUT_NUMBERS = {f"{PACKAGE}.{name}" for name in ("results", "figures", "experiments.experiment")}
"""Modules that cannot change a number: they keep numbers, draw them and order their making."""


class ResultError(ValueError):
    """A results file that is damaged, foreign or cannot be written."""


# -- places and plain data ------------------------------------------------------------------------


def project_root() -> Path:
    """Return the folder of the checkout, or the working directory of an installed package."""
    checkout = Path(__file__).resolve().parent.parent
    return checkout if (checkout / "pyproject.toml").exists() else Path.cwd()


def cache_folder() -> Path:
    """Return `$LENGTHGEN_CACHE`, by default `.cache` in the project."""
    return Path(os.environ.get("LENGTHGEN_CACHE") or project_root() / ".cache")


def to_json(value: Any) -> Any:
    """Turn dataclasses, tuples, tensors and classes into plain JSON values.

    Raises:
        ResultError: a number that is not finite.

    Example:
        >>> to_json({"offsets": (1, 2), "loss": torch.tensor(0.5)})
        {'offsets': [1, 2], 'loss': 0.5}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return to_json({f: getattr(value, f) for f in value.__dataclass_fields__})
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        raise ResultError(f"{value} is not a finite number and has no place in a result")
    return value


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all.

    Raises:
        ResultError: the folder cannot be written.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


# -- code hashes ----------------------------------------------------------------------------------


@functools.cache
def code_hash(module: str) -> str:
    """Return a hash of the syntax trees of a module and of all package modules it imports.

    Comments, docstrings and functions named `_plot` are left out: correcting a typo or a picture
    does not make a number stale.
    """
    digest = hashlib.sha256()
    for name in sorted(_dependencies(module)):
        digest.update(name.encode())
        digest.update(_bare_source(_source(name)).encode())
    return digest.hexdigest()[:16]


def _dependencies(module: str) -> set[str]:
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name in found or name in WITHOUT_NUMBERS or not name.startswith(PACKAGE):
            continue
        found.add(name)
        for node in ast.walk(ast.parse(_source(name))):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                waiting.append(node.module)
                submodules = [f"{node.module}.{alias.name}" for alias in node.names]
                waiting += [name for name in submodules if _is_module(name)]
    return found


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _source(module: str) -> str:
    return Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8")


def _bare_source(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not (_is_bare_string(part) or _draws(part))]
    return ast.unparse(tree)  # unlike a dump, the same text in every version of Python


def _draws(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "_plot"


def _is_bare_string(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _classes(value: Any) -> list[type]:
    """Return the classes in a configuration."""
    if isinstance(value, type):
        return [value]
    if is_dataclass(value):
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    parts = value.values() if isinstance(value, dict) else value
    return [c for p in parts for c in _classes(p)] if isinstance(value, (dict, list, tuple)) else []


def _class_code(found: type) -> str:
    """Return a text that changes with the methods and constants of a class and its bases."""
    if found.__module__.startswith(PACKAGE):
        return code_hash(found.__module__)
    parts = []
    for base in found.__mro__:
        if base.__module__.split(".")[0] in ("builtins", "torch", PACKAGE):
            continue
        for name, member in sorted(vars(base).items()):
            code = getattr(inspect.unwrap(getattr(member, "__func__", member)), "__code__", None)
            if code is not None:
                parts.append(f"{name}: {_code_text(code)}")
            elif isinstance(member, (bool, int, float, str, tuple)) and not name.startswith("__"):
                parts.append(f"{name} = {member!r}")
    return "\n".join(parts)


def _code_text(code: CodeType) -> str:
    constants = [_code_text(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


# -- units ----------------------------------------------------------------------------------------


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
        parts += [_class_code(found) for found in _classes(config)]
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


# -- results --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What an experiment measured, and everything needed to measure it again.

    Args:
        experiment: its name.
        profile: `quick` or `paper`.
        config: the experiment's configuration.
        seeds: every seed used.
        rows: one dictionary per measurement.
        summary: named numbers over the rows.
        seconds: what computing its units took on one thread, added up, cached ones included.
        environment: versions, processor, and the hash of the code.
    """

    experiment: str
    profile: str
    config: dict[str, Any]
    seeds: list[int]
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    seconds: float = 0.0
    environment: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the JSON file's content: one line per row, no NaN.

        Raises:
            ResultError: a number that is not finite.
        """
        head = {"schema_version": SCHEMA_VERSION, **to_json(asdict(self))}
        rows = head.pop("rows")
        text = json.dumps(head, indent=1, allow_nan=False)
        compact = {"allow_nan": False, "separators": (",", ":")}
        lines = ",\n".join(json.dumps(row, **compact) for row in rows)
        return f'{text[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'.encode()

    def save(self, folder: Path) -> Path:
        """Write `NAME.json` atomically and return its path."""
        path = folder / f"{self.experiment}.json"
        write_atomically(path, self.to_bytes())
        return path

    @classmethod
    def load(cls, path: Path) -> Result:
        """Read a result.

        Raises:
            FileNotFoundError: there is none.
            ResultError: the file is damaged or of another schema.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
            version = content.pop("schema_version")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ResultError(
                f"{path} is damaged ({error}): move it away or pass --fresh"
            ) from None
        if version != SCHEMA_VERSION:
            raise ResultError(
                f"{path} has schema version {version}; this package reads {SCHEMA_VERSION}"
            )
        kinds = {"config": dict, "seeds": list, "rows": list, "summary": dict, "environment": dict}
        for name in sorted(cls.__dataclass_fields__):
            if name not in content or not isinstance(content[name], kinds.get(name, object)):
                raise ResultError(f"{path} is damaged ({name!r}): move it away or pass --fresh")
        return cls(**{name: content[name] for name in cls.__dataclass_fields__})

    def select(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the rows with these values, e.g. `select(encoding="rotary", length=48)`."""
        return [row for row in self.rows if all(row.get(k) == v for k, v in wanted.items())]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def environment(module: str) -> dict[str, Any]:
    """Return what may change a number from machine to machine, and the hash of the code."""
    import numpy

    return {
        "code": code_hash(module),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "threads_per_unit": 1,
    }
