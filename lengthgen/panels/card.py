"""Chapter 8's panel: the report card of a named encoding."""

from __future__ import annotations

import ipywidgets as widgets

from lengthgen.diagnosis import diagnose
from lengthgen.encodings import ENCODINGS
from lengthgen.panels.base import WIDE, Drawing, Panel, Report

__all__ = ["card_panel"]


def _card(report: Report, encoding: str, offset: int, seeds: int) -> Drawing:
    card = diagnose(encoding, offset, n_seeds=seeds, n_sequences=500)
    return card.plot(), card.text.replace("\n", " ")


def card_panel() -> Panel:
    """Return chapter 8's panel: train heads with an encoding and read their report card."""
    controls = {
        "encoding": widgets.Dropdown(
            options=list(ENCODINGS), value="xpos", description="encoding", style=WIDE
        ),
        "offset": widgets.IntSlider(2, 1, 8, description="offset (tokens)", style=WIDE),
        "seeds": widgets.IntSlider(2, 1, 8, description="seeds", style=WIDE),
    }
    return Panel(_card, controls, "08_encodings.ipynb")
