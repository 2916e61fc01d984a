"""A live panel: with a kernel it computes and redraws, without one it shows its last picture."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from lengthgen import figures
from lengthgen.attention import HeadStack
from lengthgen.results import one_thread

__all__ = ["WIDE", "Drawing", "Panel", "Report"]

WIDE = {"description_width": "9rem"}
"""The style of every control: room for its description."""

Report = Callable[[int, int, HeadStack | None, torch.Tensor], None]
"""What a training calls after every step: step, steps, stack, losses."""

Drawing = tuple[Figure, str]
"""A picture and the words that say the same."""


class Panel(widgets.VBox):
    """Controls, a button that trains, a progress bar where there is progress, and a picture.

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
        self.bar = widgets.IntProgress(min=0, max=1, layout={"width": "12rem", "display": "none"})
        self.status = widgets.Label()
        self.picture = widgets.HTML()
        self.button.on_click(lambda _: self.update())
        for control in controls.values():
            control.observe(self._changed, "value")
        top = widgets.HBox(list(controls.values()), layout={"flex_flow": "wrap"})
        bottom = widgets.HBox([self.button, self.bar, self.status])
        super().__init__([top, bottom, self.picture])
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

    def _changed(self, _: Any) -> None:
        if not self.button.disabled:
            self.status.value = f"Changed: press “{self.button.description}”."

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

    def _report(self, step: int, steps: int, stack: HeadStack | None, losses: torch.Tensor) -> None:
        if step % 10 == 0 or step == steps:
            self.bar.layout.display = None
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
        page = f'<div>{self.picture.value}<p class="lg-static">{line}</p></div>'
        return {**data, "text/html": page}, metadata
