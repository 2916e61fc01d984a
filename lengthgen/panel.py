"""Live panels: with a kernel they retrain and redraw, without one they show their last picture."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lengthgen import carrier, dilution, figures, linear, pinning
from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.descent import Descent, descend
from lengthgen.encodings import ENCODINGS, rotary_frequencies
from lengthgen.equivariance import shift_effect
from lengthgen.evaluation import accuracy, attention
from lengthgen.late_carrier import max_margin
from lengthgen.position_head import PositionHead, initialize, keeps_argmax, kernel
from lengthgen.readout import sampled_accuracy
from lengthgen.results import one_thread
from lengthgen.task import TestSequences
from lengthgen.training import TrainingConfig, train

__all__ = [
    "Panel",
    "carrier_panel",
    "dilution_panel",
    "equivariance_panel",
    "linear_panel",
    "pinning_panel",
    "task_panel",
]

Report = Callable[[int, int, HeadStack, torch.Tensor], None]
Drawing = tuple[Figure, str]
"""A picture and the words that say the same."""

STEPS = 500
LENGTHS = (16, 24, 32, 48, 64, 96, 128, 256)
N_SEQUENCES = 500


class Panel(widgets.VBox):
    """Controls, a button that trains, a progress bar and a picture.

    Args:
        compute: called as `compute(report, **values)`; returns a figure and a text alternative.
        controls: ipywidgets by the name of the value they set.
        notebook: the chapter's file name, for the line under the static picture.
    """

    def __init__(
        self,
        compute: Callable[..., Drawing],
        controls: dict[str, widgets.Widget],
        notebook: str,
    ) -> None:
        self._compute, self._notebook = compute, notebook
        self.controls = controls
        self.button = widgets.Button(description="Train and draw", button_style="primary")
        self.bar = widgets.IntProgress(min=0, max=1, layout={"width": "12rem"})
        self.status = widgets.Label()
        self.picture = widgets.HTML()
        self.button.on_click(lambda _: self.update())
        bottom = widgets.HBox([self.button, self.bar, self.status])
        super().__init__([widgets.HBox(list(controls.values()), layout={"flex_flow": "wrap"})])
        self.children = (*self.children, bottom, self.picture)
        self._draw()  # a first picture that fails must fail the chapter, and with it the build

    @property
    def values(self) -> dict[str, Any]:
        """The controls' values."""
        return {name: control.value for name, control in self.controls.items()}

    def update(self) -> None:
        """Train with the values shown, and draw; an error is shown in the panel."""
        self.button.disabled = True
        try:
            self._draw()
        except (ValueError, RuntimeError) as error:
            self.status.value = str(error)
        finally:
            self.button.disabled = False

    def _draw(self) -> None:
        values = self.values
        with one_thread(), figures.style():
            figure, words = self._compute(self._report, **values)
            svg = io.BytesIO()
            figure.savefig(svg, format="svg", metadata={"Date": None})
            plt.close(figure)
        data = base64.b64encode(svg.getvalue()).decode()
        self.picture.value = (
            f'<img class="lg-figure" alt="{html.escape(words, quote=True)}" '
            f'src="data:image/svg+xml;base64,{data}">'
        )
        self.status.value = words
        self._drawn = values

    def _report(self, step: int, steps: int, stack: HeadStack, losses: torch.Tensor) -> None:
        if step % 10 == 0 or step == steps:
            self.bar.max, self.bar.value = steps, step
            self.status.value = f"step {step} of {steps}, mean loss {losses[:, -1].mean():.3f} nats"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        settings = ", ".join(f"{name.replace('_', ' ')} {v}" for name, v in self._drawn.items())
        line = (
            f"A snapshot of the live panel ({html.escape(settings)}). To change these settings "
            f"and train yourself, run <code>make lab</code> and open "
            f"<code>notebooks/{html.escape(self._notebook)}</code>."
        )
        page = f'<div class="lg-panel">{self.picture.value}<p class="lg-static">{line}</p></div>'
        return {**data, "text/html": page}, metadata


def _controls(*encodings: str) -> dict[str, widgets.Widget]:
    wide = {"description_width": "9rem"}
    return {
        "encoding": widgets.Dropdown(
            options=encodings or list(ENCODINGS), description="encoding", style=wide
        ),
        "offset": widgets.IntSlider(2, 1, 8, description="offset (tokens)", style=wide),
        "training_length": widgets.IntSlider(
            16, 10, 32, description="longest training", style=wide
        ),
        "seeds": widgets.IntSlider(4, 1, 8, description="seeds", style=wide),
    }


