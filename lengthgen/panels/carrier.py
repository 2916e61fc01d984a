"""Chapter 4's panel: position-only heads from any scale to any training loss."""

from __future__ import annotations

import math

import ipywidgets as widgets
import torch
from torch import Tensor

from lengthgen import carrier, figures
from lengthgen.descent import Descent, descend
from lengthgen.encodings import rotary_frequencies
from lengthgen.late_carrier import max_margin
from lengthgen.panels.base import WIDE, Drawing, Panel, Report
from lengthgen.position_head import PositionHead, initialize, keeps_argmax, kernel

__all__ = ["carrier_panel"]

LIMIT = 1_024
STEPS = 1_500


def _carrier_heads(
    report: Report, offset: Tensor, seeds: int, std: float, level: float
) -> tuple[PositionHead, Tensor]:
    """Train position-only heads, each until it is at or below a loss; return which got there."""
    head = initialize(range(seeds), std, rotary_frequencies(32))
    query, key, reached = head.query, head.key, torch.zeros(seeds, dtype=torch.bool)
    for step, (now, log_value) in enumerate(descend(head, offset, Descent())):
        query = torch.where(reached[:, None], query, now.query)
        key = torch.where(reached[:, None], key, now.key)
        reached = reached | (log_value <= math.log(level))
        report(step, STEPS, None, log_value.exp()[:, None])
        if step == STEPS or reached.all():
            report(STEPS, STEPS, None, log_value.exp()[:, None])
            break
    return PositionHead(query, key, head.frequencies), reached


def _carrier(
    report: Report, offset: int, initial_scale: float, training_loss: float, seeds: int
) -> Drawing:
    target = torch.full((seeds,), offset)
    head, reached = _carrier_heads(report, target, seeds, initial_scale, training_loss)
    best = max_margin(head.frequencies, offset)
    figure, ((left, right),) = figures.panels(1, 2, height=3.0, width_ratios=(2, 1))
    for coefficients, color, label in (
        (head.coefficients, figures.COLORS["rotary"], "trained"),
        (best.coefficients[None], "black", "max-margin"),
    ):
        values = kernel(coefficients, head.frequencies, torch.arange(64))
        values = values - values.mean(-1, keepdim=True)
        values = values / values.abs().amax(-1, keepdim=True)
        figures.seed_lines(left, range(64), values, color, label)
        shares = carrier.spectrum(coefficients)
        figures.seed_lines(right, range(1, 17), shares, color, label)
    left.axvline(offset, color="black", linestyle=":", linewidth=0.9)
    left.set_xlim(0, 63)
    figures.mark_training_range(left, 15.5)
    left.set_xlabel("offset (tokens)")
    left.set_ylabel("kernel / its maximum")
    left.set_title("kernel")
    right.set_title("spectrum")
    right.legend()
    right.set_xlabel("frequency (1 is the fastest)")
    right.set_ylabel("share of amplitude")
    kept = keeps_argmax(head, target, LIMIT)
    aligned = carrier.alignment(head.coefficients, head.frequencies, target).mean()
    return figure, (
        f"{int(reached.sum())} of {seeds} heads reach loss {training_loss:g} within {STEPS:,} "
        f"steps; {int(kept.sum())} keep their argmax at length {LIMIT:,}; "
        f"mean alignment {aligned:.2f}"
    )


def carrier_panel() -> Panel:
    """Return chapter 4's panel: train position-only heads from any scale to any loss."""
    controls = {
        "offset": widgets.IntSlider(4, 1, 8, description="offset (tokens)", style=WIDE),
        "initial_scale": widgets.SelectionSlider(
            options=[0.01, 0.04, 0.1, 0.3, 0.6, 1.0, 2.0],
            value=1.0,
            description="initial scale",
            style=WIDE,
        ),
        "training_loss": widgets.SelectionSlider(
            options=[1e-1, 1e-2, 1e-4, 1e-8, 1e-16, 1e-32],
            value=1e-4,
            description="training loss",
            style=WIDE,
        ),
        "seeds": widgets.IntSlider(8, 1, 16, description="seeds", style=WIDE),
    }
    return Panel(_carrier, controls, "04_carrier_kernel.ipynb")
