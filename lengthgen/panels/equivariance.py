"""Chapter 2's panel: logits before and after a joint shift of all positions."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets
import torch

from lengthgen import figures
from lengthgen.attention import HeadStack
from lengthgen.equivariance import shift_effect
from lengthgen.panels import heads
from lengthgen.panels.base import WIDE, Drawing, Panel, Report
from lengthgen.task import TestSequences

__all__ = ["equivariance_panel"]


def _equivariance(report: Report, shift: int, **values: Any) -> Drawing:
    _, stack = heads.trained(report, **values)
    span = values["training_length"]
    figure, grid = figures.panels(1, 3, height=2.9)
    maps = [_mean_logits(stack, first, span) for first in (0, shift)]
    limit = float(max(m.abs().max() for m in maps))
    images = [*maps, maps[1] - maps[0]]
    titles = ("positions from 0", f"positions from {shift}", "difference")
    for axes, image, title in zip(grid[0], images, titles, strict=True):
        drawn = axes.imshow(image.numpy(), vmin=-limit, vmax=limit, cmap="RdBu_r")
        axes.set_title(title)
        axes.set_xlabel("key")
        axes.grid(False)
    grid[0, 0].set_ylabel("query")
    figure.colorbar(drawn, ax=grid[0], label="mean logit", shrink=0.8)
    tokens = TestSequences(heads.N_SEQUENCES).sequences(span)
    effect = {k: float(v.mean()) for k, v in shift_effect(stack, tokens, shift).items()}
    return figure, (
        f"{span} tokens shifted by {shift}, mean of {stack.n_models} heads: logits change by "
        f"{effect['logit_change']:.2g} of the largest, {effect['answers_changed']:.0%} of answers "
        "change"
    )


@torch.no_grad()
def _mean_logits(stack: HeadStack, first: int, span: int) -> torch.Tensor:
    """Return seed 0's logits, mean over token pairs, of causal pairs of positions."""
    positions = torch.arange(first, first + span)
    rows = [
        stack.select([0]).tables(positions[i : i + 1], positions).logit.mean((0, 1, 2))
        for i in range(span)
    ]
    return torch.stack(rows).tril()


def equivariance_panel() -> Panel:
    """Return chapter 2's panel: train heads, shift all positions and compare logits."""
    controls = heads.controls("rotary", "learned")
    controls["shift"] = widgets.IntSlider(100, 1, 990, description="shift (tokens)", style=WIDE)
    return Panel(_equivariance, controls, "02_equivariance.ipynb")
