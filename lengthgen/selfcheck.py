"""The self-check: compute frozen results again from nothing, and hold every row against them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lengthgen.experiments import NAMES, get
from lengthgen.reproduce import reproduce
from lengthgen.results import Result, ResultError

__all__ = ["Check", "compare", "selfcheck", "text_table"]

ACCURACY = 0.02
"""Elsewhere, an accuracy may differ by this."""

RELATIVE = 0.05
"""Elsewhere, any other number may differ by this share of the larger of the two ..."""

ABSOLUTE = 1e-3
"""... or by this."""

SHARE = 0.02
"""Elsewhere, this share of an experiment's values may differ by more: training amplifies rounding,
so that now and then a peak moves by one position, or a run needs one step more."""


@dataclass(frozen=True)
class Check:
    """A result held against the frozen one.

    Args:
        experiment: its name.
        n_rows: rows compared.
        n_values: values in them.
        same_environment: same versions and processor, so that every bit must agree.
        n_different: values that are not identical.
        n_beyond: values that differ by more than is allowed between environments.
        first: where the first difference is that counts, or what keeps rows from being compared.
    """

    experiment: str
    n_rows: int
    n_values: int
    same_environment: bool
    n_different: int
    n_beyond: int
    first: str

    @property
    def passed(self) -> bool:
        """Identical in the same environment; elsewhere, few values beyond the tolerance."""
        if self.n_values == 0:
            return False
        if self.same_environment:
            return self.n_different == 0
        return self.n_beyond <= SHARE * self.n_values


def compare(frozen: Result, again: Result) -> Check:
    """Hold a result against the frozen one, row by row and value by value.

    Where versions and processor are the same, rows must be identical. Elsewhere names, counts and
    truth values must be equal, an accuracy may be off by `ACCURACY` and another number by
    `RELATIVE` of itself or by `ABSOLUTE`, but for `SHARE` of all values.
    """
    ignored = {"code"}  # the same code, or the frozen result is stale: tests/test_frozen.py
    names = (frozen.environment.keys() | again.environment.keys()) - ignored
    same = all(frozen.environment.get(n) == again.environment.get(n) for n in names)
    for what in ("experiment", "profile", "config", "seeds"):
        if getattr(frozen, what) != getattr(again, what):
            return Check(frozen.experiment, 0, 0, same, 0, 0, f"another {what}")
    if len(frozen.rows) != len(again.rows):
        counts = f"{len(frozen.rows)} rows frozen, {len(again.rows)} now"
        return Check(frozen.experiment, 0, 0, same, 0, 0, counts)
    n_values = n_different = n_beyond = 0
    first = ""
    for index, rows in enumerate(zip(frozen.rows, again.rows, strict=True)):
        for column, old, new in _values("", *rows):
            n_values += 1
            if type(old) is type(new) and old == new:
                continue
            beyond = not _close(column, old, new)
            n_different += 1
            n_beyond += beyond
            if not first and (same or beyond):
                first = f"row {index}, {column}: {old!r} frozen, {new!r} now"
    return Check(frozen.experiment, len(frozen.rows), n_values, same, n_different, n_beyond, first)


def _values(name: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (column, frozen value, new value) of all that is in two rows, side by side."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _values(f"{name}.{key}".lstrip("."), old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for pair in zip(old, new, strict=True):
            yield from _values(name, *pair)
    else:
        yield name, old, new


def _close(column: str, old: Any, new: Any) -> bool:
    if not (isinstance(old, float) and isinstance(new, float)):
        return type(old) is type(new) and old == new
    if "accuracy" in column:
        return abs(old - new) <= ACCURACY
    return abs(old - new) <= max(ABSOLUTE, RELATIVE * max(abs(old), abs(new)))


def selfcheck(
    names: Sequence[str], folder: Path, *, profile: str = "paper", jobs: int = 1
) -> list[Check]:
    """Compute experiments again with an empty cache, in a temporary folder, and compare.

    Args:
        names: experiments; all if empty.
        folder: the frozen results; nothing in it is changed.
        profile: the profile they were computed in.
        jobs: number of processes.

    Raises:
        ValueError: an unknown name or profile, or fewer than one job.
        ResultError: a frozen result is missing or damaged.
    """
    names = [get(name).name for name in names or NAMES]
    for name in names:
        if not (folder / f"{name}.json").exists():
            raise ResultError(f"there is no {folder / name}.json to check against")
    frozen = [Result.load(folder / f"{name}.json") for name in names]
    before = os.environ.get("LENGTHGEN_CACHE")
    with TemporaryDirectory(prefix="lengthgen-") as place:
        os.environ["LENGTHGEN_CACHE"] = f"{place}/cache"
        try:
            again = reproduce(names, profile, Path(place) / "results", jobs=jobs)
        finally:
            os.environ.pop("LENGTHGEN_CACHE")
            if before is not None:
                os.environ["LENGTHGEN_CACHE"] = before
    return [compare(*pair) for pair in zip(frozen, again, strict=True)]


def text_table(checks: Sequence[Check]) -> str:
    """Return the checks for a terminal."""
    lines = [f"{'experiment':12} {'rows':>6} {'values':>8} {'differ':>7} {'beyond':>7}  verdict"]
    for c in checks:
        where = "same environment" if c.same_environment else "other environment"
        verdict = f"{'agrees' if c.passed else 'DIFFERS'} ({where})"
        verdict += f"; {c.first}" if c.first else ""
        lines.append(
            f"{c.experiment:12} {c.n_rows:6} {c.n_values:8} {c.n_different:7} {c.n_beyond:7}"
            f"  {verdict}"
        )
    n_passed = sum(c.passed for c in checks)
    return "\n".join([*lines, f"{n_passed} of {len(checks)} experiments agree"])
