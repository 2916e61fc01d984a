"""Sinusoidal absolute positions: a fixed vector of sines and cosines per position."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from lengthgen.encodings.base import PositionalEncoding
from lengthgen.encodings.rotary import rotary_frequencies

__all__ = ["Sinusoidal"]


class Sinusoidal(PositionalEncoding):
    r"""Add sines and cosines of the angles $\omega_f i$ to the token at position $i$.

    $p_{i, 2f} = \sin(\omega_f i)$ and $p_{i, 2f+1} = \cos(\omega_f i)$ with the rotary spectrum
    $\omega_f = b^{-2f/d}$: sine and cosine of one frequency are neighbours. Every position exists,
    and a linear map turns $p_i$ into $p_{i+m}$, but a trained head need not use that map.

    Args:
        d_model: width $d$ of a token embedding, even.
        base: $b$, larger than 1.
        scale: factor of all vectors; their length is `scale` times $\sqrt{d/2}$.

    Raises:
        ValueError: `d_model` odd, `base` not above 1, or `scale` not above 0.

    Source: Vaswani et al. (2017), section 3.5.

    Example:
        >>> Sinusoidal(4).embed(torch.tensor([0, 1])).shape, Sinusoidal(4).embed(torch.tensor([0]))
        (torch.Size([2, 4]), tensor([[0., 1., 0., 1.]], dtype=torch.float64))
    """

    name = "sinusoidal"

    def __init__(self, d_model: int, base: float = 10_000.0, scale: float = 1.0) -> None:
        super().__init__()
        if d_model < 2 or d_model % 2:
            raise ValueError(f"d_model={d_model} cannot hold pairs: it must be even and >= 2")
        if not scale > 0:
            raise ValueError(f"scale={scale} is not allowed: it must be above 0")
        self.frequencies, self.scale = rotary_frequencies(d_model, base), scale

    def embed(self, positions: Int[Tensor, " length"]) -> Float64[Tensor, "length d_model"]:
        """Return one vector per position, in float64; the model rounds it to its own precision."""
        angles = positions.to(torch.float64)[:, None] * self.frequencies.to(positions.device)
        return self.scale * torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
