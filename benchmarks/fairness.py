"""Whether contestants did the same work; who did less has no time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["UnequalWork", "same_numbers"]


class UnequalWork(ValueError):
    """A contestant did not compute what the first one computed."""


def same_numbers(what: str, found: Mapping[str, Any], tolerance: float) -> float:
    """Compare the contestants' numbers with those of the first one, entry by entry.

    For training these are the losses of every model at *every* step: whoever leaves out a step, a
    sequence or a parameter is on another path a step later.

    Args:
        what: what the numbers are, for the error.
        found: each contestant's numbers, an array or a list of them.
        tolerance: largest difference allowed.

    Returns:
        the largest difference seen.

    Raises:
        UnequalWork: another number of entries, one that is not finite, or one that differs by more.
    """
    (first, wanted), *others = ((name, np.asarray(values)) for name, values in found.items())
    if not np.isfinite(wanted).all():
        raise UnequalWork(f"{what} of {first}: not finite")
    largest = 0.0
    for name, values in others:
        if values.shape != wanted.shape:
            raise UnequalWork(
                f"{what} of {name}: shape {values.shape}, but {first} has {wanted.shape}"
            )
        difference = float(np.abs(values - wanted).max())
        if not difference <= tolerance:  # so that a number that is not finite is refused as well
            raise UnequalWork(
                f"{what} of {name} and of {first} differ by {difference:.2g}: "
                f"at most {tolerance:g} is allowed"
            )
        largest = max(largest, difference)
    return largest
