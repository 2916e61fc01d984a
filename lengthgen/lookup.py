r"""A head at one query position is a lookup table: logits per pair of tokens, readouts per token.

With a small vocabulary the whole head fits into two tables, built once per training step; every
sequence is then gather, softmax, scatter-add of attention onto tokens, readout. The loss comes
with its gradient written out; `lengthgen.head_gradient` takes it on to the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        mask: Float[Tensor, "models _ keys"] | None = None,
    ) -> Float[Tensor, "models batch keys"]:
        """Return attention weights: look up the logits, add the mask, normalize."""
        index = self._index(tokens, query_tokens)
        logits = self.by_key.flatten(1).gather(1, index.flatten(1)).view(index.shape)
        return (logits if mask is None else logits.add_(mask)).softmax(-1)

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

    def loss_and_gradient(
        self,
        tokens: Integer[Tensor, "models batch keys"],
        query_tokens: Integer[Tensor, "models batch"],
        mask: Float[Tensor, "models _ keys"],
        target: Integer[Tensor, "models batch"],
    ) -> tuple[Float[Tensor, " models"], Tables]:
        """Return the mean cross-entropy of each model, in nats, and its gradient by the tables.

        The mask is 0 where a key is seen and minus infinity where it is not: adding beats filling.
        """
        by_key, readout = self.by_key, self.token_readout
        index, tokens = self._index(tokens, query_tokens).flatten(1), tokens.long()
        looked_up = by_key.flatten(1).gather(1, index).view(tokens.shape)
        attention = looked_up.add_(mask).softmax(-1)
        mass = _mass(attention, tokens, readout)
        answer = torch.bmm(mass, readout)
        if self.position_readout is not None:
            answer.baddbmm_(attention, self.position_readout)
        loss, by_answer = _cross_entropy(answer, target)
        by_attention = torch.bmm(by_answer, readout.mT).gather(2, tokens)
        by_position_readout = None
        if self.position_readout is not None:
            by_attention.baddbmm_(by_answer, self.position_readout.mT)
            by_position_readout = torch.bmm(attention.mT, by_answer)
        by_looked_up = _through_softmax(attention, by_attention).flatten(1)
        by_logit = by_key.new_zeros(by_key.shape)
        by_logit.view(len(by_logit), -1).scatter_add_(1, index, by_looked_up)
        gradient = Tables(
            by_logit.permute(0, 3, 1, 2), torch.bmm(mass.mT, by_answer), by_position_readout
        )
        return loss, gradient

    @property
    def by_key(self) -> Tensor:
        """The logits as they lie in memory: (models, key token, key position, query token)."""
        return self.logit.permute(0, 2, 3, 1)

    def _index(self, tokens: Tensor, query_tokens: Tensor) -> Tensor:
        """Return where in a flat `by_key` each key of each sequence is."""
        n_queries, n_tokens, n_keys = self.logit.shape[1:]
        small = n_tokens * n_keys * n_queries < 2**31
        dtype = torch.int32 if small else torch.int64  # half the bytes, until the look-up
        last = n_keys * n_queries
        position = torch.arange(0, last, n_queries, dtype=dtype, device=tokens.device)
        row = query_tokens.to(dtype)[..., None] + position
        return row.add_(tokens.to(dtype), alpha=last).long()


@dataclass(frozen=True)
class AdditiveTables:
    """A stack of heads whose encoding only adds position vectors, as scores between rows.

    Rows are the vocabulary's embeddings followed by the position vectors. A logit is a sum of
    four scores, so one table serves every query position, and each sequence may start elsewhere.

    Args:
        score: scaled score of each query row with each key row.
        readout: contribution of each row to the answer's logits.
    """

    score: Float[Tensor, "models rows rows"]
    readout: Float[Tensor, "models rows vocabulary"]

    def attention(
        self,
        query_rows: Integer[Tensor, "models batch 2"],
        key_rows: Integer[Tensor, "models batch 2 keys"],
        mask: Float[Tensor, "models _ keys"],
    ) -> Float[Tensor, "models batch keys"]:
        """Return attention weights of queries and keys that are sums of two rows each."""
        index = self._index(query_rows, key_rows)
        parts = self.score.flatten(1).gather(1, index.flatten(1)).view(index.shape)
        return parts.sum((2, 3)).add_(mask).softmax(-1)

    def loss_and_gradient(
        self,
        query_rows: Integer[Tensor, "models batch 2"],
        key_rows: Integer[Tensor, "models batch 2 keys"],
        mask: Float[Tensor, "models _ keys"],
        target: Integer[Tensor, "models batch"],
    ) -> tuple[Float[Tensor, " models"], AdditiveTables]:
        """Return the mean cross-entropy of each model, in nats, and its gradient by the tables."""
        attention = self.attention(query_rows, key_rows, mask)
        twice, columns = attention[:, :, None].expand_as(key_rows), key_rows.flatten(2)
        mass = _mass(twice.flatten(2), columns, self.readout)
        loss, by_answer = _cross_entropy(torch.bmm(mass, self.readout), target)
        by_mass = torch.bmm(by_answer, self.readout.mT)
        by_attention = by_mass.gather(2, columns).view(key_rows.shape).sum(2)
        by_logits = _through_softmax(attention, by_attention)
        index = self._index(query_rows, key_rows)
        by_parts = by_logits[:, :, None, None].expand(index.shape)
        by_score = torch.zeros_like(self.score)
        by_score.view(len(by_score), -1).scatter_add_(1, index.flatten(1), by_parts.flatten(1))
        by_readout = torch.bmm(mass.mT, by_answer)
        return loss, AdditiveTables(by_score, by_readout)

    def _index(self, query_rows: Tensor, key_rows: Tensor) -> Tensor:
        """Return where in a flat table the four parts of every logit are."""
        return query_rows[..., None, None] * self.score.shape[2] + key_rows[:, :, None]


def _mass(attention: Tensor, rows: Tensor, readout: Tensor) -> Tensor:
    """Return the attention that each row of a readout receives, (models, batch, rows)."""
    mass = attention.new_zeros(*attention.shape[:2], readout.shape[1])
    return mass.scatter_add_(2, rows.long(), attention)


def _cross_entropy(answer: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy per model, and its gradient with respect to the answer."""
    log_probability, target = answer.log_softmax(-1), target.long()[..., None]
    loss = -log_probability.gather(2, target)[..., 0].mean(1)
    gradient = log_probability.exp_()
    gradient.scatter_add_(2, target, gradient.new_full(target.shape, -1.0))
    return loss, gradient.div_(answer.shape[1])


def _through_softmax(weights: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient with respect to the logits of a softmax."""
    moved = gradient.mul_(weights)
    return moved.sub_(weights * moved.sum(-1, keepdim=True))
