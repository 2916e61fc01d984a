r"""The Bessel law: what attention tends to at very long lengths, and how far a head can reach."""

from __future__ import annotations

import math

import torch
from jaxtyping import Complex128, Float64
from torch import Tensor

from lengthgen.carrier import log_bessel_constant

__all__ = ["mean_exponential", "reach_bound", "reach_constant", "torus_mean"]


def reach_constant(
    coefficients: Complex128[Tensor, "*batch vocabulary frequencies"],
    target: Float64[Tensor, "*batch"],
) -> Float64[Tensor, "*batch"]:
    r"""Return $\lim L\,\alpha(L) = e^{T(a,y,K)} / \frac1V \sum_b \prod_f I_0(|c_f(a,b)|)$.

    It holds if the frequencies and $2\pi$ are linearly independent over the rationals.

    Args:
        coefficients: $c_f(a, b)$ of one query token a, over key tokens b.
        target: $T(a, y, K)$.
    """
    log_mean = log_bessel_constant(coefficients).logsumexp(-1) - math.log(coefficients.shape[-2])
    return (target - log_mean).exp()


def reach_bound(total: float, n_frequencies: int) -> float:
    r"""Bound $\lim L\,\alpha(L)$ of a position-only head by $(2\pi H/r + 4/\pi)^{r/2}$.

    Args:
        total: $H = \sum_f |c_f|$.
        n_frequencies: r, the number of nonzero coefficients.

    Raises:
        ValueError: fewer than one frequency.
    """
    if n_frequencies < 1:
        raise ValueError(f"n_frequencies={n_frequencies} is not allowed: it must be at least 1")
    return (2 * math.pi * total / n_frequencies + 4 / math.pi) ** (n_frequencies / 2)


def mean_exponential(
    coefficients: Complex128[Tensor, "pairs frequencies"],
    frequencies: Float64[Tensor, " frequencies"],
    limit: int,
    block: int = 4096,
) -> Float64[Tensor, " pairs"]:
    r"""Return $\frac1L \sum_{D < L} e^{\kappa(D)}$ of many kernels, summed term by term."""
    parts = torch.cat([coefficients.real, coefficients.imag], dim=1).T.contiguous()
    total = coefficients.real.new_zeros(len(coefficients))
    for start in range(0, limit, block):
        offsets = torch.arange(start, min(start + block, limit), dtype=torch.float64)
        angles = offsets[:, None] * frequencies
        total += (torch.cat([angles.cos(), angles.sin()], dim=1) @ parts).exp_().sum(0)
    return total / limit


def torus_mean(
    coefficients: Complex128[Tensor, "pairs frequencies"],
    ratio: int,
    classes: int,
    points: int = 2**15,
) -> Float64[Tensor, " pairs"]:
    r"""Return the exact long-run mean of $e^{\kappa(D)}$ for frequencies that resonate in classes.

    Frequency $f$ belongs to class $f$ mod `classes`, and within a class each frequency is the one
    before it divided by `ratio`. A class is then one angle, its members integer multiples of it,
    and the mean is a product of one-dimensional integrals, one for each class.

    With base 10,000 and width 32 the frequencies are $10^{-f/4}$: `ratio` 10, `classes` 4.

    Args:
        coefficients: $c_f$.
        ratio: quotient of neighbours in a class.
        classes: number of classes.
        points: points of the (spectrally accurate) rule on the circle.
    """
    theta = torch.arange(points, dtype=torch.float64) * (2 * math.pi / points)
    result = coefficients.real.new_ones(len(coefficients))
    for first in range(classes):
        members = coefficients[:, first::classes]
        n = members.shape[1]
        multiples = torch.tensor([ratio ** (n - 1 - j) for j in range(n)], dtype=torch.float64)
        angles = theta[:, None] * multiples
        parts = torch.cat([members.real, members.imag], dim=1).T
        result *= (torch.cat([angles.cos(), angles.sin()], dim=1) @ parts).exp_().mean(0)
    return result
