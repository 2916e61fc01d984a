"""The dilution law: predicting accuracy beside measuring it on sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.evaluation import configuration
from benchmarks.fairness import same_numbers
from benchmarks.timing import race, ratio, summary
from lengthgen import dilution
from lengthgen.attention import HeadStack
from lengthgen.evaluation import accuracy
from lengthgen.task import TestSequences
from lengthgen.training import load_heads

__all__ = ["by_evaluation", "by_law", "by_sampling", "measure"]

TOLERANCE = 0.03
"""The law's own error, at most 0.01 in chapter 5, and five standard errors of a difference."""


def by_law(stack: HeadStack, lengths: list[int], n_samples: int) -> Tensor:
    """Predict the accuracy of each model at each length; no sequence is drawn."""
    draws = dilution.Draws(n_samples, stack.config.vocabulary)
    models = [
        dilution.mass_model(dilution.offset_logits(stack.select([m]), max(lengths))[0], 1, lengths)
        for m in range(stack.n_models)
    ]
    return dilution.predicted_accuracy(torch.stack(models), dilution.token_readouts(stack), draws)


def by_sampling(stack: HeadStack, lengths: list[int], n_samples: int) -> Tensor:
    """Measure it with what only a relative head allows: one pass over sequences for all lengths."""
    logits = dilution.offset_logits(stack, max(lengths))
    test = TestSequences(n_samples, stack.config.vocabulary)
    readouts = dilution.token_readouts(stack)
    return dilution.measure(logits, readouts, [1] * stack.n_models, lengths, test).accuracy


def by_evaluation(stack: HeadStack, lengths: list[int], n_samples: int) -> Tensor:
    """Measure it with what any head allows: one pass over sequences for each length."""
    test = TestSequences(n_samples, stack.config.vocabulary)
    return accuracy(stack, [1] * stack.n_models, lengths, test)


def measure(n_models: int, lengths: list[int], n_samples: int, repeats: int) -> dict[str, Any]:
    """Race the law against both measurements.

    Args:
        n_models: heads together.
        lengths: the longest last.
        n_samples: sequences measured, and draws of the law: both have the same sampling error.
        repeats: counted rounds.
    """
    stack = load_heads(configuration(n_models))
    runners = {"law": by_law, "sampling": by_sampling, "evaluation": by_evaluation}
    largest, shown = 0.0, {}

    def check(returned: dict[str, Any]) -> None:
        nonlocal largest
        largest = max(largest, same_numbers("accuracies", returned, TOLERANCE))
        shown.update({name: values.mean(0).tolist() for name, values in returned.items()})

    seconds = race(
        {name: lambda run=run: run(stack, lengths, n_samples) for name, run in runners.items()},
        repeats,
        check,
    )
    found: dict[str, Any] = {"models": n_models, "lengths": lengths, "samples": n_samples}
    for name in runners:
        found[name] = {**summary(seconds[name]), "accuracy": shown[name]}
        if name != "law":
            key = f"speedup_vs_{name}"
            found[key], low, high = ratio(seconds[name], seconds["law"])
            found[f"{key}_range"] = [low, high]
    found["largest_accuracy_difference"] = largest
    return found
