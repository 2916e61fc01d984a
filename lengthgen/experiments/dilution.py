"""`dilution`: the attention law, the accuracy law and the Bessel law against trained heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from lengthgen import figures
from lengthgen.evaluation import accuracy_rows
from lengthgen.experiments.dilution_summary import head_rows, summary
from lengthgen.experiments.dilution_units import (
    VERSIONS,
    BesselConfig,
    CellConfig,
    RemedyConfig,
    bessel_rows,
    cell_rows,
    remedy_rows,
)
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.heads import accuracy_configs, head_stacks, wanted_rows
from lengthgen.results import Result, Unit

__all__ = ["EXPERIMENT", "REMEDIES", "VERSIONS", "Config", "plot_attention", "plot_remedies"]

REMEDIES = {
    "none": "as trained",
    "log-length": "logits times log L / log 16",
    "longer": "4 times the steps",
    "aligned": "carrier turned in phase",
    "longer, log-length": "4 times the steps and log L",
}


@dataclass(frozen=True)
class Config:
    """Settings of `dilution`: the rotary heads of `multiseed`.

    `lengths` are measured on `n_sequences` and predicted; `far_lengths` are only predicted and
    held against `multiseed`. The versions that fail are computed for `n_compared` seeds, remedies
    for `n_remedy_seeds`; `bessel_limit` offsets are summed for the Bessel law.
    """

    n_seeds: int = 20
    lengths: tuple[int, ...] = (16, 17, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
    far_lengths: tuple[int, ...] = (4096,)
    n_sequences: int = 40_000
    n_draws: int = 64_000
    n_compared: int = 5
    bessel_limit: int = 10**6
    remedies: tuple[str, ...] = tuple(REMEDIES)
    n_remedy_seeds: int = 4
    remedy_lengths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    n_remedy_sequences: int = 4_000
    n_remedy_draws: int = 16_000


def _cell_configs(config: Config) -> list[CellConfig]:
    return [
        CellConfig(
            stack,
            min(config.n_seeds, stack.seeds[-1] + 1),
            config.lengths,
            config.far_lengths,
            config.n_sequences,
            config.n_draws,
            min(config.n_compared, stack.seeds[-1] + 1),
        )
        for stack in head_stacks("rotary", config.n_seeds)
    ]


def _remedy_configs(config: Config) -> list[RemedyConfig]:
    return [
        RemedyConfig(
            stack,
            remedy,
            config.n_remedy_seeds,
            config.remedy_lengths,
            config.n_remedy_sequences,
            config.n_remedy_draws,
        )
        for stack in head_stacks("rotary", config.n_remedy_seeds)
        for remedy in config.remedies
    ]


def _bessel_config(config: Config) -> BesselConfig:
    return BesselConfig(head_stacks("rotary", 1)[0], config.bessel_limit)


def _plan(config: Config) -> Iterator[tuple[Unit, Any]]:
    for accuracy in accuracy_configs("rotary", config.n_seeds):  # first: these train missing heads
        yield accuracy_rows, accuracy
    for cells in _cell_configs(config):
        yield cell_rows, cells
    yield bessel_rows, _bessel_config(config)
    for remedy in _remedy_configs(config):
        yield remedy_rows, remedy


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    kept = {
        (row["seed"], row["offset"], row["length"]): row
        for accuracy in accuracy_configs("rotary", config.n_seeds)
        for row in accuracy_rows(accuracy)
    }
    cells = [dict(row) for c in _cell_configs(config) for row in cell_rows(c)]
    cells = wanted_rows(cells, config.n_seeds)
    for row in cells:
        other = kept.get((row["seed"], row["offset"], row["length"]))
        if other is not None:
            row["multiseed"] = other["accuracy"]
            row["multiseed_n"] = other["n_sequences"]
    bessel = bessel_rows(_bessel_config(config))
    remedies = [row for c in _remedy_configs(config) for row in remedy_rows(c)]
    rows = [*cells, *head_rows(cells), *bessel, *remedies]
    return rows, summary(rows)


# -- pictures -------------------------------------------------------------------------------------


def _plot(result: Result) -> Figure:
    """Draw curves of a few heads, the error of each version, and half-accuracy lengths."""
    figure, grid = figures.panels(1, 3, height=3.0)
    curves, errors, halves = grid[0]
    for row in _spread_heads(result):
        cells = result.select(kind="cell", seed=row["seed"], offset=row["offset"])
        near = [c for c in cells if "accuracy" in c]
        x = [c["length"] for c in near]
        color = figures.COLORS["rotary"]
        curves.plot(x, [c["predicted"] for c in near], color=color, linewidth=1.2)
        curves.plot(x, [c["accuracy"] for c in near], "o", color="black", markersize=3)
    curves.plot([], [], "o", color="black", markersize=3, label="measured")
    figures.mark_chance(curves)
    curves.set_ylim(-0.02, 1.03)
    curves.set_ylabel("accuracy")
    curves.set_title("five heads")
    styles = zip(VERSIONS, ("rotary", "learned", "learned-random-offset"), "osd", strict=True)
    for name, color, marker in styles:
        rows = [row for row in result.rows if "gaussian" in row]
        lengths = sorted({row["length"] for row in rows})
        mean = [
            fmean(abs(r[name] - r["accuracy"]) for r in rows if r["length"] == n) for n in lengths
        ]
        errors.plot(
            lengths,
            [max(m, 1e-5) for m in mean],
            marker=marker,
            color=figures.COLORS[color],
            label=VERSIONS[name],
        )
    errors.set_yscale("log")
    errors.set_ylabel("mean |predicted - measured|")
    errors.set_title("error of each version")
    handles = [*curves.get_legend_handles_labels()[0], *errors.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=8)
    for axes in (curves, errors):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("length (tokens)")
        figures.mark_training_range(axes, 16)
    heads = [r for r in result.select(kind="head") if r["half_measured"] and r["half_predicted"]]
    x, y = [r["half_measured"] for r in heads], [r["half_predicted"] for r in heads]
    span = [min(x + y) * 0.9, max(x + y) * 1.1]
    halves.plot(span, span, color="black", linewidth=0.9, alpha=0.6)
    halves.plot(x, y, "o", color=figures.COLORS["rotary"], alpha=0.5)
    halves.set_xscale("log", base=2)
    halves.set_yscale("log", base=2)
    halves.set_aspect("equal")
    halves.set_xlabel("measured (tokens)")
    halves.set_ylabel("predicted (tokens)")
    halves.set_title("half-accuracy length")
    return figure


def _spread_heads(result: Result) -> list[dict[str, Any]]:
    """Return five heads from the first to lose half its accuracy to the last."""
    heads = [row for row in result.select(kind="head") if row["half_measured"]]
    heads.sort(key=lambda row: row["half_measured"])
    return [heads[round(i * (len(heads) - 1) / 4)] for i in range(5)]


def plot_attention(result: Result) -> Figure:
    """Draw the deviation of measured attention from the law, and the kernel's ratio to it."""
    rows = [row for row in result.select(kind="cell") if "accuracy" in row]
    figure, grid = figures.panels(1, 2, height=3.0)
    x = [row["length"] for row in rows]
    deviation = [(r["attention"] - r["attention_law"]) / r["attention_error"] for r in rows]
    ratio = [r["attention_kernel"] / r["attention_law"] for r in rows]
    color = figures.COLORS["rotary"]
    grid[0, 0].plot(x, deviation, ".", color=color, alpha=0.3)
    for bound in (-4, 4):
        grid[0, 0].axhline(bound, color="black", linewidth=0.9, linestyle=":")
    grid[0, 0].set_ylim(-5, 5)
    grid[0, 0].set_ylabel("(measured - law) / standard error")
    grid[0, 0].set_title("attention law")
    grid[0, 1].plot(x, ratio, ".", color=figures.COLORS["learned-random-offset"], alpha=0.3)
    lengths = sorted(set(x))
    means = [fmean(v for n, v in zip(x, ratio, strict=True) if n == length) for length in lengths]
    grid[0, 1].plot(lengths, means, color="black", label="mean over heads")
    grid[0, 1].axhline(1, color="black", linewidth=0.9, linestyle=":")
    grid[0, 1].set_ylabel("kernel's attention / law")
    grid[0, 1].set_title("kernel instead of token pairs")
    grid[0, 1].legend()
    for axes in grid[0]:
        axes.set_xscale("log", base=2)
        axes.set_xlabel("length (tokens)")
    return figure


