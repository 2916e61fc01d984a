"""`selection`: which of the equivariant heads that fit training picks, and what decides it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from lengthgen import figures
from lengthgen.descent import Descent
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.heads import OFFSETS
from lengthgen.experiments.selection_position import (
    DEFAULT,
    LIMIT,
    RunConfig,
    Setting,
    TwinConfig,
    run_rows,
    twin_rows,
)
from lengthgen.experiments.selection_tokens import TokenConfig, TokenSetting, token_rows
from lengthgen.results import Result, Unit

__all__ = ["DEFAULT", "EXPERIMENT", "Config", "kept_share"]

MAIN = Setting(stds=(0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 2.0), levels=(1e-2, 1e-4, 1e-8, 1e-16, 1e-32))


def _decayed(decay: float) -> Setting:
    """Return a setting with weight decay, measured at loss 0.1 and where decay ends training."""
    descent = Descent(weight_decay=decay)
    name = f"weight decay {decay:.0e}".replace("e-0", "e-")
    return Setting(name, levels=(0.1,), descent=descent, max_steps=1_500, to_the_end=True)


DECAYED = tuple(_decayed(decay) for decay in (1e-4, 1e-3, 1e-2))
OTHERS = (
    Setting("plain units", stds=(0.1, 0.5, 1.0, 1.5, 2.0, 4.0), plain=True),
    *(Setting(f"base {base:g}", base=base) for base in (100.0, 1e6)),
    *(Setting(f"width {width}", width=width) for width in (8, 16, 64, 128)),
    Setting("length 16 alone", descent=Descent(lengths=(16,))),
    Setting("lengths 10..32", descent=Descent(lengths=tuple(range(10, 33)))),
    Setting("weight decay 1e-6", descent=Descent(weight_decay=1e-6)),
    *DECAYED,
    Setting("Adam", stds=(0.01, 0.3, 1.0), descent=Descent("adam", 0.03), max_steps=6_000),
)
TOKENS = (
    TokenSetting("Adam", scales=(1.0, 2.0, 4.0)),
    TokenSetting("SGD", (1.0, 2.0, 4.0), optimizer="sgd", learning_rate=1.0, steps=1_500),
    *(TokenSetting(f"vocabulary {size}", vocabulary=size) for size in (8, 32)),
    TokenSetting("L2 1e-3", weight_decay=1e-3),
)


@dataclass(frozen=True)
class Config:
    """Settings of `selection`: `main` in full, `others` one change at a time.

    Twins are sought among the wrong offsets `twin_range`. Heads with tokens start with W_q and W_k
    scaled, in each of the settings `tokens`, and are compared at the training loss `token_level`.
    """

    n_seeds: int = 10
    offsets: tuple[int, ...] = OFFSETS
    main: Setting = MAIN
    others: tuple[Setting, ...] = OTHERS
    n_other_seeds: int = 5
    twin_range: tuple[int, int] = (16, 48)
    tokens: tuple[TokenSetting, ...] = TOKENS
    n_token_seeds: int = 4
    token_offsets: tuple[int, ...] = (2, 4, 8)
    token_level: float = 0.1
    token_lengths: tuple[int, ...] = (16, 48, 128)
    n_sequences: int = 1_000


def _work(config: Config) -> Iterator[tuple[Unit, Any]]:
    for setting in (config.main, *config.others):
        n_seeds = config.n_seeds if setting.name == DEFAULT else config.n_other_seeds
        for std in setting.stds:
            yield run_rows, RunConfig(setting, std, n_seeds, config.offsets)
    for offset in config.offsets:
        yield twin_rows, TwinConfig(offset, config.twin_range, 1e-4)
    seeds = tuple(range(config.n_token_seeds))
    measured = (config.token_level, config.token_lengths, config.n_sequences)
    for setting in config.tokens:
        for scale in setting.scales:
            training = setting.training(scale, seeds, config.token_offsets)
            yield token_rows, TokenConfig(setting.name, training, *measured)


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rows = [row for work_unit, unit_config in _work(config) for row in work_unit(unit_config)]
    rows = [row for row in rows if row.get("seed", 0) < max(config.n_seeds, config.n_token_seeds)]
    return rows, {"runs": _run_summary(rows), "tokens": _token_summary(rows)}


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
            | {"lowest_loss": min(r["loss"] for r in of_cell)}
            | {"highest_loss": max(r["loss"] for r in of_cell)}
            | {"equivariance_error": max(r["equivariance_error"] for r in of_cell)}
        )
    return summary


def _token_summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tokens = [row for row in rows if row["kind"] == "token"]
    summary = []
    for cell in dict.fromkeys((r["setting"], r["scale"], r["length"]) for r in tokens):
        of_cell = [r for r in tokens if (r["setting"], r["scale"], r["length"]) == cell]
        summary.append(
            dict(zip(("setting", "scale", "length"), cell, strict=True))
            | {"n_runs": len(of_cell), "n_reached": sum(r["reached"] for r in of_cell)}
            | {"accuracy": round(fmean(r["accuracy"] for r in of_cell), 6)}
            | {"worst": min(r["accuracy"] for r in of_cell)}
            | {"highest_loss": max(r["loss"] for r in of_cell)}
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
    others=DECAYED[1:2],
    n_other_seeds=2,
    tokens=(TokenSetting("Adam"), TokenSetting("vocabulary 8", (4.0,), vocabulary=8)),
    n_token_seeds=2,
    token_offsets=(2, 4),
)
"""Fewer seeds, offsets and scales; of the confounds, decay and vocabulary."""

EXPERIMENT = Experiment(
    name="selection",
    title="what training selects among heads that are all equivariant",
    module=__name__,
    profiles={"quick": QUICK, "paper": Config()},
    plan=_work,
    measure=_measure,
    plot=_plot,
)
