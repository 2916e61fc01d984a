"""What a claim is, and the columns that most claims read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lengthgen.results import Result

__all__ = ["Claim", "accuracies", "by_offset", "column"]


@dataclass(frozen=True)
class Claim:
    """A statement that a result can refute.

    Args:
        id: design-wide name, `PREFIX.what`.
        statement: what is claimed, in words.
        source: `abstract` if the paper's abstract says it, `book` if it is ours.
        experiment: whose result decides.
        measure: returns the deciding number.
        least: the number must be at least this.
        most: the number must be at most this.
    """

    id: str
    statement: str
    source: str
    experiment: str
    measure: Callable[[Result], float]
    least: float | int | None = None
    most: float | int | None = None

    @property
    def criterion(self) -> str:
        """The condition on the number, in symbols."""
        parts = [f">= {self.least:g}"] if self.least is not None else []
        parts += [f"<= {self.most:g}"] if self.most is not None else []
        return " and ".join(parts)

    def passes(self, value: float) -> bool:
        """Tell whether a number meets the criterion."""
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )


def accuracies(result: Result, **wanted: Any) -> list[float]:
    """Return the accuracies of some rows."""
    return [row["accuracy"] for row in result.select(**wanted)]


def by_offset(result: Result, **wanted: Any) -> list[float]:
    """Return the mean accuracy over seeds for each offset."""
    return [
        fmean(accuracies(result, offset=offset, **wanted)) for offset in result.config["offsets"]
    ]


def column(result: Result, name: str, **wanted: Any) -> list[float]:
    """Return a column of the rows that have it."""
    return [row[name] for row in result.select(**wanted) if name in row]
