"""A training step's loss and its gradient, written out for a stack of heads.

Differentiating the many small steps of a head automatically costs more than the steps. Here only
an encoding's hooks, which may be anything, are left to automatic differentiation. Tests hold the
result equal to automatic differentiation of `HeadStack.forward`, for every encoding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lengthgen.attention import HeadStack
from lengthgen.lookup import AdditiveTables

__all__ = ["Batch", "loss_and_gradient"]


@dataclass(frozen=True)
class Batch:
    """One step's sequences of every model, in reading order, padded behind their last token.

    Args:
        tokens: (models, batch, longest).
        last: (models,), index of the last token.
        mask: (models, 1, longest), 0 up to the last token and minus infinity behind it.
        query_tokens: (models, batch), the last token.
        target: (models, batch), the answer.
        starts: (models, batch), position of each sequence's first token; `None`: all 0.
    """

    tokens: Tensor
    last: Tensor
    mask: Tensor
    query_tokens: Tensor
    target: Tensor
    starts: Tensor | None


@torch.no_grad()
def loss_and_gradient(stack: HeadStack, batch: Batch, positions: Tensor) -> Tensor:
    """Return the (models,) mean cross-entropies, in nats; put their gradients into `.grad`.

    Args:
        stack: heads whose parameters are leaves that require gradients, without any so far.
        batch: the step's sequences.
        positions: 0, 1, ...: every position that the batch uses; without starts, one for each
            column of its tokens.
    """
    embed = _Hook(lambda: stack.hook("embed", positions))
    rows = _Rows(stack, embed)
    loss = _by_row(rows, batch) if batch.starts is not None else _by_table(rows, batch, positions)
    rows.pull_back()
    return loss


class _Hook:
    """The value of a hook, and the way back through it."""

    def __init__(self, call: Callable[..., Tensor | None], x: Tensor | None = None) -> None:
        self.x = None if x is None else x.detach().requires_grad_()
        with torch.enable_grad():
            self.output = call() if x is None else call(self.x)
        self.value = None if self.output is None else self.output.detach()

    def pull_back(self, gradient: Tensor) -> Tensor | None:
        """Give the encoding's parameters their gradient; return that of the hook's input."""
        if self.output is self.x:
            return gradient
        if self.output.requires_grad:
            torch.autograd.backward(self.output, gradient)
        if self.x is None:
            return None
        return torch.zeros_like(self.x) if self.x.grad is None else self.x.grad


class _Turn(_Hook):
    """The value of `transform_query` or `transform_key`; the way back of a rotation is short."""

    def __init__(
        self, stack: HeadStack, call: Callable[..., Tensor], x: Tensor, at: Tensor
    ) -> None:
        self.back = (lambda gradient: call(gradient, -at)) if stack.isometric else None
        if self.back:
            self.value = call(x, at)
        else:
            super().__init__(lambda x: call(x, at), x)

    def pull_back(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the hook's input; give the encoding's parameters theirs."""
        return self.back(gradient) if self.back else super().pull_back(gradient)


class _Rows:
    """Embeddings, position vectors below them, and their products with the head's matrices.

    `by_query`, `by_key` and `by_readout` are to be set to the gradients of these products.
    """

    by_query: Tensor
    by_key: Tensor
    by_readout: Tensor

    def __init__(self, stack: HeadStack, embed: _Hook) -> None:
        self.stack, self.embed, weights = stack, embed, stack.parameters
        self.rows = stack.rows(embed.value)
        self.value_output = torch.bmm(weights["value"], weights["output"])
        self.query = torch.bmm(self.rows, weights["query"])
        self.key = torch.bmm(self.rows, weights["key"])
        self.readout = torch.bmm(self.rows, self.value_output)

    def pull_back(self) -> None:
        """Give every parameter its gradient."""
        weights, vocabulary = self.stack.parameters, self.stack.config.vocabulary
        by_row = torch.bmm(self.by_query, weights["query"].mT)
        by_row.baddbmm_(self.by_key, weights["key"].mT)
        by_row.baddbmm_(self.by_readout, self.value_output.mT)
        by_value_output = torch.bmm(self.rows.mT, self.by_readout)
        found = {
            "token": by_row[:, :vocabulary],
            "query": torch.bmm(self.rows.mT, self.by_query),
            "key": torch.bmm(self.rows.mT, self.by_key),
            "value": torch.bmm(by_value_output, weights["output"].mT),
            "output": torch.bmm(weights["value"].mT, by_value_output),
        }
        for name, gradient in found.items():  # fused Adam takes no other strides
            weights[name].grad = gradient.contiguous()
        if self.embed.value is not None:
            self.embed.pull_back(by_row[:, vocabulary:])


