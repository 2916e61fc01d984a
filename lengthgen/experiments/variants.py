"""`variants`: every other encoding: what it could represent, what it learns, what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from lengthgen import figures
from lengthgen.attention import HeadConfig
from lengthgen.encoding_measures import (
    FIT,
    LENGTHS,
    TRAINED,
    MeasureConfig,
    dilution_error,
    length_rows,
    measured_rows,
)
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.heads import SEEDS_PER_STACK, head_stacks
from lengthgen.experiments.variants_suppression import SuppressionConfig, suppression_rows
from lengthgen.expressivity import MarginConfig, margin_rows
from lengthgen.results import Result, Unit
from lengthgen.training import TrainingConfig, default_steps

__all__ = ["EXPERIMENT", "FAMILIES", "VARIANTS", "Config", "Variant", "stacks"]


@dataclass(frozen=True)
class Variant:
    """What heads are trained with, and with what they are tested, if not with the same."""

    trained: HeadConfig
    tested: HeadConfig | None = None


ROTARY = HeadConfig("rotary")

VARIANTS = {
    "none": Variant(HeadConfig("none")),
    "learned": Variant(HeadConfig("learned")),
    "learned-random-offset": Variant(HeadConfig("learned-random-offset")),
    "sinusoidal": Variant(HeadConfig("sinusoidal")),
    "rotary": Variant(ROTARY),
    "rotary-partial": Variant(HeadConfig("rotary", {"width": 8})),
    "rotary-interpolated": Variant(ROTARY, HeadConfig("rotary-interpolated")),
    "rotary-ntk": Variant(ROTARY, HeadConfig("rotary-ntk")),
    "rotary-yarn": Variant(ROTARY, HeadConfig("rotary-yarn")),
    "rotary-log-tested": Variant(ROTARY, replace(ROTARY, log_length=TRAINED)),
    "rotary-log-trained": Variant(replace(ROTARY, log_length=TRAINED)),
    "xpos": Variant(HeadConfig("xpos")),
    # the slope 1/2 of the first of eight heads; a single head's own is 1/256
    "alibi": Variant(HeadConfig("alibi", {"strength": 128.0})),
    "kerple": Variant(HeadConfig("kerple")),
    "t5": Variant(HeadConfig("t5")),
    # the last bucket starts at offset 11: unlike above, every entry is trained
    "t5-within": Variant(HeadConfig("t5", {"buckets": 12, "max_distance": 12})),
    "clipped-relative": Variant(HeadConfig("clipped-relative")),
    "clipped-within": Variant(HeadConfig("clipped-relative", {"max_offset": 8})),
    "fire": Variant(HeadConfig("fire")),
}
"""Every encoding of the atlas by its name in the rows."""

FAMILIES = {
    "none, absolute": ("none", "learned", "learned-random-offset", "sinusoidal"),
    "rotations": ("rotary", "rotary-partial", "xpos"),
    "rotary, stretched at test time": ("rotary-interpolated", "rotary-ntk", "rotary-yarn"),
    "rotary, log-length temperature": ("rotary", "rotary-log-tested", "rotary-log-trained"),
    "penalties": ("alibi", "kerple", "fire"),
    "tables of offsets": ("t5", "t5-within", "clipped-relative", "clipped-within"),
}
"""The encodings by where position enters, a panel each."""

SHARED = ("learned", "learned-random-offset", "rotary")
"""Encodings whose heads `multiseed` trains."""


@dataclass(frozen=True)
class Config:
    """Settings of `variants`; margins are those of kernels on each number of offsets."""

    n_seeds: int = 20
    offsets: tuple[int, ...] = (1, 2)
    encodings: tuple[str, ...] = tuple(VARIANTS)
    lengths: tuple[int, ...] = LENGTHS
    n_sequences: int = 1_000
    margin_offsets: tuple[int, ...] = (TRAINED, 1024)


def stacks(config: Config, head: HeadConfig) -> list[TrainingConfig]:
    """Return the stacks that hold every seed of a head; those of `multiseed` where it has them.

    Stacks are always whole, so that both profiles ask for the same units.
    """
    if head.encoding in SHARED and head == HeadConfig(head.encoding):
        return head_stacks(head.encoding, config.n_seeds)
    firsts = range(0, config.n_seeds, SEEDS_PER_STACK)
    return [
        TrainingConfig(
            head,
            tuple(range(first, first + SEEDS_PER_STACK)),
            config.offsets,
            steps=default_steps(head.encoding),
        )
        for first in firsts
    ]


def _measure_configs(config: Config, name: str) -> list[MeasureConfig]:
    variant = VARIANTS[name]
    reach = (variant.tested or variant.trained).reach
    lengths = tuple(n for n in config.lengths if reach is None or n <= reach)
    return [
        MeasureConfig(training, config.offsets, lengths, config.n_sequences, variant.tested)
        for training in stacks(config, variant.trained)
    ]


def _suppression_configs(config: Config) -> list[SuppressionConfig]:
    return [
        SuppressionConfig(training, config.n_sequences)
        for name in ("alibi", "kerple")
        if name in config.encodings
        for training in stacks(config, VARIANTS[name].trained)
    ]


# -- the experiment -------------------------------------------------------------------------------


def _plan(config: Config) -> Iterator[tuple[Unit, Any]]:
    for name in config.encodings:
        for measured in _measure_configs(config, name):
            yield measured_rows, measured
    for suppression in _suppression_configs(config):
        yield suppression_rows, suppression
    for offset in config.offsets:
        for n_offsets in config.margin_offsets:
            yield margin_rows, MarginConfig(offset, n_offsets)


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rows, kernels = [], {}
    for name in config.encodings:
        measured = [
            (m, c)
            for c in _measure_configs(config, name)
            for m in measured_rows(c)
            if m["seed"] < config.n_seeds
        ]
        rows += [row for m, c in measured for row in _rows(name, m, c)]
        kernels[name] = {
            str(offset): [
                round(fmean(values), 5)
                for values in zip(
                    *(m["kernel"] for m, _ in measured if m["offset"] == offset), strict=True
                )
            ]
            for offset in config.offsets
        }
    suppression = [
        {"encoding": c.training.head.encoding, **row}
        for c in _suppression_configs(config)
        for row in suppression_rows(c)
        if row["seed"] < config.n_seeds
    ]
    summary = {
        "kernels": kernels,
        "suppression": suppression,
        "margins": {
            str(offset): {
                str(n): {
                    row["family"]: row["margin"] for row in margin_rows(MarginConfig(offset, n))
                }
                for n in config.margin_offsets
            }
            for offset in config.offsets
        },
        "encodings": {name: _summary(config, name, rows) for name in config.encodings},
    }
    return rows, summary


def _rows(name: str, measured: dict[str, Any], config: MeasureConfig) -> list[dict[str, Any]]:
    """Return a row per length, and one with the measures of the head."""
    rows = length_rows(name, measured, config)
    head = {"encoding": name, "offset": measured["offset"], "seed": measured["seed"]}
    measures = {
        name: measured[name] for name in ("equivariance_error", "pinning_index", "alignment")
    }
    return [*rows, {**head, **measures, "dilution_error": dilution_error(rows)}]


def _summary(config: Config, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return, by offset, how many heads fit, mean accuracies and mean measures."""
    summary = {}
    for offset in config.offsets:
        mine = [r for r in rows if r["encoding"] == name and r["offset"] == offset]
        by_length: dict[int, list[float]] = {}
        for row in mine:
            if "length" in row:
                by_length.setdefault(row["length"], []).append(row["accuracy"])
        heads = [row for row in mine if "length" not in row]
        known = {
            measure: [row[measure] for row in heads if row[measure] is not None]
            for measure in ("equivariance_error", "pinning_index", "alignment", "dilution_error")
        }
        summary[str(offset)] = {
            "fitted": sum(value >= FIT for value in by_length[config.lengths[0]]),
            "n_heads": len(heads),
            "accuracy": {str(n): round(fmean(values), 6) for n, values in by_length.items()},
            "equivariance_error": max(known["equivariance_error"]),
            "dilution_error": max(known["dilution_error"], default=None),
            **{
                measure: fmean(known[measure]) if known[measure] else None
                for measure in ("pinning_index", "alignment")
            },
        }
    return summary


