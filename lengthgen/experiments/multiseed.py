"""`multiseed`: accuracy by length for every encoding, offset and seed; trains the book's heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from lengthgen import figures
from lengthgen.evaluation import FIT, accuracy_rows
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.heads import LENGTHS, N_SEQUENCES, OFFSETS, accuracy_configs, wanted_rows
from lengthgen.results import Result, Unit

__all__ = ["EXPERIMENT", "Config"]


@dataclass(frozen=True)
class Config:
    """Settings of `multiseed`; an encoding with a table is tested as far as its table reaches.

    40 seeds: with 20, the standard error of the mean at offset 1 and length 48, where single
    rotary heads fall to 0.6, is as large as its distance from the criterion.
    """

    n_seeds: int = 40
    offsets: tuple[int, ...] = OFFSETS
    encodings: tuple[str, ...] = ("rotary", "learned", "learned-random-offset")
    lengths: tuple[int, ...] = LENGTHS
    n_sequences: int = N_SEQUENCES


def _plan(config: Config) -> Iterator[tuple[Unit, Any]]:
    # The accuracy unit trains its heads if they are missing: one unit, one process.
    for encoding in config.encodings:
        for accuracy in accuracy_configs(
            encoding, config.n_seeds, config.lengths, config.n_sequences
        ):
            yield accuracy_rows, accuracy


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    measured = [row for unit, accuracy in _plan(config) for row in unit(accuracy)]
    rows = wanted_rows(measured, config.n_seeds, config.offsets)
    summary: dict[str, Any] = {}
    for encoding in config.encodings:
        fitted = [row for row in rows if row["encoding"] == encoding and row["length"] == 16]
        failures = [
            {"offset": row["offset"], "seed": row["seed"], "accuracy": row["accuracy"]}
            for row in fitted
            if row["accuracy"] < FIT
        ]
        summary[encoding] = {
            "n_models": len(fitted),
            "failures_to_fit": failures,
            "mean_accuracy": {
                str(length): round(
                    fmean(
                        row["accuracy"]
                        for row in rows
                        if row["encoding"] == encoding and row["length"] == length
                    ),
                    6,
                )
                for length in sorted({r["length"] for r in rows if r["encoding"] == encoding})
            },
        }
    return rows, summary


def _plot(result: Result) -> Figure:
    return figures.accuracy_by_length(result.rows, by_offset=True)


EXPERIMENT = Experiment(
    name="multiseed",
    title="accuracy by length: every encoding, offset and seed",
    module=__name__,
    profiles={"quick": Config(n_seeds=4), "paper": Config()},
    plan=_plan,
    measure=_measure,
    plot=_plot,
)
