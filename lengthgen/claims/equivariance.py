"""Claims about equivariance of logits."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from lengthgen.claims.claim import Claim, column
from lengthgen.results import Result

__all__ = ["CLAIMS"]


def _worst_error(result: Result, **wanted: Any) -> float:
    return max(column(result, "error", **wanted))


CLAIMS = (
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
        lambda r: min(column(r, "error", encoding="learned", precision="float64")),
        least=0.1,
    ),
    Claim(
        "equivariance.rounding",
        "Rounding the product of position and frequency breaks it: smallest error near 2^20",
        "book",
        "prop1",
        lambda r: min(column(r, "error", encoding="rotary-rounded-product", first_position=2**20)),
        least=1e-3,
    ),
    Claim(
        "equivariance.shift",
        "Shifting all positions by up to 2^20 changes no rotary logit: worst relative change, "
        "float32",
        "abstract",
        "shift",
        lambda r: max(column(r, "logit_change", encoding="rotary")),
        most=1e-5,
    ),
    Claim(
        "equivariance.shift_answers",
        "Nor any rotary answer: largest share of answers changed",
        "abstract",
        "shift",
        lambda r: max(column(r, "answers_changed", encoding="rotary")),
        most=0.001,
    ),
    Claim(
        "equivariance.shift_absolute",
        "A shift by 16 changes what learned absolute heads answer: mean share of answers changed",
        "book",
        "shift",
        lambda r: fmean(column(r, "answers_changed", encoding="learned", shift=16)),
        least=0.5,
    ),
    Claim(
        "equivariance.shift_trained",
        "Trained rows do not make logits equivariant: smallest relative change within the "
        "table of random starts, shift 16",
        "book",
        "shift",
        lambda r: min(column(r, "logit_change", encoding="learned-random-offset", shift=16)),
        least=0.05,
    ),
)
