"""Live panels, one a chapter: with a kernel they retrain, without one they show a picture."""

from lengthgen.panels.base import Panel
from lengthgen.panels.card import card_panel
from lengthgen.panels.carrier import carrier_panel
from lengthgen.panels.connections import connections_panel
from lengthgen.panels.dilution import dilution_panel
from lengthgen.panels.equivariance import equivariance_panel
from lengthgen.panels.linear import linear_panel
from lengthgen.panels.pinning import pinning_panel
from lengthgen.panels.task import task_panel
from lengthgen.panels.transformer import transformer_panel

__all__ = [
    "Panel",
    "card_panel",
    "carrier_panel",
    "connections_panel",
    "dilution_panel",
    "equivariance_panel",
    "linear_panel",
    "pinning_panel",
    "task_panel",
    "transformer_panel",
]
