"""Circuit: which heads of a decoder do the work, and how each depends on position and length."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Complex, Float, Int, Integer
from torch import Tensor

from lengthgen import carrier
from lengthgen.transformer import Trace, TransformerStack

__all__ = [
    "accuracy_by_position",
    "attention_at_offset",
    "carrier_coefficients",
    "carrier_head",
    "context_effect",
    "cut_one_head",
    "head_ranks",
    "last_query",
    "mass_on_first",
    "peak_position",
    "shift_effect",
    "trace",
]

CHUNK = 2**14
"""Tokens of one model in flight: bounds memory and changes no number."""


def _chunks(tokens: Tensor) -> Iterable[Tensor]:
    return tokens.split(max(1, CHUNK // tokens.shape[1]))


@torch.no_grad()
def trace(
    stack: TransformerStack,
    tokens: Integer[Tensor, "sequences length"],
    positions: Int[Tensor, " length"] | None = None,
) -> Trace:
    """Return what every layer and head of every model computes on the same sequences."""
    return stack.trace(tokens.expand(stack.n_models, -1, -1), positions)


@torch.no_grad()
def accuracy_by_position(
    stack: TransformerStack,
    tokens: Integer[Tensor, "sequences length"],
    offset: int,
    keep: Float[Tensor, "models layers heads"] | None = None,
) -> Float[Tensor, "models positions"]:
    """Return the share of sequences answered correctly at positions `offset .. length - 1`.

    The decoder is causal and positions count from 0: an answer depends neither on later tokens
    nor on the length. The first columns are the accuracies of every shorter length.

    Args:
        stack: the models, which all answer the same sequences.
        tokens: sequences in reading order.
        offset: K.
        keep: factors of the heads' outputs, see `TransformerStack.forward`.
    """
    n_correct = torch.zeros(stack.n_models, tokens.shape[1] - offset)
    for part in _chunks(tokens):
        answers = stack.forward(part.expand(stack.n_models, -1, -1), keep=keep)
        right = answers[:, :, offset:].argmax(-1) == part[:, :-offset].long()
        n_correct += right.sum(1)
    return n_correct / len(tokens)


@torch.no_grad()
def cut_one_head(
    stack: TransformerStack, tokens: Integer[Tensor, "sequences length"], offset: int
) -> Float[Tensor, "models layers heads"]:
    """Return the accuracy over all positions with each head's output set to zero in turn."""
    n_layers, n_heads = stack.config.n_layers, stack.config.n_heads
    accuracy = torch.empty(stack.n_models, n_layers, n_heads)
    for layer in range(n_layers):
        for head in range(n_heads):
            keep = torch.ones_like(accuracy)
            keep[:, layer, head] = 0
            accuracy[:, layer, head] = accuracy_by_position(stack, tokens, offset, keep).mean(-1)
    return accuracy


# -- where heads look ------------------------------------------------------------------------------


def attention_at_offset(found: Trace, offset: int) -> Float[Tensor, "models layers heads"]:
    """Return each head's attention weight on the key `offset` before the query, its mean."""
    return found.attention.diagonal(-offset, dim1=-2, dim2=-1).mean((2, -1))


