"""The heads that several experiments read, and their tests: four seeds at eight offsets a stack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lengthgen.attention import HeadConfig
from lengthgen.evaluation import AccuracyConfig
from lengthgen.training import TrainingConfig, default_steps

__all__ = ["LENGTHS", "N_SEQUENCES", "OFFSETS", "accuracy_configs", "head_stacks", "wanted_rows"]

OFFSETS = (1, 2, 3, 4, 5, 6, 7, 8)
LENGTHS = (16, 17, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 4096)
"""Lengths at which the heads are tested; 16 is the longest they were trained on."""

SEEDS_PER_STACK = 4
N_SEQUENCES = 2_000


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


def accuracy_configs(
    encoding: str, n_seeds: int, lengths: Sequence[int] = LENGTHS, n_sequences: int = N_SEQUENCES
) -> list[AccuracyConfig]:
    """Return the tests of the stacks at those lengths that the encoding's table, if any, holds."""
    reach = HeadConfig(encoding).reach
    lengths = tuple(n for n in lengths if reach is None or n <= reach)
    return [AccuracyConfig(stack, lengths, n_sequences) for stack in head_stacks(encoding, n_seeds)]


def wanted_rows(
    rows: Iterable[dict[str, Any]], n_seeds: int, offsets: Iterable[int] = OFFSETS
) -> list[dict[str, Any]]:
    """Return the rows of the first seeds at some offsets."""
    offsets = set(offsets)
    return [row for row in rows if row["seed"] < n_seeds and row["offset"] in offsets]
