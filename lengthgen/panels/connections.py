"""Chapter 9's panel: train a linear recurrent model from any scale and listen beyond the range."""

from __future__ import annotations

import ipywidgets as widgets
import torch

from lengthgen import figures
from lengthgen.panels.base import WIDE, Drawing, Panel, Report
from lengthgen.recurrence import descend, initialize, response

__all__ = ["connections_panel"]

SPAN = 48


def _recurrence(report: Report, scale: float, offset: int, width: int, seeds: int) -> Drawing:
    start = initialize(range(seeds), width, scale)
    (caught,) = descend(start, torch.full((seeds,), offset), [1e-4], max_steps=600)
    values = response(caught.model, SPAN)
    figure, ((left, right),) = figures.panels(1, 2, height=3.0, width_ratios=(2, 1))
    figures.seed_lines(left, range(SPAN), values.clamp(-2, 2), figures.COLORS["rotary"], marker=".")
    left.set_xlim(-0.5, SPAN - 0.5)
    left.set_ylim(-2.05, 2.05)
    figures.mark_training_range(left, 15.5)
    left.set_xlabel("offset (tokens)")
    left.set_ylabel("response h, cut at 2")
    circle = torch.linspace(0, 2 * torch.pi, 200)
    right.plot(circle.cos(), circle.sin(), color="black", linewidth=0.9, linestyle=":")
    right.plot(*_points(caught.model.eigenvalues), ".", color=figures.COLORS["learned"])
    right.set_aspect("equal")
    right.set_xlabel("eigenvalues, real part")
    right.set_ylabel("imaginary part")
    tail = values[:, 16:].abs().amax(-1).median()
    return figure, (
        f"{int(caught.reached.sum())} of {seeds} models fit to loss 1e-4; median of the largest "
        f"response at offsets 16 to {SPAN - 1}: {tail:.0e}"
    )


def _points(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return values.real.flatten(), values.imag.flatten()


def connections_panel() -> Panel:
    """Return chapter 9's panel: the initial scale decides what lies beyond the range."""
    controls = {
        "scale": widgets.SelectionSlider(
            options=[0.03, 0.1, 0.3, 0.6, 1.0, 1.25],
            value=1.0,
            description="initial scale",
            style=WIDE,
        ),
        "offset": widgets.IntSlider(2, 1, 4, description="offset (tokens)", style=WIDE),
        "width": widgets.IntSlider(16, 2, 24, description="hidden states", style=WIDE),
        "seeds": widgets.IntSlider(6, 1, 12, description="seeds", style=WIDE),
    }
    return Panel(_recurrence, controls, "09_connections.ipynb")
