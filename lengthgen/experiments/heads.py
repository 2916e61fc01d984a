"""The trained heads that several experiments read: four seeds at eight offsets to a stack."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lengthgen.attention import HeadConfig
from lengthgen.training import TrainingConfig, default_steps

__all__ = ["OFFSETS", "head_stacks", "wanted_rows"]

OFFSETS = (1, 2, 3, 4, 5, 6, 7, 8)
SEEDS_PER_STACK = 4


def head_stacks(encoding: str, n_seeds: int) -> list[TrainingConfig]:
    """Return the stacks that hold seeds 0 .. n_seeds - 1 of an encoding, at every offset.

    Stacks are always whole, so that every experiment and profile asks for the same units.

    Example:
        >>> [stack.seeds for stack in head_stacks("rotary", 6)]
        [(0, 1, 2, 3), (4, 5, 6, 7)]
    """
    firsts = range(0, n_seeds, SEEDS_PER_STACK)
    return [
        TrainingConfig(
            HeadConfig(encoding),
            seeds=tuple(range(first, first + SEEDS_PER_STACK)),
            offsets=OFFSETS,
            steps=default_steps(encoding),
        )
        for first in firsts
    ]


def wanted_rows(
    rows: Iterable[dict[str, Any]], n_seeds: int, offsets: Iterable[int] = OFFSETS
) -> list[dict[str, Any]]:
    """Return the rows of the first seeds at some offsets."""
    offsets = set(offsets)
    return [row for row in rows if row["seed"] < n_seeds and row["offset"] in offsets]
