"""Chapter 6's panel: the linear head's kernel and accuracy, early and late, in any band."""

from __future__ import annotations

import ipywidgets as widgets
import torch

from lengthgen import figures, linear
from lengthgen.experiments.linear_limit import sampled
from lengthgen.panels.base import WIDE, Drawing, Panel, Report

__all__ = ["linear_panel"]

LENGTHS = (16, 20, 24, 32, 40, 48, 56, 64)


def _linear(report: Report, top: float, offset: int, log10_steps: float) -> Drawing:
    target = torch.tensor([offset])
    frequencies, reach = linear.scaled_midpoints(16, top), torch.arange(LENGTHS[-1])
    waves = linear.design_matrix(frequencies, reach)
    design, metric = waves[:16], linear.loss_metric()
    wanted = linear.impulse(target, 16)
    step_size = 0.5 * linear.largest_step(design, metric)
    steps = torch.tensor([round(10**log10_steps)])
    walked = linear.descent_closed_form(design, wanted, metric, step_size, steps)[0]
    loss = float(linear.squared_loss(walked, design, wanted, metric))
    kernels = {
        f"after {int(steps):,} steps": (walked, figures.COLORS["rotary"]),
        "limit": (linear.minimum_norm(design, wanted), figures.COLORS["learned"]),
    }
    figure, ((left, right),) = figures.panels(1, 2, height=2.9)
    at_48 = []
    for label, (theta, color) in kernels.items():
        kernel = theta @ waves.T
        accuracies = [float(sampled(kernel[:, :n], [offset], 2_000)) for n in LENGTHS]
        at_48.append(accuracies[LENGTHS.index(48)])
        left.plot(reach[:48], kernel[0, :48], ".-", color=color, label=label, linewidth=1)
        right.plot(LENGTHS, accuracies, "o-", color=color)
    left.set_xlim(-0.5, 47.5)
    figures.mark_training_range(left, 15.5)
    left.set_xlabel("offset (tokens)")
    left.set_ylabel("kernel w")
    left.legend(loc="lower left")
    figures.mark_chance(right)
    right.set_ylim(-0.02, 1.03)
    right.set_xlabel("length (tokens)")
    right.set_ylabel("accuracy")
    return figure, (
        f"loss {loss:.1e} after {int(steps):,} steps: accuracy {at_48[0]:.2f} at length 48; "
        f"in the limit {at_48[1]:.2f}"
    )


def linear_panel() -> Panel:
    """Return chapter 6's panel: widen the band, stop descent early, and see the kernel."""
    controls = {
        "top": widgets.FloatSlider(
            0.8, min=0.5, max=1.0, step=0.05, description="top frequency / pi", style=WIDE
        ),
        "offset": widgets.IntSlider(2, 1, 8, description="offset (tokens)", style=WIDE),
        "log10_steps": widgets.FloatSlider(
            1.0, min=0.0, max=6.0, step=0.5, description="log10 of steps", style=WIDE
        ),
    }
    return Panel(_linear, controls, "06_linear_control.ipynb")
