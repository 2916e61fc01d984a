"""Figures to touch: widgets in JupyterLab, and the same figures in a page without a kernel."""

from lengthgen.explorables.atlas import Atlas
from lengthgen.explorables.base import Explorable
from lengthgen.explorables.carrier import Carrier
from lengthgen.explorables.dilution import Dilution
from lengthgen.explorables.equivariance import Equivariance
from lengthgen.explorables.linear import Linear
from lengthgen.explorables.pinning import Pinning
from lengthgen.explorables.recurrence import Recurrent
from lengthgen.explorables.task import Task
from lengthgen.explorables.transformer import Transformer

__all__ = [
    "EXPLORABLES",
    "Atlas",
    "Carrier",
    "Dilution",
    "Equivariance",
    "Explorable",
    "Linear",
    "Pinning",
    "Recurrent",
    "Task",
    "Transformer",
]

EXPLORABLES = {
    cls.name: cls
    for cls in (
        Task,
        Equivariance,
        Pinning,
        Carrier,
        Dilution,
        Linear,
        Transformer,
        Atlas,
        Recurrent,
    )
}
"""Every explorable by its name, in the order of the chapters."""