STYLES = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#777777", "-.", "^"),
    ("#E69F00", ":", "D"),
)
"""Colour, line and marker of the encodings of a family: any two differ in all three."""


def _plot(result: Result) -> Figure:
    """Draw mean accuracy by length: a row per family, a column per offset, then the names."""
    offsets, lengths = result.config["offsets"], result.config["lengths"]
    columns = {"width_ratios": [3] * len(offsets) + [2]}
    figure, grid = figures.panels(
        len(FAMILIES), len(offsets) + 1, height=1.45, sharex=True, sharey=True, gridspec_kw=columns
    )
    for line, (family, names) in zip(grid, FAMILIES.items(), strict=True):
        for axes, offset in zip(line, offsets, strict=False):
            for name, (color, dash, marker) in zip(names, STYLES, strict=False):
                if name not in result.summary["encodings"]:
                    continue
                mean = result.summary["encodings"][name][str(offset)]["accuracy"]
                axes.plot(
                    [int(n) for n in mean],
                    list(mean.values()),
                    color=color,
                    linestyle=dash,
                    marker=marker,
                    markersize=3.5,
                    linewidth=1.4,
                    label=name,
                )
            figures.log_lengths(axes, lengths)
            axes.set_ylim(-0.02, 1.05)
            axes.set_xlim(left=min(lengths) * 0.85)
            figures.mark_chance(axes)
            figures.mark_training_range(axes, TRAINED)
        line[0].set_ylabel("accuracy")
        line[-1].set_axis_off()
        handles = line[0].get_legend_handles_labels()
        line[-1].legend(*handles, loc="center left", title=family.replace(", ", ",\n"))
        line[-1].get_legend().set_alignment("left")
    for axes, offset in zip(grid[0], offsets, strict=False):
        axes.set_title(f"offset {offset}")
    for axes in grid[-1, :-1]:
        axes.set_xlabel("length (tokens)")
    return figure


EXPERIMENT = Experiment(
    name="variants",
    title="every other encoding: what it could represent, what it learns, what it keeps",
    module=__name__,
    profiles={"quick": Config(n_seeds=4), "paper": Config()},
    plan=_plan,
    measure=_measure,
    plot=_plot,
)
