"""`transformer`: the account in a decoder of several layers and heads, every position answering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from lengthgen import figures
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.transformer_units import (
    CARRIER,
    FAR,
    CircuitConfig,
    PositionConfig,
    head_rows,
    position_rows,
)
from lengthgen.results import Result, Unit
from lengthgen.transformer import TransformerConfig
from lengthgen.transformer_training import TransformerTraining

__all__ = ["DEFAULT", "EXPERIMENT", "Config", "training", "variations"]

DEFAULT = "default"
"""The setting of the decoders whose heads are measured."""

SLOW = ("learned-random-offset", "none")
"""Encodings that are trained longer."""

WINDOW = 16
"""Positions on each side of a rival over which accuracies are averaged."""


@dataclass(frozen=True)
class Config:
    """Settings of `transformer`.

    Args:
        n_seeds: decoders per encoding.
        encodings: those compared.
        offset: K.
        length: training length.
        steps: optimizer steps.
        slow_steps: the same with random starts, which see each row less often, and without
            an encoding, where the mask alone tells positions apart.
        batch_size: sequences per step.
        rows: rows of the table with random starts; no longer sequence can be tested.
        lengths: test lengths.
        n_sequences: test sequences.
        n_traced: sequences on which heads are measured.
        traced_lengths: lengths at which heads are measured beyond the training length.
        shift: of all positions, as far as the table allows.
        layers: numbers of layers to vary, rotary, the rest as in the default.
        heads: numbers of heads to vary.
        std: a larger initial scale to compare.
        n_variation_seeds: decoders of each variation, at most `n_seeds`.
    """

    n_seeds: int = 5
    encodings: tuple[str, ...] = ("rotary", "learned", "learned-random-offset", "none")
    offset: int = 3
    length: int = 32
    steps: int = 300
    slow_steps: int = 800
    batch_size: int = 32
    rows: int = 128
    lengths: tuple[int, ...] = (32, 33, 48, 64, 96, 128, 256)
    n_sequences: int = 500
    n_traced: int = 64
    traced_lengths: tuple[int, ...] = (64, 96, 128)
    shift: int = 500
    layers: tuple[int, ...] = (1, 3)
    heads: tuple[int, ...] = (1, 2, 8)
    std: float = 0.125
    n_variation_seeds: int = 2


def training(config: Config, encoding: str, seed: int, **model: Any) -> TransformerTraining:
    """Return what one decoder is made of and trained on."""
    options = {"rows": config.rows} if encoding == "learned-random-offset" else {}
    return TransformerTraining(
        TransformerConfig(encoding, options, **model),
        (seed,),
        config.offset,
        config.length,
        steps=config.slow_steps if encoding in SLOW else config.steps,
        batch_size=config.batch_size,
    )


def variations(config: Config) -> dict[str, dict[str, Any]]:
    """Return what is varied of the rotary decoder, one at a time, by name."""
    return {
        **{f"{n} layer{'s' * (n > 1)}": {"n_layers": n} for n in config.layers},
        **{f"{n} head{'s' * (n > 1)}": {"n_heads": n} for n in config.heads},
        f"initial scale {config.std:g}": {"std": config.std},
    }


def _accuracy_configs(config: Config) -> list[PositionConfig]:
    found = [
        (training(config, encoding, seed), DEFAULT)
        for encoding in config.encodings
        for seed in range(config.n_seeds)
    ]
    found += [
        (training(config, "rotary", seed, **model), name)
        for name, model in variations(config).items()
        for seed in range(min(config.n_variation_seeds, config.n_seeds))
    ]
    return [PositionConfig(*pair, config.lengths, config.n_sequences) for pair in found]


def _head_configs(config: Config) -> list[CircuitConfig]:
    return [
        CircuitConfig(
            training(config, encoding, seed),
            config.n_sequences,
            config.n_traced,
            config.traced_lengths,
            config.shift,
        )
        for encoding in config.encodings
        for seed in range(config.n_seeds)
    ]


def _plan(config: Config) -> Iterator[tuple[Unit, Any]]:
    # Accuracy first: it trains the decoders whose heads are then measured.
    for accuracy in _accuracy_configs(config):
        yield position_rows, accuracy
    for heads in _head_configs(config):
        yield head_rows, heads


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    measured = [row for accuracy in _accuracy_configs(config) for row in position_rows(accuracy)]
    rows = [row for row in measured if "accuracy" in row]
    rows += [row for heads in _head_configs(config) for row in head_rows(heads)]
    summary: dict[str, Any] = {"by_position": {}, "by_length": _by_length(rows), "cuts": {}}
    for encoding in config.encodings:
        summary["by_position"][encoding] = [
            row["by_position"]
            for row in measured
            if "by_position" in row and (row["setting"], row["encoding"]) == (DEFAULT, encoding)
        ]
        cuts = [row for row in rows if "n_carriers" in row and row["encoding"] == encoding]
        names = [name for name in cuts[0] if name not in ("encoding", "seed")]
        summary["cuts"][encoding] = {n: _spread([row[n] for row in cuts]) for n in names}
    if "learned" in config.encodings:
        summary["pinning"] = _pinning(config, rows)
    if "rotary" in config.encodings:
        summary["rivals"] = _rivals(config, rows, summary["by_position"]["rotary"])
    return rows, summary


def _rivals(
    config: Config, rows: list[dict[str, Any]], curves: list[list[float]]
) -> list[dict[str, Any]]:
    """Return what happens where a carrier of a rotary decoder first prefers a wrong offset.

    The rival at offset D is seen by queries at positions D and later: `before` and `after` are
    accuracies over the `WINDOW` positions on each side. A decoder whose rival is not inside the
    longest test sequence, or too near its end, is left out.
    """
    found = []
    for seed, curve in enumerate(curves):
        rivals = [
            int(row["first_lost"])
            for row in rows
            if (row["encoding"], row["seed"]) == ("rotary", seed)
            and row.get("attention", 0) >= CARRIER
        ]
        first = min(rivals, default=FAR) - config.offset  # the curve starts at position K
        if WINDOW <= first <= len(curve) - WINDOW:
            found.append(
                {
                    "seed": seed,
                    "rival": first + config.offset,
                    "before": round(fmean(curve[first - WINDOW : first]), 6),
                    "after": round(fmean(curve[first : first + WINDOW]), 6),
                }
            )
    return found


def _by_length(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the spread of accuracy over seeds, by encoding (or variation) and length."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if "accuracy" in row:
            name = row["encoding"] if row["setting"] == DEFAULT else row["setting"]
            cell = found.setdefault(name, {}).setdefault(str(row["length"]), [])
            cell.append(row["accuracy"])
    return {
        name: {length: _spread(values) for length, values in by_length.items()}
        for name, by_length in found.items()
    }


def _pinning(config: Config, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return where the carriers of learned absolute decoders look beyond the training range.

    Those are the heads that look at the target within it. `peak_fixed` is the share of heads
    whose peak is at one and the same position at every length.
    """
    heads = [
        row for row in rows if row["encoding"] == "learned" and row.get("attention", 0) >= CARRIER
    ]
    if not heads:
        return {"n_heads": 0}
    peaks = [list(row["peak"].values()) for row in heads]
    return {
        "n_heads": len(heads),
        "peak_in_range": fmean(max(peak) < config.length for peak in peaks),
        "peak_fixed": fmean(len(set(peak)) == 1 for peak in peaks),
        "in_range": {
            length: fmean(row["in_range"][length] for row in heads)
            for length in heads[0]["in_range"]
        },
    }


