r"""Accuracy of retrieval from position weights: whether the output's largest entry is the target.

A position-only head scores token $v$ by $S_v = \sum_{D < L} w(D) 1\{x_D = v\}$. For i.i.d. uniform
tokens its accuracy depends on the weights alone: measured by sampling, or predicted from the few
largest weights (exact) and the energy of the rest (Gaussian).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64, Int
from torch import Tensor

__all__ = ["predicted_accuracy", "sampled_accuracy", "signal_accuracy"]


def sampled_accuracy(
    weights: Float64[Tensor, "models length"],
    offset: Int[Tensor, " models"],
    vocabulary: int,
    n_sequences: int,
    generator: torch.Generator,
    block: int = 1024,
) -> Float64[Tensor, " models"]:
    r"""Measure $P(\arg\max_v S_v = x_K)$ on fresh sequences, the same ones for every model.

    A positive factor common to all weights changes nothing, hence no normalizer is needed.

    Args:
        weights: $w(D)$ for $0 \le D < L$.
        offset: target offset $K$ of each model.
        vocabulary: $V$.
        n_sequences: number of sequences.
        generator: source of the tokens; sequences are drawn `block` at a time.
        block: sequences in memory at once. Results depend on it only through rounding.

    Raises:
        ValueError: an offset outside 0 .. L-1, fewer than 2 tokens, or fewer than 1 sequence.

    Source: ours.

    Example:
        >>> spike = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
        >>> sampled_accuracy(spike, torch.tensor([1]), 16, 100, torch.Generator().manual_seed(0))
        tensor([1.], dtype=torch.float64)
    """
    _check(weights, offset, vocabulary)
    if n_sequences < 1 or block < 1:
        raise ValueError(f"n_sequences={n_sequences}, block={block} is not allowed: both >= 1")
    hits = torch.zeros(len(weights), dtype=torch.float64)
    for first in range(0, n_sequences, block):
        size = (min(block, n_sequences - first), weights.shape[1])
        tokens = torch.randint(vocabulary, size, generator=generator)  # (sequences, length)
        one_hot = torch.nn.functional.one_hot(tokens.T, vocabulary).to(weights.dtype)
        scores = torch.tensordot(weights, one_hot, dims=1)  # (models, sequences, vocabulary)
        hits += (scores.argmax(-1) == tokens.T[offset]).sum(-1)
    return hits / n_sequences


def signal_accuracy(
    signal: Float64[Tensor, "*models"], vocabulary: int
) -> Float64[Tensor, "*models"]:
    r"""Return the probability $A_V(s)$ that a Gaussian shifted by $s$ beats $V - 1$ others.

    $A_V(s) = \int \varphi(z)\, \Phi(z + s)^{V-1} dz$. With all weights but the target's treated
    as Gaussian noise, $s = \sqrt V w(K) / \sigma$ and
    $\sigma^2 = \sum_{D \ne K} w(D)^2$. For a kernel with $\mathrm{eff}$ the value of
    `superoscillation.efficiency`, at large $L$, $s \to \sqrt{2 n\, \mathrm{eff}\, V / L}$.

    Raises:
        ValueError: fewer than 2 tokens.

    Source: ours (textbook: error rate of orthogonal signalling).

    Example:
        >>> signal_accuracy(torch.tensor(0.0, dtype=torch.float64), vocabulary=16)
        tensor(0.0625, dtype=torch.float64)
    """
    if vocabulary < 2:
        raise ValueError(f"vocabulary={vocabulary} is not allowed: it must be >= 2")
    nodes, node_weights = _gauss(signal)
    below = torch.special.ndtr(nodes + signal[..., None])
    return below ** (vocabulary - 1) @ node_weights


def predicted_accuracy(
    weights: Float64[Tensor, "models length"],
    offset: Int[Tensor, " models"],
    vocabulary: int,
    n_exact: int,
    n_draws: int,
    generator: torch.Generator,
) -> Float64[Tensor, " models"]:
    r"""Predict the accuracy: tokens under the largest weights exact, the rest Gaussian.

    Given the tokens of the `n_exact` largest $|w(D)|$, $D \ne K$, the scores are
    $S_v + \sigma V^{-1/2} Z_v$ up to a common shift, with independent normal $Z$ and $\sigma^2$ the
    energy of the remaining weights; the maximum over $Z$ is integrated by quadrature and only the
    exact tokens are drawn.

    Raises:
        ValueError: an offset outside 0 .. L-1, fewer than 2 tokens, `n_exact` outside 0 .. L-2, or
            fewer than 1 draw.

    Source: ours; the same split as the accuracy law of the dilution chapter.
    """
    _check(weights, offset, vocabulary)
    if not 0 <= n_exact <= weights.shape[1] - 2 or n_draws < 1:
        raise ValueError(
            f"n_exact={n_exact}, n_draws={n_draws} is not allowed: n_exact must be in "
            f"0..{weights.shape[1] - 2} and n_draws >= 1"
        )
    tokens = torch.randint(vocabulary, (n_draws, n_exact), generator=generator)
    one_hot = torch.nn.functional.one_hot(tokens, vocabulary).to(weights.dtype)
    accuracies = []
    for row, k in zip(weights, offset.tolist(), strict=True):
        others = torch.cat([row[:k], row[k + 1 :]])
        others = others[others.abs().argsort(descending=True)]
        scale = (others[n_exact:].square().sum() / vocabulary).sqrt()
        scale = scale.clamp(min=1e-9 * float(row.abs().max()))  # no bulk: ties are broken evenly
        scores = torch.einsum("d,ndv->nv", others[:n_exact], one_hot)
        scores = scores if n_exact else scores[:1]  # nothing was drawn
        lead = row[k] + scores[:, :1] - scores[:, 1:]  # (draws, V-1); the target is token 0
        accuracies.append(_share_ahead(lead / scale).mean())
    return torch.stack(accuracies)


def _share_ahead(lead: Tensor) -> Tensor:
    """Return P(Z_0 + lead_v > Z_v for all v) for independent normal Z: (draws, V-1) -> (draws,)."""
    nodes, node_weights = _gauss(lead)
    below = torch.special.ndtr(nodes[:, None, None] + lead)  # (nodes, draws, V-1)
    return node_weights @ below.prod(-1)


def _gauss(like: Tensor, n_nodes: int = 72, width: float = 8.0) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of the trapezoid rule for the standard normal density."""
    nodes = torch.linspace(-width, width, n_nodes, dtype=like.dtype)
    density = (-nodes.square() / 2).exp() / math.sqrt(2 * math.pi)
    return nodes, density * (2 * width / (n_nodes - 1))


def _check(weights: Tensor, offset: Tensor, vocabulary: int) -> None:
    length = weights.shape[1]
    if int(offset.min()) < 0 or int(offset.max()) >= length:
        raise ValueError(
            f"offset={offset.tolist()} is not allowed: offsets must be in 0..{length - 1}"
        )
    if vocabulary < 2:
        raise ValueError(f"vocabulary={vocabulary} is not allowed: it must be >= 2")
