"""`mechanics`: where learned-absolute heads attend as the length grows, and what decides it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure

from lengthgen import figures, pinning
from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.evaluation import AccuracyConfig, accuracy_rows, attention
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.heads import OFFSETS, head_stacks, wanted_rows
from lengthgen.results import Result, Unit, unit
from lengthgen.task import TestSequences
from lengthgen.training import TrainingConfig, load_heads

__all__ = ["DEFAULT", "EXPERIMENT", "Config", "ablations"]

DEFAULT = "default"
"""The setting of the heads that `multiseed` trains."""


@dataclass(frozen=True)
class Config:
    """Settings of `mechanics`: heads of `multiseed`, and ablations at one offset.

    `lengths` are beyond twice the training range, where a relative head's peak has left it;
    `cut_length` is where the causal interventions are made.
    """

    n_seeds: int = 20
    offsets: tuple[int, ...] = OFFSETS
    ablation_offset: int = 2
    short_mix_offsets: tuple[int, ...] = (1, 2)
    lengths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    cut_length: int = 64
    n_sequences: int = 500
    accuracy_lengths: tuple[int, ...] = (16, 48)
    n_accuracy_sequences: int = 2_000


def ablations(config: Config) -> dict[str, TrainingConfig]:
    """Return the settings that are varied, one at a time, by name."""
    seeds, offset = tuple(range(config.n_seeds)), config.ablation_offset

    def learned(lengths: tuple[int, int] = (10, 16), std: float = 0.02, **training: Any):
        head = HeadConfig("learned", {"std": std})
        return TrainingConfig(head, seeds, (offset,), lengths, **training)

    settings = {
        "fixed length 16": learned((16, 16)),
        f"lengths {offset + 2}..16": learned((offset + 2, 16)),
        "initial scale 0.2": learned(std=0.2),
        "initial scale 1.0": learned(std=1.0),
        "L2 penalty 1e-4": learned(weight_decay=1e-4),
        "AdamW decay 0.01": learned(optimizer="adamw", weight_decay=0.01),
    }
    for short in config.short_mix_offsets:
        settings[f"rotary, lengths {short + 2}..16"] = TrainingConfig(
            HeadConfig("rotary"), seeds, (short,), (short + 2, 16)
        )
    return settings


@dataclass(frozen=True)
class _PinConfig:
    training: TrainingConfig
    setting: str
    lengths: tuple[int, ...]
    cut_length: int
    n_sequences: int


@unit
def pin_rows(config: _PinConfig) -> list[dict[str, Any]]:
    """Measure where trained heads with a position table attend, and intervene."""
    training, longest = config.training, config.training.lengths[1]
    stack, initial = load_heads(training), training.stack()
    test = TestSequences(config.n_sequences, training.head.vocabulary)
    weights = {n: attention(stack, test.sequences(n)) for n in config.lengths}
    peaks = torch.stack([pinning.peak(w) for w in weights.values()], dim=1)
    in_range = [w[..., :longest].sum(-1).mean(-1) for w in weights.values()]
    moved = stack.parameters[pinning.TABLE] - initial.parameters[pinning.TABLE]
    columns = {
        "trained_peak": pinning.peak(attention(stack, test.sequences(longest))),
        "predicted_pin": pinning.content_profile(stack, config.cut_length).argmax(-1),
        "pinning_index": pinning.pinning_index(peaks, longest),
        "untrained_rows_moved": moved[:, longest:].abs().amax((1, 2)),
        **_interventions(stack, test.sequences(config.cut_length), weights[config.cut_length]),
    }
    rows = []
    for model, (seed, offset) in enumerate(training.models):
        where = [int(p) for p in peaks[model]]
        row = {"setting": config.setting, "encoding": "learned", "offset": offset, "seed": seed}
        row |= {name: column[model].item() for name, column in columns.items()}
        row |= {
            "peaks": dict(zip(map(str, config.lengths), where, strict=True)),
            "in_range_mass": {
                str(n): round(float(m[model]), 6)
                for n, m in zip(config.lengths, in_range, strict=True)
            },
            "pinned": max(where) < longest and len(set(where)) == 1,
        }
        rows.append(row)
    return rows


def _interventions(
    stack: HeadStack, tokens: torch.Tensor, weights: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the effect of each cut on attention at one length, per model.

    The pin is the peak of the mean attention. `copied_row_mass` compares the mean attention of
    an untrained position that received the pinned row with that of the pin itself (1: equal);
    `exchanged_peak_follows` tells whether exchanging the two rows moves the peak along.
    """
    pin = pinning.peak(weights)
    model = torch.arange(stack.n_models)
    target = torch.full_like(pin, tokens.shape[1] // 2)  # an untrained row, not the query's
    copied = attention(pinning.with_rows(stack, pin, target, swap=False), tokens).mean(1)
    exchanged = attention(pinning.with_rows(stack, pin, target, swap=True), tokens)
    parts = pinning.logit_parts(stack, tokens.shape[1])
    no_content = pinning.attention_with(stack, parts.without_mean_content(), tokens)
    no_position = pinning.attention_with(stack, parts.without_query_position(), tokens)
    return {
        "agreement": pinning.agreement(weights, pin),
        "agreement_without_mean_content": pinning.agreement(no_content, pin),
        "agreement_without_query_position": pinning.agreement(no_position, pin),
        "mass_before_copy": weights.mean(1)[model, target],
        "copied_row_mass": copied[model, target] / copied[model, pin],
        "exchanged_peak_follows": (pinning.peak(exchanged) == target).float(),
    }


def _pin_configs(config: Config) -> list[_PinConfig]:
    settings = [(DEFAULT, stack) for stack in head_stacks("learned", config.n_seeds)]
    settings += [
        (name, training)
        for name, training in ablations(config).items()
        if training.head.encoding == "learned"
    ]
    return [
        _PinConfig(training, name, config.lengths, config.cut_length, config.n_sequences)
        for name, training in settings
    ]


def _accuracy_configs(config: Config) -> dict[str, AccuracyConfig]:
    return {
        name: AccuracyConfig(training, config.accuracy_lengths, config.n_accuracy_sequences)
        for name, training in ablations(config).items()
    }


def _plan(config: Config) -> Iterator[tuple[Unit, Any]]:
    # Accuracy first: it trains the ablated heads, which the pins of the same heads then read.
    for accuracy in _accuracy_configs(config).values():
        yield accuracy_rows, accuracy
    for pins in _pin_configs(config):
        yield pin_rows, pins


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    pins = [row for pins in _pin_configs(config) for row in pin_rows(pins)]
    rows = wanted_rows(pins, config.n_seeds, config.offsets)
    for name, accuracy in _accuracy_configs(config).items():
        rows += [{"setting": name, **row} for row in accuracy_rows(accuracy)]
    return rows, {"by_offset": _by_offset(config, rows), "by_setting": _by_setting(config, rows)}


def _share(rows: list[dict[str, Any]], *conditions) -> float:
    return round(sum(all(c(row) for c in conditions) for row in rows) / len(rows), 6)


def _pin_summary(config: Config, rows: list[dict[str, Any]]) -> dict[str, float]:
    cut = str(config.cut_length)
    return {
        "pinned": _share(rows, lambda row: row["pinned"]),
        "peak_in_range": _share(rows, lambda row: row["pinning_index"] == 1),
        "predicted": _share(rows, lambda row: row["predicted_pin"] == row["peaks"][cut]),
    }


def _by_offset(config: Config, rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    default = [row for row in rows if row["setting"] == DEFAULT]
    return {
        str(offset): _pin_summary(config, [row for row in default if row["offset"] == offset])
        for offset in config.offsets
    }


def _by_setting(config: Config, rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    summary: dict[str, dict[str, float]] = {}
    at_offset = [row for row in rows if row["offset"] == config.ablation_offset]
    for name in [DEFAULT, *ablations(config)]:
        pins = [row for row in at_offset if row["setting"] == name and "peaks" in row]
        summary[name] = _pin_summary(config, pins) if pins else {}
        for length in config.accuracy_lengths:
            values = [
                row["accuracy"]
                for row in rows
                if row["setting"] == name and row.get("length") == length
            ]
            if values:
                summary[name][f"accuracy_{length}"] = round(sum(values) / len(values), 6)
                summary[name][f"worst_accuracy_{length}"] = min(values)
    return summary


def _plot(result: Result) -> Figure:
    """Draw the peak of attention against length for every seed, a panel per offset."""
    offsets = result.config["offsets"]
    n_columns = min(4, len(offsets))
    n_rows = -(-len(offsets) // n_columns)
    figure, grid = figures.panels(n_rows, n_columns, height=2.1, sharex=True, sharey=True)
    for axes, offset in zip(grid.flat, offsets, strict=False):
        rows = result.select(setting=DEFAULT, offset=offset)
        lengths = [int(n) for n in rows[0]["peaks"]]
        for row in rows:
            color = figures.COLORS["learned"]
            axes.plot(lengths, list(row["peaks"].values()), color=color, alpha=0.4, linewidth=0.9)
        axes.plot([], [], color=color, label="peak of a learned absolute head, one line a seed")
        targets = [length - 1 - offset for length in lengths]
        axes.plot(
            lengths, targets, "--", color="black", label="target, where a relative head looks"
        )
        figures.log_lengths(axes, lengths)
        axes.set_yscale("symlog", base=2, linthresh=16)
        axes.axhspan(0, 15, color="#888888", alpha=0.15, linewidth=0)
        axes.set_title(f"offset {offset}")
    for axes in grid[-1]:
        axes.set_xlabel("length (tokens)")
    for axes in grid[:, 0]:
        axes.set_ylabel("peak position")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


EXPERIMENT = Experiment(
    name="mechanics",
    title="where learned-absolute heads attend beyond the training range, and why",
    module=__name__,
    profiles={"quick": Config(n_seeds=4), "paper": Config()},
    plan=_plan,
    measure=_measure,
    plot=_plot,
)
