"""The explorable of chapter 1: one sequence, two heads, and how often each is right."""

from __future__ import annotations

from typing import Any

from lengthgen.attention import HeadStack
from lengthgen.chapter import frozen
from lengthgen.experiments.heads import OFFSETS
from lengthgen.explorables.base import Explorable, Report, pack
from lengthgen.explorables.heads import book_heads, column, learned_heads, new_heads, rotary_heads
from lengthgen.position_head import TRAINING_LENGTHS

__all__ = ["N_ROWS", "Task", "head_pair"]

N_ROWS = 512
"""Rows of the position table that are exported: the longest sequence of these figures."""


def head_pair(rotary: HeadStack, learned: HeadStack) -> dict[str, Any]:
    """Export rotary and learned heads of one seed, one of each at every offset of the book."""
    longest = max(TRAINING_LENGTHS)
    return {
        "offsets": OFFSETS,
        "longest": longest,
        "rotary": rotary_heads(rotary),
        "learned": learned_heads(learned, longest, N_ROWS),
    }


class Task(Explorable):
    """Type a sequence, drag its length, and see where both heads look and what they answer."""

    name = "task"
    files = ("heads",)

    def load(self) -> dict[str, Any]:
        """Return seed 0 at every offset, and the mean accuracy of all seeds."""
        return self.export(book_heads("rotary"), book_heads("learned"))

    def retrain(self, report: Report, seed: int) -> dict[str, Any]:
        """Train both kinds of head from another seed."""
        return self.export(*(new_heads(name, seed, report) for name in ("rotary", "learned")))

    @staticmethod
    def export(rotary: HeadStack, learned: HeadStack) -> dict[str, Any]:
        """Return the data of one seed of each, and the mean accuracy of all seeds."""
        result = frozen("multiseed")
        axes = [
            ("encoding", ("rotary", "learned")),
            ("offset", OFFSETS),
            ("length", [n for n in result.config["lengths"] if n <= learned.config.max_length]),
        ]
        means = column(result.rows, "accuracy", axes)
        accuracy = {"lengths": axes[2][1], "rotary": pack(means[0]), "learned": pack(means[1])}
        return {**head_pair(rotary, learned), "accuracy": accuracy}
