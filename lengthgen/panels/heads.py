"""What the panels that train heads share: their controls, and the training."""

from __future__ import annotations

import ipywidgets as widgets

from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.encodings import ENCODINGS
from lengthgen.panels.base import WIDE, Report
from lengthgen.training import TrainingConfig, train

__all__ = ["LENGTHS", "N_SEQUENCES", "SHORTEST", "STEPS", "controls", "lengths", "trained"]

STEPS = 500
SHORTEST = 10
LENGTHS = (16, 24, 32, 48, 64, 96, 128, 256)
N_SEQUENCES = 500


def controls(*encodings: str) -> dict[str, widgets.Widget]:
    """Return controls for some encodings, or for all; they set what `trained` takes."""
    return {
        "encoding": widgets.Dropdown(
            options=encodings or list(ENCODINGS), description="encoding", style=WIDE
        ),
        "offset": widgets.IntSlider(2, 1, 8, description="offset (tokens)", style=WIDE),
        "training_length": widgets.IntSlider(
            16, SHORTEST, 32, description="longest training", style=WIDE
        ),
        "seeds": widgets.IntSlider(4, 1, 8, description="seeds", style=WIDE),
    }


def trained(
    report: Report,
    encoding: str,
    offset: int,
    training_length: int,
    seeds: int,
    shortest: int = SHORTEST,
) -> tuple[TrainingConfig, HeadStack]:
    """Train heads as the controls say; lengths from `shortest` on.

    Raises:
        ValueError: the shortest length is above the longest.
    """
    config = TrainingConfig(
        HeadConfig(encoding),
        tuple(range(seeds)),
        (offset,),
        (shortest, training_length),
        STEPS,
    )
    return config, train(config, report)[0]


def lengths(stack: HeadStack) -> list[int]:
    """Return the lengths at which heads are tested, as far as their table reaches."""
    return [n for n in LENGTHS if stack.config.reach is None or n <= stack.config.reach]
