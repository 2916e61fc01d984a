"""The paper's experiments and ours, one file each, all run the same way."""

from __future__ import annotations

import importlib

from lengthgen.experiments.experiment import Experiment

__all__ = ["NAMES", "Experiment", "get"]

NAMES = (
    "base",
    "multiseed",
    "prop1",
    "shift",
    "mechanics",
    "frequency",
    "selection",
    "dilution",
    "linear",
    "transformer",
    "variants",
    "connections",
)
"""Every experiment, in the order in which `reproduce` runs them."""


def get(name: str) -> Experiment:
    """Return an experiment by name.

    Raises:
        ValueError: an unknown name.
    """
    if name not in NAMES:
        raise ValueError(f"unknown experiment {name!r}; choose from {', '.join(NAMES)}")
    return importlib.import_module(f"lengthgen.experiments.{name}").EXPERIMENT
