"""The ledger of claims: each a number from a result, a criterion and a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from lengthgen.results import Result

__all__ = ["CLAIMS", "Claim", "Verdict", "check_claims", "markdown_table", "text_table"]

Rows = list[dict[str, Any]]


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
    least: float | None = None
    most: float | None = None

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


@dataclass(frozen=True)
class Verdict:
    """A claim held against a result; `passed` is `None` where the result is missing."""

    id: str
    statement: str
    source: str
    experiment: str
    value: float | None
    criterion: str
    passed: bool | None


def check_claims(folder: Path, claims: tuple[Claim, ...] | None = None) -> list[Verdict]:
    """Hold every claim against the results in a folder.

    Raises:
        ResultError: a result is damaged.
    """
    verdicts = []
    for claim in CLAIMS if claims is None else claims:
        path = folder / f"{claim.experiment}.json"
        value = passed = None
        if path.exists():
            value = float(claim.measure(Result.load(path)))
            passed = claim.passes(value)
        verdicts.append(
            Verdict(
                claim.id,
                claim.statement,
                claim.source,
                claim.experiment,
                value,
                claim.criterion,
                passed,
            )
        )
    return verdicts


WORDS = {True: "holds", False: "FAILS", None: "no result"}


def text_table(verdicts: list[Verdict]) -> str:
    """Return the ledger for a terminal."""
    lines = []
    for v in verdicts:
        value = "-" if v.value is None else f"{v.value:.4g}"
        lines.append(f"{WORDS[v.passed]:9} {v.id:34} {value:>10}  {v.criterion:12}  {v.statement}")
    n_passed = sum(v.passed is True for v in verdicts)
    return "\n".join([*lines, f"{n_passed} of {len(verdicts)} claims hold"])


def markdown_table(verdicts: list[Verdict]) -> str:
    """Return the ledger as a Markdown table."""
    lines = ["| claim | statement | source | value | criterion | verdict |", "|---|---|---|---:|---|---|"]
    for v in verdicts:
        value = "" if v.value is None else f"{v.value:.4g}"
        lines.append(
            f"| `{v.id}` | {v.statement} | {v.source}, {v.experiment} | {value} "
            f"| {v.criterion} | {WORDS[v.passed]} |"
        )
    return "\n".join(lines)


def _accuracies(result: Result, **wanted: Any) -> list[float]:
    return [row["accuracy"] for row in result.select(**wanted)]


def _by_offset(result: Result, **wanted: Any) -> list[float]:
    """Return the mean accuracy over seeds for each offset."""
    return [
        fmean(_accuracies(result, offset=offset, **wanted)) for offset in result.config["offsets"]
    ]


CLAIMS: tuple[Claim, ...] = ()
