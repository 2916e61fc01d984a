r"""The report card of any positional encoding: train heads with it, measure them, say what it is.

One question decides the verdict first: are the logits of trained heads a function of the offset
alone? Then: do the heads fit their task inside the training range? The rest (accuracy by length,
where attention goes, kernel, alignment, dilution law) says what follows. Measures are ours.
"""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from lengthgen.attention import HeadConfig
from lengthgen.contract import check_encoding, load_class
from lengthgen.encoding_measures import (
    FIT,
    LENGTHS,
    TOLERANCE,
    TRAINED,
    MeasureConfig,
    dilution_error,
    length_rows,
    measure,
    measured_rows,
)
from lengthgen.encodings import ENCODINGS, HOOKS, encoding_class, has_hook
from lengthgen.results import one_thread, to_json, write_atomically
from lengthgen.training import TrainingConfig, default_steps, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ReportCard", "diagnose", "verdict_of"]

EXPLAINED = 0.05
"""The dilution law explains a decay if it is nowhere further off than this.

2,000 sequences have a standard error of at most 0.011, and the worst of some 40 cells is near 0.03.
"""


@dataclass(frozen=True)
class ReportCard:
    """What heads with one encoding learned, and what becomes of it beyond the training range.

    Args:
        encoding: name of the encoding or of its class.
        rows: one per seed and length: accuracy, the peak position of the mean attention, and the
            dilution law's prediction, `None` where it does not apply.
        equivariance_error: of `lengthgen.encoding_measures`; the largest over seeds.
        pinning_index: share of lengths beyond twice the training range at which attention peaks
            inside the training range, mean over seeds; `None` if no such length was tested.
        kernel: mean logit over token pairs and seeds by offset, centred.
        alignment: `wave_alignment` of each seed's kernel, mean over seeds.
        dilution_error: largest difference of predicted and measured accuracy, or `None`.
        verdict: `relative`, `absolute`, `not-offset-only` or `does-not-fit`.
        text: the same in words.
    """

    encoding: str
    rows: list[dict[str, Any]] = field(repr=False)
    equivariance_error: float
    pinning_index: float | None
    kernel: list[float] = field(repr=False)
    alignment: float | None
    dilution_error: float | None
    verdict: str
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text

    def to_bytes(self) -> bytes:
        """Return the card as JSON, without NaN."""
        return (json.dumps(to_json(self), indent=1, allow_nan=False) + "\n").encode()

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write `NAME.png`, one page, and `NAME.json` atomically; return their paths."""
        import matplotlib.pyplot as plt

        from lengthgen import figures

        picture = io.BytesIO()
        with figures.style():
            figure = self.plot()
            figure.savefig(picture, format="png", dpi=150)
            plt.close(figure)
        paths = folder / f"{self.encoding}.png", folder / f"{self.encoding}.json"
        write_atomically(paths[0], picture.getvalue())
        write_atomically(paths[1], self.to_bytes())
        return paths

    def plot(self) -> Figure:
        """Draw the card on one page: accuracy, where attention peaks, the kernel, the text."""
        from lengthgen import figures

        figure, grid = figures.panels(2, 2, height=2.8)
        color = figures.COLORS.get(self.encoding, "#009E73")
        lengths = sorted({row["length"] for row in self.rows})
        offset = self.rows[0]["offset"]
        self._accuracy(grid[0, 0], lengths, color)
        peaks, kernel, words = grid[0, 1], grid[1, 0], grid[1, 1]
        peaks.plot(lengths, [n - 1 - offset for n in lengths], "--", color="black", label="target")
        for curve in self._by_seed("peak"):
            peaks.plot(lengths, curve, color=color, alpha=0.5, linewidth=0.9)
        peaks.plot([], [], color=color, label="a seed")
        figures.log_lengths(peaks, lengths)
        peaks.set_yscale("symlog", base=2, linthresh=TRAINED)
        peaks.axhspan(0, TRAINED - 1, color="#888888", alpha=0.15, linewidth=0)
        peaks.set(title="peak of mean attention", xlabel="length (tokens)", ylabel="key position")
        peaks.legend(loc="upper left")
        kernel.plot(self.kernel, color=color)
        kernel.axvline(offset, color="black", alpha=0.6, linewidth=0.9, linestyle=":")
        kernel.set(title="kernel, target dotted", xlabel="offset (tokens)", ylabel="logit (nats)")
        words.set_axis_off()
        lines = [textwrap.fill(line, 52) for line in self.text.splitlines()]
        words.text(0, 1, "\n".join(lines), va="top", fontsize=8, transform=words.transAxes)
        return figure

    def _accuracy(self, axes: Any, lengths: list[int], color: str) -> None:
        from lengthgen import figures

        figures.seed_lines(axes, lengths, self._by_seed("accuracy"), color, "measured", marker="o")
        if self.rows[0]["predicted"] is not None:
            law = [fmean(column) for column in zip(*self._by_seed("predicted"), strict=True)]
            axes.plot(lengths, law, "--", color="black", label="dilution law", linewidth=1.2)
        figures.log_lengths(axes, lengths)
        axes.set_xlim(left=min(lengths) * 0.85)
        axes.set_ylim(-0.02, 1.03)
        figures.mark_training_range(axes, TRAINED)
        figures.mark_chance(axes)
        title = f"{self.encoding}: {self.verdict}"
        axes.set(title=title, xlabel="length (tokens)", ylabel="accuracy")
        axes.legend(loc="center right")

    def _by_seed(self, column: str) -> list[list[float | int]]:
        seeds = sorted({row["seed"] for row in self.rows})
        return [[row[column] for row in self.rows if row["seed"] == seed] for seed in seeds]


def diagnose(
    encoding: Any,
    offset: int = 2,
    *,
    n_seeds: int = 4,
    lengths: Sequence[int] = LENGTHS,
    n_sequences: int = 2_000,
    steps: int | None = None,
) -> ReportCard:
    """Train heads with an encoding, in the book's setting, and report on them.

    Args:
        encoding: a name, a class with any of the hooks, or `path/to/file.py:ClassName`.
        offset: the task.
        n_seeds: number of heads.
        lengths: test lengths, starting at the longest training length; those that the encoding
            does not reach are left out.
        n_sequences: test sequences per length.
        steps: training steps; the book's by default.

    Raises:
        ValueError: an unknown encoding; one that breaks the rules of `PositionalEncoding`, named
            with the hook and the shape expected; or a value out of range.
    """
    if isinstance(encoding, str) and ":" in encoding:
        encoding = load_class(encoding)
    if not isinstance(encoding, (str, type)):
        kind = type(encoding).__name__
        raise ValueError(f"diagnose takes a name or a class, not an instance of {kind}")
    lengths = tuple(sorted(set(lengths)))
    if not lengths or lengths[0] != TRAINED:
        raise ValueError(f"lengths={lengths} are not allowed: the first must be {TRAINED}")
    if n_seeds < 1:
        raise ValueError(f"n_seeds={n_seeds} is not allowed: it must be at least 1")
    cls = encoding_class(encoding)
    named = ENCODINGS.get(getattr(cls, "name", None)) is cls
    head = HeadConfig(cls.name if named else cls)
    check_encoding(head, offset, lengths)
    steps = _steps(head) if steps is None else steps
    config = MeasureConfig(
        TrainingConfig(head, tuple(range(n_seeds)), (offset,), steps=steps),
        (offset,),
        tuple(length for length in lengths if head.reach is None or length <= head.reach),
        n_sequences,
    )
    if named:
        measured = measured_rows(config)
    else:  # a cache cannot know what else the code of a reader's class depends on
        with one_thread():
            measured = measure(train(config.training)[0], config)
    return _card(cls.name if named else cls.__name__, config, measured)


def verdict_of(error: float, hooks: Iterable[str], fitted_share: float) -> str:
    """Return the verdict: structure first, then whether the heads fit.

    Example:
        >>> verdict_of(0.8, ["embed"], 1.0), verdict_of(1e-15, ["bias"], 0.0)
        ('absolute', 'does-not-fit')
    """
    if error > TOLERANCE:
        return "absolute" if list(hooks) == ["embed"] else "not-offset-only"
    return "relative" if fitted_share > 0.5 else "does-not-fit"


def _steps(head: HeadConfig) -> int:
    """Return the book's number of steps; random first positions need more of them."""
    n_starts = getattr(head.new_encoding(0), "n_starts", lambda length: 1)
    return default_steps("learned-random-offset" if n_starts(TRAINED) > 1 else head.encoding)


