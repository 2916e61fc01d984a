"""ALiBi: a fixed penalty proportional to the distance, one slope per head."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from lengthgen.encodings.base import PositionalEncoding

__all__ = ["ALiBi", "alibi_slopes"]


def alibi_slopes(n_heads: int) -> Float64[Tensor, " heads"]:
    r"""Return the slopes $2^{-8h/n}$, $h = 1 .. n$, if the number of heads $n$ is a power of two.

    For other $n$ they are those of the largest power of two below it, followed by every second
    slope of the next larger one.

    Raises:
        ValueError: `n_heads` below 1.

    Source: Press et al. (2022), and their code where $n$ is not a power of two.

    Example:
        >>> alibi_slopes(4), alibi_slopes(3)
        (tensor([0.2500, 0.0625, 0.0156, 0.0039], dtype=torch.float64),
         tensor([0.0625, 0.0039, 0.2500], dtype=torch.float64))
    """
    if n_heads < 1:
        raise ValueError(f"n_heads={n_heads} is not allowed: it must be at least 1")
    power = 1 << (n_heads.bit_length() - 1)  # the largest power of two up to n_heads
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2.0 ** (-4 * h / power) for h in range(1, 2 * power + 1, 2)]
    return torch.tensor(slopes + between[: n_heads - power], dtype=torch.float64)


class ALiBi(PositionalEncoding):
    r"""Add $-m_h (i - j)$ to the logit of head $h$ for a query at $i$ and a key at $j$.

    Nothing is learned. The bias of keys before the query falls with their distance, so that
    without help from the tokens no key is preferred to the query's own position.

    Args:
        n_heads: number of heads; for the slopes $m_h$ see `alibi_slopes`.
        strength: factor of all slopes. The paper's slope for a single head is $2^{-8}$; with 128
            it is the 1/2 of the first of eight heads.

    Raises:
        ValueError: `n_heads` below 1, or `strength` not above 0.

    Source: Press et al. (2022).

    Example:
        >>> ALiBi(8).bias(torch.tensor([2]), torch.arange(3))[0]
        tensor([[-1.0000, -0.5000, -0.0000]], dtype=torch.float64)
    """

    name = "alibi"

    def __init__(self, n_heads: int, strength: float = 1.0) -> None:
        super().__init__()
        if not 0 < strength < math.inf:
            raise ValueError(f"strength={strength} is not allowed: it must be finite and above 0")
        self.slopes = strength * alibi_slopes(n_heads)

    def bias(
        self, query_positions: Int[Tensor, " query"], key_positions: Int[Tensor, " key"]
    ) -> Float64[Tensor, "heads query key"]:
        """Return the penalties, in float64; the model rounds them to its own precision."""
        offset = query_positions[:, None] - key_positions
        return -self.slopes.to(offset.device)[:, None, None] * offset
