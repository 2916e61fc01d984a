"""Accuracy and attention of a stack of heads at any length, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from lengthgen.attention import HeadStack
from lengthgen.results import unit
from lengthgen.task import FixedOffsetTask, TestSequences
from lengthgen.training import TrainingConfig, load_heads

__all__ = ["FIT", "AccuracyConfig", "accuracy", "accuracy_rows", "attention"]

FIT = 0.99
"""A head fits its task if it answers at least this share at the longest training length."""

COLUMNS = 8
"""Models per matrix product. Fixed, so that a model's numbers do not depend on its stack."""


@torch.no_grad()
def accuracy(
    stack: HeadStack, offsets: Sequence[int], lengths: Sequence[int], test: TestSequences
) -> Float[Tensor, "models lengths"]:
    r"""Return the share of test sequences each model answers correctly, by length.

    The attention mass of token b is a product of a one-hot matrix of tokens with
    $e^{\ell[a, b, j]}$, block of positions by block, rescaled to the running maximum of the logits,
    so that memory does not grow with the length. All models answer the same sequences.

    Args:
        stack: the models.
        offsets: each model's task offset.
        lengths: lengths to test, selected by value; each must hold every offset.
        test: the test sequences.

    Raises:
        ValueError: a length that does not hold an offset or that the encoding does not reach.
    """
    if test.vocabulary != stack.config.vocabulary:
        raise ValueError(
            f"test sequences of {test.vocabulary} tokens for heads of {stack.config.vocabulary}: "
            "they must be equal"
        )
    if not lengths:
        raise ValueError("no lengths to test: give at least one")
    if len(offsets) != stack.n_models:
        raise ValueError(f"{len(offsets)} offsets for {stack.n_models} models: one each")
    for offset in set(offsets):
        FixedOffsetTask(offset, stack.config.vocabulary).check_length(min(lengths))
    if max(offsets) >= test.block:
        raise ValueError(f"offset={max(offsets)} does not fit a block of {test.block} tokens")
    columns = []
    for first in range(0, stack.n_models, COLUMNS):
        members = list(range(first, min(first + COLUMNS, stack.n_models)))
        padded = members + [members[0]] * (COLUMNS - len(members))
        part, part_offsets = stack.select(padded), [offsets[m] for m in padded]
        correct = [_correct(part, part_offsets, length, test) for length in lengths]
        columns.append(torch.stack(correct, dim=1)[: len(members)])
    return torch.cat(columns)


def _correct(stack: HeadStack, offsets: list[int], length: int, test: TestSequences) -> Tensor:
    """Return the accuracy of each of `COLUMNS` models at one length, (models,)."""
    vocabulary, n_models = stack.config.vocabulary, stack.n_models
    query_position = torch.tensor([length - 1])
    peak = torch.full((n_models, vocabulary), -torch.inf, dtype=stack.dtype)
    totals = None
    for first, tokens in test.blocks(length):
        key_positions = length - 1 - torch.arange(first, first + tokens.shape[1])
        tables = stack.tables(query_position, key_positions)
        new_peak = torch.maximum(peak, tables.logit.amax((2, 3)))
        weights = (tables.logit - new_peak[:, :, None, None]).exp()
        if totals is None:
            query_tokens = tokens[:, 0].long()
            targets = tokens[:, offsets].long()
            groups = [(query_tokens == a).nonzero()[:, 0] for a in range(vocabulary)]
            n_values = 0 if tables.position_readout is None else vocabulary
            totals = [
                (
                    weights.new_zeros(vocabulary, len(g), n_models),
                    weights.new_zeros(len(g), n_models, n_values),
                )
                for g in groups
            ]
        shrink = (peak - new_peak).exp()
        peak = new_peak
        one_hot = (tokens[None] == torch.arange(vocabulary, dtype=torch.uint8)[:, None, None]).to(
            stack.dtype
        )
        for a, group in enumerate(groups):
            mass, value = totals[a]
            chosen = one_hot[:, group]  # (token, sequences, keys)
            by_token = weights[:, a].permute(1, 2, 0)  # (token, keys, models)
            mass.mul_(shrink[:, a]).baddbmm_(chosen, by_token)
            if tables.position_readout is not None:
                carried = torch.einsum("bjm,mjv->bjmv", by_token, tables.position_readout)
                moved = torch.bmm(chosen, carried.flatten(2)).sum(0)
                value.mul_(shrink[:, a, None]).add_(moved.view_as(value))
    correct = torch.zeros(n_models)
    for group, (mass, value) in zip(groups, totals, strict=True):
        answer = torch.einsum("bnm,mbv->nmv", mass, tables.token_readout)
        if value.shape[-1]:
            answer = answer + value
        correct += (answer.argmax(-1) == targets[group]).sum(0)
    return correct / test.n_sequences


@torch.no_grad()
def attention(
    stack: HeadStack, tokens: Integer[Tensor, "sequences length"], first_position: int = 0
) -> Float[Tensor, "models sequences length"]:
    """Return the attention weights of every model on the same sequences, in reading order.

    Args:
        stack: the models.
        tokens: sequences; the query is the last token.
        first_position: position of the first token.
    """
    positions = torch.arange(first_position, first_position + tokens.shape[1])
    tables = stack.tables(positions[-1:], positions)
    shared = tokens.expand(stack.n_models, -1, -1)
    return tables.attention(shared, shared[..., -1])


@dataclass(frozen=True)
class AccuracyConfig:
    """Which heads to test, at which lengths, on how many sequences."""

    training: TrainingConfig
    lengths: tuple[int, ...]
    n_sequences: int


@unit
def accuracy_rows(config: AccuracyConfig) -> list[dict[str, Any]]:
    """Measure accuracy by length of a trained stack (a unit of work): one row per cell."""
    training = config.training
    test = TestSequences(config.n_sequences, training.head.vocabulary)
    offsets = [offset for _, offset in training.models]
    table = accuracy(load_heads(training), offsets, config.lengths, test)
    return [
        {
            "encoding": training.head.encoding,
            "offset": offset,
            "seed": seed,
            "length": length,
            "accuracy": round(float(value), 6),
            "n_sequences": config.n_sequences,
        }
        for (seed, offset), values in zip(training.models, table, strict=True)
        for length, value in zip(config.lengths, values, strict=True)
    ]
