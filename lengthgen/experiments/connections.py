"""`connections`: what a recurrent model's start selects, and the task as program and as weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch
from matplotlib.figure import Figure

from lengthgen import figures
from lengthgen.carrier import effective_rank
from lengthgen.encodings import rotary_frequencies
from lengthgen.evaluation import accuracy
from lengthgen.experiments.experiment import Experiment
from lengthgen.position_head import TRAINING_LENGTHS
from lengthgen.rasp import (
    compiled_learned,
    compiled_rotary,
    guaranteed_length,
    retrieve,
    retrieve_by_arithmetic,
    retrieve_by_table,
)
from lengthgen.readout import sampled_accuracy
from lengthgen.recurrence import CEILING, Caught, descend, initialize, response, training_loss
from lengthgen.results import Result, Unit, unit
from lengthgen.task import FixedOffsetTask, TestSequences

__all__ = ["EXPERIMENT", "LIMIT", "SCANNED", "Config", "Training"]

LONGEST, LIMIT, VOCABULARY = TRAINING_LENGTHS[-1], 1_024, 16
"""Longest training length; responses are measured below offset 1,024."""
SCANNED = 2**16
"""Lengths up to this one are checked for the guarantee of a compiled head."""


@dataclass(frozen=True)
class Training:
    """Recurrent models to train: their width and initial scales, and whether they are balanced.

    `width` `None` is the offset itself: one state fewer than a shift register has.
    """

    stds: tuple[float, ...]
    width: int | None = 16
    offsets: tuple[int, ...] = (1, 2, 4)
    balanced: bool = False
    max_steps: int = 1_500


TRAININGS = (
    Training((0.03, 0.1, 0.3, 0.6, 1.0, 1.25)),
    Training((0.03, 1.0), 3, (2,)),
    Training((0.03, 1.0), 8, (2,)),
    Training((0.03, 1.0), 24, (2,)),
    Training((0.3,), None, max_steps=500),
    Training((0.3,), balanced=True, max_steps=500),
)


@dataclass(frozen=True)
class Config:
    """Settings of `connections`.

    `levels` are the training losses at which recurrent models are caught; `lengths` those at which
    they, the programs and the compiled heads answer. A table holds `rows` rows.
    """

    n_seeds: int = 20
    trainings: tuple[Training, ...] = TRAININGS
    levels: tuple[float, ...] = (1e-2, 1e-3, 1e-4)
    lengths: tuple[int, ...] = (16, 17, 48, 256, 1_024)
    n_sequences: int = 500
    program_offsets: tuple[int, ...] = (1, 2, 4, 8)
    amplitude: float = 4.0
    rows: int = 1_024


# -- recurrent models -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _RunConfig:
    training: Training
    std: float
    offset: int
    n_seeds: int
    levels: tuple[float, ...]
    lengths: tuple[int, ...]
    n_sequences: int

    @property
    def width(self) -> int:
        return self.training.width or self.offset


@unit
def recurrence_rows(config: _RunConfig) -> list[dict[str, Any]]:
    """Train recurrent models from one scale, measure them at each loss, test them at the last."""
    seeds = range(config.n_seeds)
    training, balanced = config.training, config.training.balanced
    start = initialize(seeds, config.width, config.std, balanced)
    offset = torch.full((config.n_seeds,), config.offset)
    caught = descend(start, offset, config.levels, training.max_steps, balanced=balanced)
    rows = [row for one in caught for row in _model_rows(config, one, offset)]
    weights = response(caught[-1].model, max(config.lengths))
    for length in config.lengths:
        generator = torch.Generator().manual_seed(length)
        right = sampled_accuracy(
            weights[:, :length].contiguous(), offset, VOCABULARY, config.n_sequences, generator
        )
        rows += [
            _row(config, seed)
            | {"length": length, "accuracy": float(right[seed]), "n_sequences": config.n_sequences}
            for seed in seeds
        ]
    return rows


def _row(config: _RunConfig, seed: int) -> dict[str, Any]:
    row = {"kind": "recurrence", "width": config.width, "std": config.std}
    row |= {"too_narrow": config.training.width is None, "balanced": config.training.balanced}
    return row | {"offset": config.offset, "seed": seed}


def _model_rows(config: _RunConfig, caught: Caught, offset: torch.Tensor) -> list[dict[str, Any]]:
    model = caught.model
    values = response(model, LIMIT)
    columns = {
        "reached": caught.reached,
        "steps": caught.steps,
        "loss": training_loss(model, offset),
        "tail": values[:, LONGEST:].abs().amax(-1),
        "radius": model.eigenvalues.abs().amax(-1),
        "rank": effective_rank(model.transition),
    }
    return [
        _row(config, seed)
        | {"level": caught.level}
        | {name: column[seed].item() for name, column in columns.items()}
        for seed in range(config.n_seeds)
    ]


# -- programs and heads written down --------------------------------------------------------------


@dataclass(frozen=True)
class _ProgramConfig:
    offset: int
    lengths: tuple[int, ...]
    n_sequences: int
    amplitude: float
    rows: int


@unit
def program_rows(config: _ProgramConfig) -> list[dict[str, Any]]:
    """Run the programs and the heads written down on the same sequences, with no training."""
    offset, test = config.offset, TestSequences(config.n_sequences, VOCABULARY)
    table = {i: i - offset for i in range(LONGEST)}
    programs = {
        "RASP-L": lambda tokens: retrieve(tokens, offset),
        "index arithmetic": lambda tokens: retrieve_by_arithmetic(tokens, offset),
        "index table": lambda tokens: retrieve_by_table(tokens, table),
    }
    right = {}
    for length in config.lengths:
        tokens = test.sequences(length)
        target = FixedOffsetTask(offset, VOCABULARY).target(tokens)
        for name, program in programs.items():
            right[name, length] = (program(tokens) == target).double().mean()
    heads = {
        "rotary head": compiled_rotary(offset, config.amplitude),
        "table head": compiled_learned(offset, config.amplitude, config.rows),
        "table head, rows 0..15": compiled_learned(
            offset, config.amplitude, config.rows, written=LONGEST
        ),
    }
    for name, head in heads.items():
        lengths = [n for n in config.lengths if n <= (head.config.reach or n)]
        values = accuracy(head, [offset], lengths, test)[0]
        right |= {(name, n): value for n, value in zip(lengths, values, strict=True)}
    frequencies = rotary_frequencies(32)
    aligned = config.amplitude * torch.polar(torch.ones_like(frequencies), frequencies * offset)
    guaranteed = guaranteed_length(aligned, frequencies, offset, SCANNED)
    return [
        {"kind": "program", "program": name, "offset": offset, "seed": 0, "length": length}
        | {"accuracy": float(value), "n_sequences": config.n_sequences}
        | ({"guaranteed": guaranteed} if name == "rotary head" else {})
        for (name, length), value in right.items()
    ]


# -- the experiment -------------------------------------------------------------------------------


def _work(config: Config) -> Iterator[tuple[Unit, Any]]:
    for training in config.trainings:
        for std in training.stds:
            for offset in training.offsets:
                shared = (config.levels, config.lengths, config.n_sequences)
                yield recurrence_rows, _RunConfig(training, std, offset, config.n_seeds, *shared)
    for offset in config.program_offsets:
        shared = (config.lengths, config.n_sequences, config.amplitude, config.rows)
        yield program_rows, _ProgramConfig(offset, *shared)


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rows = [row for work_unit, one in _work(config) for row in work_unit(one)]
    cells: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        if "level" in row and row["level"] == config.levels[-1]:
            key = (row["width"], row["std"], row["offset"], row["too_narrow"], row["balanced"])
            cells.setdefault(key, []).append(row)
    names = ("width", "std", "offset", "too_narrow", "balanced")
    summary = [
        dict(zip(names, key, strict=True))
        | {"n_models": len(cell), "n_reached": sum(row["reached"] for row in cell)}
        | {name: median(row[name] for row in cell) for name in ("tail", "radius", "rank", "steps")}
        | {"worst_tail": max(row["tail"] for row in cell)}
        | {"unstable": fmean(row["radius"] > 1 for row in cell)}
        | {"least_loss": min(row["loss"] for row in cell)}
        for key, cell in cells.items()
    ]
    return rows, {"recurrence": summary}


def _plot(result: Result) -> Figure:
    """Draw the tail of the response and the rank of the transition against the initial scale."""
    figure, ((left, right),) = figures.panels(1, 2, height=3.2)
    level = result.config["levels"][-1]
    width = result.config["trainings"][0]["width"]
    shown = result.select(kind="recurrence", width=width, level=level, balanced=False)
    colors = (figures.COLORS["rotary"], figures.COLORS["learned-random-offset"], "black")
    for index, offset in enumerate(sorted({row["offset"] for row in shown})):
        color, marker = colors[index % 3], "os^"[index % 3]
        stds = sorted({row["std"] for row in shown})
        for axes, name in ((left, "tail"), (right, "rank")):
            medians = []
            for std in stds:
                cell = [r for r in shown if (r["offset"], r["std"]) == (offset, std)]
                for fitted, mark in ((True, marker), (False, "x")):
                    values = [r[name] for r in cell if r["reached"] == fitted]
                    axes.plot([std] * len(values), values, mark, color=color, alpha=0.25)
                medians.append(median(r[name] for r in cell))
            axes.plot(stds, medians, color=color, marker=marker, label=f"offset {offset}")
            axes.set_xscale("log")
            axes.set_xlabel("initial scale")
            axes.set_xticks(stds, [f"{std:g}" for std in stds], rotation=45)
            axes.minorticks_off()
    left.set_yscale("log")
    left.axhline(1, color="black", linestyle=":", linewidth=0.9)
    left.set_ylim(1e-24, 10 * CEILING)
    left.set_ylabel(f"largest response, offsets {LONGEST} to {LIMIT - 1:,}")
    right.set_ylabel("effective rank of the transition")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


QUICK = Config(
    n_seeds=4,
    trainings=(
        Training((0.03, 1.0), offsets=(2,)),
        Training((0.3,), balanced=True, offsets=(2,), max_steps=500),
    ),
    lengths=(16, 17, 48, 256),
    program_offsets=(2, 4),
)
"""Fewer seeds, scales and offsets; every row of it is a row of the full profile as well."""

EXPERIMENT = Experiment(
    name="connections",
    title="a recurrent model from small and large starts; the task as program and as weights",
    module=__name__,
    profiles={"quick": QUICK, "paper": Config()},
    plan=_work,
    measure=_measure,
    plot=_plot,
)
