"""One look for every picture: colours, sizes and the plots that several places share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = [
    "COLORS",
    "LABELS",
    "MARKERS",
    "accuracy_by_length",
    "log_lengths",
    "mark_chance",
    "mark_training_range",
    "panels",
    "seed_lines",
    "style",
]

ROTARY, BIAS = "#0072B2", "#00805A"

LOOKS = {
    "none": ("no encoding", "#777777", "x"),
    "learned": ("learned absolute", "#D55E00", "s"),
    "learned-random-offset": ("learned, random starts", "#E69F00", "^"),
    "sinusoidal": ("sinusoidal", "#CC79A7", "p"),
    "rotary": ("rotary", ROTARY, "o"),
    "rotary-interpolated": ("rotary, interpolated", ROTARY, "<"),
    "rotary-ntk": ("rotary, NTK-aware", ROTARY, ">"),
    "rotary-yarn": ("rotary, YaRN", ROTARY, "*"),
    "xpos": ("xPos", ROTARY, "d"),
    "alibi": ("ALiBi", BIAS, "v"),
    "t5": ("T5 buckets", BIAS, "P"),
    "clipped-relative": ("clipped relative", BIAS, "h"),
    "kerple": ("KERPLE", BIAS, "X"),
    "fire": ("FIRE", BIAS, "H"),
}
"""Label, colour and marker of every encoding.

One colour everywhere, shared by encodings that act alike; distinct to colour-blind readers, and in
lightness. Those of one colour differ by their markers.
"""

LABELS, COLORS, MARKERS = ({name: look[part] for name, look in LOOKS.items()} for part in range(3))

PAGE_WIDTH = 7.2
"""Width of a full-width picture, in inches."""


SETTINGS = {
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.6,
    "grid.alpha": 0.4,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    "svg.fonttype": "path",
    "svg.hashsalt": "lengthgen",
    "image.cmap": "cividis",
}
"""Matplotlib's settings for every picture of the book.

Black, white, Matplotlib's own greys and the colours of the encodings follow the site's light and
dark theme; other colours must be readable on both.
"""


@contextmanager
def style() -> Iterator[None]:
    """Draw in the book's look."""
    with plt.rc_context(SETTINGS):
        yield


def panels(
    rows: int, columns: int, height: float = 2.4, width: float = PAGE_WIDTH, **options: Any
) -> tuple[Figure, np.ndarray]:
    """Return a figure with a grid of axes, always as a two-dimensional array.

    Args:
        rows: number of rows.
        columns: number of columns.
        height: height of a row, in inches.
        width: width of the figure, in inches.
        options: for `matplotlib.pyplot.subplots`.
    """
    return plt.subplots(rows, columns, figsize=(width, height * rows), squeeze=False, **options)


def seed_lines(
    axes: Axes,
    x: Sequence[float | int],
    curves: Any,
    color: str,
    label: str | None = None,
    **mean: Any,
) -> None:
    """Draw one thin line per seed and their mean as a thick one.

    Args:
        axes: where.
        x: shared abscissa.
        curves: (seeds, x) values.
        color: of all lines.
        label: of the mean.
        mean: options of the mean's line.
    """
    curves = np.asarray(curves, dtype=float)
    for curve in curves:
        axes.plot(x, curve, color=color, linewidth=0.6, alpha=0.3)
    axes.plot(x, curves.mean(0), color=color, label=label, **mean)


def mark_chance(axes: Axes, vocabulary: int = 16) -> None:
    """Draw the accuracy of guessing, and name it to the right of the last panel of a row."""
    axes.axhline(1 / vocabulary, color="black", alpha=0.6, linewidth=0.9, linestyle=":")
    row = axes.get_subplotspec().rowspan
    for other in axes.get_shared_y_axes().get_siblings(axes):
        if other.get_subplotspec().rowspan == row:
            for text in [text for text in other.texts if text.get_text() == "chance"]:
                text.remove()
    axes.annotate(
        "chance",
        (1, 1 / vocabulary),
        xycoords=("axes fraction", "data"),
        xytext=(3, 0),  # outside, where no curve crosses it
        textcoords="offset points",
        va="center",
        fontsize=8,
        alpha=0.6,
    )


def log_lengths(axes: Axes, lengths: Sequence[int]) -> None:
    """Put lengths on a logarithmic axis, with plain numbers at every other power of two."""
    axes.set_xscale("log", base=2)
    first, last = min(lengths).bit_length() - 1, max(lengths).bit_length()
    ticks = [2**power for power in range(first, last + 1, 2)]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()


def mark_training_range(axes: Axes, longest: float | int) -> None:
    """Shade the lengths (or positions) seen in training."""
    axes.axvspan(axes.get_xlim()[0], longest, color="#888888", alpha=0.15, linewidth=0)


def accuracy_by_length(
    rows: Iterable[dict[str, Any]], by_offset: bool = False, longest_trained: int = 16
) -> Figure:
    """Draw accuracy against length, a colour per encoding, thin lines per seed (and offset).

    Args:
        rows: results with encoding, offset, seed, length and accuracy.
        by_offset: one panel per offset instead of one for all.
        longest_trained: longest training length, in tokens.
    """
    curves: dict[Any, dict[str, dict[Any, dict[int, float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    for row in rows:
        panel = row["offset"] if by_offset else "all"
        model = (row["seed"], row["offset"])
        curves[panel][row["encoding"]][model][row["length"]] = row["accuracy"]
    n_columns = min(len(curves), 4)
    n_rows = -(-len(curves) // n_columns)
    figure, grid = panels(
        n_rows, n_columns, height=2.2 if by_offset else 3.2, sharex=True, sharey=True
    )
    for axes, (panel, encodings) in zip(grid.flat, sorted(curves.items()), strict=False):
        for encoding, models in encodings.items():
            lengths = sorted(next(iter(models.values())))
            values = [[model[length] for length in lengths] for model in models.values()]
            options = {"marker": MARKERS.get(encoding, "D")}
            label = LABELS.get(encoding, encoding)
            seed_lines(axes, lengths, values, COLORS.get(encoding, "black"), label, **options)
        axes.set_ylim(-0.02, 1.03)
        mark_chance(axes)
        if by_offset:
            axes.set_title(f"offset {panel}")
    for axes in grid.flat[len(curves) :]:
        axes.set_axis_off()
    tested = {n for e in curves.values() for s in e.values() for m in s.values() for n in m}
    for axes in list(grid.flat)[: len(curves)]:
        log_lengths(axes, sorted(tested))
        axes.set_xlim(left=min(*tested, longest_trained) * 0.85)
        mark_training_range(axes, longest_trained)
    for axes in grid[-1]:
        axes.set_xlabel("length (tokens)")
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure
