"""`linear`: what exact interpolation costs beyond the training range, and what escapes the cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from lengthgen import figures
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.heads import OFFSETS
from lengthgen.experiments.linear_limit import (
    BENIGN,
    BRIEF,
    LONGEST,
    MAIN,
    ROTARY,
    LinearConfig,
    descent_rows,
    limit_rows,
    spectrum,
)
from lengthgen.experiments.linear_trained import TrainedConfig, Training, token_rows, trained_rows
from lengthgen.results import Result, Unit

__all__ = ["BENIGN", "EXPERIMENT", "MAIN", "ROTARY", "Config", "Training", "spectrum"]

RATIOS = ("l2_ratio", "l1_ratio", "l2_distance", "l1_distance", "seed_distance")
PLOTTED = {
    "softmax": ("softmax", MAIN, figures.COLORS["rotary"], "o-"),
    "min-norm, full band": ("min-norm", BENIGN, figures.COLORS["learned-random-offset"], "^--"),
    "exponential": ("exponential", MAIN, figures.COLORS["sinusoidal"], "x:"),
    "linear attention": ("linear-attention", MAIN, figures.COLORS["none"], "D--"),
    "token-level linear": ("token-linear", MAIN, "black", "v-"),
    "bilinear": ("none", MAIN, figures.COLORS["none"], "x-"),
    "min-norm": ("min-norm", MAIN, figures.COLORS["learned"], "s-"),
}


@dataclass(frozen=True)
class Config:
    """Settings of `linear`; `tops` are the bands for which only the limit is measured.

    The linear head has no randomness but its test sequences; the trained heads have seeds.
    """

    n_seeds: int = 20
    offsets: tuple[int, ...] = OFFSETS
    lengths: tuple[int, ...] = (16, 20, 24, 32, 48, 64)
    tops: tuple[float, ...] = (0.5, 0.6, 0.7, 0.75, 0.85, 0.9, 0.95)
    steps: tuple[int, ...] = (1, 10, 100, 300, 1_000, 3_000, 10_000, 100_000, 1_000_000)
    walked_steps: int = 20_000
    trainings: tuple[Training, ...] = (
        Training("none", (300, 1_000, 3_000, 6_000, 20_000, 60_000)),
        Training("softmax", (1_000, 3_000), safety=0.5),
        Training("exponential", (100, 300, 1_000, 3_000, 10_000)),
        Training("linear-attention", (2_000,)),
        Training("token-linear", (200, 500, 2_000), offsets=(2,), std=0.1),
    )
    n_exact_sequences: int = 20_000
    n_sequences: int = 5_000
    n_draws: int = 500


def _work(config: Config) -> Iterator[tuple[Unit, Any]]:
    exact = (config.offsets, config.lengths, config.n_exact_sequences)
    for training in config.trainings:
        offsets = tuple(k for k in training.offsets if k in config.offsets)
        seeds = tuple(range(config.n_seeds))
        trained = TrainedConfig(training, seeds, offsets, config.lengths, config.n_sequences)
        yield (token_rows if training.head == "token-linear" else trained_rows), trained
    for name in (MAIN, BENIGN, ROTARY):
        yield limit_rows, LinearConfig(name, *exact, config.n_draws)
        walk = (config.steps, config.walked_steps)
        yield descent_rows, LinearConfig(name, config.offsets, BRIEF, config.n_sequences, 0, *walk)
    for top in config.tops:
        one = LinearConfig(f"midpoints {top:g}", exact[0], (48,), exact[2], config.n_draws)
        yield limit_rows, one


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rows = [row for work_unit, one in _work(config) for row in work_unit(one)]
    limits = [row for row in rows if row["head"] == "min-norm" and "length" in row]
    names = dict.fromkeys(row["spectrum"] for row in limits)
    by_spectrum = {}
    for name in sorted(names):
        some = next(row for row in rows if row["spectrum"] == name and "condition" in row)
        values = [r["accuracy"] for r in limits if r["spectrum"] == name and r["length"] == 48]
        by_spectrum[name] = {
            "condition": some["condition"],
            "rank": some["rank"],
            "accuracy_48": {"min": min(values), "mean": fmean(values), "max": max(values)},
        }
    by_head: dict[str, dict[str, Any]] = {}
    for training in config.trainings:
        head, last = training.head, training.steps[-1]
        ends = [row for row in rows if row["head"] == head and row.get("step") == last]
        by_head[head] = {"largest_loss": max(row["loss"] for row in ends)}
        for length in config.lengths:
            values = [row["accuracy"] for row in ends if row["length"] == length]
            by_head[head][f"accuracy_{length}"] = {
                "min": min(values),
                "mean": fmean(values),
                "max": max(values),
            }
    geometry = [row for row in rows if RATIOS[0] in row]
    ends = {n: sorted(r[n] for r in geometry) for n in RATIOS}
    medians = {n: v[len(v) // 2] for n, v in ends.items() if v}
    return rows, {"by_spectrum": by_spectrum, "by_head": by_head, "bilinear_median": medians}


def _plot(result: Result) -> Figure:
    """Draw accuracy against length per head, and accuracy at length 48 against training loss."""
    figure, ((left, right),) = figures.panels(1, 2, height=3.6, sharey=True)
    for label, (head, name, color, line) in PLOTTED.items():
        ends = [row for row in result.select(head=head, spectrum=name) if "length" in row]
        if not ends:
            continue
        last = max(row.get("step", 0) for row in ends)
        curves: dict[Any, dict[int, float]] = {}
        for row in ends:
            if row.get("step", 0) == last:
                model = curves.setdefault((row["offset"], row["seed"]), {})
                model[row["length"]] = row["accuracy"]
        lengths = sorted(next(iter(curves.values())))
        values = [[curve[length] for length in lengths] for curve in curves.values()]
        options = {"marker": line[0], "linestyle": line[1:]}
        figures.seed_lines(left, lengths, values, color, label, **options)
    for head, color, marker in (
        ("linear", figures.COLORS["learned"], "s"),
        ("exponential", figures.COLORS["sinusoidal"], "x"),
        ("token-linear", "black", "v"),
    ):
        rows = [row for row in result.select(head=head, spectrum=MAIN, length=48) if "loss" in row]
        x, y = [max(row["loss"], 1e-5) for row in rows], [row["accuracy"] for row in rows]
        right.plot(x, y, marker, color=color, alpha=0.5, label=head)
    for axes in (left, right):
        axes.set_ylim(-0.02, 1.03)
        figures.mark_chance(axes)
    figures.mark_training_range(left, LONGEST)
    left.set_xlabel("length (tokens)")
    left.set_ylabel("accuracy")
    right.set_xscale("log")
    right.invert_xaxis()
    right.set_xlabel("training loss, at least 1e-5 (falls to the right)")
    right.set_title("accuracy at length 48 while the loss falls", fontsize=9)
    right.legend(loc="upper right", fontsize=8)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


QUICK = Config(
    n_seeds=3,
    offsets=(1, 2, 4, 8),
    tops=(0.5, 0.9),
    trainings=(
        Training("none", (300, 1_000, 3_000, 6_000)),
        Training("softmax", (1_000,), safety=0.5),
        Training("exponential", (100, 300, 1_000)),
        Training("token-linear", (200, 500), offsets=(2,), std=0.1),
    ),
)
"""Fewer seeds, offsets and steps; every row of it is a row of the full profile as well."""

EXPERIMENT = Experiment(
    name="linear",
    title="the linear control: exact interpolation against softmax, on one spectrum",
    module=__name__,
    profiles={"quick": QUICK, "paper": Config()},
    plan=_work,
    measure=_measure,
    plot=_plot,
)
