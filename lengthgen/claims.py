"""The ledger of claims: each a number from a result, a criterion and a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from lengthgen.results import Result, ResultError

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
        ResultError: a result is damaged or lacks what a claim is about.
    """
    if not folder.is_dir():
        raise ResultError(f"there is no folder {folder}: run `lengthgen reproduce` to fill one")
    verdicts = []
    for claim in CLAIMS if claims is None else claims:
        path = folder / f"{claim.experiment}.json"
        value = passed = None
        if path.exists():
            value = _measured(claim, path)
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


def _measured(claim: Claim, path: Path) -> float:
    result = Result.load(path)
    try:
        return float(claim.measure(result))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
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


def _accuracies(result: Result, **wanted: Any) -> list[float]:
    return [row["accuracy"] for row in result.select(**wanted)]


def _by_offset(result: Result, **wanted: Any) -> list[float]:
    """Return the mean accuracy over seeds for each offset."""
    return [
        fmean(_accuracies(result, offset=offset, **wanted)) for offset in result.config["offsets"]
    ]


def _column(result: Result, name: str, **wanted: Any) -> list[float]:
    """Return a column of the rows that have it."""
    return [row[name] for row in result.select(**wanted) if name in row]


def _smallest_gap(result: Result) -> float:
    """Return the smallest difference, over seeds and offsets, rotary minus learned at length 48."""
    accuracy = {
        (row["encoding"], row["seed"], row["offset"]): row["accuracy"]
        for row in result.select(length=48)
    }
    return min(
        value - accuracy["learned", seed, offset]
        for (encoding, seed, offset), value in accuracy.items()
        if encoding == "rotary"
    )


def _shares(result: Result, name: str) -> list[float]:
    """Return a share of seeds for each offset of `mechanics`."""
    return [by_offset[name] for by_offset in result.summary["by_offset"].values()]


