"""Interleaved timing: every contestant once per round, so that a slow minute is slow for all.

Timing libraries repeat one statement many times before the next one starts. On a shared machine
that compares two moments, not two programs; hence this module.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["race", "ratio", "summary"]


def race(
    contestants: Mapping[str, Callable[[], Any]],
    repeats: int,
    check: Callable[[dict[str, Any]], Any],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time every contestant `repeats` times, in turn, after one round that is not counted.

    Args:
        contestants: what to call, by name.
        repeats: number of counted rounds.
        check: called with what the contestants returned after every round, the first included;
            it raises if they did not do the same work.
        clock: the seconds passed.

    Returns:
        the seconds of each contestant in each counted round.

    Raises:
        ValueError: `repeats` below 1, or no contestant.
    """
    if repeats < 1 or not contestants:
        raise ValueError(f"repeats={repeats}, {len(contestants)} contestants: at least 1 of each")
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for counted in range(-1, repeats):
        returned = {}
        for name, run in contestants.items():
            gc.collect()  # nobody pays for another one's garbage
            began = clock()
            returned[name] = run()
            took = clock() - began
            if counted >= 0:
                seconds[name].append(took)
        check(returned)
    return seconds


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """Return the median and the spread of a contestant's times.

    Example:
        >>> summary([3.0, 1.0, 2.0])
        {'median_s': 2.0, 'min_s': 1.0, 'max_s': 3.0, 'repeats': 3}
    """
    return {
        "median_s": statistics.median(seconds),
        "min_s": min(seconds),
        "max_s": max(seconds),
        "repeats": len(seconds),
    }


def ratio(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """Return how many times longer one took than the other in the same round.

    Returns:
        the median, the least and the greatest of the rounds' ratios.

    Example:
        >>> ratio([4.0, 9.0, 6.0], [2.0, 3.0, 2.0])
        (3.0, 2.0, 3.0)
    """
    ratios = [a / b for a, b in zip(slow, fast, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)
