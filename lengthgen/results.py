"""Results: one experiment's rows and summary as a JSON file, with where they come from.

What every experiment needs of `lengthgen.files` and `lengthgen.units` can be imported from here.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lengthgen.code_hash import code_hash
from lengthgen.device import chosen_device
from lengthgen.files import ResultError, project_root, to_json, write_atomically
from lengthgen.units import Unit, one_thread, unit

__all__ = [
    "Result",
    "ResultError",
    "Unit",
    "environment",
    "one_thread",
    "project_root",
    "to_json",
    "unit",
    "write_atomically",
]

SCHEMA_VERSION = 1
KINDS = {
    "experiment": str,
    "profile": str,
    "config": dict,
    "seeds": list,
    "rows": list,
    "summary": dict,
    "seconds": (int, float),
    "environment": dict,
}
"""What each part of a results file must be."""


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
        environment: versions, processor, and the hash of the code; see `environment`.
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
        head = {"schema_version": SCHEMA_VERSION, **to_json(self)}
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
            ResultError: the file is damaged, of another schema or of another experiment.
        """
        cure = f"move it away or run `lengthgen reproduce {path.stem} --fresh`"
        try:
            content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
            version = content.pop("schema_version")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ResultError(f"{path} is damaged ({error}): {cure}") from None
        if version != SCHEMA_VERSION:
            raise ResultError(
                f"{path} has schema version {version}; this package reads {SCHEMA_VERSION}"
            )
        for name in sorted(cls.__dataclass_fields__):
            if name not in content or not isinstance(content[name], KINDS[name]):
                raise ResultError(f"{path} is damaged ({name!r}): {cure}")
        if not all(isinstance(row, dict) for row in content["rows"]):
            raise ResultError(f"{path} is damaged (a row): {cure}")
        if content["experiment"] != path.stem:
            raise ResultError(f"{path} holds results of {content['experiment']!r}: {cure}")
        return cls(**{name: content[name] for name in cls.__dataclass_fields__})

    def select(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the rows with these values, e.g. `select(encoding="rotary", length=48)`."""
        rows = self.rows
        for name, value in wanted.items():  # each pass over fewer rows
            rows = [row for row in rows if row.get(name) == value]
        return list(rows)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def environment(module: str) -> dict[str, Any]:
    """Return what may change a number from machine to machine, and the hash of the code."""
    import numpy

    device = chosen_device().type
    return {
        **({} if device == "cpu" else {"device": device}),
        "code": code_hash(module),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "threads_per_unit": 1,
    }
