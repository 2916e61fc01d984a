"""Chapter 1's panel: accuracy by length."""

from __future__ import annotations

from typing import Any

from lengthgen import figures
from lengthgen.evaluation import accuracy
from lengthgen.panels import heads
from lengthgen.panels.base import Drawing, Panel, Report
from lengthgen.task import TestSequences

__all__ = ["task_panel"]


def _task(report: Report, **values: Any) -> Drawing:
    config, stack = heads.trained(report, **values)
    lengths, offset = heads.lengths(stack), values["offset"]
    table = accuracy(stack, [offset] * stack.n_models, lengths, TestSequences(heads.N_SEQUENCES))
    rows = [
        {
            "encoding": values["encoding"],
            "offset": offset,
            "seed": seed,
            "length": length,
            "accuracy": float(table[seed, column]),
        }
        for seed in config.seeds
        for column, length in enumerate(lengths)
    ]
    figure = figures.accuracy_by_length(rows, longest_trained=values["training_length"])
    words = f"mean accuracy {table[:, 0].mean():.2f} at length {lengths[0]}, "
    return figure, words + f"{table[:, -1].mean():.2f} at length {lengths[-1]}"


def task_panel() -> Panel:
    """Return chapter 1's panel: train heads and see accuracy by length."""
    return Panel(
        _task, heads.controls("rotary", "learned", "learned-random-offset", "none"), "01_task.ipynb"
    )