def _card(name: str, config: MeasureConfig, measured: list[dict[str, Any]]) -> ReportCard:
    rows = [row for head in measured for row in length_rows(name, head, config)]
    cls = encoding_class(config.training.head.encoding)
    hooks = [hook for hook in HOOKS if has_hook(cls, hook)]
    numbers = {
        "equivariance_error": float(f"{max(m['equivariance_error'] for m in measured):.4g}"),
        "pinning_index": _mean(m["pinning_index"] for m in measured),
        "alignment": _mean(m["alignment"] for m in measured),
        "dilution_error": dilution_error(rows),
    }
    fitted = [m["accuracy"][0] >= FIT for m in measured]
    verdict = verdict_of(numbers["equivariance_error"], hooks, fmean(fitted))
    kernels = torch.tensor([m["kernel"] for m in measured], dtype=torch.float64)
    kernel = [float(f"{value:.6g}") for value in kernels.mean(0).tolist()]
    text = _words(name, verdict, rows, hooks, sum(fitted), numbers)
    return ReportCard(
        encoding=name, rows=rows, kernel=kernel, verdict=verdict, text=text, **numbers
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 6) if known else None


def _words(
    name: str,
    verdict: str,
    rows: list[dict[str, Any]],
    hooks: list[str],
    n_fitted: int,
    numbers: dict[str, float | None],
) -> str:
    """Say in words what was found, a sentence or two per line."""
    offset, error = rows[0]["offset"], numbers["equivariance_error"]
    lengths = sorted({row["length"] for row in rows})
    mean = {n: fmean(r["accuracy"] for r in rows if r["length"] == n) for n in lengths}
    n_seeds = len({row["seed"] for row in rows})
    longest, three_times = lengths[-1], 3 * TRAINED
    lines = [
        f"{name}, offset {offset}: {verdict}.",
        f"Fit: {n_fitted} of {n_seeds} seeds answer at least {FIT:.0%} at length {TRAINED}.",
    ]
    how = "one offset at two query positions: logits differ by"
    if error <= TOLERANCE:
        lines.append(
            f"Logits depend on the offset alone ({how} at most {error:.1e} of the largest)."
        )
    else:
        lines.append(
            f"Logits depend on the position itself ({how} up to {error:.2g} of the largest), which "
            f"enters through {' and '.join(hooks)}."
        )
    told = [n for n in dict.fromkeys((TRAINED, three_times, longest)) if n in mean]
    parts = ", ".join(f"{mean[n]:.2f} at length {n}" for n in told)
    lines.append(f"Mean accuracy: {parts} (trained up to {TRAINED}).")
    beyond = [row for row in rows if row["length"] >= 2 * TRAINED]
    if beyond:
        on_target = fmean(row["peak"] == row["length"] - 1 - offset for row in beyond)
        lines.append(
            f"From length {beyond[0]['length']} on, mean attention peaks at the target in "
            f"{on_target:.0%} of seeds and lengths, inside the training range in "
            f"{numbers['pinning_index']:.0%}."
        )
    lines.append(_dilution_words(numbers["dilution_error"], error, "embed" in hooks))
    return "\n".join(lines)


def _dilution_words(off: float | None, error: float, embeds: bool) -> str:
    if off is None:
        why = "logits depend on the position" if error > TOLERANCE else "values carry position"
        return f"The dilution law does not apply: {why}."
    does = "accounts for" if off <= EXPLAINED else "does not account for"
    return (
        f"The dilution law {does} the accuracies at all lengths: it is off by at most {off:.3f}, "
        "with nothing fitted."
    )