def _worst_error(result: Result, **wanted: Any) -> float:
    return max(_column(result, "error", **wanted))


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "gap.rotary",
        "Rotary heads trained on lengths up to 16 answer at length 48: "
        "mean over seeds, worst offset",
        "abstract",
        "multiseed",
        lambda r: min(_by_offset(r, encoding="rotary", length=48)),
        least=0.97,
    ),
    Claim(
        "gap.rotary_mean",
        "The same, mean over all seeds and offsets",
        "abstract",
        "multiseed",
        lambda r: fmean(_accuracies(r, encoding="rotary", length=48)),
        least=0.98,
    ),
    Claim(
        "gap.absolute",
        "Learned absolute heads do not: mean over seeds at length 48, best offset (chance 0.0625)",
        "abstract",
        "multiseed",
        lambda r: max(_by_offset(r, encoding="learned", length=48)),
        most=0.15,
    ),
    Claim(
        "gap.first_unseen",
        "They fail at once: mean over seeds one token past the training range, best offset",
        "book",
        "multiseed",
        lambda r: max(_by_offset(r, encoding="learned", length=17)),
        most=0.25,
    ),
    Claim(
        "gap.every_model",
        "The gap holds model by model: smallest difference at length 48 over seeds and offsets",
        "book",
        "multiseed",
        _smallest_gap,
        least=0.3,
    ),
    Claim(
        "gap.fit",
        "It is not a failure to learn: worst accuracy at length 16 over all models",
        "book",
        "multiseed",
        lambda r: min(_accuracies(r, length=16)),
        least=0.99,
    ),
    Claim(
        "gap.control",
        "Learned positions with random offsets work at length 32, twice what they were trained "
        "on: mean over seeds, worst offset",
        "book",
        "multiseed",
        lambda r: min(_by_offset(r, encoding="learned-random-offset", length=32)),
        least=0.5,
    ),
    Claim(
        "equivariance.float64",
        "A rotary logit is a function of the offset: worst error over all pairs of positions, "
        "up to 2^20, in float64, relative to the largest logit",
        "abstract",
        "prop1",
        lambda r: _worst_error(r, encoding="rotary", precision="float64"),
        most=1e-10,
    ),
    Claim(
        "equivariance.float32",
        "The same in float32",
        "book",
        "prop1",
        lambda r: _worst_error(r, encoding="rotary", precision="float32"),
        most=1e-5,
    ),
    Claim(
        "equivariance.absolute",
        "A learned absolute logit is not: smallest error over all models",
        "abstract",
        "prop1",
        lambda r: min(_column(r, "error", encoding="learned", precision="float64")),
        least=0.1,
    ),
    Claim(
        "equivariance.rounding",
        "Rounding the product of position and frequency breaks it: smallest error near 2^20",
        "book",
        "prop1",
        lambda r: min(_column(r, "error", encoding="rotary-rounded-product", first_position=2**20)),
        least=1e-3,
    ),
    Claim(
        "equivariance.shift",
        "Shifting all positions by up to 2^20 changes no rotary logit: worst relative change, "
        "float32",
        "abstract",
        "shift",
        lambda r: max(_column(r, "logit_change", encoding="rotary")),
        most=1e-5,
    ),
    Claim(
        "equivariance.shift_answers",
        "Nor any rotary answer: largest share of answers changed",
        "abstract",
        "shift",
        lambda r: max(_column(r, "answers_changed", encoding="rotary")),
        most=0.001,
    ),
    Claim(
        "equivariance.shift_absolute",
        "A shift by 16 changes what learned absolute heads answer: mean share of answers changed",
        "book",
        "shift",
        lambda r: fmean(_column(r, "answers_changed", encoding="learned", shift=16)),
        least=0.5,
    ),
    Claim(
        "equivariance.shift_trained",
        "Trained rows do not make logits equivariant: smallest relative change within the "
        "table of random offsets, shift 16",
        "book",
        "shift",
        lambda r: min(_column(r, "logit_change", encoding="learned-random-offset", shift=16)),
        least=0.05,
    ),
    Claim(
        "pinning.untrained_rows",
        "Rows of the position table beyond the training range stay bit-identical: "
        "largest change over all heads",
        "abstract",
        "mechanics",
        lambda r: max(_column(r, "untrained_rows_moved", setting="default")),
        most=0.0,
    ),
    Claim(
        "pinning.in_range",
        "The peak of attention stays inside the training range at every length 32 to 1024: "
        "share of heads",
        "abstract",
        "mechanics",
        lambda r: fmean(_shares(r, "peak_in_range")),
        least=0.9,
    ),
    Claim(
        "pinning.predicted",
        "The mean content predicts the position of the peak: share of heads",
        "book",
        "mechanics",
        lambda r: fmean(_shares(r, "predicted")),
        least=0.8,
    ),
    Claim(
        "pinning.fixed_point",
        "Trained on one length, the peak does not move from length 32 to 1024: share of seeds",
        "abstract",
        "mechanics",
        lambda r: r.summary["by_setting"]["fixed length 16"]["pinned"],
        least=0.95,
    ),
    Claim(
        "pinning.copy",
        "A trained row copied onto an untrained position draws the same attention there: "
        "mean ratio of the two masses",
        "book",
        "mechanics",
        lambda r: fmean(_column(r, "copied_row_mass", setting="default")),
        least=0.9,
        most=1.1,
    ),
    Claim(
        "pinning.exchange",
        "Exchange the pinned row with an untrained one and the peak follows: share of heads",
        "book",
        "mechanics",
        lambda r: fmean(_column(r, "exchanged_peak_follows", setting="default")),
        least=0.95,
    ),
    Claim(
        "pinning.content",
        "The query's content holds the pin: fall of the agreement with the peak when the mean "
        "content is removed",
        "book",
        "mechanics",
        lambda r: fmean(
            row["agreement"] - row["agreement_without_mean_content"]
            for row in r.select(setting="default")
        ),
        least=0.2,
    ),
    Claim(
        "pinning.decay",
        "Weight decay moves untrained rows (L2 1e-4): smallest of the largest changes",
        "book",
        "mechanics",
        lambda r: min(_column(r, "untrained_rows_moved", setting="L2 penalty 1e-4")),
        least=1e-3,
    ),
)
