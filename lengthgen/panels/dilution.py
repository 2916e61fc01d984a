"""Chapter 5's panel: the dilution law follows whatever is done to the logits."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets
import torch

from lengthgen import dilution, figures
from lengthgen.panels import heads
from lengthgen.panels.base import WIDE, Drawing, Panel, Report
from lengthgen.task import TestSequences

__all__ = ["dilution_panel"]

LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def _dilution(report: Report, scale: float, n_aliases: int, **values: Any) -> Drawing:
    _, stack = heads.trained(report, "rotary", **values)
    offsets, lengths = [values["offset"]] * stack.n_models, list(LENGTHS)
    logits = scale * dilution.offset_logits(stack, max(lengths))
    readouts = dilution.token_readouts(stack)
    test = TestSequences(2_000)
    measured = dilution.measure(logits, readouts, offsets, lengths, test).accuracy
    models = [dilution.mass_model(one, offsets[0], lengths, n_aliases) for one in logits]
    draws = dilution.Draws(16_000, n_aliases=n_aliases, seed=1_000)
    law = dilution.predicted_accuracy(torch.stack(models), readouts, draws)
    figure, grid = figures.panels(1, 1, height=3.2)
    axes = grid[0, 0]
    for seed in range(stack.n_models):
        named = {"label": "law"} if seed == 0 else {}
        axes.plot(lengths, law[seed], color=figures.COLORS["rotary"], linewidth=1.2, **named)
        named = {"label": f"{test.n_sequences:,} sequences"} if seed == 0 else {}
        axes.plot(lengths, measured[seed], "o", color="black", markersize=3, **named)
    axes.set_xscale("log", base=2)
    axes.set_ylim(-0.02, 1.03)
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel("accuracy")
    figures.mark_chance(axes)
    figures.mark_training_range(axes, values["training_length"])
    axes.legend(loc="lower left")
    return figure, (
        f"largest difference between law and measurement {(law - measured).abs().max():.3f}; "
        f"mean accuracy {measured[:, -1].mean():.2f} at length {lengths[-1]}"
    )


def dilution_panel() -> Panel:
    """Return chapter 5's panel: train rotary heads, change their logits, and see the law follow."""
    controls = heads.controls("rotary")
    del controls["encoding"]
    controls["scale"] = widgets.FloatSlider(
        1.0, min=0.5, max=2.0, step=0.1, description="logits times", style=WIDE
    )
    controls["n_aliases"] = widgets.IntSlider(16, 0, 32, description="exact aliases", style=WIDE)
    return Panel(_dilution, controls, "05_dilution_law.ipynb")
