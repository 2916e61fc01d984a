r"""What one measures on heads with any positional encoding, trained on short sequences.

Accuracy by length and where attention peaks; whether logits are a function of the offset alone;
the kernel and whether its waves are in phase at the target; what the dilution law predicts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.dilution import (
    Draws,
    mass_model,
    offset_logits,
    predicted_accuracy,
    token_readouts,
)
from lengthgen.encodings import encoding_class, has_hook
from lengthgen.evaluation import FIT, accuracy, attention
from lengthgen.pinning import peak, pinning_index
from lengthgen.results import unit
from lengthgen.task import TestSequences
from lengthgen.training import TrainingConfig, load_heads

__all__ = [
    "FIT",
    "LENGTHS",
    "TOLERANCE",
    "TRAINED",
    "MeasureConfig",
    "as_tested",
    "dilution_error",
    "equivariance_error",
    "length_rows",
    "measure",
    "measured_rows",
    "wave_alignment",
]

TRAINED = 16
"""The longest training length, in tokens."""

LENGTHS = (16, 17, 24, 32, 48, 64, 96, 128, 256, 512, 1024)

WINDOW = 64
"""Offsets of the kernel."""

QUERIES = (9, 12, 15, 16, 23, 31, 47, 63, 127, 255, 511, 1000, 1023)
"""Query positions whose logits are compared: inside the training range, near it, far from it."""

TOLERANCE = 1e-3
"""Largest equivariance error of a logit that counts as a function of the offset alone.

