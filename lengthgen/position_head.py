r"""The position-only rotary head: the smallest model in which the theory of the carrier is exact.

No tokens: one complex query and one complex key per rotary frequency. The logit of the key that
stands `D` tokens before the query is the *kernel*

$$\kappa(D) = \mathrm{Re} \sum_f c_f e^{-i \omega_f D}, \qquad c_f = \bar q_f k_f / \sqrt d ,$$

and training asks the attention $p_L = \mathrm{softmax}(\kappa(0), \dots, \kappa(L-1))$ to sit on
the target offset $K$. Everything is float64, stacked on a leading axis of independent models, and
differentiated by hand (`lengthgen.position_loss`). `lengthgen.descent` trains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Complex128, Float64, Int
from torch import Tensor

__all__ = [
    "TRAINING_LENGTHS",
    "PositionHead",
    "equivariance_error",
    "initialize",
    "keeps_argmax",
    "kernel",
    "margin",
    "waves",
]

TRAINING_LENGTHS = tuple(range(10, 17))
"""The book's training lengths, each with equal weight."""


@dataclass(frozen=True)
class PositionHead:
    r"""A stack of position-only heads with one spectrum.

    Args:
        query: $q_f$.
        key: $k_f$.
        frequencies: $\omega_f$ in radians per token, shared by the stack.

    Raises:
        ValueError: query, key and frequencies disagree in shape.
    """

    query: Complex128[Tensor, "models frequencies"]
    key: Complex128[Tensor, "models frequencies"]
    frequencies: Float64[Tensor, " frequencies"]

    def __post_init__(self) -> None:
        shape, n_frequencies = tuple(self.query.shape), len(self.frequencies)
        if shape != tuple(self.key.shape) or shape[1:] != (n_frequencies,):
            raise ValueError(
                f"query {shape} and key {tuple(self.key.shape)} must both be (n_models, "
                f"{n_frequencies}), one column per frequency"
            )

    @property
    def n_models(self) -> int:
        """Number of stacked heads."""
        return self.query.shape[0]

    @property
    def d_head(self) -> int:
        """Real width $d$ of a query or key, twice the number of frequencies."""
        return 2 * len(self.frequencies)

    @property
    def coefficients(self) -> Complex128[Tensor, "models frequencies"]:
        r"""The carrier's coefficients $c_f = \bar q_f k_f / \sqrt d$."""
        return self.query.conj() * self.key / self.d_head**0.5

    @property
    def size(self) -> Float64[Tensor, " models"]:
        r"""The squared norm in logit units, $N = (|q|^2+|k|^2) / (2 \sqrt d) \ge \sum_f |c_f|$."""
        squares = self.query.abs().square() + self.key.abs().square()  # (models, frequencies)
        return squares.sum(-1) / (2 * self.d_head**0.5)

    def __getitem__(self, models: int | slice | Tensor | list[int]) -> PositionHead:
        """Select models of the stack; an integer selects a stack of one."""
        models = [models] if isinstance(models, int) else models
        return PositionHead(self.query[models], self.key[models], self.frequencies)


def initialize(
    seeds: Sequence[int], std: float, frequencies: Float64[Tensor, " frequencies"]
) -> PositionHead:
    r"""Draw heads whose $2d$ real parameters are $N(0, \mathrm{std}^2 \sqrt d)$, one per seed.

    The factor $\sqrt d$ makes `std` a scale of the logit, not of the parameters: whatever the
    width, $|c_f|$ starts at the order of $\mathrm{std}^2$. Every model owns a generator, so its
    numbers do not depend, to the bit, on what it is stacked with, and the same seed at another
    `std` is the same draw rescaled.

    Raises:
        ValueError: no seed, or `std` not above 0.

    Source: ours.
    """
    if len(seeds) == 0:
        raise ValueError("seeds is empty: at least one seed is needed")
    if not std > 0:
        raise ValueError(f"std={std} is not allowed: zero is a fixed point, so std must be > 0")
    draws = torch.stack([_draw(seed, len(frequencies)) for seed in seeds])
    scale = std * (2 * len(frequencies)) ** 0.25
    query, key = torch.view_as_complex(scale * draws).unbind(1)
    return PositionHead(query, key, frequencies)


