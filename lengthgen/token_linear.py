r"""The token-level linear head: queries and keys read tokens, nothing is normalized.

The query token $a = x_{L-1}$ and the key token $b$ at offset $D$ have the weight

$$w(a, b, D) = \mathrm{Re} \sum_f \bar q_f(a)\, k_f(b)\, e^{-i \omega_f D} / \sqrt d ,$$

and the score of token $v$ is $S_v = \sum_D w(a, x_D, D)\, 1\{x_D = v\}$. It is trained as a head
in practice would be: Adam on sampled batches, here with the squared error of centred one-hot
tokens. A stack of models shares the spectrum, never its random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Complex64, Float64, Int
from torch import Tensor

from lengthgen.position_head import TRAINING_LENGTHS, waves

__all__ = ["TokenLinearHead", "train_token_linear"]


@dataclass(frozen=True)
class TokenLinearHead:
    """A stack of token-level linear heads.

    Args:
        tables: one complex query and one complex key per token and frequency.
        frequencies: in radians per token, shared by the stack.
        models: target offset and seed of each model.
    """

    tables: Complex64[Tensor, "models 2 vocabulary frequencies"]
    frequencies: Float64[Tensor, " frequencies"]
    models: Sequence[tuple[int, int]]

    @classmethod
    def initialize(
        cls,
        models: Sequence[tuple[int, int]],
        std: float,
        frequencies: Float64[Tensor, " frequencies"],
        vocabulary: int = 16,
    ) -> TokenLinearHead:
        """Draw every real parameter from N(0, std^2), from the model's seed alone."""
        shape = (2, vocabulary, len(frequencies), 2)
        draws = [
            torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for _, seed in models
        ]
        return cls(torch.view_as_complex(std * torch.stack(draws)), frequencies, tuple(models))

    @property
    def offset(self) -> Int[Tensor, " models"]:
        """Target offset of each model."""
        return torch.tensor([offset for offset, _ in self.models])

    def scores(self, tokens: Int[Tensor, "models batch length"]) -> Tensor:
        """Return the score of every token, (models, batch, vocabulary); offset 0 comes first."""
        query, key = self.tables.unbind(1)  # (models, vocabulary, frequencies)
        length, vocabulary = tokens.shape[-1], key.shape[1]
        wave = waves(self.frequencies, torch.arange(length)).to(key.dtype)  # (length, frequencies)
        pairs = query.conj()[:, :, None] * key[:, None]  # (models, a, b, frequencies)
        table = (pairs @ wave.T).real / (2 * len(self.frequencies)) ** 0.5  # (models, a, b, D)
        place = (tokens[..., :1] * vocabulary + tokens) * length + torch.arange(length)
        weights = table.flatten(1).gather(1, place.flatten(1)).view(tokens.shape)
        zeros = weights.new_zeros(*tokens.shape[:2], vocabulary)
        return zeros.scatter_add(2, tokens, weights)

    @torch.no_grad()
    def accuracy(self, length: int, n_sequences: int) -> Float64[Tensor, " models"]:
        """Measure the share of right answers on test sequences that depend on the length only."""
        generator = torch.Generator().manual_seed(length)
        shape = (n_sequences, length)
        tokens = torch.randint(self.tables.shape[2], shape, generator=generator)
        shares = []
        for index, (offset, _) in enumerate(self.models):
            tables = self.tables[index : index + 1]
            one = TokenLinearHead(tables, self.frequencies, self.models[index : index + 1])
            answers = one.scores(tokens[None])[0].argmax(-1)
            shares.append((answers == tokens[:, offset]).double().mean())
        return torch.stack(shares)


def train_token_linear(
    head: TokenLinearHead, steps: int, rate: float = 3e-3, batch: int = 64
) -> Iterator[tuple[TokenLinearHead, Float64[Tensor, " models"]]]:
    r"""Yield `(head, batch loss)` before every step of Adam and after the last.

    The loss is $\tfrac12 |S - 1_{x_K}|^2$ of centred scores in units of $1 - 1/V$; each step has
    one length, the same for all models, and each model its own sequences.

    Source: ours.
    """
    n_models, _, vocabulary, _ = head.tables.shape
    lengths = torch.Generator().manual_seed(0)
    generators = [torch.Generator().manual_seed(10_007 * k + seed + 1) for k, seed in head.models]
    tables = torch.view_as_real(head.tables).clone().requires_grad_()
    adam = torch.optim.Adam([tables], rate)
    place = head.offset[:, None, None].expand(n_models, batch, 1)
    for step in range(steps + 1):
        length = TRAINING_LENGTHS[
            int(torch.randint(len(TRAINING_LENGTHS), (1,), generator=lengths))
        ]
        drawn = [torch.randint(vocabulary, (batch, length), generator=g) for g in generators]
        tokens = torch.stack(drawn)
        current = TokenLinearHead(torch.view_as_complex(tables), head.frequencies, head.models)
        error = current.scores(tokens)
        error = error.scatter_add(2, tokens.gather(2, place), -torch.ones(n_models, batch, 1))
        error = error - error.mean(-1, keepdim=True)
        loss = error.square().sum(-1).mean(-1) / (2 * (1 - 1 / vocabulary))
        kept = torch.view_as_complex(tables.detach())
        yield TokenLinearHead(kept, head.frequencies, head.models), loss.detach().double()
        if step < steps:
            adam.zero_grad()
            loss.sum().backward()
            adam.step()