def _by_table(rows: _Rows, batch: Batch, positions: Tensor) -> Tensor:
    """Return the losses by `Tables`; leave the gradients in `rows`."""
    stack, last, model = rows.stack, batch.last, torch.arange(rows.stack.n_models)
    vocabulary, with_vectors = stack.config.vocabulary, rows.embed.value is not None
    scale = stack.scale(last)

    query = rows.query[:, :vocabulary]
    if with_vectors:
        query = query + rows.query[model, vocabulary + last][:, None]
    turn_query = _Turn(stack, stack.transform_queries, query, last)
    query = turn_query.value * scale
    turn_key, key = None, rows.key
    if "transform_key" in stack.hooks:
        key = stack.key_of_every_pair(key, len(positions))
        turn_key = _Turn(stack, lambda x, at: stack.transform("key", x, at), key, positions)
        key = turn_key.value
    bias = _Hook(lambda: stack.scaled_bias(last, positions))
    tables = stack.as_tables(query, key, bias.value, rows.readout, len(positions))

    loss, by = tables.loss_and_gradient(batch.tokens, batch.query_tokens, batch.mask, batch.target)
    by_logit, rows.by_readout = by.by_key, by.token_readout
    if with_vectors:
        rows.by_readout = torch.cat([by.token_readout, by.position_readout], dim=1)
    if bias.value is not None:
        bias.pull_back(by_logit.sum((1, 3)))
    if turn_key is None:
        by_logit = _split(by_logit, key.shape[1])
        rows.by_key = torch.bmm(by_logit, query)
    else:
        by_logit, key = by_logit.flatten(1, 2).to(query.dtype), key.flatten(1, 2).to(query.dtype)
        by_key = torch.bmm(by_logit, query).to(turn_key.value.dtype)
        by_key = turn_key.pull_back(by_key.view_as(turn_key.value))
        rows.by_key = _split(by_key, rows.key.shape[1])
    by_query = turn_query.pull_back(torch.bmm(by_logit.mT, key) * scale)
    rows.by_query = by_query
    if with_vectors:
        rows.by_query = torch.zeros_like(rows.query)
        rows.by_query[:, :vocabulary] = by_query
        rows.by_query[model, vocabulary + last] = by_query.sum(1)
    return loss


def _split(gradient: Tensor, n_rows: int) -> Tensor:
    """Undo the sum of every token's and every position's row: (models, token, position, ..)."""
    by_token = gradient.sum(2)
    if by_token.shape[1] == n_rows:
        return by_token
    return torch.cat([by_token, gradient.sum(1)], dim=1)


def _by_row(rows: _Rows, batch: Batch) -> Tensor:
    """Return the losses by `AdditiveTables`; leave the gradients in `rows`."""
    vocabulary, scale = rows.stack.config.vocabulary, rows.stack.scale(batch.last)
    query = rows.query * scale
    tables = AdditiveTables(torch.bmm(query, rows.key.mT), rows.readout)
    columns = vocabulary + torch.arange(batch.tokens.shape[-1])
    keys = batch.starts[..., None] + columns  # those behind the last token may pass the table
    keys = keys.clamp_(max=rows.rows.shape[1] - 1)
    queries = batch.starts + (vocabulary + batch.last)[:, None]
    loss, by = tables.loss_and_gradient(
        torch.stack([batch.query_tokens, queries], dim=2),
        torch.stack([batch.tokens, keys], dim=2),
        batch.mask,
        batch.target,
    )
    rows.by_query = torch.bmm(by.score, rows.key) * scale
    rows.by_key = torch.bmm(by.score.mT, query)
    rows.by_readout = by.readout
    return loss
