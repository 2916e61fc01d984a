"""Rotary positions: queries and keys rotate by angles proportional to their position."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from lengthgen.encodings.base import PositionalEncoding

__all__ = ["Rotary", "rotary_frequencies"]

LAYOUTS = ("interleaved", "half-split")


def rotary_frequencies(d_head: int, base: float = 10_000.0) -> Float64[Tensor, " frequencies"]:
    r"""Return the rotary spectrum $\omega_f = b^{-2f/d}$, $f = 0 .. d/2 - 1$, in radians per token.

    Args:
        d_head: number of rotated channels $d$, even.
        base: $b$, larger than 1.

    Raises:
        ValueError: `d_head` odd or below 2, or `base` not above 1.

    Source: Su et al. (2024), equation 15.

    Example:
        >>> rotary_frequencies(4)
        tensor([1.0000, 0.0100], dtype=torch.float64)
    """
    if d_head < 2 or d_head % 2:
        raise ValueError(f"d_head={d_head} cannot be rotated: the width must be even and >= 2")
    if not base > 1:
        raise ValueError(f"base={base} is not allowed: it must be above 1")
    return base ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)


class Rotary(PositionalEncoding):
    r"""Rotate channel pair $f$ of a query or key at position $i$ by the angle $\omega_f i$.

    The logit of a query at $i$ and a key at $j$ is then a function of $i - j$ alone:
    $q^\top R(i)^\top R(j) k = q^\top R(j - i) k$.

    Args:
        d_head: width of queries and keys.
        base: base of the spectrum, see `rotary_frequencies`.
        width: number of channels rotated, even; the rest carry no position. All by default.
        layout: how channels pair up: `interleaved` (2f with 2f + 1) or `half-split`
            (f with f + width/2).

    Raises:
        ValueError: `width` odd or above `d_head`, another layout, or what `rotary_frequencies`
            refuses.

    Angles are products of integers with float64 frequencies and are rounded to the dtype of `x`
    only after sine and cosine. The spectrum is a plain attribute, not a buffer: casting the
    module does not change it.

    Source: Su et al. (2024), equation 34.
    """

    name = "rotary"
    isometric = True

    def __init__(
        self,
        d_head: int,
        base: float = 10_000.0,
        width: int | None = None,
        layout: str = "interleaved",
    ) -> None:
        super().__init__()
        if width is not None and (width > d_head or width % 2):
            raise ValueError(f"width={width} is not allowed: it must be even and at most {d_head}")
        width = d_head if width is None else width
        if layout not in LAYOUTS:
            raise ValueError(f"layout={layout!r} is unknown; choose from {', '.join(LAYOUTS)}")
        self.frequencies = rotary_frequencies(width, base)
        self.width, self.layout = width, layout

    def transform_query(
        self, x: Float[Tensor, "*batch length d_head"], positions: Int[Tensor, " length"]
    ) -> Float[Tensor, "*batch length d_head"]:
        """Rotate queries."""
        return self._rotate(x, positions)

    def transform_key(
        self, x: Float[Tensor, "*batch length d_head"], positions: Int[Tensor, " length"]
    ) -> Float[Tensor, "*batch length d_head"]:
        """Rotate keys."""
        return self._rotate(x, positions)

    def _angles(self, positions: Tensor) -> Tensor:
        return positions.to(torch.float64)[:, None] * self.frequencies.to(positions.device)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = self._angles(positions)
        precision = torch.promote_types(x.dtype, torch.float32)  # no complex numbers below that
        turn = torch.polar(angles.new_ones(()), angles).to(precision.to_complex())
        whole = self.width == x.shape[-1]  # slicing costs a copy on the way back
        rotated = (x if whole else x[..., : self.width]).to(precision)
        pairs = (
            rotated.unflatten(-1, (-1, 2))
            if self.layout == "interleaved"
            else torch.stack(rotated.chunk(2, dim=-1), dim=-1)
        )
        turned = torch.view_as_real(torch.view_as_complex(pairs) * turn)
        if self.layout == "half-split":
            turned = turned.transpose(-1, -2)
        turned = turned.flatten(-2).to(x.dtype)
        return turned if whole else torch.cat([turned, x[..., self.width :]], dim=-1)
