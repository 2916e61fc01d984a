r"""Rotary heads read at longer lengths than they were trained at: slower rotations at test time.

Each class is the rotary encoding with another spectrum and an option `factor`, the length to be
read divided by the length of training. With `factor` 1 it is the rotary encoding, to the bit, so
a head trained with one is read with the other.
"""

from __future__ import annotations

import math

from jaxtyping import Float, Float64, Int
from torch import Tensor

from lengthgen.encodings.rotary import Rotary, rotary_frequencies

__all__ = ["RotaryInterpolated", "RotaryNTK", "RotaryYaRN"]


class RotaryInterpolated(Rotary):
    r"""Divide every angle by the factor: $\omega_f \to \omega_f / s$ (position interpolation).

    No angle is then larger than in training, but neighbours are $s$ times closer than ever before.

    Args:
        d_head: width of queries and keys.
        factor: $s$, at least 1.
        base: see `Rotary`, as are `width` and `layout`.
        width: number of rotated channels.
        layout: how channels pair up.

    Raises:
        ValueError: `factor` below 1, or what `Rotary` refuses.

    Source: Chen et al. (2023).

    Example:
        >>> RotaryInterpolated(4, factor=2.0).frequencies
        tensor([0.5000, 0.0050], dtype=torch.float64)
    """

    name = "rotary-interpolated"

    def __init__(
        self,
        d_head: int,
        factor: float = 1.0,
        base: float = 10_000.0,
        width: int | None = None,
        layout: str = "interleaved",
    ) -> None:
        super().__init__(d_head, base, width, layout)
        _check_factor(factor)
        self.frequencies = self.frequencies / factor


class RotaryNTK(Rotary):
    r"""Raise the base to $b\, s^{d/(d-2)}$: the fastest pair stays, the slowest is divided by $s$.

    Between the two ends a pair is slowed geometrically, $\omega_f \to \omega_f\, s^{-2f/(d-2)}$.

    Args:
        d_head: width of queries and keys.
        factor: $s$, at least 1.
        base: see `Rotary`, as are `width` (here at least 4) and `layout`.
        width: number $d$ of rotated channels.
        layout: how channels pair up.

    Raises:
        ValueError: `factor` below 1, fewer than 4 rotated channels, or what `Rotary` refuses.

    Source: "NTK-aware" interpolation, Peng et al. (2023), section 3.1.

    Example:
        >>> RotaryNTK(4, factor=2.0).frequencies
        tensor([1.0000, 0.0050], dtype=torch.float64)
    """

    name = "rotary-ntk"

    def __init__(
        self,
        d_head: int,
        factor: float = 1.0,
        base: float = 10_000.0,
        width: int | None = None,
        layout: str = "interleaved",
    ) -> None:
        super().__init__(d_head, base, width, layout)
        _check_factor(factor)
        if self.width < 4:
            raise ValueError(f"width={self.width} is not allowed: it must be at least 4 here")
        self.frequencies = rotary_frequencies(
            self.width, base * factor ** (self.width / (self.width - 2))
        )


class RotaryYaRN(Rotary):
    r"""Slow down only the pairs that turned too little in training, and sharpen the softmax.

    A pair that makes $r_f = L \omega_f / 2\pi$ turns within the training length $L$ keeps the
    share $\gamma(r_f)$ of its frequency, and the rest is divided by the factor:
    $\omega_f \to (1 - \gamma)\, \omega_f / s + \gamma\, \omega_f$ with
    $\gamma(r) = (r - \alpha) / (\beta - \alpha)$ clipped to $0 .. 1$. Queries and keys are
    multiplied by $0.1 \ln s + 1$, hence logits by its square.

    The authors' code draws the same ramp over the pair's index instead of its number of turns,
    between the same two ends.

    Args:
        d_head: width of queries and keys.
        factor: $s$, at least 1.
        trained_length: $L$, in tokens, at least 1.
        slow: $\alpha$, turns at and below which a pair is interpolated.
        fast: $\beta$, turns at and above which a pair is kept; larger than `slow`.
        base: see `Rotary`, as are `width` and `layout`.
        width: number of rotated channels.
        layout: how channels pair up.

    Raises:
        ValueError: `factor` or `trained_length` below 1, not `0 <= slow < fast`, or what `Rotary`
            refuses.

    Source: Peng et al. (2023), sections 3.2 to 3.4, with their $\alpha$ and $\beta$, which they
    chose for a training length in the thousands.
    """

    name = "rotary-yarn"

    def __init__(
        self,
        d_head: int,
        factor: float = 1.0,
        trained_length: int = 16,
        slow: float = 1.0,
        fast: float = 32.0,
        base: float = 10_000.0,
        width: int | None = None,
        layout: str = "interleaved",
    ) -> None:
        super().__init__(d_head, base, width, layout)
        _check_factor(factor)
        if trained_length < 1:
            raise ValueError(f"trained_length={trained_length} is not allowed: at least 1")
        if not 0 <= slow < fast:
            raise ValueError(f"slow={slow}, fast={fast} are not allowed: 0 <= slow < fast")
        turns = trained_length * self.frequencies / (2 * math.pi)
        self.kept: Float64[Tensor, " frequencies"] = ((turns - slow) / (fast - slow)).clamp(0, 1)
        # written so that factor 1 multiplies by exactly 1
        self.frequencies = self.frequencies * (1 - (1 - self.kept) * (1 - 1 / factor))
        self.sharpness = 0.1 * math.log(factor) + 1

    def transform_query(
        self, x: Float[Tensor, "*batch length d_head"], positions: Int[Tensor, " length"]
    ) -> Float[Tensor, "*batch length d_head"]:
        """Rotate and lengthen queries."""
        return self.sharpness * super().transform_query(x, positions)

    def transform_key(
        self, x: Float[Tensor, "*batch length d_head"], positions: Int[Tensor, " length"]
    ) -> Float[Tensor, "*batch length d_head"]:
        """Rotate and lengthen keys."""
        return self.sharpness * super().transform_key(x, positions)


def _check_factor(factor: float) -> None:
    if not 1 <= factor < math.inf:
        raise ValueError(f"factor={factor} is not allowed: it must be finite and at least 1")
