"""Claims about the gap between relative and absolute heads."""

from __future__ import annotations

from statistics import fmean

from lengthgen.claims.claim import Claim, accuracies, by_offset
from lengthgen.results import Result

__all__ = ["CLAIMS"]


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


CLAIMS = (
    Claim(
        "gap.rotary",
        "Rotary heads trained on lengths up to 16 answer at length 48: "
        "mean over seeds, worst offset",
        "abstract",
        "multiseed",
        lambda r: min(by_offset(r, encoding="rotary", length=48)),
        least=0.97,
    ),
    Claim(
        "gap.rotary_mean",
        "The same, mean over all seeds and offsets",
        "abstract",
        "multiseed",
        lambda r: fmean(accuracies(r, encoding="rotary", length=48)),
        least=0.98,
    ),
    Claim(
        "gap.absolute",
        "Learned absolute heads do not: mean over seeds at length 48, best offset (chance 0.0625)",
        "abstract",
        "multiseed",
        lambda r: max(by_offset(r, encoding="learned", length=48)),
        most=0.15,
    ),
    Claim(
        "gap.first_unseen",
        "They fail at once: mean over seeds one token past the training range, best offset",
        "book",
        "multiseed",
        lambda r: max(by_offset(r, encoding="learned", length=17)),
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
        lambda r: min(accuracies(r, length=16)),
        least=0.99,
    ),
    Claim(
        "gap.control",
        "Learned positions with random starts work at length 32, twice what they were trained "
        "on: mean over seeds, worst offset",
        "book",
        "multiseed",
        lambda r: min(by_offset(r, encoding="learned-random-offset", length=32)),
        least=0.5,
    ),
)
