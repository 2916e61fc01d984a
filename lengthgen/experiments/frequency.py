"""`frequency`: the carrier, predicted and measured: spectrum, rank, phases, with causal tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from lengthgen import figures
from lengthgen.attention import HeadConfig
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.frequency_position import (
    MAIN,
    UNIFORM_LOSS,
    CarrierConfig,
    PositionConfig,
    Spectrum,
    carrier_rows,
    early_rows,
    late_rows,
)
from lengthgen.experiments.frequency_tokens import TokenConfig, causal_rows, token_rows
from lengthgen.experiments.heads import OFFSETS, head_stacks
from lengthgen.interventions import INTERVENTIONS
from lengthgen.results import Result, Unit
from lengthgen.training import TrainingConfig

__all__ = ["EXPERIMENT", "UNIFORM_LOSS", "Config", "Spectrum"]

OTHERS = (
    *(Spectrum(base=base) for base in (10.0, 100.0, 1e3, 1e5, 1e6)),
    *(Spectrum(width=width) for width in (8, 16, 64, 128)),
)


@dataclass(frozen=True)
class Config:
    """Settings of `frequency`; `others` are the spectra beside the main one.

    `early_stds` and `late_std` are initial scales in the unit of `position_head.initialize`;
    `early_shares` are training losses as shares of the loss of uniform attention. Heads of other
    spectra are trained for a few seeds and offsets only.
    """

    n_seeds: int = 20
    offsets: tuple[int, ...] = OFFSETS
    early_stds: tuple[float, ...] = (1e-5, 0.04, 0.1)
    early_shares: tuple[float, ...] = (0.95, 0.8)
    late_std: float = 0.04
    late_steps: tuple[int, ...] = (0, 10, 20, 30, 50, 80, 150, 300, 600, 1_000, 3_000)
    others: tuple[Spectrum, ...] = OTHERS
    n_other_seeds: int = 4
    other_offsets: tuple[int, ...] = (1, 2, 4, 8)
    lengths: tuple[int, ...] = (16, 48, 128)
    n_sequences: int = 1_000


def _training(config: Config, spectrum: Spectrum) -> TrainingConfig:
    head = HeadConfig("rotary", {"base": spectrum.base}, d_head=spectrum.width)
    return TrainingConfig(head, tuple(range(config.n_other_seeds)), config.other_offsets)


def _work(config: Config) -> Iterator[tuple[Unit, Any]]:
    everything = (config.n_seeds, config.offsets)
    yield carrier_rows, CarrierConfig(MAIN, config.offsets, 200_000)
    for std in config.early_stds:
        yield early_rows, PositionConfig(*everything, std, shares=config.early_shares)
    early = config.early_shares[:1]
    yield (
        late_rows,
        PositionConfig(*everything, config.late_std, shares=early, steps=config.late_steps),
    )
    for training in head_stacks("rotary", config.n_seeds):
        token = TokenConfig(
            training, MAIN, tuple(INTERVENTIONS), config.lengths, config.n_sequences
        )
        yield token_rows, token
        yield causal_rows, token
    for spectrum in config.others:
        few = (config.n_other_seeds, config.other_offsets)
        yield carrier_rows, CarrierConfig(spectrum, config.other_offsets, 20_000)
        yield (
            late_rows,
            PositionConfig(*few, config.late_std, spectrum, early, config.late_steps[-1:]),
        )
        token = TokenConfig(
            _training(config, spectrum), spectrum, ("none",), config.lengths, config.n_sequences
        )
        yield token_rows, token
        yield causal_rows, token


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    offsets = {*config.offsets, *config.other_offsets}
    rows = [
        row
        for work_unit, unit_config in _work(config)
        for row in work_unit(unit_config)
        if row.get("seed", 0) < config.n_seeds and row["offset"] in offsets
    ]
    return rows, {"token": _token_summary(rows), "causal": _causal_summary(rows)}


def _is_main(row: dict[str, Any]) -> bool:
    return (row["base"], row["width"]) == (MAIN.base, MAIN.width)


def _token_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median and range of every measure over main heads, before and after training."""
    summary: dict[str, Any] = {}
    for trained, name in ((False, "untrained"), (True, "trained")):
        heads = [r for r in rows if r["kind"] == "token" and r["trained"] == trained]
        heads = [r for r in heads if _is_main(r)]
        summary[name] = {
            measure: {
                "median": median(r[measure] for r in heads),
                "least": min(r[measure] for r in heads),
                "most": max(r[measure] for r in heads),
            }
            for measure in heads[0]
            if isinstance(heads[0][measure], (int, float))
            and measure not in ("base", "width", "trained", "offset", "seed")
        }
    return summary


def _causal_summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    summary: dict[str, dict[str, float]] = {}
    causal = [row for row in rows if row["kind"] == "causal" and _is_main(row)]
    for name in dict.fromkeys(row["intervention"] for row in causal):
        of_name = [row for row in causal if row["intervention"] == name]
        summary[name] = {}
        for length in dict.fromkeys(row["length"] for row in of_name):
            values = [row["accuracy"] for row in of_name if row["length"] == length]
            summary[name][f"mean_{length}"] = round(sum(values) / len(values), 6)
            summary[name][f"worst_{length}"] = min(values)
    return summary


def _plot(result: Result) -> Figure:
    """Draw a position-only head's way from early to late, and what interventions leave."""
    figure, ((left, right),) = figures.panels(1, 2, height=3.6)
    late = [row for row in result.rows if row["kind"] == "late" and _is_main(row)]
    steps = sorted({row["step"] for row in late})
    models = sorted({(row["offset"], row["seed"]) for row in late})
    table = {(row["offset"], row["seed"], row["step"]): row for row in late}
    lines = (
        ("early_correlation", "early carrier", figures.COLORS["learned-random-offset"]),
        ("correlation", "late carrier", figures.COLORS["rotary"]),
    )
    for measure, label, color in lines:
        curves = [[table[*model, step][measure] for step in steps] for model in models]
        figures.seed_lines(left, steps, curves, color, label, marker="o")
    left.set_xscale("symlog", linthresh=10)
    left.set_xlabel("steps on the log loss")
    left.set_ylabel("correlation with the head's kernel")
    left.legend(loc="lower center")
    causal = result.summary["causal"]
    names = list(causal)[::-1]
    longest = max(result.config["lengths"][:2])
    for shade, length in (("#888888", result.config["lengths"][0]), ("black", longest)):
        values = [causal[name][f"mean_{length}"] for name in names]
        right.plot(values, range(len(names)), "o", color=shade, label=f"length {length}")
    right.set_yticks(range(len(names)), names, fontsize=8)
    right.set_xlim(-0.02, 1.03)
    right.set_xlabel("mean accuracy")
    right.legend(loc="upper left", fontsize=8)
    return figure


QUICK = Config(
    n_seeds=4,
    early_stds=(0.04,),
    late_steps=(0, 10, 30, 80, 300, 1_000),
    others=(Spectrum(base=100.0),),
    n_other_seeds=2,
    other_offsets=(2, 8),
)
"""Fewer seeds, steps and spectra."""

EXPERIMENT = Experiment(
    name="frequency",
    title="the carrier: predictions for position-only heads, measures and causal tests of all",
    module=__name__,
    profiles={"quick": QUICK, "paper": Config()},
    plan=_work,
    measure=_measure,
    plot=_plot,
)
