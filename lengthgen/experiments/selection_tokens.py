"""Unit of `selection` with tokens: heads from scaled query and key weights, at matched loss."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lengthgen import carrier
from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.evaluation import accuracy
from lengthgen.results import unit
from lengthgen.task import TestSequences
from lengthgen.training import TrainingConfig, train

__all__ = ["ScaledTraining", "TokenConfig", "TokenSetting", "token_rows"]


@dataclass(frozen=True)
class TokenSetting:
    """One way to train heads with tokens, from W_q and W_k times each of the `scales`."""

    name: str
    scales: tuple[float, ...] = (1.0, 4.0)
    vocabulary: int = 16
    optimizer: str = "adam"
    learning_rate: float = 3e-3
    weight_decay: float = 0.0
    steps: int = 1_000

    def training(
        self, scale: float, seeds: tuple[int, ...], offsets: tuple[int, ...]
    ) -> ScaledTraining:
        """Return what is trained from one of the scales."""
        return ScaledTraining(
            HeadConfig("rotary", vocabulary=self.vocabulary),
            seeds,
            offsets,
            steps=self.steps,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            weight_decay=self.weight_decay,
            scale=scale,
        )


@dataclass(frozen=True)
class ScaledTraining(TrainingConfig):
    """A training whose initial W_q and W_k are `scale` times as large."""

    scale: float = 1.0

    def stack(self, parameters: dict[str, Tensor] | None = None) -> HeadStack:
        """Return the stack: as initialized, scaled, or with stored parameters."""
        stack = super().stack(parameters)
        if parameters is not None:
            return stack
        scaled = {side: self.scale * stack.parameters[side] for side in ("query", "key")}
        return stack.with_parameters(**scaled)


@dataclass(frozen=True)
class TokenConfig:
    """A training, the loss at which its heads are compared, and how they are measured."""

    setting: str
    training: ScaledTraining
    level: float
    lengths: tuple[int, ...]
    n_sequences: int
    window: int = 20


@unit
def token_rows(config: TokenConfig) -> list[dict[str, Any]]:
    """Train from scaled query and key weights and test each head at one training loss.

    A head is taken after the first step at which the mean of its last `window` batch losses is at
    the level or below; one that never gets there, as it is at the end.
    """
    training = config.training
    matched = _Matched(config)
    with suppress(_AllReached):
        train(training, matched)
    stack = training.stack(matched.parameters)
    test = TestSequences(config.n_sequences, training.head.vocabulary)
    offsets = [offset for _, offset in training.models]
    matrix = stack.parameters["query"] @ stack.parameters["key"].transpose(1, 2)
    rank = carrier.effective_rank(matrix.double())
    table = accuracy(stack, offsets, config.lengths, test)
    return [
        {"kind": "token", "setting": config.setting, "scale": training.scale}
        | {"encoding": "rotary", "offset": offset, "seed": seed, "length": length}
        | {"accuracy": round(float(table[model, column]), 6), "n_sequences": config.n_sequences}
        | {"reached": bool(matched.when[model] > 0), "steps": int(matched.when[model])}
        | {"loss": matched.loss[model].item(), "effective_rank": rank[model].item()}
        for model, (seed, offset) in enumerate(training.models)
        for column, length in enumerate(config.lengths)
    ]


class _AllReached(Exception):
    """Every head is at its loss: nothing is left to train for."""


class _Matched:
    """Keeps each head as it was when its running loss first was down to the level."""

    def __init__(self, config: TokenConfig) -> None:
        self.level, self.window = config.level, config.window
        self.parameters: dict[str, Tensor] = {}
        self.when = torch.zeros(len(config.training.models), dtype=torch.long)
        self.loss = torch.zeros(len(config.training.models))

    def __call__(self, step: int, steps: int, stack: HeadStack, losses: Tensor) -> None:
        running = losses[:, -self.window :].mean(1)
        waiting = self.when == 0  # changes until its head has reached the level
        self.loss[waiting] = running[waiting]
        for name, value in stack.parameters.items():
            kept = self.parameters.setdefault(name, value.detach().clone())
            kept[waiting] = value.detach()[waiting]
        self.when[waiting & (running <= self.level) & (step >= self.window)] = step
        if self.when.all():
            raise _AllReached
