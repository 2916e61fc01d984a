"""xPos: rotary positions whose logits also decay with the offset, faster for fast rotations."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from lengthgen.encodings.rotary import Rotary

__all__ = ["XPos"]

LARGEST_EXPONENT = 690.0
"""Decays stay within e^690 = 10^299: float64 ends at 10^308, the rest is for queries and keys."""


class XPos(Rotary):
    r"""Rotate; scale pair $f$ of a query by $\zeta_f^{i/s}$ and of a key by $\zeta_f^{-j/s}$.

    With $\zeta_f = (2f/d + \gamma) / (1 + \gamma) < 1$ the share of pair $f$ in the logit is the
    rotary one times $\zeta_f^{(i-j)/s}$, which falls with the distance of keys before the query.

    The two factors of the product leave float32 near position 36,000 (with the defaults), so both
    hooks return float64, whatever they are given: cast logits, not queries and keys.

    Args:
        d_head: width of queries and keys.
        scale: $s$, tokens over which a pair decays by $\zeta_f$.
        gamma: $\gamma > 0$, flattens the decay.
        base: see `Rotary`, as are `width` and `layout`.
        width: number $d$ of rotated channels; the rest neither rotate nor decay.
        layout: how channels pair up.

    Raises:
        ValueError: `scale` or `gamma` not above 0, or so large that nothing decays; or what
            `Rotary` refuses.

    Source: Sun et al. (2022), with the scale and $\gamma$ of their code.
    """

    name = "xpos"
    isometric = False

    def __init__(
        self,
        d_head: int,
        scale: float = 512.0,
        gamma: float = 0.4,
        base: float = 10_000.0,
        width: int | None = None,
        layout: str = "interleaved",
    ) -> None:
        super().__init__(d_head, base, width, layout)
        for name, value in (("scale", scale), ("gamma", gamma)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name}={value} is not allowed: it must be finite and above 0")
        self.d_head = d_head
        share = torch.arange(0, self.width, 2, dtype=torch.float64) / self.width
        self.log_decay = ((share + gamma) / (1 + gamma)).log() / scale  # per token, per pair
        if self.log_decay[0] == 0:
            raise ValueError(f"gamma={gamma} and scale={scale} are too large: nothing decays")
        self.max_length = int(LARGEST_EXPONENT / -self.log_decay[0].item()) + 1

    def transform_query(
        self, x: Float[Tensor, "*batch length d_head"], positions: Int[Tensor, " length"]
    ) -> Float64[Tensor, "*batch length d_head"]:
        """Rotate queries and shrink them.

        Raises:
            ValueError: a position so far out that its factor leaves float64.
        """
        return self._rotate(x.double(), positions) * self._decay(positions)

    def transform_key(
        self, x: Float[Tensor, "*batch length d_head"], positions: Int[Tensor, " length"]
    ) -> Float64[Tensor, "*batch length d_head"]:
        """Rotate keys and grow them.

        Raises:
            ValueError: a position so far out that its factor leaves float64.
        """
        return self._rotate(x.double(), positions) / self._decay(positions)

    def _decay(self, positions: Tensor) -> Tensor:
        """Return the factor of every channel, (length, d_head)."""
        far = positions[positions.abs() >= self.max_length]
        if far.numel():
            raise ValueError(
                f"position {int(far[-1])} is too far for xpos, whose factors leave float64 after "
                f"{self.max_length - 1}: use shorter sequences or a larger scale"
            )
        pairs = (positions.to(torch.float64)[:, None] * self.log_decay.to(positions.device)).exp()
        if self.layout == "interleaved":
            channels = pairs.repeat_interleave(2, dim=1)
        else:
            channels = pairs.repeat(1, 2)
        rest = channels.new_ones(len(positions), self.d_head - self.width)
        return torch.cat([channels, rest], dim=1)
