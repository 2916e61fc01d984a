"""`prop1`: the logit at every pair of positions against the kernel of their offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from lengthgen import figures
from lengthgen.attention import HeadStack
from lengthgen.equivariance import RoundedProductRotary, kernel, offset_only_error
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.heads import head_stacks
from lengthgen.results import Result, Unit, unit
from lengthgen.training import TrainingConfig, load_heads

__all__ = ["EXPERIMENT", "Config"]

PRECISIONS = ("float64", "float32")


@dataclass(frozen=True)
class Config:
    """Settings of `prop1`: all pairs of `span` positions from 0, and near far positions."""

    n_seeds: int = 3
    offsets: tuple[int, ...] = (1, 2, 3)
    span: int = 512
    far: tuple[int, ...] = (2**10, 2**15, 2**20)
    far_span: int = 64


@dataclass(frozen=True)
class _ErrorConfig:
    training: TrainingConfig
    n_seeds: int
    offsets: tuple[int, ...]
    span: int
    far: tuple[int, ...]
    far_span: int


@unit
def offset_only_rows(config: _ErrorConfig) -> list[dict[str, Any]]:
    """Measure `offset_only_error` of trained heads, as built and with the rounded product."""
    training = config.training
    models = [m for m in training.models if m[0] < config.n_seeds and m[1] in config.offsets]
    stack = load_heads(training).select([training.models.index(model) for model in models])
    reference = kernel(stack.map(Tensor.double), config.span - 1)
    variants = {training.head.encoding: stack}
    if training.head.encoding == "rotary":
        faulty = replace(training.head, encoding=RoundedProductRotary)
        variants[RoundedProductRotary.name] = HeadStack(
            faulty, stack.parameters, [RoundedProductRotary(faulty.d_head)] * stack.n_models
        )
    ranges = [(0, config.span)]
    if stack.config.reach is None:
        ranges += [(first, config.far_span) for first in config.far]
    rows = []
    for name, variant in variants.items():
        for precision in PRECISIONS:
            cast = variant.map(Tensor.double if precision == "float64" else Tensor.float)
            for first, span in ranges:
                errors = offset_only_error(cast, reference, first, span)
                rows += [
                    {
                        "encoding": name,
                        "offset": offset,
                        "seed": seed,
                        "precision": precision,
                        "first_position": first,
                        "span": span,
                        "error": float(error),
                    }
                    for (seed, offset), error in zip(models, errors, strict=True)
                ]
    return rows


def _configs(config: Config) -> list[_ErrorConfig]:
    return [
        _ErrorConfig(
            stack, config.n_seeds, config.offsets, config.span, config.far, config.far_span
        )
        for encoding in ("rotary", "learned")
        for stack in head_stacks(encoding, config.n_seeds)
    ]


def _plan(config: Config) -> Iterator[tuple[Unit, Any]]:
    for errors in _configs(config):
        yield offset_only_rows, errors


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rows = [row for errors in _configs(config) for row in offset_only_rows(errors)]
    worst: dict[str, float] = {}
    for row in rows:
        key = f"{row['encoding']} {row['precision']}"
        worst[key] = max(worst.get(key, 0.0), row["error"])
    return rows, {"worst_error": worst}


def _plot(result: Result) -> Figure:
    """Draw the error against the first position, a panel per precision."""
    figure, grid = figures.panels(1, len(PRECISIONS), height=3.0, sharey=True)
    firsts = sorted({row["first_position"] for row in result.rows})
    ticks = {first: i for i, first in enumerate(firsts)}
    names = {
        "rotary": ("rotary", figures.COLORS["rotary"], "o"),
        RoundedProductRotary.name: ("rotary, product rounded", "#CC79A7", "D"),
        "learned": ("learned absolute", figures.COLORS["learned"], "s"),
    }
    for axes, precision in zip(grid[0], PRECISIONS, strict=True):
        for name, (label, color, marker) in names.items():
            rows = result.select(encoding=name, precision=precision)
            x = [ticks[row["first_position"]] for row in rows]
            y = [max(row["error"], 1e-17) for row in rows]
            axes.plot(x, y, marker, color=color, label=label, alpha=0.6)
        axes.set_yscale("log")
        axes.set_xticks(range(len(firsts)), [f"{first:,}" for first in firsts])
        axes.set_title(precision)
        axes.set_xlabel("first position")
    grid[0, 0].set_ylabel("max error / max |logit|")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


EXPERIMENT = Experiment(
    name="prop1",
    title="the logit at every pair of positions against the kernel of the offset",
    module=__name__,
    profiles={"quick": Config(n_seeds=1, span=128), "paper": Config()},
    plan=_plan,
    measure=_measure,
    plot=_plot,
)
