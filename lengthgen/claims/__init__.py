"""The ledger of claims: each a number from a result, a criterion and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lengthgen.claims import (
    carrier,
    connections,
    dilution,
    equivariance,
    gap,
    linear,
    pinning,
    transfer,
    variants,
)
from lengthgen.claims.claim import Claim
from lengthgen.results import Result, ResultError

__all__ = ["CLAIMS", "Claim", "Verdict", "check_claims", "markdown_table", "text_table"]

CLAIMS: tuple[Claim, ...] = (
    *gap.CLAIMS,
    *equivariance.CLAIMS,
    *pinning.CLAIMS,
    *carrier.CLAIMS,
    *dilution.CLAIMS,
    *linear.CLAIMS,
    *transfer.CLAIMS,
    *variants.CLAIMS,
    *connections.CLAIMS,
)
"""Every claim of the book, chapter by chapter."""


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


def check_claims(
    folder: Path,
    claims: tuple[Claim, ...] | None = None,
    results: dict[str, Result] | None = None,
) -> list[Verdict]:
    """Hold every claim against the results in a folder.

    Args:
        folder: where the results are.
        claims: all by default.
        results: those of the folder that were read before, by experiment; what else is read, once
            each, is added.

    Raises:
        ResultError: a result is damaged or lacks what a claim is about.
    """
    if not folder.is_dir():
        raise ResultError(f"there is no folder {folder}: run `lengthgen reproduce` to fill one")
    results = {} if results is None else results
    verdicts = []
    for claim in CLAIMS if claims is None else claims:
        path = folder / f"{claim.experiment}.json"
        value = passed = None
        if claim.experiment not in results and path.exists():
            results[claim.experiment] = Result.load(path)
        if claim.experiment in results:
            value = _measured(claim, results[claim.experiment], path)
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


def _measured(claim: Claim, result: Result, path: Path) -> float:
    try:
        return float(claim.measure(result))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ResultError(
            f"{path} does not hold what claim {claim.id} is about "
            f"({type(error).__name__}: {error}): "
            f"run `lengthgen reproduce {claim.experiment} --fresh`"
        ) from error


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
    lines = [
        "| claim | statement | source | value | criterion | verdict |",
        "|---|---|---|---:|---|---|",
    ]
    for v in verdicts:
        value = "" if v.value is None else f"{v.value:.4g}"
        lines.append(
            f"| `{v.id}` | {v.statement} | {v.source}, {v.experiment} | {value} "
            f"| {v.criterion} | {WORDS[v.passed]} |"
        )
    return "\n".join(lines)
