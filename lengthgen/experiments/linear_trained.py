"""Units of `linear` that train: one spectrum, one loss, several ways to make weights of logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lengthgen import linear, normalization
from lengthgen.experiments.heads import OFFSETS
from lengthgen.experiments.linear_limit import (
    BRIEF,
    LONGEST,
    MAIN,
    VOCABULARY,
    row,
    sampled,
    spectrum,
)
from lengthgen.position_head import PositionHead, initialize
from lengthgen.results import unit
from lengthgen.token_linear import TokenLinearHead, train_token_linear

__all__ = ["TrainedConfig", "Training", "token_rows", "trained_rows"]


@dataclass(frozen=True)
class Training:
    """A head to train and the steps after which it is measured; the last one ends the training."""

    head: str
    steps: tuple[int, ...]
    offsets: tuple[int, ...] = OFFSETS
    std: float = 0.01
    safety: float = 1.0


@dataclass(frozen=True)
class TrainedConfig:
    """A training, its models and how they are measured."""

    training: Training
    seeds: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    n_sequences: int

    @property
    def models(self) -> list[tuple[int, int]]:
        """Target offset and seed of each model."""
        return [(offset, seed) for offset in self.offsets for seed in self.seeds]

    def lengths_at(self, step: int) -> tuple[int, ...]:
        """Return the lengths at which the heads are measured after a step: all at the end."""
        return self.lengths if step == self.training.steps[-1] else BRIEF


@unit
def trained_rows(config: TrainedConfig) -> list[dict[str, Any]]:
    """Train position-only heads with one way to make weights of logits, and measure them."""
    training, frequencies = config.training, spectrum(MAIN)
    offset = torch.tensor([offset for offset, _ in config.models])
    head = initialize([seed for _, seed in config.models], training.std, frequencies)
    path = normalization.descent(head, offset, training.head, training.safety)
    rows = []
    for step, (head, loss) in enumerate(path):
        if step in training.steps:
            rows += _accuracy_rows(config, step, loss, head)
        if step == training.steps[-1]:
            break
    return rows + (_geometry_rows(config, head) if training.head == "none" else [])


def _accuracy_rows(
    config: TrainedConfig, step: int, loss: Tensor, head: PositionHead
) -> list[dict[str, Any]]:
    rows = []
    for length in config.lengths_at(step):
        weights = normalization.position_weights(head, [length], config.training.head)[:, 0]
        accuracy = sampled(weights, [k for k, _ in config.models], config.n_sequences)
        rows += _model_rows(config, step, length, loss, accuracy)
    return rows


def _model_rows(
    config: TrainedConfig, step: int, length: int, loss: Tensor, accuracy: Tensor
) -> list[dict[str, Any]]:
    shared = {"step": step, "length": length, "n_sequences": config.n_sequences}
    return [
        row(config.training.head, MAIN, k, seed, **shared, loss=loss[i], accuracy=accuracy[i])
        for i, (k, seed) in enumerate(config.models)
    ]


def _geometry_rows(config: TrainedConfig, head: PositionHead) -> list[dict[str, Any]]:
    """Compare the bilinear head's end with the interpolants of least l2 and least group-l1 norm."""
    offset = torch.tensor([offset for offset, _ in config.models])
    design = linear.design_matrix(head.frequencies, torch.arange(LONGEST))
    target = linear.impulse(offset, LONGEST)
    reached, least = head.coefficients, linear.as_coefficients(linear.minimum_norm(design, target))
    cones = {
        k: normalization.group_l1_interpolant(head.frequencies, k, LONGEST) for k in config.offsets
    }
    sparse = torch.stack([cones[int(k)] for k in offset])
    first = reached[:: len(config.seeds)].repeat_interleave(len(config.seeds), 0)
    norm = least.norm(dim=-1)
    columns = {
        "l2_ratio": reached.norm(dim=-1) / norm,
        "l1_ratio": normalization.group_l1_norm(reached) / normalization.group_l1_norm(sparse),
        "l2_distance": (reached - least).norm(dim=-1) / norm,
        "l1_distance": (reached - sparse).norm(dim=-1) / sparse.norm(dim=-1),
        "seed_distance": (reached - first).norm(dim=-1) / norm,
    }
    return [
        row("none", MAIN, k, seed, **{n: c[i] for n, c in columns.items()})
        for i, (k, seed) in enumerate(config.models)
    ]


@unit
def token_rows(config: TrainedConfig) -> list[dict[str, Any]]:
    """Train token-level linear heads with Adam on sampled sequences, and measure them."""
    training = config.training
    head = TokenLinearHead.initialize(config.models, training.std, spectrum(MAIN), VOCABULARY)
    rows = []
    for step, (trained, loss) in enumerate(train_token_linear(head, training.steps[-1])):
        if step in training.steps:
            for length in config.lengths_at(step):
                accuracy = trained.accuracy(length, config.n_sequences)
                rows += _model_rows(config, step, length, loss, accuracy)
    return rows
