r"""A head at one query position is a lookup table: logits per pair of tokens, readouts per token.

With a small vocabulary the whole head fits into two tables, built once per training step; every
sequence is then gather, softmax, scatter-add of attention onto tokens, readout. The loss comes
with its gradient written out, which spares most of the small steps of automatic differentiation;
tests hold the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor

__all__ = ["AdditiveTables", "Tables"]


@dataclass(frozen=True)
class Tables:
    r"""A stack of heads at one query position, as lookup tables.

    Args:
        logit: $\ell[a, b, j]$, scaled logit of query token a and key token b at key position j.
        token_readout: contribution of key token b to the answer's logits.
        position_readout: contribution of key position j, or `None` if values carry no position.
    """

    logit: Float[Tensor, "models query_token key_token keys"]
    token_readout: Float[Tensor, "models key_token vocabulary"]
    position_readout: Float[Tensor, "models keys vocabulary"] | None

    def attention(
        self,
        tokens: Integer[Tensor, "models batch keys"],
        query_tokens: Integer[Tensor, "models batch"],
        mask: Tensor | None = None,
    ) -> Float[Tensor, "models batch keys"]:
        """Return attention weights: look up the logits, hide masked keys, normalize."""
        index = self._index(tokens, query_tokens)
        logits = self._by_key.flatten(1).gather(1, index.flatten(1)).view(index.shape)
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        return logits.softmax(-1)

    def answer(
        self,
        tokens: Integer[Tensor, "models batch keys"],
        attention: Float[Tensor, "models batch keys"],
    ) -> Float[Tensor, "models batch vocabulary"]:
        """Return the answer's logits: attention mass per token times readout."""
        answer = _mass(attention, tokens, self.token_readout) @ self.token_readout
        if self.position_readout is not None:
            answer = answer + attention @ self.position_readout
        return answer

    def loss(
        self,
        tokens: Integer[Tensor, "models batch keys"],
        query_tokens: Integer[Tensor, "models batch"],
        mask: Tensor,
        target: Integer[Tensor, "models batch"],
    ) -> Float[Tensor, " models"]:
        """Return the mean cross-entropy of each model, in nats."""
        index = self._index(tokens, query_tokens).flatten(1)
        tables = (self._by_key, self.token_readout, self.position_readout)
        return _TableLoss.apply(tokens, index, mask, target, *tables)

    @property
    def _by_key(self) -> Tensor:
        """The logits as they lie in memory: (models, key token, key position, query token)."""
        return self.logit.permute(0, 2, 3, 1)

    def _index(self, tokens: Tensor, query_tokens: Tensor) -> Tensor:
        """Return where in a flat `_by_key` each key of each sequence is."""
        n_queries, _, n_keys = self.logit.shape[1:]
        position = torch.arange(n_keys, device=tokens.device) * n_queries
        return tokens.long() * (n_keys * n_queries) + position + query_tokens[..., None].long()


@dataclass(frozen=True)
class AdditiveTables:
    """A stack of heads whose encoding only adds position vectors, as scores between rows.

    Rows are the vocabulary's embeddings followed by the position vectors. A logit is a sum of
    four scores, so one table serves every query position, and each sequence may start elsewhere.

    Args:
        score: scaled score of each query row with each key row.
        readout: contribution of each row to the answer's logits.
        vocabulary: number of rows that are tokens.
    """

    score: Float[Tensor, "models rows rows"]
    readout: Float[Tensor, "models rows vocabulary"]
    vocabulary: int

    def attention(
        self,
        tokens: Integer[Tensor, "models batch keys"],
        query_tokens: Integer[Tensor, "models batch"],
        query_positions: Integer[Tensor, "models batch"],
        key_positions: Integer[Tensor, "models batch keys"],
        mask: Tensor,
    ) -> Float[Tensor, "models batch keys"]:
        """Return attention weights of sequences whose tokens stand at `key_positions`."""
        rows = self._query_rows(query_tokens, query_positions)
        of_token, of_position = self.score.flatten(0, 1).index_select(0, rows).chunk(2)
        by_row = (of_token + of_position).view(*tokens.shape[:2], -1)  # (models, batch, rows)
        logits = by_row.gather(2, tokens) + by_row.gather(2, self.vocabulary + key_positions)
        return logits.masked_fill(~mask, -torch.inf).softmax(-1)

    def answer(
        self,
        tokens: Integer[Tensor, "models batch keys"],
        key_positions: Integer[Tensor, "models batch keys"],
        attention: Float[Tensor, "models batch keys"],
    ) -> Float[Tensor, "models batch vocabulary"]:
        """Return the answer's logits: attention mass per row times readout."""
        return self._mass(tokens, key_positions, attention) @ self.readout

    def loss(
        self,
        tokens: Integer[Tensor, "models batch keys"],
        query_tokens: Integer[Tensor, "models batch"],
        query_positions: Integer[Tensor, "models batch"],
        key_positions: Integer[Tensor, "models batch keys"],
        mask: Tensor,
        target: Integer[Tensor, "models batch"],
    ) -> Float[Tensor, " models"]:
        """Return the mean cross-entropy of each model, in nats."""
        where = (tokens, query_tokens, query_positions, key_positions, mask, target)
        return _AdditiveLoss.apply(self.vocabulary, *where, self.score, self.readout)

    def _query_rows(self, query_tokens: Tensor, query_positions: Tensor) -> Tensor:
        """Return which row of a flat table of scores each query token, then position, is."""
        first = torch.arange(len(self.score), device=query_tokens.device)[:, None]
        first = first * self.score.shape[1]
        return torch.cat(
            [first + query_tokens, first + self.vocabulary + query_positions]
        ).flatten()

    def _mass(self, tokens: Tensor, key_positions: Tensor, attention: Tensor) -> Tensor:
        mass = _mass(attention, tokens, self.readout)
        return mass.scatter_add(2, self.vocabulary + key_positions, attention)


