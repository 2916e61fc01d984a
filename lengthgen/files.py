"""Files of the project: where they are kept, and how plain data get into them whole."""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

__all__ = ["ResultError", "cache_folder", "project_root", "to_json", "write_atomically"]


class ResultError(ValueError):
    """A results file that is damaged, foreign or cannot be written."""


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
        >>> import torch
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
