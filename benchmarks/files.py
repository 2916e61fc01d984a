"""The file of results: whole or not there, and from one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lengthgen.files import write_atomically

__all__ = ["PATH", "merge", "read"]

PATH = Path(__file__).resolve().parent / "results.json"


def read(path: Path = PATH) -> dict[str, Any]:
    """Return what was measured.

    Raises:
        FileNotFoundError: nothing was; says how to.
    """
    if not path.exists():
        raise FileNotFoundError(f"no {path}: run `make bench`")
    return json.loads(path.read_text(encoding="utf-8"))


def merge(path: Path, machine: dict[str, Any], measured: dict[str, Any]) -> None:
    """Put measurements into the file; those of another machine or other versions leave it.

    Args:
        path: the file.
        machine: what the measurements belong to.
        measured: sections by name; those already there are replaced.

    Raises:
        ValueError: a number that is not finite, or a folder that cannot be written.
    """
    kept = read(path) if path.exists() else {}
    if kept.get("machine") != machine:
        kept = {}
    content = _rounded({**kept, "machine": machine, **measured})
    write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def _rounded(value: Any) -> Any:
    """Keep five significant digits: more than a clock on a busy machine tells."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
