"""FIRE: a learned function of the offset relative to the query's own position."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthgen.encodings.base import PositionalEncoding

__all__ = ["Fire"]


class Fire(PositionalEncoding):
    r"""Add $f_\theta\big(\psi(|i - j|) / \psi(\max(i, L))\big)$ to the logit.

    Here $\psi(x) = \ln(1 + c x)$, and $f_\theta(x) = v_h^\top \mathrm{relu}(w x + u)$ is a small
    network with one output per head; $c$ and $L$ are learned. The argument of $f_\theta$ lies in
    $0 .. 1$ at every length.

    **Not a function of the offset alone**: past the threshold $L$ the normalizer is that of the
    query's position $i$. Pairs have the same bias if their ratios agree: the first key of every
    query past the threshold has the bias $f_\theta(1)$. Up to the threshold the bias depends on
    the offset alone. A constant added to $f_\theta$ would cancel in the softmax and is left out.

    Args:
        n_heads: number of heads.
        generator: source of the initial network.
        threshold: initial $L$, in tokens, above 0. It is learned through a factor that starts at
            1, as the authors do.
        scale: initial $c$, above 0.
        hidden: width of the network.

    Raises:
        ValueError: `threshold` or `scale` not above 0, or `hidden` below 1.

    Source: Li et al. (2024), with the initial values of their code, chosen for training lengths in
    the thousands; here $c$ and $L$ keep their sign by an absolute value.
    """

    name = "fire"

    def __init__(
        self,
        n_heads: int,
        generator: torch.Generator,
        threshold: float = 512.0,
        scale: float = 0.1,
        hidden: int = 32,
    ) -> None:
        super().__init__()
        for name, value in (("threshold", threshold), ("scale", scale)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name}={value} is not allowed: it must be finite and above 0")
        if hidden < 1:
            raise ValueError(f"hidden={hidden} is not allowed: it must be at least 1")
        self.initial_threshold = threshold
        self.threshold_factor = nn.Parameter(torch.ones(()))
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        # uniform within 1 / sqrt(number of inputs), PyTorch's default for a linear layer
        slope, shift = 2 * torch.rand(2, hidden, generator=generator) - 1
        weight = (2 * torch.rand(n_heads, hidden, generator=generator) - 1) / hidden**0.5
        self.slope, self.shift = nn.Parameter(slope), nn.Parameter(shift)
        self.weight = nn.Parameter(weight)

    def ratio(
        self, query_positions: Int[Tensor, " query"], key_positions: Int[Tensor, " key"]
    ) -> Float[Tensor, "query key"]:
        r"""Return $\psi(|i-j|) / \psi(\max(i, L))$: in float64, rounded last."""
        scale = self.scale.double().abs()
        threshold = self.initial_threshold * self.threshold_factor.double().abs()
        distance = (query_positions[:, None] - key_positions).abs()
        normalizer = torch.maximum(query_positions.double(), threshold)[:, None]
        ratio = torch.log1p(scale * distance) / torch.log1p(scale * normalizer)
        return ratio.to(self.scale.dtype)

    def bias(
        self, query_positions: Int[Tensor, " query"], key_positions: Int[Tensor, " key"]
    ) -> Float[Tensor, "heads query key"]:
        """Return the network's value at each ratio."""
        ratio = self.ratio(query_positions, key_positions)[..., None]
        hidden = (self.slope * ratio + self.shift).relu()  # (query, key, hidden)
        return (hidden @ self.weight.T).permute(2, 0, 1)
