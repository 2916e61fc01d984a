"""Claims about every other encoding: what it could represent, what it learns, what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean
from typing import Any

from lengthgen.claims.claim import Claim, column
from lengthgen.results import Result

__all__ = ["CLAIMS"]

ABSOLUTE = ("learned", "learned-random-offset", "sinusoidal")
OFFSET_ONLY = (
    "rotary",
    "rotary-partial",
    "xpos",
    "alibi",
    "kerple",
    "t5",
    "t5-within",
    "clipped-relative",
    "clipped-within",
)
BEYOND, WITHIN = ("t5", "clipped-relative"), ("t5-within", "clipped-within")
ROTATIONS = ("rotary", "xpos")
MONOTONE = ("alibi", "kerple")


def _means(result: Result, encodings: Iterable[str], length: int, **wanted: Any) -> list[float]:
    """Return the mean accuracy over seeds of each encoding and offset."""
    offsets = [wanted["offset"]] if "offset" in wanted else result.config["offsets"]
    return [
        fmean(column(result, "accuracy", encoding=name, offset=offset, length=length))
        for name in encodings
        for offset in offsets
    ]


def _errors(result: Result, encodings: Iterable[str]) -> list[float]:
    return [e for name in encodings for e in column(result, "equivariance_error", encoding=name)]


def _log_length_gain(result: Result, offset: int) -> float:
    """Return the mean accuracy at length 256 with the log-length temperature minus that without."""
    names = ("rotary-log-trained", "rotary")
    with_it, without = (_means(result, [name], 256, offset=offset)[0] for name in names)
    return with_it - without


def _fitted_without_margin(result: Result) -> float | int:
    """Return the largest number of heads of one family that fit offset 2 without a margin."""
    margins = result.summary["margins"]["2"][str(min(result.config["margin_offsets"]))]
    return max(
        result.summary["encodings"][name]["2"]["fitted"]
        for name, margin in margins.items()
        if margin <= 0 and name in result.summary["encodings"]
    )


def _suppression(name: str) -> Callable[[Result], float]:
    """Return the mean accuracy of ALiBi heads at offset 1 after an intervention."""
    return lambda result: fmean(
        row[name]
        for row in result.summary["suppression"]
        if row["encoding"] == "alibi" and row["offset"] == 1
    )


def _claim(name: str, statement: str, measure: Callable[[Result], float], **criterion: Any):
    return Claim(f"variants.{name}", statement, "book", "variants", measure, **criterion)


CLAIMS = (
    _claim(
        "offset_only",
        "Logits of rotary, xPos, ALiBi, KERPLE, T5 and clipped heads depend on the offset alone: "
        "largest change at other positions, of the largest logit",
        lambda r: max(_errors(r, OFFSET_ONLY)),
        most=1e-9,
    ),
    _claim(
        "absolute",
        "Those of absolute heads do not, sinusoidal ones included: smallest such change",
        lambda r: min(_errors(r, ABSOLUTE)),
        least=0.5,
    ),
    _claim(
        "sinusoidal",
        "Sinusoidal heads fail beyond the training range although no position was ever untrained: "
        "mean over seeds at length 48, best offset (chance 0.0625)",
        lambda r: max(_means(r, ["sinusoidal"], 48)),
        most=0.25,
    ),
    _claim(
        "rotations",
        "Rotary and xPos heads keep the rule at length 48: mean over seeds, worst case",
        lambda r: min(_means(r, ROTATIONS, 48)),
        least=0.9,
    ),
    _claim(
        "fading_waves",
        "xPos heads keep it at length 1024, as their aliases fade: mean over seeds, worst offset",
        lambda r: min(_means(r, ["xpos"], 1024)),
        least=0.8,
    ),
    _claim(
        "few_waves",
        "Four waves instead of sixteen meet an alias near 44 tokens (7 turns of the first wave): "
        "mean over seeds at length 48, best offset",
        lambda r: max(_means(r, ["rotary-partial"], 48)),
        most=0.5,
    ),
    _claim(
        "interpolation",
        "Dividing the angles at test time without training again moves the rule to another "
        "offset: mean over seeds at length 48, best offset",
        lambda r: max(_means(r, ["rotary-interpolated"], 48)),
        most=0.4,
    ),
    _claim(
        "untrained_entries",
        "Relative is not enough: T5 and clipped heads, whose entries from offset 16 on were never "
        "trained, lose it: mean over seeds at length 48, best case",
        lambda r: max(_means(r, BEYOND, 48)),
        most=0.6,
    ),
    _claim(
        "trained_entries",
        "The same tables, cut so that every entry is trained, keep it: mean over seeds at length "
        "48, worst case",
        lambda r: min(_means(r, WITHIN, 48)),
        least=0.9,
    ),
    _claim(
        "no_margin",
        "No head fits offset 2 whose family has no kernel that prefers it: largest number of such "
        "heads of one family",
        _fitted_without_margin,
        most=0,
    ),
    _claim(
        "monotone_one",
        "ALiBi and KERPLE heads answer offset 1, at every length: mean over seeds at length 1024, "
        "worst case",
        lambda r: min(_means(r, MONOTONE, 1024, offset=1)),
        least=0.9,
    ),
    _claim(
        "suppression",
        "ALiBi heads do so by suppressing the query's own token: accuracy at offset 1 without",
        _suppression("without_suppression"),
        most=0.3,
    ),
    _claim(
        "suppression_alone",
        "and with nothing but that left of what they know of tokens",
        _suppression("suppression_alone"),
        least=0.8,
    ),
    _claim(
        "monotone_two",
        "Offset 2 is out of reach of ALiBi and KERPLE even in training: mean over seeds at length "
        "16, best case (a head that answers with the largest mass can reach no more than 0.53)",
        lambda r: max(_means(r, MONOTONE, 16, offset=2)),
        most=0.53,
    ),
    _claim(
        "log_length_alias",
        "Sharper logits do not help at offset 1, where an alias beats the target in most heads: "
        "size of the change at length 256, heads trained with the temperature against plain ones",
        lambda r: abs(_log_length_gain(r, offset=1)),
        most=0.05,
    ),
    _claim(
        "log_length_target",
        "They help at offset 2, where the target is the highest in most: gain at length 256",
        lambda r: _log_length_gain(r, offset=2),
        least=0.05,
    ),
    _claim(
        "dilution",
        "The dilution law gives the accuracies of every offset-only encoding: largest error over "
        "heads and lengths",
        lambda r: max(
            error
            for name in OFFSET_ONLY
            for error in column(r, "dilution_error", encoding=name)
            if error is not None
        ),
        most=0.08,
    ),
)
