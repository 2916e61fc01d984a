"""`selection`: which of the equivariant heads that fit training picks, and what decides it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from lengthgen import carrier, figures
from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.descent import Descent, scale_to_loss, snapshots
from lengthgen.encodings import rotary_frequencies
from lengthgen.evaluation import accuracy
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.heads import OFFSETS
from lengthgen.late_carrier import bad_twin, max_margin, normalized_margin, smallest_head
from lengthgen.position_head import (
    equivariance_error,
    initialize,
    keeps_argmax,
)
from lengthgen.position_loss import log_loss
from lengthgen.results import Result, Unit, unit
from lengthgen.task import TestSequences
from lengthgen.training import TrainingConfig, train

__all__ = ["DEFAULT", "EXPERIMENT", "Config", "ScaledTraining", "Setting", "kept_share"]

DEFAULT = "default"
PLAIN = "plain units"
FLOW = Descent()
LIMIT = 1_024
"""Offsets below this one are scanned for the first one that beats the target."""


@dataclass(frozen=True)
class Setting:
    r"""One way to train position-only heads; the name says what differs from the default.

    Scales are in the unit of `position_head.initialize`, $N(0, \mathrm{std}^2 \sqrt d)$, or, with
    `plain`, $N(0, \mathrm{std}^2)$.
    """

    name: str = DEFAULT
    stds: tuple[float, ...] = (0.01, 1.0)
    levels: tuple[float, ...] = (1e-4,)
    base: float = 10_000.0
    width: int = 32
    plain: bool = False
    descent: Descent = FLOW
    max_steps: int = 8_000

    @property
    def frequencies(self) -> Tensor:
        """Frequencies in radians per token."""
        return rotary_frequencies(self.width, self.base)


MAIN = Setting(stds=(0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 2.0), levels=(1e-2, 1e-4, 1e-8, 1e-16, 1e-32))
OTHERS = (
    Setting(PLAIN, stds=(0.1, 0.5, 1.0, 1.5, 2.0, 4.0), plain=True),
    *(Setting(f"base {base:g}", base=base) for base in (100.0, 1e6)),
    *(Setting(f"width {width}", width=width) for width in (8, 16, 64, 128)),
    Setting("length 16 alone", descent=Descent(lengths=(16,))),
    Setting("lengths 10..32", descent=Descent(lengths=tuple(range(10, 33)))),
    Setting("weight decay 1e-6", descent=Descent(weight_decay=1e-6)),
    Setting("Adam", stds=(0.01, 0.3, 1.0), descent=Descent("adam", 0.03), max_steps=6_000),
)


@dataclass(frozen=True)
class Config:
    """Settings of `selection`: `main` in full, `others` one change at a time.

    Twins are sought among the wrong offsets `twin_range`. Heads with tokens start with W_q and W_k
    scaled by `scales` and are compared at the training loss `token_level`.
    """

    n_seeds: int = 10
    offsets: tuple[int, ...] = OFFSETS
    main: Setting = MAIN
    others: tuple[Setting, ...] = OTHERS
    n_other_seeds: int = 5
    twin_range: tuple[int, int] = (16, 48)
    scales: tuple[float, ...] = (1.0, 2.0, 4.0)
    optimizers: tuple[tuple[str, float, int], ...] = (("adam", 3e-3, 1_000), ("sgd", 1.0, 1_500))
    n_token_seeds: int = 4
    token_offsets: tuple[int, ...] = (2, 4, 8)
    token_level: float = 0.1
    token_lengths: tuple[int, ...] = (16, 48, 128)
    n_sequences: int = 1_000


# -- position-only heads --------------------------------------------------------------------------


@dataclass(frozen=True)
class _RunConfig:
    setting: Setting
    std: float
    n_seeds: int
    offsets: tuple[int, ...]


def _number(value: Tensor) -> float | int | bool:
    value = value.item()
    return float(f"{value:.10g}") if isinstance(value, float) else value


@unit
def run_rows(config: _RunConfig) -> list[dict[str, Any]]:
    """Train from one initial scale and measure at each training loss."""
    setting, frequencies = config.setting, config.setting.frequencies
    models = [(seed, offset) for seed in range(config.n_seeds) for offset in config.offsets]
    offset = torch.tensor([offset for _, offset in models])
    std = config.std / setting.width**0.25 if setting.plain else config.std
    start = initialize([seed for seed, _ in models], std, frequencies)
    rows = []
    for snap in snapshots(start, offset, setting.levels, setting.max_steps, setting.descent):
        coefficients = snap.head.coefficients
        columns = {
            "reached": snap.reached,
            "steps": snap.steps,
            "first_lost": carrier.first_lost_offset(coefficients, frequencies, offset, LIMIT),
            "alignment": carrier.alignment(coefficients, frequencies, offset),
            "support": carrier.support_size(coefficients),
            "equivariance_error": equivariance_error(snap.head, 1_000),
        }
        rows += [
            {"kind": "run", "setting": setting.name, "std": config.std, "level": snap.level}
            | {"offset": task, "seed": seed}
            | {name: _number(column[model]) for name, column in columns.items()}
            for model, (seed, task) in enumerate(models)
        ]
    return rows


@dataclass(frozen=True)
class _TwinConfig:
    offset: int
    wrong: tuple[int, int]
    level: float


@unit
def twin_rows(config: _TwinConfig) -> list[dict[str, Any]]:
    """Find the cheapest head that fits as well as the best one and prefers a wrong offset."""
    frequencies = rotary_frequencies(32)
    good = max_margin(frequencies, config.offset)
    twins = {d: bad_twin(frequencies, config.offset, d) for d in range(*config.wrong)}
    wrong = min(twins, key=lambda d: twins[d].norm)
    coefficients = torch.stack([good.coefficients, twins[wrong].coefficients])
    offset = torch.tensor([config.offset] * 2)
    unit_margin = smallest_head(coefficients, frequencies)
    heads = scale_to_loss(unit_margin, offset, config.level)
    columns = {
        "loss": log_loss(heads, offset).exp(),
        "margin": normalized_margin(unit_margin, offset) * unit_margin.size,
        "size": heads.size,
        "first_lost": carrier.first_lost_offset(heads.coefficients, frequencies, offset, 100_000),
        "keeps_48": keeps_argmax(heads, offset, 48),
        "alignment": carrier.alignment(heads.coefficients, frequencies, offset),
        "support": carrier.support_size(coefficients),
        "equivariance_error": equivariance_error(heads, 1_000),
    }
    ratios = [twin.norm / good.norm for twin in twins.values()]
    row = {"kind": "twin", "offset": config.offset, "wrong_offset": wrong}
    row |= {"norm_ratio": min(ratios), "largest_ratio": max(ratios), "level": config.level}
    row |= {f"good_{name}": _number(column[0]) for name, column in columns.items()}
    row |= {f"twin_{name}": _number(column[1]) for name, column in columns.items()}
    pairs = {"good": coefficients[0], "twin": coefficients[1]}
    for name, c in pairs.items():
        row[f"{name}_coefficients"] = [[round(x, 8) for x in pair] for pair in _pairs(c)]
    return [row]


def _pairs(coefficients: Tensor) -> list[list[float]]:
    return torch.view_as_real(coefficients).tolist()


# -- heads with tokens ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ScaledTraining(TrainingConfig):
    """A training whose initial W_q and W_k are `scale` times as large."""

    scale: float = 1.0

    def stack(self, parameters: dict[str, Tensor] | None = None) -> HeadStack:
        """Return the stack: as initialized, scaled, or with stored parameters."""
        stack = super().stack(parameters)
        if parameters is not None:
            return stack
        scaled = {side: self.scale * stack.parameters[side] for side in ("query", "key")}
        return stack.with_parameters(**scaled)


@dataclass(frozen=True)
class _TokenConfig:
    training: ScaledTraining
    level: float
    lengths: tuple[int, ...]
    n_sequences: int
    window: int = 20


@unit
def token_rows(config: _TokenConfig) -> list[dict[str, Any]]:
    """Train from scaled query and key weights and test each head at one training loss.

    A head is taken after the first step at which the mean of its last `window` batch losses is at
    the level or below; one that never gets there, as it is at the end.
    """
    training = config.training
    kept: dict[str, Tensor] = {}
    when = torch.zeros(len(training.models), dtype=torch.long)

    def keep(step: int, steps: int, stack: HeadStack, losses: Tensor) -> None:
        below = losses[:, -config.window :].mean(1) <= config.level
        new = (when == 0) & below & (step >= config.window)
        when[new] = step
        for name, value in stack.parameters.items():
            if name not in kept:
                kept[name] = value.detach().clone()
            changing = new | (when == 0)
            kept[name][changing] = value.detach()[changing]

    train(training, keep)
    stack, test = training.stack(kept), TestSequences(config.n_sequences)
    offsets = [offset for _, offset in training.models]
    matrix = stack.parameters["query"] @ stack.parameters["key"].transpose(1, 2)
    rank = carrier.effective_rank(matrix.double())
    table = accuracy(stack, offsets, config.lengths, test)
    return [
        {"kind": "token", "optimizer": training.optimizer, "scale": training.scale}
        | {"encoding": "rotary", "offset": offset, "seed": seed, "length": length}
        | {"accuracy": round(float(table[model, column]), 6), "n_sequences": config.n_sequences}
        | {"reached": bool(when[model] > 0), "steps": int(when[model])}
        | {"effective_rank": _number(rank[model])}
        for model, (seed, offset) in enumerate(training.models)
        for column, length in enumerate(config.lengths)
    ]


# -- the experiment -------------------------------------------------------------------------------


def _work(config: Config) -> Iterator[tuple[Unit, Any]]:
    for setting in (config.main, *config.others):
        n_seeds = config.n_seeds if setting.name == DEFAULT else config.n_other_seeds
        for std in setting.stds:
            yield run_rows, _RunConfig(setting, std, n_seeds, config.offsets)
    for offset in config.offsets:
        yield twin_rows, _TwinConfig(offset, config.twin_range, 1e-4)
    for optimizer, rate, steps in config.optimizers:
        for scale in config.scales:
            training = ScaledTraining(
                HeadConfig("rotary"),
                tuple(range(config.n_token_seeds)),
                config.token_offsets,
                steps=steps,
                learning_rate=rate,
                optimizer=optimizer,
                scale=scale,
            )
            yield (
                token_rows,
                _TokenConfig(
                    training, config.token_level, config.token_lengths, config.n_sequences
                ),
            )


def kept_share(rows: list[dict[str, Any]], length: int) -> float | None:
    """Return the share of runs whose kernel is largest at the target up to a length.

    Runs that did not reach the training loss are left out; `None` if none did.

    Args:
        rows: rows of kind `run`.
        length: at most 1,024.
    """
    kept = [row["first_lost"] >= length for row in rows if row["reached"]]
    return round(sum(kept) / len(kept), 6) if kept else None


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rows = [row for work_unit, unit_config in _work(config) for row in work_unit(unit_config)]
    rows = [row for row in rows if row.get("seed", 0) < max(config.n_seeds, config.n_token_seeds)]
    return rows, {"runs": _run_summary(rows), "tokens": _token_summary(rows)}


def _run_summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    runs = [row for row in rows if row["kind"] == "run"]
    summary = []
    for setting, std, level in dict.fromkeys((r["setting"], r["std"], r["level"]) for r in runs):
        of_cell = [r for r in runs if (r["setting"], r["std"], r["level"]) == (setting, std, level)]
        reached = [r for r in of_cell if r["reached"]]
        summary.append(
            {"setting": setting, "std": std, "level": level}
            | {"n_runs": len(of_cell), "n_reached": len(reached)}
            | {f"kept_{length}": kept_share(of_cell, length) for length in (48, 256, LIMIT)}
            | {"alignment": fmean(r["alignment"] for r in reached) if reached else None}
            | {"equivariance_error": max(r["equivariance_error"] for r in of_cell)}
        )
    return summary


def _token_summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tokens = [row for row in rows if row["kind"] == "token"]
    summary = []
    for optimizer, scale, length in dict.fromkeys(
        (r["optimizer"], r["scale"], r["length"]) for r in tokens
    ):
        of_cell = [
            r
            for r in tokens
            if (r["optimizer"], r["scale"], r["length"]) == (optimizer, scale, length)
        ]
        summary.append(
            {"optimizer": optimizer, "scale": scale, "length": length, "n_runs": len(of_cell)}
            | {"n_reached": sum(r["reached"] for r in of_cell)}
            | {"accuracy": round(fmean(r["accuracy"] for r in of_cell), 6)}
            | {"worst": min(r["accuracy"] for r in of_cell)}
            | {"effective_rank": fmean(r["effective_rank"] for r in of_cell)}
        )
    return summary


def _plot(result: Result) -> Figure:
    """Draw the share that keeps its argmax: by initial scale, and from a large one by loss."""
    figure, ((left, right),) = figures.panels(1, 2, height=3.2, sharey=True)
    runs = [row for row in result.summary["runs"] if row["setting"] == DEFAULT]
    level = 1e-4
    lengths = (
        (48, "#888888", "s"),
        (256, figures.COLORS["learned-random-offset"], "^"),
        (LIMIT, figures.COLORS["rotary"], "o"),
    )
    for length, color, marker in lengths:
        at_level = [row for row in runs if row["level"] == level and row["n_reached"]]
        left.plot(
            [row["std"] for row in at_level],
            [row[f"kept_{length}"] for row in at_level],
            marker=marker,
            color=color,
            label=f"length {length:,}",
        )
        large = [row for row in runs if row["std"] == 1.0 and row["n_reached"]]
        right.plot(
            [row["level"] for row in large],
            [row[f"kept_{length}"] for row in large],
            marker=marker,
            color=color,
        )
    left.set_ylim(-0.03, 1.03)
    left.set_xscale("log")
    left.set_xlabel("initial scale")
    left.set_ylabel("share that keeps its argmax")
    left.set_title("training loss 1e-4", fontsize=9)
    right.set_xscale("log")
    right.invert_xaxis()
    right.set_xlabel("training loss (falls to the right)")
    right.set_title("initial scale 1", fontsize=9)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


QUICK = Config(
    n_seeds=2,
    offsets=(2, 4, 6, 8),
    main=Setting(stds=(0.01, 1.0), levels=MAIN.levels),
    others=(),
    scales=(1.0, 4.0),
    optimizers=(("adam", 3e-3, 1_000),),
    n_token_seeds=2,
    token_offsets=(2, 4),
)
"""Fewer seeds, offsets and scales; no confounds."""

EXPERIMENT = Experiment(
    name="selection",
    title="what training selects among heads that are all equivariant",
    module=__name__,
    profiles={"quick": QUICK, "paper": Config()},
    plan=_work,
    measure=_measure,
    plot=_plot,
)
