"""Units of `linear` that train nothing: the minimum-norm limit and the way to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lengthgen import linear
from lengthgen.encodings.rotary import rotary_frequencies
from lengthgen.position_head import TRAINING_LENGTHS
from lengthgen.readout import predicted_accuracy, sampled_accuracy
from lengthgen.results import unit
from lengthgen.superoscillation import efficiency, interpolant_energy_bound, mean_square

__all__ = [
    "BENIGN",
    "BRIEF",
    "LONGEST",
    "MAIN",
    "ROTARY",
    "VOCABULARY",
    "LinearConfig",
    "descent_rows",
    "limit_rows",
    "row",
    "sampled",
    "spectrum",
]

MAIN, BENIGN, ROTARY = "midpoints 0.8", "midpoints 1", "base 10000"
"""Spectra by name: `midpoints TOP` or `base BASE`, sixteen frequencies each."""

N_FREQUENCIES, VOCABULARY, LONGEST = 16, 16, TRAINING_LENGTHS[-1]
BRIEF = (LONGEST, 48)
"""Lengths at which a head is measured on its way; at the end it is measured at all."""


def spectrum(name: str) -> Tensor:
    """Return the sixteen frequencies of a spectrum given by name.

    Raises:
        ValueError: neither `midpoints TOP` nor `base BASE`.

    Example:
        >>> float(spectrum("midpoints 0.8")[-1] / torch.pi)
        0.775
    """
    kind, _, number = name.partition(" ")
    if kind == "midpoints" and number:
        return linear.scaled_midpoints(N_FREQUENCIES, float(number))
    if kind == "base" and number:
        return rotary_frequencies(2 * N_FREQUENCIES, float(number))
    raise ValueError(f"spectrum={name!r} is not allowed: use 'midpoints TOP' or 'base BASE'")


def sampled(weights: Tensor, offsets: Iterable[int], n_sequences: int) -> Tensor:
    """Return the accuracy of each model's weights, on test sequences that depend on length only."""
    generator = torch.Generator().manual_seed(weights.shape[1])
    return sampled_accuracy(
        weights.contiguous(), torch.tensor(list(offsets)), VOCABULARY, n_sequences, generator
    )


def row(head: str, name: str, offset: int, seed: int = 0, **columns: Any) -> dict[str, Any]:
    """Return a row of a result; one-element tensors become numbers."""
    first = {"head": head, "spectrum": name, "encoding": "rotary", "offset": offset, "seed": seed}
    return first | {k: v.item() if isinstance(v, Tensor) else v for k, v in columns.items()}


@dataclass(frozen=True)
class LinearConfig:
    """Settings of one spectrum; `n_draws` is for the limit, `steps` are for descent."""

    spectrum: str
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    n_sequences: int
    n_draws: int = 0
    steps: tuple[int, ...] = ()
    walked_steps: int = 0


def _problem(config: LinearConfig) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    frequencies, offset = spectrum(config.spectrum), torch.tensor(config.offsets)
    design = linear.design_matrix(frequencies, torch.arange(LONGEST))
    return frequencies, offset, design, linear.impulse(offset, LONGEST)


@unit
def limit_rows(config: LinearConfig) -> list[dict[str, Any]]:
    """Measure the minimum-norm interpolant: its norm, its energy far away and its accuracy."""
    frequencies, offset, design, target = _problem(config)
    theta = linear.minimum_norm(design, target)
    conditioning = linear.conditioning(design)
    kind, _, top = config.spectrum.partition(" ")
    norm = theta.square().sum(-1)
    columns = {
        "squared_norm": norm,
        "efficiency": efficiency(theta, frequencies, offset),
        "far_energy": mean_square(theta, frequencies, 0, 200_000) / (norm / 2),
        "residual": (theta @ design.T - target).abs().amax(-1),
    }
    if kind == "midpoints":
        bound = interpolant_energy_bound(frequencies, float(top), LONGEST)
        columns["squared_norm_bound"] = bound[offset]
    shared = {"condition": conditioning.condition_number, "rank": conditioning.rank}
    rows = [
        row("min-norm", config.spectrum, k, **shared, **{n: c[i] for n, c in columns.items()})
        for i, k in enumerate(config.offsets)
    ]
    for length in config.lengths:
        weights = theta @ linear.design_matrix(frequencies, torch.arange(length)).T
        measured = {"accuracy": sampled(weights, config.offsets, config.n_sequences)}
        if length > LONGEST and kind == "midpoints":
            for column, n_exact in (("predicted", 8), ("gaussian", 0)):
                generator = torch.Generator().manual_seed(length)
                measured[column] = predicted_accuracy(
                    weights, offset, VOCABULARY, n_exact, config.n_draws, generator
                )
        rows += [
            row("min-norm", config.spectrum, k, length=length, n_sequences=config.n_sequences)
            | {name: float(column[i]) for name, column in measured.items()}
            for i, k in enumerate(config.offsets)
        ]
    return rows


@unit
def descent_rows(config: LinearConfig) -> list[dict[str, Any]]:
    """Measure the linear head along gradient descent, and hold the closed form against it."""
    frequencies, offset, design, target = _problem(config)
    metric = linear.loss_metric()
    problem = (design, target, metric, 0.5 * linear.largest_step(design, metric))
    checked = torch.tensor([config.walked_steps, 10**9])
    jumped, limit = linear.descent_closed_form(*problem, checked)
    walked = next(itertools.islice(linear.descent(*problem), config.walked_steps, None))
    least = linear.minimum_norm(design, target)
    errors = {
        "iterate_error": (walked - jumped).abs().amax(-1),
        "limit_error": (limit - least).norm(dim=-1) / least.norm(dim=-1),
    }
    rows = [
        row("linear", config.spectrum, k, **{n: e[i] for n, e in errors.items()})
        for i, k in enumerate(config.offsets)
    ]
    steps = torch.tensor(config.steps)
    theta = linear.descent_closed_form(*problem, steps)  # (steps, models, parameters)
    loss = torch.stack([linear.squared_loss(t, design, target, metric) for t in theta])
    share = torch.stack([efficiency(t, frequencies, offset) for t in theta])
    for length in config.lengths:
        weights = theta @ linear.design_matrix(frequencies, torch.arange(length)).T
        repeated = config.offsets * len(steps)
        accuracy = sampled(weights.flatten(0, 1), repeated, config.n_sequences)
        rows += [
            row("linear", config.spectrum, k, step=step, length=length)
            | {"loss": float(loss[t, i]), "efficiency": float(share[t, i])}
            | {"accuracy": float(a), "n_sequences": config.n_sequences}
            for ((t, step), (i, k)), a in zip(
                itertools.product(enumerate(config.steps), enumerate(config.offsets)),
                accuracy,
                strict=True,
            )
        ]
    return rows
