"""KERPLE: a learned penalty that grows with the logarithm of the distance."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthgen.encodings.base import PositionalEncoding

__all__ = ["Kerple"]


class Kerple(PositionalEncoding):
    r"""Add $-r_1 \ln(1 + r_2 |i - j|)$ with learned $r_1, r_2 > 0$ per head to the logit.

    Attention mass then falls as a power of the distance, $(1 + r_2 |i-j|)^{-r_1}$. The logarithms
    of $r_1$ and $r_2$ are the parameters, which keeps both positive; initially
    $r_1 \sim U(0, 2)$ and $r_2 \sim U(0, 1)$, as in the authors' code.

    Args:
        n_heads: number of heads.
        generator: source of the initial $r_1$ and $r_2$.

    Source: Chi et al. (2022), the logarithmic variant.
    """

    name = "kerple"

    def __init__(self, n_heads: int, generator: torch.Generator) -> None:
        super().__init__()
        uniform = 1 - torch.rand(2, n_heads, generator=generator)  # in (0, 1]: has a logarithm
        self.log_r1 = nn.Parameter((2 * uniform[0]).log())
        self.log_r2 = nn.Parameter(uniform[1].log())

    def bias(
        self, query_positions: Int[Tensor, " query"], key_positions: Int[Tensor, " key"]
    ) -> Float[Tensor, "heads query key"]:
        """Return the penalties: in float64, rounded last to the precision of the parameters."""
        distance = (query_positions[:, None] - key_positions).abs()
        r1, r2 = (log_r.double().exp()[:, None, None] for log_r in (self.log_r1, self.log_r2))
        return (-r1 * torch.log1p(r2 * distance)).to(self.log_r1.dtype)