def plot_remedies(result: Result) -> Figure:
    """Draw mean accuracy by length under each remedy, with the law as a dashed line."""
    figure, grid = figures.panels(1, 1, height=3.4)
    axes = grid[0, 0]
    styles = {
        "none": ("black", "o"),
        "log-length": (figures.COLORS["rotary"], "s"),
        "longer": (figures.COLORS["learned-random-offset"], "^"),
        "aligned": (figures.COLORS["none"], "x"),
        "longer, log-length": (figures.COLORS["learned"], "d"),
    }
    for remedy in result.config["remedies"]:
        rows = result.select(kind="remedy", remedy=remedy)
        lengths = sorted({row["length"] for row in rows})
        color, marker = styles[remedy]
        means = {
            name: [fmean(r[name] for r in rows if r["length"] == n) for n in lengths]
            for name in ("measured", "law")
        }
        axes.plot(lengths, means["measured"], marker, color=color, label=REMEDIES[remedy])
        axes.plot(lengths, means["law"], color=color, linewidth=1.2)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel("accuracy, mean over heads")
    axes.set_ylim(-0.02, 1.03)
    figures.mark_chance(axes)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


EXPERIMENT = Experiment(
    name="dilution",
    title="attention and accuracy at long lengths, predicted from the head's logits alone",
    module=__name__,
    profiles={
        "quick": Config(
            n_seeds=1,
            lengths=(16, 17, 24, 32, 48, 64, 96, 128, 192, 256),
            far_lengths=(512,),
            n_compared=1,
            bessel_limit=10**5,
            remedies=("none", "log-length", "aligned"),
            n_remedy_seeds=1,
            remedy_lengths=(64, 128, 256),
        ),
        "paper": Config(),
    },
    plan=_plan,
    measure=_measure,
    plot=_plot,
)
