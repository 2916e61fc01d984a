"""Chapter 7's panel: where each head of a trained decoder looks, at any length."""

from __future__ import annotations

import ipywidgets as widgets

from lengthgen import figures
from lengthgen.experiments import transformer
from lengthgen.experiments.transformer_units import MapConfig, attention_maps
from lengthgen.panels.base import WIDE, Drawing, Panel, Report
from lengthgen.transformer_training import trained_transformers

__all__ = ["transformer_panel"]

SETTINGS = transformer.Config()
"""The decoders shown are seed 0 of the experiment: trained once, then read from the cache."""

LENGTHS = MapConfig.lengths


def _heads(report: Report, encoding: str, layer: int, head: int, length: int) -> Drawing:
    training = transformer.training(SETTINGS, encoding, 0)
    report(training.steps, training.steps, None, trained_transformers(training)["losses"])
    maps = attention_maps(MapConfig(training, LENGTHS))
    offset, longest = training.offset, training.length
    weights = maps[f"attention_{length}"][layer - 1, head - 1]
    right = maps[f"answers_{length}"][offset:] == maps[f"tokens_{length}"][:-offset]
    figure, ((left, beside),) = figures.panels(1, 2, height=3.4, width_ratios=(5, 4))
    picture = left.imshow(weights.numpy(), vmin=0, vmax=1, interpolation="nearest")
    figure.colorbar(picture, ax=left, label="attention weight")
    left.grid(False)
    if length > longest:
        left.axhline(longest - 0.5, color=figures.COLORS["none"], linestyle="--", linewidth=0.9)
        left.axvline(longest - 0.5, color=figures.COLORS["none"], linestyle="--", linewidth=0.9)
    left.set_xlabel("key position")
    left.set_ylabel("query position")
    left.set_title(f"layer {layer}, head {head}")
    beside.bar(
        range(length), weights[-1].flip(0).numpy(), color=figures.COLORS[encoding], width=0.9
    )
    beside.axvline(offset, color="black", linestyle=":", linewidth=0.9)
    beside.set_ylim(0, 1.03)
    beside.set_xlabel("offset from the last query (tokens)")
    beside.set_ylabel("attention weight")
    beside.set_title("the last query")
    at_offset = weights.diagonal(-offset)
    return figure, (
        f"{figures.LABELS[encoding]}, layer {layer}, head {head}: mean weight on the target "
        f"{at_offset[: longest - offset].mean():.2f} at query positions below {longest}"
        + (
            f", {at_offset[longest - offset :].mean():.2f} from there on"
            if length > longest
            else ""
        )
        + f"; the decoder answers {int(right.sum())} of {len(right)} positions correctly"
    )


def transformer_panel() -> Panel:
    """Return chapter 7's panel: choose encoding, layer, head and length, and see where it looks."""
    model = transformer.training(SETTINGS, "rotary", 0).model
    controls = {
        "encoding": widgets.Dropdown(
            options=list(SETTINGS.encodings), description="encoding", style=WIDE
        ),
        "layer": widgets.IntSlider(1, 1, model.n_layers, description="layer", style=WIDE),
        "head": widgets.IntSlider(1, 1, model.n_heads, description="head", style=WIDE),
        "length": widgets.SelectionSlider(
            options=list(LENGTHS), value=LENGTHS[-1], description="length (tokens)", style=WIDE
        ),
    }
    return Panel(_heads, controls, "07_full_transformer.ipynb")