def _draw(seed: int, n_frequencies: int) -> Float64[Tensor, "2 frequencies 2"]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, n_frequencies, 2, dtype=torch.float64, generator=generator)


def waves(
    frequencies: Float64[Tensor, " frequencies"], offsets: Int[Tensor, " offsets"]
) -> Complex128[Tensor, "offsets frequencies"]:
    r"""Return $E_f(D) = e^{-i \omega_f D}$, the kernel's basis.

    Source: ours.
    """
    angles = offsets.to(torch.float64)[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), -angles)


def kernel(
    coefficients: Complex128[Tensor, "*models frequencies"],
    frequencies: Float64[Tensor, " frequencies"],
    offsets: Int[Tensor, " offsets"],
) -> Float64[Tensor, "*models offsets"]:
    r"""Evaluate $\kappa(D) = \mathrm{Re} \sum_f c_f e^{-i \omega_f D}$.

    Source: ours; the rotary logit of Su et al. (2024) with constant queries and keys.

    Example:
        >>> c, w = torch.ones(1, dtype=torch.complex128), torch.ones(1, dtype=torch.float64)
        >>> kernel(c, w, torch.arange(3))
        tensor([ 1.0000,  0.5403, -0.4161], dtype=torch.float64)
    """
    angles = offsets.to(torch.float64) * frequencies[:, None]  # (frequencies, offsets)
    return coefficients.real @ angles.cos() + coefficients.imag @ angles.sin()


def margin(
    coefficients: Complex128[Tensor, "models frequencies"],
    frequencies: Float64[Tensor, " frequencies"],
    offset: Int[Tensor, " models"],
    length: int,
) -> Float64[Tensor, " models"]:
    r"""Return $\min_{D < L, D \ne K} \kappa(K) - \kappa(D)$: positive where retrieval succeeds.

    Raises:
        ValueError: an offset outside 1 .. length - 1.

    Source: ours.
    """
    check_offset(offset, length)
    values = kernel(coefficients, frequencies, torch.arange(length))  # (models, offsets)
    target = values.gather(1, offset[:, None])
    return target[:, 0] - values.scatter(1, offset[:, None], -torch.inf).amax(-1)


def keeps_argmax(
    head: PositionHead, offset: Int[Tensor, " models"], length: int
) -> Bool[Tensor, " models"]:
    r"""Tell whether $\kappa(K) > \kappa(D)$ for every other $0 \le D < L$: retrieval at length $L$.

    Raises:
        ValueError: an offset outside 1 .. length - 1.

    Source: ours.
    """
    return margin(head.coefficients, head.frequencies, offset, length) > 0


def equivariance_error(
    head: PositionHead, shift: int, length: int = 64
) -> Float64[Tensor, " models"]:
    r"""Measure how far the logits move when every position moves by `shift`.

    Queries and keys are rotated by their absolute positions, as an implementation would do it:
    $\max_j |z(i + s, j + s) - z(i, j)| / \max_j |z(i, j)|$ for the query at $i = L - 1$.

    Source: ours.
    """
    positions = torch.arange(length)
    here, there = _absolute_logits(head, positions), _absolute_logits(head, positions + shift)
    return (there - here).abs().amax(-1) / here.abs().amax(-1)


def _absolute_logits(head: PositionHead, positions: Tensor) -> Tensor:
    turn = waves(head.frequencies, -positions)  # e^{i w p}: (length, frequencies)
    query, keys = head.query * turn[-1], head.key[:, None, :] * turn  # keys (models, length, freq.)
    return (query.conj()[:, None, :] * keys).sum(-1).real / head.d_head**0.5


def check_offset(offset: Tensor, length: int) -> None:
    """Refuse target offsets that a sequence of `length` tokens does not have.

    Raises:
        ValueError: an offset outside 1 .. length - 1.
    """
    if int(offset.min()) < 1 or int(offset.max()) >= length:
        raise ValueError(
            f"offset={offset.tolist()} is not allowed: every offset must be in 1..{length - 1}, "
            f"inside the shortest length {length}"
        )
