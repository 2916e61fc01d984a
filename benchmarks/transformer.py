"""Training decoders: the package beside a plain loop and beside x-transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import decoders
from benchmarks.fairness import same_numbers
from benchmarks.timing import race, ratio, summary
from lengthgen.transformer import TransformerConfig
from lengthgen.transformer_training import TransformerTraining, train_transformers

__all__ = ["STEPS", "configuration", "contestants", "measure"]

STEPS = {1: 30, 5: 12}
"""Steps by number of models: the same for every contestant of a race."""
TOLERANCE = 1e-3
"""Largest difference of a loss at any step, in nats: rounding, amplified by training."""


def configuration(n_models: int, steps: int) -> TransformerTraining:
    """Return the book's setting: two layers of four rotary heads, one model per seed."""
    return TransformerTraining(TransformerConfig("rotary"), tuple(range(n_models)), steps=steps)


def contestants(config: TransformerTraining) -> dict[str, Callable[[], Any]]:
    """Return the contestants; each draws data and initial weights within its time."""
    return {
        "ours": lambda: train_transformers(config)[1],
        "loop": lambda: decoders.one_by_one(config),
        "x_transformers": lambda: decoders.through_x_transformers(config),
    }


def measure(sizes: list[int], repeats: int, effort: float = 1.0) -> dict[str, Any]:
    """Race at every number of models; see `benchmarks.training.measure`."""
    return {str(size): _race(size, max(2, int(effort * STEPS[size])), repeats) for size in sizes}


def _race(n_models: int, steps: int, repeats: int) -> dict[str, Any]:
    config = configuration(n_models, steps)
    largest, final = 0.0, {}

    def check(losses: dict[str, Any]) -> None:
        nonlocal largest
        largest = max(largest, same_numbers("losses", losses, TOLERANCE))
        final.update({name: float(values[:, -1].mean()) for name, values in losses.items()})

    seconds = race(contestants(config), repeats, check)
    found: dict[str, Any] = {"models": n_models, "steps": steps, "batch": config.batch_size}
    for name, own in seconds.items():
        step_ms = 1e3 * summary(own)["median_s"] / steps
        found[name] = {**summary(own), "step_ms": step_ms, "final_loss": final[name]}
        if name != "ours":
            key = f"speedup_vs_{name}"
            found[key], low, high = ratio(own, seconds["ours"])
            found[f"{key}_range"] = [low, high]
    found["largest_loss_difference"] = largest
    return found
