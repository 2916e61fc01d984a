"""`base`: one seed, offset 2: accuracy and mean attention by length, four encodings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lengthgen import figures
from lengthgen.evaluation import accuracy_rows, attention
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.heads import LENGTHS, N_SEQUENCES, accuracy_configs, wanted_rows
from lengthgen.results import Result, Unit
from lengthgen.task import TestSequences
from lengthgen.training import load_heads

__all__ = ["EXPERIMENT", "Config"]


@dataclass(frozen=True)
class Config:
    """Settings of `base`, on heads of `multiseed`; attention is kept at `picture_lengths`."""

    n_seeds: int = 1
    offset: int = 2
    encodings: tuple[str, ...] = ("rotary", "learned", "learned-random-offset", "none")
    lengths: tuple[int, ...] = LENGTHS
    picture_lengths: tuple[int, ...] = (16, 32, 64)
    n_sequences: int = N_SEQUENCES


def _plan(config: Config) -> Iterator[tuple[Unit, Any]]:
    for encoding in config.encodings:
        for accuracy in accuracy_configs(
            encoding, config.n_seeds, config.lengths, config.n_sequences
        ):
            yield accuracy_rows, accuracy


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return accuracy rows; the summary holds the mean attention of seed 0 at each length."""
    rows, pictures = [], {}
    for unit, accuracy in _plan(config):
        rows += wanted_rows(unit(accuracy), config.n_seeds, (config.offset,))
        if (0, config.offset) in (models := accuracy.training.models):
            stack = load_heads(accuracy.training).select([models.index((0, config.offset))])
            test = TestSequences(config.n_sequences, stack.config.vocabulary)
            pictures[stack.config.encoding] = {
                str(length): [round(w, 5) for w in _mean_attention(stack, test, length)]
                for length in config.picture_lengths
            }
    return rows, {"mean_attention": pictures}


def _mean_attention(stack, test: TestSequences, length: int) -> list[float]:
    return attention(stack, test.sequences(length)).mean(1)[0].tolist()


def _plot(result: Result) -> Figure:
    """Draw mean attention by position, a row per length and a column per encoding."""
    pictures = result.summary["mean_attention"]
    lengths = list(next(iter(pictures.values())))
    figure, grid = figures.panels(len(lengths), len(pictures), height=1.5, sharey=True)
    for column, (encoding, by_length) in zip(grid.T, pictures.items(), strict=True):
        for axes, length in zip(column, lengths, strict=True):
            weights = np.array(by_length[length])
            axes.bar(np.arange(len(weights)), weights, width=1.0, color=figures.COLORS[encoding])
            target = int(length) - 1 - result.config["offset"]
            axes.plot([target], [1.04], marker="v", color="black", clip_on=False, markersize=5)
            axes.set_ylim(0, 1)
            axes.set_xlim(-0.5, int(length) - 0.5)
            figures.mark_training_range(axes, 15.5)
        column[0].set_title(figures.LABELS[encoding].replace(", ", ",\n"), pad=12)
        column[-1].set_xlabel("key position")
    for axes, length in zip(grid[:, 0], lengths, strict=True):
        axes.set_ylabel(f"attention\nlength {length}")
    return figure


EXPERIMENT = Experiment(
    name="base",
    title="one seed: accuracy and attention by length",
    module=__name__,
    profiles={"quick": Config(), "paper": Config()},
    plan=_plan,
    measure=_measure,
    plot=_plot,
)
