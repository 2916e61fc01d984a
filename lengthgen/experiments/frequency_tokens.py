"""Units of `frequency` with tokens: the carrier of trained heads, and what depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lengthgen import carrier
from lengthgen.attention import HeadStack
from lengthgen.dilution.heads import rotary_coefficients
from lengthgen.early_carrier import first_step_coefficients
from lengthgen.evaluation import accuracy
from lengthgen.experiments.frequency_position import FAR, MAIN, NEAR, Spectrum, agreement
from lengthgen.interventions import intervene
from lengthgen.late_carrier import max_margin
from lengthgen.position_head import kernel
from lengthgen.results import unit
from lengthgen.task import TestSequences
from lengthgen.training import TrainingConfig, load_heads

__all__ = ["TokenConfig", "causal_rows", "token_rows"]


@dataclass(frozen=True)
class TokenConfig:
    """Trained heads, and how they are changed and measured."""

    training: TrainingConfig
    spectrum: Spectrum = MAIN
    interventions: tuple[str, ...] = ("none",)
    lengths: tuple[int, ...] = ()
    n_sequences: int = 1


def _measures(
    stack: HeadStack, frequencies: Tensor, offset: Tensor, best: Tensor
) -> dict[str, Tensor]:
    pairs = rotary_coefficients(stack)
    mean = pairs.mean((1, 2))
    far = kernel(pairs, frequencies, torch.arange(FAR))
    matrix = stack.parameters["query"] @ stack.parameters["key"].transpose(1, 2)
    shares = carrier.spectrum(mean)
    return {
        "explained": carrier.explained_share(far[..., :NEAR]),
        "far_explained": carrier.explained_share(far),
        "effective_rank": carrier.effective_rank(matrix.double()),
        "alignment": carrier.alignment(mean, frequencies, offset),
        "support": carrier.support_size(mean),
        "support_tenth": carrier.support_size(mean, 0.1),
        "effective_frequencies": 1 / shares.square().sum(-1),
        "margin_correlation": agreement(mean, best, frequencies, NEAR),
        "far_margin_correlation": agreement(mean, best, frequencies, FAR),
        "naive_correlation": agreement(
            mean, first_step_coefficients(frequencies, offset), frequencies, NEAR
        ),
    }


@unit
def token_rows(config: TokenConfig) -> list[dict[str, Any]]:
    """Measure the carrier of heads with tokens, before and after training."""
    training = config.training
    offset = torch.tensor([offset for _, offset in training.models])
    frequencies = config.spectrum.frequencies
    solved = {k: max_margin(frequencies, k).coefficients for k in training.offsets}
    best = torch.stack([solved[int(k)] for k in offset])
    rows = []
    for trained, stack in ((False, training.stack()), (True, load_heads(training))):
        measures = _measures(stack, frequencies, offset, best)
        shares = carrier.spectrum(rotary_coefficients(stack).mean((1, 2)))
        for model, (seed, task) in enumerate(training.models):
            row = {"kind": "token", "base": config.spectrum.base, "width": config.spectrum.width}
            row |= {"trained": trained, "offset": task, "seed": seed}
            row |= {name: column[model].item() for name, column in measures.items()}
            row["amplitudes"] = [round(share, 5) for share in shares[model].tolist()]
            rows.append(row)
    return rows


@unit
def causal_rows(config: TokenConfig) -> list[dict[str, Any]]:
    """Measure the accuracy of trained heads after each intervention."""
    training, rows = config.training, []
    stack = load_heads(training)
    test = TestSequences(config.n_sequences, training.head.vocabulary)
    offsets = [offset for _, offset in training.models]
    for name in config.interventions:
        changed = intervene(stack, training.models, name)
        table = accuracy(changed, offsets, config.lengths, test)
        rows += [
            {"kind": "causal", "base": config.spectrum.base, "width": config.spectrum.width}
            | {"intervention": name, "encoding": "rotary", "offset": offset, "seed": seed}
            | {"length": length, "accuracy": round(float(value), 6)}
            | {"n_sequences": config.n_sequences}
            for (seed, offset), values in zip(training.models, table, strict=True)
            for length, value in zip(config.lengths, values, strict=True)
        ]
    return rows
