"""Chapter 3's panel: where heads attend as the length grows."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets
import torch

from lengthgen import figures
from lengthgen.evaluation import attention
from lengthgen.panels import heads
from lengthgen.panels.base import Drawing, Panel, Report
from lengthgen.pinning import peak
from lengthgen.task import TestSequences

__all__ = ["pinning_panel"]


def _pinning(report: Report, mixed_lengths: bool, **values: Any) -> Drawing:
    longest = values["training_length"]
    shortest = heads.SHORTEST if mixed_lengths else longest
    _, stack = heads.trained(report, **values, shortest=shortest)
    lengths = (longest, 2 * longest, 4 * longest)
    figure, grid = figures.panels(1, len(lengths), height=2.6, sharey=True)
    test, peaks = TestSequences(heads.N_SEQUENCES), []
    for axes, length in zip(grid[0], lengths, strict=True):
        weights = attention(stack, test.sequences(length))
        peaks.append(peak(weights))
        figures.seed_lines(axes, range(length), weights.mean(1), figures.COLORS[values["encoding"]])
        axes.axvline(length - 1 - values["offset"], color="black", linestyle="--", linewidth=0.9)
        axes.set_xlim(0, length - 1)
        figures.mark_training_range(axes, longest - 0.5)
        axes.set_title(f"length {length}")
        axes.set_xlabel("key position")
    grid[0, 0].set_ylabel("mean attention")
    inside = torch.stack(peaks[1:], dim=1) < longest
    return figure, (
        f"at lengths {lengths[1]} and {lengths[2]} the peak of attention lies inside the training "
        f"range in {inside.float().mean():.0%} of cases"
    )


def pinning_panel() -> Panel:
    """Return chapter 3's panel: train heads and see where they attend as the length grows."""
    controls = heads.controls("learned", "rotary")
    # Training starts at 10 tokens: with 10 as the longest length there would be nothing to mix.
    controls["training_length"].min = heads.SHORTEST + 1
    controls["mixed_lengths"] = widgets.Checkbox(True, description="mixed training lengths")
    return Panel(_pinning, controls, "03_absolute_pinning.ipynb")