def _spread(values: list[float | int]) -> dict[str, float | int]:
    return {"mean": round(fmean(values), 6), "least": min(values), "most": max(values)}


def _plot(result: Result) -> Figure:
    """Draw accuracy by position, one thin line a seed, and attention at the target by head."""
    figure, grid = figures.panels(1, 2, height=3.0)
    axes, heads = grid[0]
    offset, length = result.config["offset"], result.config["length"]
    for encoding, curves in result.summary["by_position"].items():
        positions = range(offset, offset + len(curves[0]))
        label = figures.LABELS[encoding]
        figures.seed_lines(axes, positions, curves, figures.COLORS[encoding], label)
    axes.set_ylim(-0.02, 1.03)
    axes.set_xlim(left=0)
    figures.mark_chance(axes)
    figures.mark_training_range(axes, length - 1)
    axes.set_xlabel("position (tokens)")
    axes.set_ylabel("accuracy")
    heads.set_xlabel("attention on the target, training range")
    heads.set_ylabel("accuracy with the head cut out")
    for encoding in result.config["encodings"]:
        rows = [row for row in result.select(encoding=encoding) if "accuracy_cut" in row]
        heads.plot(
            [row["attention"] for row in rows],
            [row["accuracy_cut"] for row in rows],
            figures.MARKERS[encoding],
            color=figures.COLORS[encoding],
            alpha=0.6,
        )
    heads.set_ylim(-0.02, 1.03)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


EXPERIMENT = Experiment(
    name="transformer",
    title="the account in a decoder of two layers and four heads, every position answering",
    module=__name__,
    profiles={
        "quick": Config(n_seeds=1, encodings=("rotary", "learned"), n_variation_seeds=0),
        "paper": Config(),
    },
    plan=_plan,
    measure=_measure,
    plot=_plot,
)
