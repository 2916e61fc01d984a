"""`dilution`: the attention law, the accuracy law and the Bessel law against trained heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from lengthgen import dilution, figures
from lengthgen.attention import HeadStack
from lengthgen.evaluation import AccuracyConfig, accuracy_rows
from lengthgen.experiments import multiseed
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.heads import head_stacks, wanted_rows
from lengthgen.results import Result, Unit, unit
from lengthgen.task import TestSequences
from lengthgen.training import TrainingConfig, load_heads

__all__ = ["EXPERIMENT", "REMEDIES", "VERSIONS", "Config", "plot_attention", "plot_remedies"]

VERSIONS = {
    "predicted": "the law",
    "gaussian": "everything Gaussian",
    "kernel_only": "kernel instead of token pairs",
}
"""The accuracy law and two that fail, by their column."""

REMEDIES = {
    "none": "as trained",
    "log-length": "logits times log L / log 16",
    "longer": "4 times the steps",
    "aligned": "carrier turned in phase",
    "longer, log-length": "4 times the steps and log L",
}

N_ALIASES = 16
SEED_OF_DRAWS = 1_000
"""Draws and test sequences come from different streams."""


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


# -- attention and accuracy -----------------------------------------------------------------------


@dataclass(frozen=True)
class _CellConfig:
    training: TrainingConfig
    n_seeds: int
    lengths: tuple[int, ...]
    far_lengths: tuple[int, ...]
    n_sequences: int
    n_draws: int
    n_compared: int


@unit
def cell_rows(config: _CellConfig) -> list[dict[str, Any]]:
    """Measure and predict attention and accuracy of trained heads, one row per head and length."""
    lengths, every = list(config.lengths), [*config.lengths, *config.far_lengths]
    stack, models = _first_seeds(config.training, config.n_seeds)
    offsets = [offset for _, offset in models]
    readouts = _readouts(stack)
    weights, laws, kernels = [], [], []
    versions: dict[str, dict[int, Tensor]] = {name: {} for name in VERSIONS}
    for index, (seed, offset) in enumerate(models):
        logits = dilution.offset_logits(stack.select([index]), max(every))[0]
        near = logits[:, :, : max(lengths)]
        weights.append((near - near.amax((1, 2), keepdim=True)).exp().float())
        laws.append(dilution.attention_law(logits, offset, lengths).mean((1, 2)))
        kernels.append(dilution.kernel_attention(logits.mean((0, 1)), offset, lengths))
        versions["predicted"][index] = dilution.mass_model(logits, offset, every, N_ALIASES)
        if seed < config.n_compared:
            versions["gaussian"][index] = dilution.mass_model(logits, offset, lengths, 0)
            versions["kernel_only"][index] = dilution.mass_model(
                dilution.kernel_only(near), offset, lengths, N_ALIASES
            )
    draws = dilution.Draws(config.n_draws, len(readouts[0]), N_ALIASES, SEED_OF_DRAWS)
    accuracies = {
        name: dict(zip(of, _predict(of, readouts, draws), strict=True))
        for name, of in versions.items()
        if of
    }
    test = TestSequences(config.n_sequences, config.training.head.vocabulary)
    measured = dilution.measure(torch.stack(weights), readouts.float(), offsets, lengths, test)
    rows = []
    for index, (seed, offset) in enumerate(models):
        for column, length in enumerate(every):
            row = {"kind": "cell", "encoding": "rotary", "offset": offset, "seed": seed}
            row["length"] = length
            for name, of in accuracies.items():
                if index in of and column < len(of[index]):
                    row[name] = _rounded(of[index][column])
            if length in lengths:
                row |= {
                    "n_sequences": config.n_sequences,
                    "accuracy": _rounded(measured.accuracy[index, column]),
                    "attention": _rounded(measured.attention[index, column], 8),
                    "attention_error": _rounded(measured.attention_error[index, column], 9),
                    "attention_law": _rounded(laws[index][column], 8),
                    "attention_kernel": _rounded(kernels[index][column], 8),
                }
            rows.append(row)
    return rows


def _first_seeds(training: TrainingConfig, n_seeds: int) -> tuple[HeadStack, list[tuple[int, int]]]:
    chosen = [i for i, (seed, _) in enumerate(training.models) if seed < n_seeds]
    return load_heads(training).select(chosen), [training.models[i] for i in chosen]


def _readouts(stack: HeadStack) -> Tensor:
    anywhere = torch.tensor([0])
    return stack.map(Tensor.double).tables(anywhere, anywhere).token_readout


def _predict(models: dict[int, Tensor], readouts: Tensor, draws: dilution.Draws) -> Tensor:
    chosen = list(models)
    return dilution.predicted_accuracy(torch.stack(list(models.values())), readouts[chosen], draws)


def _rounded(value: Tensor, digits: int = 6) -> float:
    return round(float(value), digits)


# -- the Bessel law -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _BesselConfig:
    training: TrainingConfig
    limit: int


@unit
def bessel_rows(config: _BesselConfig) -> list[dict[str, Any]]:
    """Sum the exponential of the logits over offsets for token pairs of the first seed's heads.

    For each head one query token and all key tokens: the sum, the product of Bessel functions,
    and the exact mean over the torus on which base 10,000 at width 32 really moves.
    """
    stack, models = _first_seeds(config.training, config.training.seeds[0] + 1)
    vocabulary = stack.config.vocabulary
    coefficients = dilution.rotary_coefficients(stack)
    queries = [(5 * offset) % vocabulary for _, offset in models]
    pairs = torch.cat([coefficients[m, a] for m, a in enumerate(queries)])
    frequencies = stack.encodings[0].frequencies
    summed = dilution.mean_exponential(pairs, frequencies, config.limit)
    bessel = dilution.log_bessel_constant(pairs).exp()
    torus = dilution.torus_mean(pairs, 10, 4)
    return [
        {
            "kind": "bessel",
            "offset": offset,
            "seed": seed,
            "query": queries[m],
            "key": b,
            "limit": config.limit,
            "mean": float(summed[m * vocabulary + b]),
            "bessel": float(bessel[m * vocabulary + b]),
            "torus": float(torus[m * vocabulary + b]),
        }
        for m, (seed, offset) in enumerate(models)
        for b in range(vocabulary)
    ]


# -- remedies -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RemedyConfig:
    training: TrainingConfig
    remedy: str
    n_seeds: int
    lengths: tuple[int, ...]
    n_sequences: int
    n_draws: int


@unit
def remedy_rows(config: _RemedyConfig) -> list[dict[str, Any]]:
    """Measure and predict accuracy of heads under one remedy."""
    training, lengths = config.training, list(config.lengths)
    if "longer" in config.remedy:
        training = replace(training, steps=4 * training.steps)
    stack, models = _first_seeds(training, config.n_seeds)
    offsets = [offset for _, offset in models]
    if config.remedy == "aligned":
        stack = dilution.aligned(stack, offsets)
    logits = dilution.offset_logits(stack, max(lengths))
    readouts = _readouts(stack)
    test = TestSequences(config.n_sequences, training.head.vocabulary)
    draws = dilution.Draws(config.n_draws, training.head.vocabulary, N_ALIASES, SEED_OF_DRAWS)
    by_scale: dict[float, list[int]] = {}
    for length in lengths:
        scale = 1.0
        if "log-length" in config.remedy:
            scale = float(torch.tensor(length).log() / torch.tensor(training.lengths[1]).log())
        by_scale.setdefault(scale, []).append(length)
    rows = []
    for scale, some in by_scale.items():
        scaled = scale * logits[..., : max(some)]
        weights = (scaled - scaled.amax((2, 3), keepdim=True)).exp().float()
        measured = dilution.measure(weights, readouts.float(), offsets, some, test).accuracy
        law = [
            dilution.mass_model(scaled[m], offset, some, N_ALIASES)
            for m, offset in enumerate(offsets)
        ]
        predicted = dilution.predicted_accuracy(torch.stack(law), readouts, draws)
        rows += [
            {
                "kind": "remedy",
                "remedy": config.remedy,
                "offset": offset,
                "seed": seed,
                "length": length,
                "measured": _rounded(measured[m, column]),
                "law": _rounded(predicted[m, column]),
            }
            for m, (seed, offset) in enumerate(models)
            for column, length in enumerate(some)
        ]
    return rows


# -- the experiment -------------------------------------------------------------------------------


def _cell_configs(config: Config) -> list[_CellConfig]:
    return [
        _CellConfig(
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


def _remedy_configs(config: Config) -> list[_RemedyConfig]:
    return [
        _RemedyConfig(
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


def _multiseed_configs(config: Config) -> list[AccuracyConfig]:
    paper = multiseed.Config()
    return [
        AccuracyConfig(stack, paper.lengths, paper.n_sequences)
        for stack in head_stacks("rotary", config.n_seeds)
    ]


def _bessel_config(config: Config) -> _BesselConfig:
    return _BesselConfig(head_stacks("rotary", 1)[0], config.bessel_limit)


def _plan(config: Config) -> Iterator[tuple[Unit, Any]]:
    for accuracy in _multiseed_configs(config):  # first: these train missing heads
        yield accuracy_rows, accuracy
    for cells in _cell_configs(config):
        yield cell_rows, cells
    yield bessel_rows, _bessel_config(config)
    for remedy in _remedy_configs(config):
        yield remedy_rows, remedy


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    kept = {
        (row["seed"], row["offset"], row["length"]): row
        for accuracy in _multiseed_configs(config)
        for row in accuracy_rows(accuracy)
    }
    cells = [dict(row) for c in _cell_configs(config) for row in cell_rows(c)]
    cells = wanted_rows(cells, config.n_seeds)
    for row in cells:
        other = kept.get((row["seed"], row["offset"], row["length"]))
        if other is not None:
            row["multiseed"] = other["accuracy"]
            row["multiseed_n"] = other["n_sequences"]
    heads = _head_rows(cells, config)
    bessel = bessel_rows(_bessel_config(config))
    remedies = [row for c in _remedy_configs(config) for row in remedy_rows(c)]
    rows = [*cells, *heads, *bessel, *remedies]
    summary = {
        "accuracy": _errors(cells),
        "multiseed": _multiseed_summary(cells),
        "attention": _attention_summary(cells),
        "half_length": _half_summary(heads),
        "bessel": _bessel_summary(bessel),
        "remedies": _remedy_summary(remedies, config),
    }
    return rows, summary


def _head_rows(cells: list[dict[str, Any]], config: Config) -> list[dict[str, Any]]:
    """Return the half-accuracy length of each head, predicted and measured."""
    curves: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in cells:
        if "accuracy" in row:
            curves.setdefault((row["seed"], row["offset"]), []).append(row)
    rows = []
    for (seed, offset), of in curves.items():
        lengths = [row["length"] for row in of]
        halves = {
            name: dilution.half_accuracy_length(lengths, torch.tensor([row[name] for row in of]))
            for name in ("accuracy", "predicted")
        }
        rows.append(
            {
                "kind": "head",
                "offset": offset,
                "seed": seed,
                "half_measured": halves["accuracy"],
                "half_predicted": halves["predicted"],
            }
        )
    return rows


def _errors(cells: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return mean and worst |predicted - measured| of each version, over the same heads or all."""
    compared = [row for row in cells if "gaussian" in row]
    groups = {name: (name, compared) for name in VERSIONS}
    groups["predicted, every head"] = ("predicted", [r for r in cells if "accuracy" in r])
    summary = {}
    for group, (name, rows) in groups.items():
        errors = [abs(row[name] - row["accuracy"]) for row in rows]
        summary[group] = {
            "mean": fmean(errors),
            "worst": max(errors),
            "n_cells": len(errors),
            "n_heads": len({(row["seed"], row["offset"]) for row in rows}),
            "n_lengths": len({row["length"] for row in rows}),
        }
    return summary


