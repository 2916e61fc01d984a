"""Accuracy at long lengths: the package's streaming tables beside the plain attention forward."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import children
from benchmarks.fairness import same_numbers
from benchmarks.timing import race, ratio, summary
from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.evaluation import accuracy
from lengthgen.task import TestSequences
from lengthgen.training import TrainingConfig, load_heads

__all__ = ["by_forward", "by_tables", "growth_exponent", "measure", "once"]

FORWARD_UP_TO = 4_096
"""The plain forward takes hours at the longest lengths, and ours minutes."""
CHUNK = 1 << 17
"""Tokens per call of the plain forward; larger ones were not faster."""
TIES = 2.5
"""Sequences on which accuracies may differ: two whose best answers tie up to rounding."""


def configuration(n_models: int) -> TrainingConfig:
    """Return trained heads of the book: rotary, offset 1, the first seeds."""
    return TrainingConfig(HeadConfig("rotary"), tuple(range(n_models)), (1,))


def by_tables(stack: HeadStack, length: int, n_sequences: int) -> Tensor:
    """Return the accuracy of each model, by `lengthgen.evaluation`."""
    offsets = [1] * stack.n_models
    return accuracy(stack, offsets, [length], TestSequences(n_sequences))[:, 0]


@torch.no_grad()
def by_forward(stack: HeadStack, length: int, n_sequences: int) -> Tensor:
    """Return the accuracy of each model, by attention over whole sequences, a part at a time."""
    tokens = TestSequences(n_sequences).sequences(length)
    part = max(1, CHUNK // (length * stack.n_models))
    correct = torch.zeros(stack.n_models)
    for chosen in tokens.split(part):
        answer, _ = stack.forward(chosen.expand(stack.n_models, -1, -1))
        correct += (answer.argmax(-1) == chosen[:, -2].long()).sum(1)
    return correct / n_sequences


CONTESTANTS: dict[str, Callable[[HeadStack, int, int], Tensor]] = {
    "ours": by_tables,
    "forward": by_forward,
}


def once(who: str, n_models: int, length: int, n_sequences: int) -> dict[str, float]:
    """Evaluate once, for a new process: seconds, accuracy, memory added to what imports hold."""
    stack = load_heads(configuration(n_models))
    before, began = children.forget_peak(), time.perf_counter()
    accuracy = CONTESTANTS[who](stack, length, n_sequences)
    return {
        "seconds": time.perf_counter() - began,
        "accuracy": float(accuracy.mean()),
        "peak_mb": children.peak_memory_mb() - before,
    }


def growth_exponent(lengths: list[int], seconds: list[float]) -> float:
    """Return the slope of log time over log length: 1 is linear.

    Example:
        >>> round(growth_exponent([10, 100, 1000], [1.0, 10.0, 100.0]), 6)
        1.0
    """
    return float(np.polyfit(np.log(lengths), np.log(seconds), 1)[0])


def measure(n_models: int, lengths: list[int], n_sequences: int, repeats: int) -> dict[str, Any]:
    """Race at every length, in a process limited to `children.LIMIT_GB`, as the caller arranges.

    Args:
        n_models: heads evaluated together.
        lengths: of the sequences.
        n_sequences: the same ones for everybody.
        repeats: counted rounds.
    """
    stack = load_heads(configuration(n_models))
    found: dict[str, Any] = {"models": n_models, "sequences": n_sequences}
    for length in lengths:
        if length <= FORWARD_UP_TO:
            found[str(length)] = _race(stack, length, n_sequences, repeats)
        else:  # nobody to race against: one run, of minutes
            found[str(length)] = _alone(n_models, length, n_sequences)
    medians = [found[str(length)]["ours"]["median_s"] for length in lengths]
    if len(lengths) > 1:
        found["growth_exponent"] = growth_exponent(lengths, medians)
    return found


def _race(stack: HeadStack, length: int, n_sequences: int, repeats: int) -> dict[str, Any]:
    runners = {
        name: lambda run=run: run(stack, length, n_sequences) for name, run in CONTESTANTS.items()
    }
    accuracies: dict[str, Any] = {}

    def check(returned: dict[str, Any]) -> None:
        same_numbers(f"accuracies at length {length}", returned, TIES / n_sequences)
        accuracies.update(returned)

    seconds = race(runners, repeats, check)
    found: dict[str, Any] = {}
    for name in runners:
        memory = _once(name, stack.n_models, length, n_sequences)["peak_mb"]
        found[name] = _entry(seconds[name], stack.n_models, length, n_sequences)
        found[name] |= {"accuracy": float(accuracies[name].mean()), "peak_mb": memory}
    found["peak_mb"] = found["ours"]["peak_mb"]
    speedup, low, high = ratio(seconds["forward"], seconds["ours"])
    return found | {"speedup_vs_forward": speedup, "speedup_vs_forward_range": [low, high]}


def _alone(n_models: int, length: int, n_sequences: int) -> dict[str, Any]:
    answer = _once("ours", n_models, length, n_sequences)
    found = _entry([answer.pop("seconds")], n_models, length, n_sequences) | answer
    return {"ours": found, "peak_mb": found["peak_mb"]}


def _entry(seconds: list[float], n_models: int, length: int, n_sequences: int) -> dict[str, Any]:
    entry = summary(seconds)
    return {**entry, "tokens_per_s": n_models * n_sequences * length / entry["median_s"]}


def _once(who: str, n_models: int, length: int, n_sequences: int) -> dict[str, float]:
    return children.call(
        f"{Path(__file__).stem}:once",
        limit_gb=children.LIMIT_GB,
        who=who,
        n_models=n_models,
        length=length,
        n_sequences=n_sequences,
    )