def _mass(attention: Tensor, rows: Tensor, readout: Tensor) -> Tensor:
    """Return the attention that each row of a readout receives, (models, batch, rows)."""
    mass = attention.new_zeros(*attention.shape[:2], readout.shape[1])
    return mass.scatter_add_(2, rows.long(), attention)


class _TableLoss(torch.autograd.Function):
    """The loss of `Tables`; its gradient is computed on the way, with the loss."""

    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        index: Tensor,
        mask: Tensor,
        target: Tensor,
        logit: Tensor,
        readout: Tensor,
        position_readout: Tensor | None,
    ) -> Tensor:
        hidden = mask.to(logit.dtype).log_()  # 0 or minus infinity: adding beats filling
        looked_up = logit.flatten(1).gather(1, index).view(tokens.shape)
        attention = looked_up.add_(hidden).softmax(-1)
        mass = _mass(attention, tokens, readout)
        answer = mass @ readout
        if position_readout is not None:
            answer = answer.baddbmm_(attention, position_readout)
        loss, by_answer = _cross_entropy(answer, target)
        by_attention = (by_answer @ readout.mT).gather(2, tokens)
        by_position_readout = None
        if position_readout is not None:
            by_attention = by_attention.baddbmm_(by_answer, position_readout.mT)
            by_position_readout = attention.mT @ by_answer
        by_logits = _through_softmax(attention, by_attention).flatten(1)
        by_logit = logit.new_zeros(logit.shape)
        by_logit.view(len(logit), -1).scatter_add_(1, index, by_logits)
        ctx.gradients = (by_logit, mass.mT @ by_answer, by_position_readout)
        return loss

    @staticmethod
    def backward(ctx: Any, by_loss: Tensor) -> tuple[Tensor | None, ...]:
        return (None,) * 4 + _scaled(ctx.gradients, by_loss)


class _AdditiveLoss(torch.autograd.Function):
    """The loss of `AdditiveTables`; its gradient is computed on the way, with the loss."""

    @staticmethod
    def forward(
        ctx: Any,
        vocabulary: int,
        tokens: Tensor,
        query_tokens: Tensor,
        query_positions: Tensor,
        key_positions: Tensor,
        mask: Tensor,
        target: Tensor,
        score: Tensor,
        readout: Tensor,
    ) -> Tensor:
        tables = AdditiveTables(score, readout, vocabulary)
        attention = tables.attention(tokens, query_tokens, query_positions, key_positions, mask)
        mass = tables._mass(tokens, key_positions, attention)
        loss, by_answer = _cross_entropy(mass @ readout, target)
        by_mass = by_answer @ readout.mT
        key_rows = vocabulary + key_positions
        by_attention = by_mass.gather(2, tokens).add_(by_mass.gather(2, key_rows))
        by_logits = _through_softmax(attention, by_attention)
        by_row = torch.zeros_like(by_mass).scatter_add_(2, tokens, by_logits)
        by_row = by_row.scatter_add_(2, key_rows, by_logits).flatten(0, 1)
        by_score = torch.zeros_like(score)
        for rows in tables._query_rows(query_tokens, query_positions).chunk(2):
            by_score.view(-1, score.shape[2]).index_add_(0, rows, by_row)
        ctx.gradients = (by_score, mass.mT @ by_answer)
        return loss

    @staticmethod
    def backward(ctx: Any, by_loss: Tensor) -> tuple[Tensor | None, ...]:
        return (None,) * 7 + _scaled(ctx.gradients, by_loss)


def _cross_entropy(answer: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy per model, and its gradient with respect to the answer."""
    log_probability = answer.log_softmax(-1)
    loss = -log_probability.gather(2, target[..., None])[..., 0].mean(1)
    gradient = log_probability.exp_()
    gradient.scatter_add_(2, target[..., None], -torch.ones_like(gradient[..., :1]))
    return loss, gradient.div_(answer.shape[1])


def _through_softmax(weights: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient with respect to the logits of a softmax."""
    moved = gradient.mul_(weights)
    return moved.sub_(weights * moved.sum(-1, keepdim=True))


def _scaled(gradients: tuple[Tensor | None, ...], by_loss: Tensor) -> tuple[Tensor | None, ...]:
    """Return each model's gradients times the gradient of its loss."""
    return tuple(
        None if gradient is None else gradient.mul_(by_loss.view(-1, *[1] * (gradient.dim() - 1)))
        for gradient in gradients
    )
