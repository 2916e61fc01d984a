"""Claims about recurrent models and about the task as a program."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

from lengthgen.claims.claim import Claim, accuracies
from lengthgen.results import Result

__all__ = ["CLAIMS"]

SMALL, LARGE, UNSTABLE = 0.03, 1.0, 1.25


def _runs(result: Result, **wanted: Any) -> list[dict[str, Any]]:
    """Return the runs of the main width at the lowest training loss, at least one."""
    width = result.config["trainings"][0]["width"]
    level = result.config["levels"][-1]
    shown = {"kind": "recurrence", "width": width, "balanced": False, "level": level}
    return result.select(**shown | wanted)


def _tail_ratio(result: Result) -> float:
    """Return the least ratio over offsets of the median tails from a large and a small start."""
    offsets = sorted({row["offset"] for row in _runs(result)})

    def tail(std: float, offset: int) -> float:
        return median(row["tail"] for row in _runs(result, std=std, offset=offset))

    return min(tail(LARGE, offset) / tail(SMALL, offset) for offset in offsets)


def _accuracies(result: Result, std: float, length: int) -> list[float]:
    """Return the accuracy at a length of every run of the main width from one scale."""
    width = result.config["trainings"][0]["width"]
    shown = {"width": width, "balanced": False, "std": std, "length": length}
    return accuracies(result, kind="recurrence", **shown)


def _program(result: Result, name: str, beyond: int = 0) -> list[float]:
    """Return the accuracies of a program or a head written down, at lengths above `beyond`."""
    rows = result.select(kind="program", program=name)
    return [row["accuracy"] for row in rows if row["length"] > beyond]


CLAIMS = (
    Claim(
        "connections.small_start",
        "From a small start (0.03) a linear recurrent model of 16 states learns the delay and "
        "stays silent beyond the range: largest response at offsets 16 to 1,023, any run",
        "book",
        "connections",
        lambda r: max(row["tail"] for row in _runs(r, std=SMALL)),
        most=1e-4,
    ),
    Claim(
        "connections.small_start_fits",
        "Every run from that start comes down to training loss 1e-4: share",
        "book",
        "connections",
        lambda r: fmean(row["reached"] for row in _runs(r, std=SMALL)),
        least=1.0,
    ),
    Claim(
        "connections.small_start_rank",
        "Its transition has the rank of a shift register, K: largest difference of the effective "
        "rank from K, any run",
        "book",
        "connections",
        lambda r: max(abs(row["rank"] - row["offset"]) for row in _runs(r, std=SMALL)),
        most=0.1,
    ),
    Claim(
        "connections.scale_selects",
        "At the same training loss a large start (1.0) leaves a tail: its median over that from "
        "the small start, worst offset",
        "book",
        "connections",
        _tail_ratio,
        least=100,
    ),
    Claim(
        "connections.unstable",
        "From a start at 1.25 most runs that fit to loss 1e-2 have an eigenvalue outside the unit "
        "circle: their response grows without bound; share",
        "book",
        "connections",
        lambda r: fmean(
            row["radius"] > 1
            for row in _runs(r, std=UNSTABLE, level=r.config["levels"][0])
            if row["reached"]
        ),
        least=0.5,
    ),
    Claim(
        "connections.small_start_accuracy",
        "The small start answers right at every length up to 1,024: smallest accuracy of any run",
        "book",
        "connections",
        lambda r: min(_accuracies(r, SMALL, max(r.config["lengths"]))),
        least=1.0,
    ),
    Claim(
        "connections.unstable_accuracy",
        "The start at 1.25 does not: mean accuracy at length 1,024 over all runs",
        "book",
        "connections",
        lambda r: fmean(_accuracies(r, UNSTABLE, max(r.config["lengths"]))),
        most=0.7,
    ),
    Claim(
        "connections.too_narrow",
        "A model of K states cannot hold K + 1 tokens: smallest training loss of any run",
        "book",
        "connections",
        lambda r: min(row["loss"] for row in r.select(too_narrow=True) if "loss" in row),
        least=0.05,
    ),
    Claim(
        "connections.balanced",
        "Nor can a balanced one (A symmetric, C = B), by a theorem: smallest training loss, in "
        "units of its bound 1/3",
        "book",
        "connections",
        lambda r: 3 * min(row["loss"] for row in r.select(balanced=True) if "loss" in row),
        least=1.0,
    ),
    Claim(
        "connections.program",
        "The RASP-L program is right on every test sequence at every length: smallest accuracy",
        "book",
        "connections",
        lambda r: min(_program(r, "RASP-L")),
        least=1.0,
    ),
    Claim(
        "connections.index_table",
        "A program whose index arithmetic is a table of the trained positions is not, beyond "
        "them: largest accuracy at lengths above 16",
        "book",
        "connections",
        lambda r: max(_program(r, "index table", beyond=16)),
        most=0.15,
    ),
    Claim(
        "connections.compiled_rotary",
        "Weights written down make a rotary head run it: smallest accuracy, any length up to 1,024",
        "book",
        "connections",
        lambda r: min(_program(r, "rotary head")),
        least=1.0,
    ),
    Claim(
        "connections.guarantee",
        "It is right on every sequence whatever its tokens: smallest guaranteed length, tokens",
        "book",
        "connections",
        lambda r: min(row["guaranteed"] for row in r.rows if "guaranteed" in row),
        least=1_024,
    ),
    Claim(
        "connections.compiled_table",
        "So can a learned-absolute head whose table is written down, as far as the table goes: "
        "smallest accuracy",
        "book",
        "connections",
        lambda r: min(_program(r, "table head")),
        least=1.0,
    ),
    Claim(
        "connections.table_twin",
        "With the rows beyond the training range left random the same head fails beyond: largest "
        "accuracy at length 48 and more",
        "book",
        "connections",
        lambda r: max(_program(r, "table head, rows 0..15", beyond=17)),
        most=0.25,
    ),
)
