"""Pinning: where a head with a learned table attends beyond the training range, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from lengthgen.attention import HeadStack
from lengthgen.lookup import Tables

__all__ = [
    "LogitParts",
    "agreement",
    "content_profile",
    "first_step_profile",
    "logit_parts",
    "peak",
    "pinning_index",
    "with_rows",
]

TABLE = "encoding.table"
"""Name of the learned position table among a stack's parameters."""


def position_table(stack: HeadStack) -> Float[Tensor, "models rows d_model"]:
    """Return the position tables of a stack.

    Raises:
        ValueError: the stack's encoding has no table.
    """
    if TABLE not in stack.parameters:
        raise ValueError(
            f"encoding {stack.config.encoding!r} has no position table; choose a learned encoding"
        )
    return stack.parameters[TABLE]


@dataclass(frozen=True)
class LogitParts:
    r"""The four terms of an absolute head's logit, with $M = W_q W_k^\top / \sqrt{d}$.

    $(e_a + p_i)^\top M (e_b + p_j)
    = e_a^\top M e_b + e_a^\top M p_j + p_i^\top M e_b + p_i^\top M p_j$
    for query token a at position i and key token b at position j.
    """

    content_content: Float[Tensor, "models query_token key_token"]
    content_position: Float[Tensor, "models query_token keys"]
    position_content: Float[Tensor, "models key_token"]
    position_position: Float[Tensor, "models keys"]

    def logit(self) -> Float[Tensor, "models query_token key_token keys"]:
        """Return the sum of the four terms."""
        return (
            self.content_content[..., None]
            + self.content_position[:, :, None]
            + self.position_content[:, None, :, None]
            + self.position_position[:, None, None]
        )

    def without_mean_content(self) -> LogitParts:
        """Remove the mean token embedding from the query."""
        return replace(
            self,
            content_content=self.content_content - self.content_content.mean(1, keepdim=True),
            content_position=self.content_position - self.content_position.mean(1, keepdim=True),
        )

    def without_query_position(self) -> LogitParts:
        """Remove the position vector from the query."""
        return replace(
            self,
            position_content=torch.zeros_like(self.position_content),
            position_position=torch.zeros_like(self.position_position),
        )


@torch.no_grad()
def logit_parts(stack: HeadStack, length: int) -> LogitParts:
    """Return the four terms of the logits of the query at the end of a sequence.

    Raises:
        ValueError: the stack's encoding has no table, or a shorter one.
    """
    table = position_table(stack)
    if length > table.shape[1]:
        raise ValueError(f"length={length} is past the table's {table.shape[1]} rows")
    token = stack.parameters["token"]
    form = stack.parameters["query"] @ stack.parameters["key"].transpose(1, 2)
    form = form / stack.config.d_head**0.5
    rows = table[:, :length].transpose(1, 2)
    query_row = table[:, length - 1 : length]
    return LogitParts(
        content_content=token @ form @ token.transpose(1, 2),
        content_position=token @ form @ rows,
        position_content=(query_row @ form @ token.transpose(1, 2))[:, 0],
        position_position=(query_row @ form @ rows)[:, 0],
    )


@torch.no_grad()
def content_profile(stack: HeadStack, length: int) -> Float[Tensor, "models positions"]:
    r"""Return $b_j = \bar e^\top M p_j$, the mean content's preference for each position.

    Beyond the training range the query's position vector is noise of the initial scale, and this
    term decides. The predicted pin is $\arg\max_j b_j$. Source: ours.
    """
    return logit_parts(stack, length).content_position.mean(1)


def first_step_profile(lengths: tuple[int, int], offset: int) -> Float[Tensor, " positions"]:
    r"""Return the direction in which the first gradient step moves $b_j$, up to a factor.

    $b_j \propto \sum_L \frac1L [1\{j = L - 1 - K\} - 1\{j < L\} / L]$ over the training lengths:
    targets gain, every visible position pays for them. The factor 1/L is the attention weight
    through which a logit acts at the start. Source: ours.

    Example:
        One length: the maximum is at the target.

        >>> int(first_step_profile((16, 16), offset=2).argmax())
        13
    """
    shortest, longest = lengths
    profile = torch.zeros(longest, dtype=torch.float64)
    for length in range(shortest, longest + 1):
        profile[length - 1 - offset] += 1 / length
        profile[:length] -= 1 / length**2
    return profile / (longest - shortest + 1)


def peak(attention: Float[Tensor, "models sequences length"]) -> Int[Tensor, " models"]:
    """Return the position of the largest mean attention weight of each model."""
    return attention.mean(1).argmax(-1)


def agreement(
    attention: Float[Tensor, "models sequences length"], position: Int[Tensor, " models"]
) -> Float[Tensor, " models"]:
    """Return the share of sequences whose largest attention weight is at `position`."""
    return (attention.argmax(-1) == position[:, None]).float().mean(-1)


def pinning_index(
    peaks: Int[Tensor, "models lengths"], longest_trained: int
) -> Float[Tensor, " models"]:
    """Return the share of test lengths at which a head's peak stays in the training range.

    Lengths must be beyond twice the training range, where a relative head's peak never is.
    """
    return (peaks < longest_trained).float().mean(-1)


def attention_with(
    stack: HeadStack, parts: LogitParts, tokens: Integer[Tensor, "sequences length"]
) -> Float[Tensor, "models sequences length"]:
    """Return the attention weights that changed logit parts would give."""
    shared = tokens.expand(stack.n_models, -1, -1)
    no_readout = torch.zeros(stack.n_models, stack.config.vocabulary, 1)
    return Tables(parts.logit(), no_readout, None).attention(shared, shared[..., -1])


def with_rows(
    stack: HeadStack, source: Int[Tensor, " models"], target: Int[Tensor, " models"], *, swap: bool
) -> HeadStack:
    """Copy each model's row `source` of the position table onto row `target`, or exchange them."""
    table = position_table(stack).clone()
    model = torch.arange(stack.n_models)
    kept = table[model, target].clone()
    table[model, target] = table[model, source]
    if swap:
        table[model, source] = kept
    return stack.with_parameters(encoding__table=table)
