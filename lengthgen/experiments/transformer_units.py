"""Units of `transformer`: a decoder by position, head by head, and as a picture to explore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lengthgen import carrier, circuit
from lengthgen.encodings import rotary_frequencies
from lengthgen.results import unit
from lengthgen.task import TestSequences
from lengthgen.transformer import TransformerStack
from lengthgen.transformer_training import (
    TransformerTraining,
    load_transformers,
    trained_transformers,
)

__all__ = [
    "CARRIER",
    "FAR",
    "CircuitConfig",
    "MapConfig",
    "PositionConfig",
    "attention_maps",
    "head_rows",
    "position_rows",
]

CARRIER = 0.5
"""A head that gives the target at least this share of its attention, on average, is a carrier."""

LAST_STEPS = 20
"""Training losses are means over so many last steps."""

FAR = 4_096
"""Kernels are searched for a rival of the target up to this offset."""


@dataclass(frozen=True)
class PositionConfig:
    """Which decoder to measure, under which name, at which lengths."""

    training: TransformerTraining
    setting: str
    lengths: tuple[int, ...]
    n_sequences: int


def _test_tokens(training: TransformerTraining, n_sequences: int, length: int) -> torch.Tensor:
    return TestSequences(n_sequences, training.model.vocabulary).sequences(length)


@unit
def position_rows(config: PositionConfig) -> list[dict[str, Any]]:
    """Measure the accuracy of one trained decoder at every position, and sum it up by length.

    `accuracy` is over all positions that have a target, `accuracy_beyond` over those past the
    training length; the last row holds the accuracy at each position.
    """
    training = config.training
    stack = load_transformers(training)
    reach = training.model.reach or max(config.lengths)
    lengths = [length for length in config.lengths if length <= reach]
    tokens = _test_tokens(training, config.n_sequences, max(lengths))
    by_position = circuit.accuracy_by_position(stack, tokens, training.offset)[0]
    model = {
        "setting": config.setting,
        "encoding": training.model.encoding,
        "offset": training.offset,
        "seed": training.seeds[0],
        "loss": float(trained_transformers(training)["losses"][0, -LAST_STEPS:].mean()),
    }
    rows = []
    for length in lengths:
        row = {**model, "length": length, "n_sequences": config.n_sequences}
        row["accuracy"] = round(float(by_position[: length - training.offset].mean()), 6)
        if length > training.length:
            beyond = by_position[training.length - training.offset : length - training.offset]
            row["accuracy_beyond"] = round(float(beyond.mean()), 6)
        rows.append(row)
    return [*rows, {**model, "by_position": [round(float(a), 4) for a in by_position]}]


@dataclass(frozen=True)
class CircuitConfig:
    """Whose heads to measure, on how many sequences, and how far beyond the training length."""

    training: TransformerTraining
    n_sequences: int
    n_traced: int
    lengths: tuple[int, ...]
    shift: int


@unit
def head_rows(config: CircuitConfig) -> list[dict[str, Any]]:
    """Measure every head of one trained decoder, a row each, and what cutting heads out does."""
    training = config.training
    stack = load_transformers(training)
    reach = training.model.reach or max(config.lengths) + config.shift
    tokens = _test_tokens(training, config.n_traced, training.length)
    found = circuit.trace(stack, tokens)
    attention = circuit.attention_at_offset(found, training.offset)
    # Sequences stand for token pairs: in deeper layers queries and keys are more than a token.
    last_query = circuit.last_query(found)
    shift = min(config.shift, reach - training.length)
    columns = {
        "attention": attention,
        "effective_rank": circuit.head_ranks(stack),
        "explained": carrier.explained_share(last_query[..., None, :]),
        "logit_change": circuit.shift_effect(stack, tokens, shift)["logit_change"],
        **_context(stack, config, min(max(config.lengths), reach)),
    }
    if training.model.encoding == "rotary":
        columns |= _carriers(stack, found, training.offset)
    cut_tokens = _test_tokens(training, config.n_sequences, training.length)
    columns["accuracy_cut"] = circuit.cut_one_head(stack, cut_tokens, training.offset)
    kernels = last_query.mean(-2)
    beyond = _beyond(stack, config, [n for n in config.lengths if n <= reach])
    model = {"encoding": training.model.encoding, "seed": training.seeds[0]}
    rows = []
    for layer in range(training.model.n_layers):
        for head in range(training.model.n_heads):
            row = {**model, "layer": layer + 1, "head": head + 1, "shift": shift}
            row |= {name: float(column[0, layer, head]) for name, column in columns.items()}
            row["kernel"] = [round(float(x), 4) for x in kernels[0, layer, head]]
            row |= {
                name: {str(n): value[0, layer, head].item() for n, value in by_length.items()}
                for name, by_length in beyond.items()
            }
            rows.append(row)
    return [*rows, {**model, **_cuts(stack, cut_tokens, training.offset, attention)}]


def _context(
    stack: TransformerStack, config: CircuitConfig, length: int
) -> dict[str, torch.Tensor]:
    """Return what tokens before the last window of the training length change, by head."""
    tokens = _test_tokens(config.training, config.n_traced, length)
    effect = circuit.context_effect(stack, tokens, config.training.length, config.training.offset)
    return {
        "context_logit_change": effect["logit_change"],
        "attention_alone": effect["attention_alone"],
        "attention_after": effect["attention_after"],
    }


def _carriers(stack: TransformerStack, found: circuit.Trace, offset: int) -> dict[str, Any]:
    """Return what the mean kernel of every rotary head looks like.

    `first_lost` is the first offset at which the kernel is no longer below its value at the
    target, at most `FAR`: the length from which this head prefers a wrong offset.
    """
    coefficients = circuit.carrier_coefficients(stack, found)
    flat = coefficients.flatten(0, 2)
    frequencies = rotary_frequencies(stack.config.d_head)
    offsets = torch.full((len(flat),), offset)
    shape = coefficients.shape[:-1]
    return {
        "alignment": carrier.alignment(flat, frequencies, offsets).view(shape),
        "support": carrier.support_size(coefficients, 0.1),
        "first_lost": carrier.first_lost_offset(flat, frequencies, offsets, FAR).view(shape),
    }


def _beyond(
    stack: TransformerStack, config: CircuitConfig, lengths: list[int]
) -> dict[str, dict[int, torch.Tensor]]:
    """Return by length where heads look beyond the training range."""
    trained, offset = config.training.length, config.training.offset
    found: dict[str, dict[int, torch.Tensor]] = {"in_range": {}, "peak": {}, "attention_by": {}}
    for length in lengths:
        traced = circuit.trace(stack, _test_tokens(config.training, config.n_traced, length))
        found["in_range"][length] = circuit.mass_on_first(traced, trained)
        found["peak"][length] = circuit.peak_position(traced)
        found["attention_by"][length] = traced.attention[..., -1, -1 - offset].mean(2)
    return found


def _cuts(
    stack: TransformerStack, tokens: torch.Tensor, offset: int, attention: torch.Tensor
) -> dict[str, float | int]:
    """Return the accuracy in range with sets of heads cut out.

    The control cuts as many other heads as there are carriers, or all others if they are fewer.
    """
    order = attention.flatten().argsort(descending=True)
    n_carriers = int((attention >= CARRIER).sum())
    count = max(n_carriers, 1)
    sets = {
        "none_cut": order[:0],
        "carrier_cut": order[:1],
        "carriers_cut": order[:count],
        "control_cut": order[count:][-count:],
        "carrier_alone": order[1:],
        "carriers_alone": order[count:],
    }
    row: dict[str, float | int] = {"n_carriers": n_carriers}
    for name, cut in sets.items():
        keep = torch.ones(attention.numel())
        keep[cut] = 0
        found = circuit.accuracy_by_position(stack, tokens, offset, keep.view_as(attention))
        row[name] = round(float(found.mean()), 6)
    return row


@dataclass(frozen=True)
class MapConfig:
    """Which decoder to show, and at which lengths."""

    training: TransformerTraining
    lengths: tuple[int, ...] = (16, 32, 48, 64)


@unit
def attention_maps(config: MapConfig) -> dict[str, torch.Tensor]:
    """Return what one decoder does with one sequence of each length, for a picture to explore.

    Returns:
        for every length, `tokens_LENGTH` and `answers_LENGTH` (length,), and `attention_LENGTH`
        (layers, heads, query, key). A shorter sequence is the end of a longer one.
    """
    stack, found = load_transformers(config.training), {}
    for length in config.lengths:
        tokens = _test_tokens(config.training, 1, length)
        traced = circuit.trace(stack, tokens)
        found[f"tokens_{length}"] = tokens[0]
        found[f"answers_{length}"] = traced.answers[0, 0].argmax(-1)
        found[f"attention_{length}"] = traced.attention[0, :, 0]
    return found