Angles rounded to float32 near position 1,000 are off by 3e-5, and a reader's sum over 16
frequencies by 1e-4 of the largest logit. A trained head's largest logit is some 20 nats, so that
1e-3 of it moves an attention weight by 2 %. Encodings that do use the position are at 0.1 or more.
"""

N_ATTENTION = 200
"""Sequences over which attention is averaged to find its peak."""


@dataclass(frozen=True)
class MeasureConfig:
    """Which heads to measure, with what they are tested, and at which lengths.

    Args:
        training: the heads.
        offsets: those of its offsets that are measured.
        lengths: lengths to test; the first is the longest training length.
        n_sequences: test sequences per length.
        tested: the head at test time, if not the one that was trained; see `as_tested`.
    """

    training: TrainingConfig
    offsets: tuple[int, ...]
    lengths: tuple[int, ...] = LENGTHS
    n_sequences: int = 2_000
    tested: HeadConfig | None = None


def as_tested(stack: HeadStack, head: HeadConfig, length: int, seeds: Sequence[int]) -> HeadStack:
    """Return trained heads as they meet a length: with another encoding or temperature, stretched.

    An encoding whose `__init__` names `factor` gets the length divided by the longest training
    length there, at least 1: it was trained with factor 1.

    Args:
        stack: trained heads.
        head: their configuration at test time, the one of `stack` or of the same sizes.
        length: sequence length, in tokens.
        seeds: the seed of each head.
    """
    if _stretches(head.encoding):
        options = {**head.encoding_options, "factor": max(1.0, length / TRAINED)}
        head = replace(head, encoding_options=options)
    if head == stack.config:
        return stack
    return HeadStack.from_state(head, stack.parameters, seeds)


def _stretches(encoding: str | type) -> bool:
    return "factor" in inspect.signature(encoding_class(encoding)).parameters


@torch.no_grad()
def equivariance_error(stack: HeadStack, reach: int) -> Float[Tensor, " models"]:
    r"""Return by how much logits of one offset differ between query positions.

    $\max |\ell_{ab}(i, i - D) - \ell_{ab}(i', i' - D)| / \max |\ell|$ over tokens a, b, offsets
    $D \ge 0$ and query positions $i, i'$ below `reach`, in float64. What depends on the query
    alone cancels in the softmax: the mean over key tokens and the offsets 0..9 is removed first.

    Raises:
        ValueError: logits that are not finite.
    """
    stack = stack.map(Tensor.double)
    shape = (stack.n_models, stack.config.vocabulary, stack.config.vocabulary, reach)
    low, high = torch.full(shape, torch.inf).double(), torch.full(shape, -torch.inf).double()
    for query in (q for q in QUERIES if q < reach):
        position = torch.tensor([query])
        logit = stack.tables(position, position - torch.arange(query + 1)).logit
        if not logit.isfinite().all():
            raise ValueError(
                f"encoding {stack.config.encoding!r} gives trained heads logits that are not "
                f"finite at query position {query}"
            )
        logit = logit - logit[..., : QUERIES[0] + 1].mean((2, 3), keepdim=True)
        low[..., : query + 1] = torch.minimum(low[..., : query + 1], logit)
        high[..., : query + 1] = torch.maximum(high[..., : query + 1], logit)
    seen = high.isfinite()
    largest = torch.maximum(high, -low)[seen].view(stack.n_models, -1).amax(1)
    return (high - low)[seen].view(stack.n_models, -1).amax(1) / largest


def wave_alignment(kernel: Float[Tensor, "*models offsets"], offset: int) -> list[float | None]:
    r"""Return $\kappa(K) / \sum_m |\hat\kappa_m|$ of centred kernels, in [-1, 1].

    $\hat\kappa_m = \frac1n \sum_D \kappa(D) e^{-2\pi i m D / n}$ are the amplitudes of the waves
    that make up the kernel on its window of n offsets, whatever encoding it comes from: 1 where
    all of them are in phase at K. `None` for a kernel that is constant.

    Example:
        >>> spike = torch.zeros(1, 64)
        >>> spike[:, 2] = 5.0
        >>> [round(value, 4) for value in wave_alignment(spike, 2)], wave_alignment(spike * 0, 2)
        ([1.0], [None])
    """
    kernel = kernel - kernel.mean(-1, keepdim=True)
    total = torch.fft.fft(kernel).abs().mean(-1)
    return [
        float(value / amplitude) if amplitude > 1e-9 else None
        for value, amplitude in zip(kernel[..., offset], total, strict=True)
    ]


@torch.no_grad()
def measure(stack: HeadStack, config: MeasureConfig) -> list[dict[str, Any]]:
    """Measure trained heads; return one row per seed and offset, with lists by length."""
    models = [m for m in config.training.models if m[1] in config.offsets]
    stack = stack.select([config.training.models.index(model) for model in models])
    seeds, offsets = zip(*models, strict=True)
    head, lengths = config.tested or stack.config, config.lengths
    n, vocabulary = config.n_sequences, stack.config.vocabulary
    test, few = TestSequences(n, vocabulary), TestSequences(min(n, N_ATTENTION), vocabulary)
    stacks = {length: as_tested(stack, head, length, seeds) for length in lengths}
    share = [accuracy(s, offsets, [length], test)[:, 0] for length, s in stacks.items()]
    peaks = [peak(attention(s, few.sequences(length))) for length, s in stacks.items()]
    share, peaks = torch.stack(share, dim=1), torch.stack(peaks, dim=1)
    beyond = torch.tensor(lengths) >= 2 * TRAINED
    index = pinning_index(peaks[:, beyond], TRAINED) if beyond.any() else None
    error = equivariance_error(stacks[lengths[-1]], lengths[-1])
    window = min(WINDOW, lengths[-1])
    kernel = offset_logits(as_tested(stack, head, window, seeds), window).mean((1, 2))
    kernel = kernel - kernel.mean(-1, keepdim=True)
    predicted = None
    if float(error.max()) <= TOLERANCE and not has_hook(stack.encodings[0], "embed"):
        predicted = _predicted(stacks, offsets)
    return [
        {
            "seed": seed,
            "offset": offset,
            "accuracy": [round(value, 6) for value in share[m].tolist()],
            "peaks": peaks[m].tolist(),
            "predicted": None if predicted is None else predicted[m].tolist(),
            "equivariance_error": float(error[m]),
            "pinning_index": None if index is None else float(index[m]),
            "alignment": wave_alignment(kernel[m : m + 1], offset)[0],
            "kernel": kernel[m].tolist(),
        }
        for m, (seed, offset) in enumerate(models)
    ]


def length_rows(
    encoding: str, measured: dict[str, Any], config: MeasureConfig
) -> list[dict[str, Any]]:
    """Return a row per length of what `measure` found on one head."""
    law = measured["predicted"] or [None] * len(config.lengths)
    columns = zip(config.lengths, measured["accuracy"], measured["peaks"], law, strict=True)
    return [
        {
            "encoding": encoding,
            "offset": measured["offset"],
            "seed": measured["seed"],
            "length": length,
            "accuracy": accuracy,
            "n_sequences": config.n_sequences,
            "peak": place,
            "predicted": None if predicted is None else round(predicted, 6),
        }
        for length, accuracy, place, predicted in columns
    ]


def dilution_error(rows: Iterable[dict[str, Any]]) -> float | None:
    """Return the largest difference of predicted and measured accuracy, `None` without a law."""
    pairs = [(row["accuracy"], row["predicted"]) for row in rows]
    off = [abs(measured - law) for measured, law in pairs if law is not None]
    return round(max(off), 6) if off else None


def _predicted(stacks: dict[int, HeadStack], offsets: Sequence[int]) -> Tensor:
    """Return the dilution law's accuracy of heads at each length, (models, lengths)."""
    columns = []
    for length, stack in stacks.items():
        logits = offset_logits(stack, length)
        parts = [mass_model(t, k, [length]) for t, k in zip(logits, offsets, strict=True)]
        columns.append(torch.stack(parts))
    stack = next(iter(stacks.values()))
    draws = Draws(32_000, stack.config.vocabulary)
    return predicted_accuracy(torch.cat(columns, dim=-1), token_readouts(stack), draws)


@unit
def measured_rows(config: MeasureConfig) -> list[dict[str, Any]]:
    """Train heads if they are missing, and measure them (a unit of work); see `measure`."""
    return measure(load_heads(config.training), config)
