"""Learned absolute positions: one trained row per position, with or without random starts."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthgen.encodings.base import PositionalEncoding, check_range

__all__ = ["Learned", "LearnedRandomOffset"]


class Learned(PositionalEncoding):
    r"""Add row $p_i$ of a trained table to the token at position $i$: $x_i = e_{t_i} + p_i$.

    Args:
        d_model: width of a row.
        max_length: number of rows.
        generator: source of the initial table.
        std: standard deviation of the initial table, $p_i \sim N(0, \mathrm{std}^2)$.

    Raises:
        ValueError: a table without rows.

    Source: the learned table of Vaswani et al. (2017), section 3.5.
    """

    name = "learned"

    def __init__(
        self, d_model: int, max_length: int, generator: torch.Generator, std: float = 0.02
    ) -> None:
        super().__init__()
        if max_length < 1:
            raise ValueError(f"max_length={max_length} is too small: a table needs at least 1 row")
        self.max_length = max_length
        self.table = nn.Parameter(std * torch.randn(max_length, d_model, generator=generator))

    def embed(self, positions: Int[Tensor, " length"]) -> Float[Tensor, "length d_model"]:
        """Look up one row per position.

        Raises:
            ValueError: a position outside the table.
        """
        check_range(positions, self.max_length, self.name)
        return self.table.index_select(0, positions)


class LearnedRandomOffset(Learned):
    r"""A learned table whose training sequences start at a random row.

    Each sequence of length $L$ starts at a row drawn uniformly from $0 .. R - L$, with
    $R$ = `rows`, so that every row is trained. Evaluation starts at row 0.

    Args:
        d_model: width of a row.
        generator: source of the initial table.
        rows: $R$.
        std: as in `Learned`.

    Raises:
        ValueError: a table without rows.

    Source: the simplest member of the family of Ruoss et al. (2023), randomized positions.
    """

    name = "learned-random-offset"

    def __init__(
        self, d_model: int, generator: torch.Generator, rows: int = 64, std: float = 0.02
    ) -> None:
        super().__init__(d_model, rows, generator, std)

    def n_starts(self, length: int) -> int:
        """Return $R - L + 1$, the number of starts at which the sequence fits the table.

        Raises:
            ValueError: a sequence longer than the table.
        """
        if length > self.max_length:
            raise ValueError(
                f"length={length} is too long for the {self.name} encoding, whose table has "
                f"{self.max_length} rows: use shorter sequences or more rows"
            )
        return self.max_length - length + 1
