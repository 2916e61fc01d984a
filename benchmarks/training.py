"""Training stacks of rotary heads: the package beside plain PyTorch, `vmap` and JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, baddbmm_flop

from benchmarks import heads
from benchmarks.fairness import same_numbers
from benchmarks.machine import matrix_product
from benchmarks.timing import race, ratio, summary
from lengthgen.attention import HeadConfig
from lengthgen.training import TrainingConfig, train

__all__ = ["STEPS", "configuration", "contestants", "flops_per_step", "measure"]

STEPS = {1: 1_000, 8: 500, 32: 400, 160: 80}
"""Steps by number of models: the same for every contestant of a race."""
N_OFFSETS = 8
TOLERANCE = 1e-3
"""Largest difference of a loss at any step, in nats: rounding, amplified by training."""


def configuration(n_models: int, steps: int) -> TrainingConfig:
    """Return the book's setting: rotary heads, each number of models with offsets 1, 2, ..."""
    offsets = min(n_models, N_OFFSETS)
    seeds, rest = divmod(n_models, offsets)
    if rest:
        raise ValueError(f"n_models={n_models} is not allowed: a multiple of {N_OFFSETS}, or fewer")
    return TrainingConfig(
        HeadConfig("rotary"), tuple(range(seeds)), tuple(range(1, offsets + 1)), steps=steps
    )


def contestants(config: TrainingConfig) -> dict[str, Callable[[], Any]]:
    """Return the contestants that need no other package; each returns all losses.

    Each draws its data and its initial weights itself, within its time.
    """
    return {
        "ours": lambda: train(config)[1],
        "loop": lambda: heads.one_by_one(config),
        "vmap": lambda: heads.vectorized(config),
    }


def flops_per_step(config: TrainingConfig) -> float:
    """Count the floating-point operations of our matrix products in one step, backward included.

    Look-ups, exponentials and scatters are work too; they are not in this number.
    """
    counts = []
    for steps in (1, 2):  # the difference: what is done once is not counted
        aten = torch.ops.aten
        # The counter knows the others, and wraps what it is given.
        in_place = {aten.baddbmm_: baddbmm_flop.__wrapped__}
        with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
            train(TrainingConfig(config.head, config.seeds, config.offsets, steps=steps))
        counts.append(counter.get_total_flops())
    return float(counts[1] - counts[0])


def measure(sizes: list[int], repeats: int, effort: float = 1.0) -> dict[str, Any]:
    """Race at every number of models.

    Args:
        sizes: numbers of models.
        repeats: counted rounds.
        effort: factor on the number of steps; 1 for numbers to publish.
    """
    return {str(size): _race(size, max(2, int(effort * STEPS[size])), repeats) for size in sizes}


def _race(n_models: int, steps: int, repeats: int) -> dict[str, Any]:
    from benchmarks import heads_jax  # not needed by the tests

    config = configuration(n_models, steps)
    runners = contestants(config)
    runners["jax"], compile_s = heads_jax.compiled(config)
    multiply, operations = matrix_product()
    largest, final = 0.0, {}

    def check(returned: dict[str, Any]) -> None:
        nonlocal largest
        losses = {name: returned[name] for name in runners}
        largest = max(largest, same_numbers("losses", losses, TOLERANCE))
        final.update({name: float(values[:, -1].mean()) for name, values in losses.items()})

    seconds = race({**runners, "matmul": multiply}, repeats, check)
    rate = operations / summary(seconds["matmul"])["median_s"]
    flops = flops_per_step(config)
    found: dict[str, Any] = {"models": n_models, "steps": steps, "batch": config.batch_size}
    for name in runners:
        entry = summary(seconds[name])
        entry["step_ms"] = 1e3 * entry["median_s"] / steps
        entry["examples_per_s"] = n_models * steps * config.batch_size / entry["median_s"]
        entry["final_loss"] = final[name]
        found[name] = entry
        if name != "ours":
            key = f"speedup_vs_{name}"
            found[key], low, high = ratio(seconds[name], seconds["ours"])
            found[f"{key}_range"] = [low, high]
    found["jax"]["compile_s"] = compile_s
    found["largest_loss_difference"] = largest
    found["flops_per_step"] = flops
    found["matmul_gflops_per_s"] = rate / 1e9
    found["share_of_matmul_rate"] = flops / (found["ours"]["step_ms"] / 1e3) / rate
    return found