def carrier_head(
    attention: Float[Tensor, "models layers heads"],
) -> Int[Tensor, "models layer_and_head"]:
    """Return (layer, head) of the head that attends most at the target offset, for each model.

    Args:
        attention: see `attention_at_offset`.

    Example:
        >>> carrier_head(torch.tensor([[[0.1, 0.2], [0.9, 0.3]]]))
        tensor([[1, 0]])
    """
    best = attention.flatten(1).argmax(-1)
    n_heads = attention.shape[2]
    return torch.stack([best // n_heads, best % n_heads], dim=-1)


def mass_on_first(found: Trace, n_keys: int) -> Float[Tensor, "models layers heads"]:
    """Return the share of attention that the last query gives to the first `n_keys` keys.

    Uniform attention gives them `n_keys / length`.
    """
    return found.attention[..., -1, :n_keys].sum(-1).mean(2)


def peak_position(found: Trace) -> Int[Tensor, "models layers heads"]:
    """Return the key position with the largest mean attention weight of the last query."""
    return found.attention[..., -1, :].mean(2).argmax(-1)


# -- the carrier -----------------------------------------------------------------------------------


def last_query(found: Trace) -> Float[Tensor, "models layers heads batch offsets"]:
    """Return the logits of the last query by offset; column D is the key D before it."""
    return found.logits[..., -1, :].transpose(2, 3).flip(-1)


@torch.no_grad()
def carrier_coefficients(
    stack: TransformerStack, found: Trace
) -> Complex[Tensor, "models layers heads frequencies"]:
    r"""Return the coefficients $c_f = \overline{\bar q_f} \bar k_f / \sqrt{d}$ of mean kernels.

    $\bar q$ and $\bar k$ are the mean unrotated query and key over sequences and positions. In
    the first layer, where both are functions of one token, this is the mean over token pairs.
    """
    mean = found.inputs.mean((2, 3))  # (models, layers, d_model)
    n_heads = stack.config.n_heads
    query, key = (
        torch.einsum("mld,mlde->mle", mean, stack.parameters[name]).unflatten(-1, (n_heads, 1, -1))
        for name in ("query", "key")
    )
    layout = getattr(stack.encodings[0], "layout", "interleaved")
    return carrier.token_coefficients(query.double(), key.double(), layout)[..., 0, 0, :]


@torch.no_grad()
def head_ranks(stack: TransformerStack) -> Float[Tensor, "models layers heads"]:
    r"""Return the effective rank of every head's $W_q W_k^\top$."""
    query, key = (
        stack.parameters[name].unflatten(-1, (stack.config.n_heads, -1)).transpose(2, 3)
        for name in ("query", "key")
    )
    return carrier.effective_rank(query @ key.transpose(-1, -2))


# -- what a shift and what more context change -----------------------------------------------------


def _visible(logits: Tensor) -> Tensor:
    """Set the logits of keys after the query, which nothing reads, to zero."""
    return logits.tril()


@torch.no_grad()
def shift_effect(
    stack: TransformerStack, tokens: Integer[Tensor, "sequences length"], shift: int
) -> dict[str, Tensor]:
    """Return what a shift of all positions changes.

    Returns:
        `logit_change` (models, layers, heads): largest change of a logit divided by the largest
        |logit| of that head; `answers_changed` (models,): share of answers that differ.
    """
    before = trace(stack, tokens)
    after = trace(stack, tokens, torch.arange(shift, shift + tokens.shape[1]))
    change = _visible(after.logits - before.logits).abs().amax((2, 4, 5))
    differ = after.answers.argmax(-1) != before.answers.argmax(-1)
    return {
        "logit_change": change / _visible(before.logits).abs().amax((2, 4, 5)),
        "answers_changed": differ.float().mean((1, 2)),
    }


@torch.no_grad()
def context_effect(
    stack: TransformerStack, tokens: Integer[Tensor, "sequences length"], window: int, offset: int
) -> dict[str, Float[Tensor, "models layers heads"]]:
    """Return what the tokens before the last `window` ones change for the last query.

    Tokens and positions of the window are the same with and without its past: only the number of
    tokens before it differs.

    Returns:
        `logit_change`: largest change of the last query's logits inside the window, divided by
        the largest |logit|; `attention_alone` and `attention_after`: mean weight at the target
        offset, without and with the past.
    """
    positions = torch.arange(tokens.shape[1])
    after = trace(stack, tokens, positions)
    alone = trace(stack, tokens[:, -window:], positions[-window:])
    near, far = (last_query(found)[..., :window] for found in (alone, after))
    weights = [found.attention[..., -1, -1 - offset].mean(2) for found in (alone, after)]
    return {
        "logit_change": (far - near).abs().amax((-2, -1)) / near.abs().amax((-2, -1)),
        "attention_alone": weights[0],
        "attention_after": weights[1],
    }
