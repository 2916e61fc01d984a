"""Units of `dilution`: each law beside the measurement it predicts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lengthgen import dilution
from lengthgen.attention import HeadStack
from lengthgen.carrier import log_bessel_constant
from lengthgen.results import unit
from lengthgen.task import TestSequences
from lengthgen.training import TrainingConfig, load_heads

__all__ = [
    "VERSIONS",
    "BesselConfig",
    "CellConfig",
    "RemedyConfig",
    "bessel_rows",
    "cell_rows",
    "remedy_rows",
]

VERSIONS = {
    "predicted": "the law",
    "gaussian": "everything Gaussian",
    "kernel_only": "kernel instead of token pairs",
}
"""The accuracy law and two that fail, by their column."""

N_ALIASES = 16
SEED_OF_DRAWS = 1_000
"""Draws and test sequences come from different streams."""


# -- attention and accuracy -----------------------------------------------------------------------


@dataclass(frozen=True)
class CellConfig:
    """Trained heads, how they are measured, and for how many seeds the versions that fail."""

    training: TrainingConfig
    n_seeds: int
    lengths: tuple[int, ...]
    far_lengths: tuple[int, ...]
    n_sequences: int
    n_draws: int
    n_compared: int


@unit
def cell_rows(config: CellConfig) -> list[dict[str, Any]]:
    """Measure and predict attention and accuracy of trained heads, one row per head and length."""
    lengths, every = list(config.lengths), [*config.lengths, *config.far_lengths]
    stack, models = _first_seeds(config.training, config.n_seeds)
    offsets = [offset for _, offset in models]
    readouts = dilution.token_readouts(stack)
    near, laws, kernels = [], [], []
    versions: dict[str, dict[int, Tensor]] = {name: {} for name in VERSIONS}
    for index, (seed, offset) in enumerate(models):
        logits = dilution.offset_logits(stack.select([index]), max(every))[0]
        near.append(logits[:, :, : max(lengths)])
        laws.append(dilution.attention_law(logits, offset, lengths).mean((1, 2)))
        kernels.append(dilution.kernel_attention(logits.mean((0, 1)), offset, lengths))
        versions["predicted"][index] = dilution.mass_model(logits, offset, every, N_ALIASES)
        if seed < config.n_compared:
            versions["gaussian"][index] = dilution.mass_model(logits, offset, lengths, 0)
            versions["kernel_only"][index] = dilution.mass_model(
                dilution.kernel_only(near[index]), offset, lengths, N_ALIASES
            )
    draws = dilution.Draws(config.n_draws, len(readouts[0]), N_ALIASES, SEED_OF_DRAWS)
    accuracies = {
        name: dict(zip(of, _predict(of, readouts, draws), strict=True))
        for name, of in versions.items()
        if of
    }
    test = TestSequences(config.n_sequences, config.training.head.vocabulary)
    measured = dilution.measure(torch.stack(near), readouts, offsets, lengths, test)
    rows = []
    for index, (seed, offset) in enumerate(models):
        for column, length in enumerate(every):
            row = {"kind": "cell", "encoding": "rotary", "offset": offset, "seed": seed}
            row["length"] = length
            for name, of in accuracies.items():
                if index in of and column < len(of[index]):
                    row[name] = _rounded(of[index][column])
            if length in lengths:
                row |= {
                    "n_sequences": config.n_sequences,
                    "accuracy": _rounded(measured.accuracy[index, column]),
                    "attention": _rounded(measured.attention[index, column], 8),
                    "attention_error": _rounded(measured.attention_error[index, column], 9),
                    "attention_law": _rounded(laws[index][column], 8),
                    "attention_kernel": _rounded(kernels[index][column], 8),
                }
            rows.append(row)
    return rows


def _first_seeds(training: TrainingConfig, n_seeds: int) -> tuple[HeadStack, list[tuple[int, int]]]:
    chosen = [i for i, (seed, _) in enumerate(training.models) if seed < n_seeds]
    return load_heads(training).select(chosen), [training.models[i] for i in chosen]


def _predict(models: dict[int, Tensor], readouts: Tensor, draws: dilution.Draws) -> Tensor:
    chosen = list(models)
    return dilution.predicted_accuracy(torch.stack(list(models.values())), readouts[chosen], draws)


def _rounded(value: Tensor, digits: int = 6) -> float:
    return round(float(value), digits)


# -- the Bessel law -------------------------------------------------------------------------------


@dataclass(frozen=True)
class BesselConfig:
    """Trained heads, and how many offsets are summed."""

    training: TrainingConfig
    limit: int


@unit
def bessel_rows(config: BesselConfig) -> list[dict[str, Any]]:
    """Sum the exponential of the logits over offsets for token pairs of the first seed's heads.

    For each head one query token and all key tokens: the sum, the product of Bessel functions,
    and the exact mean over the torus on which base 10,000 at width 32 really moves.
    """
    stack, models = _first_seeds(config.training, config.training.seeds[0] + 1)
    vocabulary = stack.config.vocabulary
    coefficients = dilution.rotary_coefficients(stack)
    queries = [(5 * offset) % vocabulary for _, offset in models]
    pairs = torch.cat([coefficients[m, a] for m, a in enumerate(queries)])
    frequencies = stack.encodings[0].frequencies
    summed = dilution.mean_exponential(pairs, frequencies, config.limit)
    bessel = log_bessel_constant(pairs).exp()
    torus = dilution.torus_mean(pairs, 10, 4)
    return [
        {
            "kind": "bessel",
            "offset": offset,
            "seed": seed,
            "query": queries[m],
            "key": b,
            "limit": config.limit,
            "mean": float(summed[m * vocabulary + b]),
            "bessel": float(bessel[m * vocabulary + b]),
            "torus": float(torus[m * vocabulary + b]),
        }
        for m, (seed, offset) in enumerate(models)
        for b in range(vocabulary)
    ]


# -- remedies -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RemedyConfig:
    """Trained heads, one remedy, and how they are measured."""

    training: TrainingConfig
    remedy: str
    n_seeds: int
    lengths: tuple[int, ...]
    n_sequences: int
    n_draws: int


@unit
def remedy_rows(config: RemedyConfig) -> list[dict[str, Any]]:
    """Measure and predict accuracy of heads under one remedy."""
    training, lengths = config.training, list(config.lengths)
    if "longer" in config.remedy:
        training = replace(training, steps=4 * training.steps)
    stack, models = _first_seeds(training, config.n_seeds)
    offsets = [offset for _, offset in models]
    if config.remedy == "aligned":
        stack = dilution.aligned(stack, offsets)
    logits = dilution.offset_logits(stack, max(lengths))
    readouts = dilution.token_readouts(stack)
    test = TestSequences(config.n_sequences, training.head.vocabulary)
    draws = dilution.Draws(config.n_draws, training.head.vocabulary, N_ALIASES, SEED_OF_DRAWS)
    by_scale: dict[float, list[int]] = {}
    for length in lengths:
        scale = 1.0
        if "log-length" in config.remedy:
            scale = float(torch.tensor(length).log() / torch.tensor(training.lengths[1]).log())
        by_scale.setdefault(scale, []).append(length)
    rows = []
    for scale, some in by_scale.items():
        scaled = scale * logits[..., : max(some)]
        measured = dilution.measure(scaled, readouts, offsets, some, test).accuracy
        law = [
            dilution.mass_model(scaled[m], offset, some, N_ALIASES)
            for m, offset in enumerate(offsets)
        ]
        predicted = dilution.predicted_accuracy(torch.stack(law), readouts, draws)
        rows += [
            {
                "kind": "remedy",
                "remedy": config.remedy,
                "offset": offset,
                "seed": seed,
                "length": length,
                "measured": _rounded(measured[m, column]),
                "law": _rounded(predicted[m, column]),
            }
            for m, (seed, offset) in enumerate(models)
            for column, length in enumerate(some)
        ]
    return rows
