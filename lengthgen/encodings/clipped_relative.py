"""Clipped relative positions: a learned number per offset, the same for all offsets far away."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthgen.encodings.base import PositionalEncoding

__all__ = ["ClippedRelative"]


class ClippedRelative(PositionalEncoding):
    r"""Add a learned number $\beta_{h, \mathrm{clip}(i - j, -M, M)}$ to the logit of head $h$.

    This is the part of the original that position alone decides. There a key's vector
    $a_{\mathrm{clip}(j - i)}$ meets the query, so that the bias also depends on the query's
    content, and a second table is added to the values; a bias can express neither.

    Args:
        n_heads: number of heads.
        generator: source of the initial table.
        max_offset: $M$, at least 1; the table has $2M + 1$ columns.
        std: standard deviation of the initial table.

    Raises:
        ValueError: `max_offset` below 1.

    Source: Shaw et al. (2018), section 3.2, reduced as said above.
    """

    name = "clipped-relative"

    def __init__(
        self, n_heads: int, generator: torch.Generator, max_offset: int = 16, std: float = 0.02
    ) -> None:
        super().__init__()
        if max_offset < 1:
            raise ValueError(f"max_offset={max_offset} is not allowed: it must be at least 1")
        self.max_offset = max_offset
        self.table = nn.Parameter(
            std * torch.randn(n_heads, 2 * max_offset + 1, generator=generator)
        )

    def bias(
        self, query_positions: Int[Tensor, " query"], key_positions: Int[Tensor, " key"]
    ) -> Float[Tensor, "heads query key"]:
        """Look up each clipped offset; offset $-M$ is column 0."""
        offset = query_positions[:, None] - key_positions
        return self.table[:, offset.clamp(-self.max_offset, self.max_offset) + self.max_offset]
