r"""The accuracy law: few masses are drawn exactly, the rest together as one Gaussian."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from lengthgen.dilution.heads import check_lengths

__all__ = ["Draws", "mass_model", "predicted_accuracy"]


@dataclass(frozen=True)
class Draws:
    """Common random numbers for `predicted_accuracy`, the same for every head and length.

    Args:
        n_draws: draws in all, shared equally among the query tokens.
        vocabulary: number of tokens.
        n_aliases: offsets drawn exactly.
        seed: of the generator.
    """

    n_draws: int = 64_000
    vocabulary: int = 16
    n_aliases: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_draws < self.vocabulary:
            raise ValueError(
                f"n_draws={self.n_draws} is not allowed: at least one for each of "
                f"{self.vocabulary} query tokens"
            )
        if self.n_aliases < 0:
            raise ValueError(f"n_aliases={self.n_aliases} is not allowed: it must be at least 0")

    def of_query(
        self, query_token: int
    ) -> tuple[Int64[Tensor, " draws"], Float32[Tensor, "vocabulary draws columns"]]:
        """Return target tokens, and a design matrix for the mass of every token.

        Columns: does alias m hold this token; does the target; a standard normal vector; 1.
        """
        n, v = self.n_draws // self.vocabulary, self.vocabulary
        generator = torch.Generator().manual_seed(self.seed * v + query_token)
        aliases = torch.randint(v, (n, self.n_aliases), generator=generator)
        target = torch.randint(v, (n,), generator=generator)
        normal = torch.randn(n, v, generator=generator)
        design = torch.ones(v, n, self.n_aliases + v + 2)
        token = torch.arange(v)[:, None, None]
        design[..., : self.n_aliases] = (aliases == token).float()
        design[..., self.n_aliases] = (target == token[..., 0]).float()
        design[..., self.n_aliases + 1 : -1] = normal
        return target, design


def mass_model(
    logits: Float64[Tensor, "vocabulary vocabulary offsets"],
    offset: int,
    lengths: Sequence[int],
    n_aliases: int = 16,
) -> Float32[Tensor, "vocabulary vocabulary columns lengths"]:
    r"""Return the mass of each token as a linear function of `Draws`' columns.

    For query token a, the `n_aliases` offsets with the largest $\sum_b e^{2 T(a,b,D)}$ stay as
    they are. All other offsets together get their exact mean and covariance,
    $\mu_b = \frac1V \sum_D w_D(b)$ and
    $C_{bb'} = \frac1V \sum_D [b = b'] w_D(b)^2 - \frac1{V^2} \sum_D w_D(b) w_D(b')$.
    Masses are divided by their largest term for each query token, which changes no argmax.

    Args:
        logits: $T(a, b, D)$ of one head.
        offset: target offset K.
        lengths: sequence lengths.
        n_aliases: m; with 0 everything but query and target is Gaussian.

    Returns:
        for query token a and token b: weight of b at each alias, weight of b at the target,
        row b of a square root of the covariance, and the mean plus the query's own weight.
    """
    check_lengths(logits, offset, lengths)
    vocabulary = logits.shape[0]
    weights = (logits - logits.amax((1, 2), keepdim=True)).exp()  # (query, key, offset)
    others = weights.clone()
    others[:, :, [0, offset]] = 0.0
    second = others.square().sum(1)  # (query, offset)
    own = torch.diag(torch.diagonal(weights[:, :, 0]))
    model = weights.new_zeros(vocabulary, vocabulary, n_aliases + vocabulary + 2, len(lengths))
    for column, length in enumerate(lengths):
        count = min(n_aliases, length)
        bulk = others[:, :, :length]
        if count:
            chosen = second[:, :length].topk(count).indices  # (query, alias)
            index = chosen[:, None].expand(-1, vocabulary, -1)
            model[:, :, :count, column] = bulk.gather(2, index)
            bulk = bulk.scatter(2, index, 0.0)
        mean = bulk.mean(2) * (length / vocabulary)
        covariance = torch.diag_embed(bulk.square().sum(2) / vocabulary)
        covariance -= bulk @ bulk.transpose(1, 2) / vocabulary**2
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp(min=0).sqrt()[:, None]
        model[:, :, n_aliases, column] = weights[:, :, offset]
        model[:, :, n_aliases + 1 : -1, column] = root
        model[:, :, -1, column] = mean + own
    return model.float()


def predicted_accuracy(
    models: Float32[Tensor, "models vocabulary vocabulary columns lengths"],
    readouts: Float[Tensor, "models vocabulary vocabulary"],
    draws: Draws,
) -> Float64[Tensor, "models lengths"]:
    r"""Return the probability that the answer is the target, $P(\arg\max_v (M R)_v = y)$.

    Args:
        models: `mass_model` of each head, all with the same number of aliases.
        readouts: R, `readout[b, v]` of each head.
        draws: random numbers; a model with fewer aliases uses the columns it knows.

    Raises:
        ValueError: more aliases than the draws have.
    """
    n_models, vocabulary, _, n_columns, n_lengths = models.shape
    unused = draws.n_aliases + vocabulary + 2 - n_columns
    if unused < 0:
        raise ValueError(
            f"the models have {draws.n_aliases - unused} aliases, the draws {draws.n_aliases}"
        )
    correct = torch.zeros(n_models, n_lengths, dtype=torch.float64)
    for query_token in range(vocabulary):
        target, design = draws.of_query(query_token)
        design = design[..., unused:].contiguous()
        for model in range(n_models):
            mass = torch.bmm(design, models[model, query_token])  # (token, draw, length)
            answer = readouts[model].float().T @ mass.flatten(1)
            best = answer.amax(0).view(-1, n_lengths)
            at_target = answer.view(vocabulary, -1, n_lengths).gather(
                0, target[None, :, None].expand(-1, -1, n_lengths)
            )
            correct[model] += (at_target[0] >= best).sum(0)
    return correct / (vocabulary * (draws.n_draws // vocabulary))