def _trained(
    report: Report, encoding: str, offset: int, training_length: int, seeds: int, shortest: int = 10
) -> tuple[TrainingConfig, HeadStack]:
    config = TrainingConfig(
        HeadConfig(encoding),
        tuple(range(seeds)),
        (offset,),
        (min(shortest, training_length), training_length),
        STEPS,
    )
    return config, train(config, report)[0]


def _lengths(stack: HeadStack) -> list[int]:
    return [n for n in LENGTHS if stack.config.reach is None or n <= stack.config.reach]


def _task(report: Report, **values: Any) -> Drawing:
    config, stack = _trained(report, **values)
    lengths, offset = _lengths(stack), values["offset"]
    table = accuracy(stack, [offset] * stack.n_models, lengths, TestSequences(N_SEQUENCES))
    rows = [
        {
            "encoding": values["encoding"],
            "offset": offset,
            "seed": seed,
            "length": length,
            "accuracy": float(table[seed, column]),
        }
        for seed in config.seeds
        for column, length in enumerate(lengths)
    ]
    figure = figures.accuracy_by_length(rows, longest_trained=values["training_length"])
    words = f"mean accuracy {table[:, 0].mean():.2f} at length {lengths[0]}, "
    return figure, words + f"{table[:, -1].mean():.2f} at length {lengths[-1]}"


def task_panel() -> Panel:
    """Return chapter 1's panel: train heads and see accuracy by length."""
    return Panel(
        _task, _controls("rotary", "learned", "learned-random-offset", "none"), "01_task.ipynb"
    )


