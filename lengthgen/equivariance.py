"""Equivariance: whether a logit depends on the offset alone, and what a joint shift changes."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from lengthgen.attention import HeadStack
from lengthgen.encodings import Rotary

__all__ = ["RoundedProductRotary", "kernel", "offset_only_error", "shift_effect"]


class RoundedProductRotary(Rotary):
    r"""A rotary encoding with a common fault: the product $\omega_f i$ is rounded to float32.

    Rounding the frequency once leaves the logit a function of the offset; rounding each product
    does not: just below $2^{20}$ neighbouring float32 angles lie 1/16 rad apart.
    """

    name = "rotary-rounded-product"

    def _angles(self, positions: Int[Tensor, " length"]) -> Float[Tensor, "length frequencies"]:
        frequencies = self.frequencies.to(torch.float32)
        return (positions.to(torch.float32)[:, None] * frequencies).to(torch.float64)


@torch.no_grad()
def kernel(
    stack: HeadStack, max_offset: int
) -> Float[Tensor, "models query_token key_token offsets"]:
    r"""Return the logits at offsets $-D .. D$, read off one query at position $D$ = `max_offset`.

    If logits depend on the offset alone, this is all there is to know: entry $D + m$ is
    $\kappa_{ab}(m)$, the logit of query token a and a key token b that stands m positions before.
    """
    keys = torch.arange(2 * max_offset, -1, -1)
    return stack.tables(torch.tensor([max_offset]), keys).logit


@torch.no_grad()
def offset_only_error(
    stack: HeadStack,
    reference: Float[Tensor, "models query_token key_token offsets"],
    first: int,
    span: int,
    stride: int = 1,
) -> Float[Tensor, " models"]:
    r"""Return how far the logits are from a function of the offset.

    $\max_{a,b,i,j} |\ell_{ab}(i, j) - \kappa_{ab}(i - j)| / \max |\kappa|$ over all positions
    `first <= i, j < first + span`, for every pair of tokens.

    Args:
        stack: the models.
        reference: their `kernel`, of any precision, to at least `span - 1` offsets.
        first: first position.
        span: number of positions.
        stride: take every so many query positions.

    Raises:
        ValueError: a `span` that the reference does not cover.
    """
    reach = reference.shape[-1] // 2
    if span > reach + 1:
        raise ValueError(
            f"span={span} needs a kernel to offset {span - 1}; this one ends at {reach}"
        )
    keys = torch.arange(first, first + span)
    error = torch.zeros(stack.n_models, dtype=torch.float64)
    for query in range(first, first + span, stride):
        logit = stack.tables(torch.tensor([query]), keys).logit
        expected = reference[..., reach + query - keys]
        error = torch.maximum(error, (logit - expected).abs().amax((1, 2, 3)).double())
    return error / reference.abs().amax((1, 2, 3))


@torch.no_grad()
def shift_effect(
    stack: HeadStack, tokens: Integer[Tensor, "sequences length"], shift: int, first: int = 0
) -> dict[str, Float[Tensor, " models"]]:
    r"""Return what a shift of all positions changes, for each model.

    Args:
        stack: the models.
        tokens: sequences in reading order, the query last.
        shift: added to every position.
        first: position of the first token before the shift.

    Returns:
        `logit_change`: largest change of a logit over all token pairs and positions, divided by
        the largest |logit|; `attention_change`: total variation distance of the attention
        weights, mean over sequences; `answers_changed`: share of sequences answered differently.
    """
    shared = tokens.expand(stack.n_models, -1, -1)
    logits, weights, answers = [], [], []
    for start in (first, first + shift):
        positions = torch.arange(start, start + tokens.shape[1])
        tables = stack.tables(positions[-1:], positions)
        attention = tables.attention(shared, shared[..., -1])
        logits.append(tables.logit)
        weights.append(attention)
        answers.append(tables.answer(shared, attention).argmax(-1))
    change = (logits[1] - logits[0]).abs().amax((1, 2, 3)) / logits[0].abs().amax((1, 2, 3))
    return {
        "logit_change": change,
        "attention_change": (weights[1] - weights[0]).abs().sum(-1).mean(-1) / 2,
        "answers_changed": (answers[1] != answers[0]).float().mean(-1),
    }