def _multiseed_summary(cells: list[dict[str, Any]]) -> dict[str, float]:
    excess, errors = [], []
    for row in cells:
        if "multiseed" in row:
            p, error = row["predicted"], abs(row["predicted"] - row["multiseed"])
            errors.append(error)
            excess.append(error - 3 * (p * (1 - p) / row["multiseed_n"]) ** 0.5)
    return {
        "n_cells": len(errors),
        "mean": fmean(errors),
        "worst": max(errors),
        "worst_beyond_3_errors": max(excess),
    }


def _attention_summary(cells: list[dict[str, Any]]) -> dict[str, float]:
    rows = [row for row in cells if "accuracy" in row]
    deviations = [
        abs(row["attention_law"] - row["attention"]) / row["attention_error"] for row in rows
    ]
    ratios = [row["attention_kernel"] / row["attention_law"] for row in rows]
    return {
        "n_cells": len(rows),
        "worst_standard_errors": max(deviations),
        "mean_squared_standard_errors": fmean(d * d for d in deviations),
        "kernel_lowest_ratio": min(ratios),
        "kernel_highest_ratio": max(ratios),
        "quadrature_error": dilution.quadrature_error(0.5),
    }


def _half_summary(heads: list[dict[str, Any]]) -> dict[str, Any]:
    both = [row for row in heads if row["half_measured"] and row["half_predicted"]]
    errors = [abs(row["half_predicted"] / row["half_measured"] - 1) for row in both]
    measured = [row["half_measured"] for row in both]
    return {
        "n_heads": len(both),
        "n_beyond": sum(row["half_measured"] is None for row in heads),
        "n_disagree": sum(
            (row["half_measured"] is None) != (row["half_predicted"] is None) for row in heads
        ),
        "mean_error": fmean(errors) if errors else None,
        "worst_error": max(errors) if errors else None,
        "lowest": min(measured) if errors else None,
        "median": median(measured) if errors else None,
        "highest": max(measured) if errors else None,
    }


def _bessel_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    by_head: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_head.setdefault(row["offset"], []).append(row)
    heads = [sum(r["mean"] for r in of) / sum(r["bessel"] for r in of) for of in by_head.values()]
    return {
        "n_pairs": len(rows),
        "limit": rows[0]["limit"],
        "worst_pair": max(abs(row["mean"] / row["bessel"] - 1) for row in rows),
        "worst_torus": max(abs(row["mean"] / row["torus"] - 1) for row in rows),
        "worst_resonance": max(abs(row["torus"] / row["bessel"] - 1) for row in rows),
        "worst_head": max(abs(ratio - 1) for ratio in heads),
    }


def _remedy_summary(rows: list[dict[str, Any]], config: Config) -> dict[str, Any]:
    summary = {}
    for remedy in config.remedies:
        of = [row for row in rows if row["remedy"] == remedy]
        summary[remedy] = {
            "accuracy": {
                str(length): fmean(row["measured"] for row in of if row["length"] == length)
                for length in config.remedy_lengths
            },
            "mean_error": fmean(abs(row["measured"] - row["law"]) for row in of),
            "worst_error": max(abs(row["measured"] - row["law"]) for row in of),
        }
    return summary


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