def _equivariance(report: Report, shift: int, **values: Any) -> Drawing:
    _, stack = _trained(report, **values)
    span = min(values["training_length"], 24)
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
    tokens = TestSequences(N_SEQUENCES).sequences(span)
    effect = {k: float(v.mean()) for k, v in shift_effect(stack, tokens, shift).items()}
    return figure, (
        f"shift by {shift}: logits change by {effect['logit_change']:.2g} of the largest, "
        f"{effect['answers_changed']:.0%} of answers change"
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
    controls = _controls("rotary", "learned")
    controls["shift"] = widgets.IntSlider(
        100, 1, 990, description="shift (tokens)", style={"description_width": "9rem"}
    )
    return Panel(_equivariance, controls, "02_equivariance.ipynb")


def _pinning(report: Report, mixed_lengths: bool, **values: Any) -> Drawing:
    longest = values["training_length"]
    _, stack = _trained(report, **values, shortest=10 if mixed_lengths else longest)
    lengths = (longest, 2 * longest, 4 * longest)
    figure, grid = figures.panels(1, len(lengths), height=2.6, sharey=True)
    test, peaks = TestSequences(N_SEQUENCES), []
    for axes, length in zip(grid[0], lengths, strict=True):
        weights = attention(stack, test.sequences(length))
        peaks.append(pinning.peak(weights))
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
    controls = _controls("learned", "rotary")
    controls["mixed_lengths"] = widgets.Checkbox(True, description="mixed training lengths")
    return Panel(_pinning, controls, "03_absolute_pinning.ipynb")


def _linear(report: Report, top: float, offset: int, log10_steps: float) -> Drawing:
    target = torch.tensor([offset])
    frequencies, reach = linear.scaled_midpoints(16, top), torch.arange(LINEAR_LENGTHS[-1])
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
        accuracies = [
            float(
                sampled_accuracy(
                    kernel[:, :length].contiguous(),
                    target,
                    16,
                    2_000,
                    torch.Generator().manual_seed(length),
                )
            )
            for length in LINEAR_LENGTHS
        ]
        at_48.append(accuracies[LINEAR_LENGTHS.index(48)])
        left.plot(reach[:48], kernel[0, :48], ".-", color=color, label=label, linewidth=1)
        right.plot(LINEAR_LENGTHS, accuracies, "o-", color=color)
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


LINEAR_LENGTHS = (16, 20, 24, 32, 40, 48, 56, 64)


def linear_panel() -> Panel:
    """Return chapter 6's panel: widen the band, stop descent early, and see the kernel."""
    wide = {"description_width": "9rem"}
    controls = {
        "top": widgets.FloatSlider(
            0.8, min=0.5, max=1.0, step=0.05, description="top frequency / pi", style=wide
        ),
        "offset": widgets.IntSlider(2, 1, 8, description="offset (tokens)", style=wide),
        "log10_steps": widgets.FloatSlider(
            1.0, min=0.0, max=6.0, step=0.5, description="log10 of steps", style=wide
        ),
    }
    return Panel(_linear, controls, "06_linear_control.ipynb")


DILUTION_LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def _dilution(report: Report, scale: float, n_aliases: int, **values: Any) -> Drawing:
    _, stack = _trained(report, "rotary", **values)
    offsets, lengths = [values["offset"]] * stack.n_models, list(DILUTION_LENGTHS)
    logits = scale * dilution.offset_logits(stack, max(lengths))
    anywhere = torch.tensor([0])
    readouts = stack.tables(anywhere, anywhere).token_readout
    weights = (logits - logits.amax((2, 3), keepdim=True)).exp().float()
    test = TestSequences(2_000)
    measured = dilution.measure(weights, readouts, offsets, lengths, test).accuracy
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
    controls = _controls("rotary")
    del controls["encoding"]
    wide = {"description_width": "9rem"}
    controls["scale"] = widgets.FloatSlider(
        1.0, min=0.5, max=2.0, step=0.1, description="logits times", style=wide
    )
    controls["n_aliases"] = widgets.IntSlider(16, 0, 32, description="exact aliases", style=wide)
    return Panel(_dilution, controls, "05_dilution_law.ipynb")


CARRIER_LIMIT = 1_024
CARRIER_STEPS = 1_500


def _carrier_heads(
    report: Report, offset: Tensor, seeds: int, std: float, level: float
) -> PositionHead:
    """Train position-only heads until each is at or below a loss, and keep it there."""
    head = initialize(range(seeds), std, rotary_frequencies(32))
    query, key = head.query, head.key
    for step, (now, log_value) in enumerate(descend(head, offset, Descent())):
        training = (log_value > math.log(level))[:, None]
        query = torch.where(training, now.query, query)
        key = torch.where(training, now.key, key)
        report(step, CARRIER_STEPS, None, log_value.exp()[:, None])
        if step == CARRIER_STEPS or not training.any():
            report(CARRIER_STEPS, CARRIER_STEPS, None, log_value.exp()[:, None])
            break
    return PositionHead(query, key, head.frequencies)


def _carrier(
    report: Report, offset: int, initial_scale: float, training_loss: float, seeds: int
) -> Drawing:
    target = torch.full((seeds,), offset)
    head = _carrier_heads(report, target, seeds, initial_scale, training_loss)
    best = max_margin(head.frequencies, offset)
    figure, ((left, right),) = figures.panels(1, 2, height=3.0, width_ratios=(2, 1))
    span = torch.arange(64)
    for coefficients, color, label in (
        (head.coefficients, figures.COLORS["rotary"], "trained"),
        (best.coefficients[None], "black", "max-margin"),
    ):
        values = kernel(coefficients, head.frequencies, span)
        values = values - values.mean(-1, keepdim=True)
        values = values / values.abs().amax(-1, keepdim=True)
        figures.seed_lines(left, span, values, color, label)
        shares = carrier.spectrum(coefficients)
        figures.seed_lines(right, range(1, 17), shares, color)
    left.axvline(offset, color="black", linestyle=":", linewidth=0.9)
    left.set_xlim(0, 63)
    figures.mark_training_range(left, 15.5)
    left.set_xlabel("offset (tokens)")
    left.set_ylabel("kernel / its maximum")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    right.set_xlabel("frequency (1 is the fastest)")
    right.set_ylabel("share of amplitude")
    kept = keeps_argmax(head, target, CARRIER_LIMIT)
    aligned = carrier.alignment(head.coefficients, head.frequencies, target).mean()
    return figure, (
        f"{int(kept.sum())} of {seeds} heads keep their argmax at length {CARRIER_LIMIT:,}; "
        f"mean alignment {aligned:.2f}"
    )


def carrier_panel() -> Panel:
    """Return chapter 4's panel: train position-only heads from any scale to any loss."""
    style = {"description_width": "9rem"}
    controls = {
        "offset": widgets.IntSlider(4, 1, 8, description="offset (tokens)", style=style),
        "initial_scale": widgets.SelectionSlider(
            options=[0.01, 0.04, 0.1, 0.3, 0.6, 1.0, 2.0],
            value=1.0,
            description="initial scale",
            style=style,
        ),
        "training_loss": widgets.SelectionSlider(
            options=[1e-1, 1e-2, 1e-4, 1e-8, 1e-16, 1e-32],
            value=1e-4,
            description="training loss",
            style=style,
        ),
        "seeds": widgets.IntSlider(8, 1, 16, description="seeds", style=style),
    }
    return Panel(_carrier, controls, "04_carrier_kernel.ipynb")
