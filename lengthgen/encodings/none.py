"""No positional encoding."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lengthgen.encodings.base import PositionalEncoding

__all__ = ["NoEncoding"]


class NoEncoding(PositionalEncoding):
    """Queries and keys carry no position: a single head sees a bag of tokens.

    Source: the NoPE baseline of Kazemnejad et al. (2023), here without a causal stack above it.
    """

    name = "none"

    def bias(
        self, query_positions: Int[Tensor, " query"], key_positions: Int[Tensor, " key"]
    ) -> Float[Tensor, "query key"]:
        """Return zeros."""
        shape = (len(query_positions), len(key_positions))
        return torch.zeros(shape, device=key_positions.device)
