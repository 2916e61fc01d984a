"""`shift`: what a joint shift of all positions changes in trained heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from lengthgen import figures
from lengthgen.equivariance import shift_effect
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.heads import head_stacks, wanted_rows
from lengthgen.results import Result, Unit, unit
from lengthgen.task import TestSequences
from lengthgen.training import TrainingConfig, load_heads

__all__ = ["EXPERIMENT", "Config"]

MEASURES = ("logit_change", "attention_change", "answers_changed")


@dataclass(frozen=True)
class Config:
    """Settings of `shift`: sequences of the longest training length, moved by each shift.

    Random starts are shifted within their trained table, learned positions onto untrained rows.
    """

    n_seeds: int = 20
    offsets: tuple[int, ...] = (1, 2)
    length: int = 16
    shifts: tuple[int, ...] = (1, 16, 48, 100, 1000, 2**20)
    n_sequences: int = 1_000


@dataclass(frozen=True)
class _ShiftConfig:
    training: TrainingConfig
    length: int
    shifts: tuple[int, ...]
    n_sequences: int


@unit
def shift_rows(config: _ShiftConfig) -> list[dict[str, Any]]:
    """Measure `shift_effect` of trained heads for each shift."""
    training = config.training
    stack = load_heads(training)
    test = TestSequences(config.n_sequences, training.head.vocabulary)
    tokens = test.sequences(config.length)
    rows = []
    for shift in config.shifts:
        effect = shift_effect(stack, tokens, shift)
        rows += [
            {
                "encoding": training.head.encoding,
                "offset": offset,
                "seed": seed,
                "shift": shift,
                **{measure: float(effect[measure][model]) for measure in MEASURES},
            }
            for model, (seed, offset) in enumerate(training.models)
        ]
    return rows


def _configs(config: Config) -> list[_ShiftConfig]:
    configs = []
    for encoding in ("rotary", "learned-random-offset", "learned"):
        for stack in head_stacks(encoding, config.n_seeds):
            reach = stack.head.reach or max(config.shifts) + config.length
            shifts = tuple(shift for shift in config.shifts if shift + config.length <= reach)
            configs.append(_ShiftConfig(stack, config.length, shifts, config.n_sequences))
    return configs


def _plan(config: Config) -> Iterator[tuple[Unit, Any]]:
    for shifts in _configs(config):
        yield shift_rows, shifts


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    measured = [row for shifts in _configs(config) for row in shift_rows(shifts)]
    rows = wanted_rows(measured, config.n_seeds, config.offsets)
    worst: dict[str, dict[str, float]] = {}
    for row in rows:
        of_encoding = worst.setdefault(row["encoding"], dict.fromkeys(MEASURES, 0.0))
        for measure in MEASURES:
            of_encoding[measure] = max(of_encoding[measure], row[measure])
    return rows, {"worst": worst}


def _plot(result: Result) -> Figure:
    """Draw each measure against the shift; one point per head, means joined."""
    labels = ("logits: max change / max |logit|", "attention: total variation", "answers changed")
    figure, grid = figures.panels(1, 3, height=2.9)
    for axes, measure, label in zip(grid[0], MEASURES, labels, strict=True):
        for encoding in dict.fromkeys(row["encoding"] for row in result.rows):
            rows = result.select(encoding=encoding)
            shifts = sorted({row["shift"] for row in rows})
            x = [row["shift"] for row in rows]
            y = [row[measure] for row in rows]
            color = figures.COLORS[encoding]
            axes.plot(x, y, ".", color=color, alpha=0.25)
            means = [
                sum(v for s, v in zip(x, y, strict=True) if s == shift) / x.count(shift)
                for shift in shifts
            ]
            marker = figures.MARKERS[encoding]
            axes.plot(shifts, means, color=color, marker=marker, label=figures.LABELS[encoding])
        axes.set_xscale("log")
        axes.set_title(label, fontsize=9)
        axes.set_xlabel("shift (tokens)")
    grid[0, 0].set_yscale("log")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


EXPERIMENT = Experiment(
    name="shift",
    title="what a joint shift of all positions changes",
    module=__name__,
    profiles={"quick": Config(n_seeds=4), "paper": Config()},
    plan=_plan,
    measure=_measure,
    plot=_plot,
)
