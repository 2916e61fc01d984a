r"""The attention law: the mean attention on the target as a one-dimensional integral."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from lengthgen.dilution.heads import check_lengths, segments

__all__ = [
    "START_ERROR",
    "TAIL",
    "attention_law",
    "kernel_attention",
    "kernel_only",
    "quadrature_error",
]

TAIL = 10.0
"""How far below the inverse of the mean normalizer the integral starts, in nats."""
START_ERROR = math.exp(-2 * TAIL) / 2
"""Bound of the relative error of `attention_law` by where the integral starts."""


def attention_law(
    logits: Float64[Tensor, "vocabulary vocabulary offsets"],
    offset: int,
    lengths: Sequence[int],
    step: float = 0.5,
) -> Float64[Tensor, "lengths vocabulary vocabulary"]:
    r"""Return the expected attention on the target, given query token a and target token y.

    $$\mathbb{E}[\alpha \mid a, y] = \int_0^\infty e^{T(a,y,K)} e^{-t (e^{T(a,y,K)} + e^{T(a,a,0)})}
      \prod_{D \ne 0, K} \frac1V \sum_b \exp(-t\, e^{T(a,b,D)}) \, dt$$

    by the trapezoidal rule in $\log t$. The product does not depend on y and is accumulated over
    D, so that one pass gives all lengths and targets. Below the first point $t_{\min}$ the
    integrand is taken as $e^{T(a,y,K)}$, its value at 0. With S the softmax's normalizer that is
    too much by at most $e^{T(a,y,K)} t_{\min}^2 \, \mathbb{E}[S] / 2$, and attention is at least
    $e^{T(a,y,K)} / \mathbb{E}[S]$ (Jensen), so the relative error is at most
    $(t_{\min} \mathbb{E}[S])^2 / 2$, with $t_{\min}$ chosen from the largest $\mathbb{E}[S]$:
    `START_ERROR`. The grid reaches $t (e^{T(a,y,K)} + e^{T(a,a,0)}) = 40$ for every target; what
    lies beyond is dropped, a relative error of at most
    $e^{-40} \mathbb{E}[S] / (e^{T(a,y,K)} + e^{T(a,a,0)})$.

    Args:
        logits: $T(a, b, D)$ of one head.
        offset: target offset K.
        lengths: sequence lengths, at most the number of offsets.
        step: step in $\log t$; see `quadrature_error`.

    Raises:
        ValueError: a length that does not hold the offset or that the logits do not reach.

    Example:
        A head that looks at nothing spreads its attention evenly.

        >>> attention_law(torch.zeros(2, 2, 8, dtype=torch.float64), 1, [4, 8])[:, 0, 0]
        tensor([0.2500, 0.1250], dtype=torch.float64)
    """
    check_lengths(logits, offset, lengths)
    target, own = logits[:, :, offset], torch.diagonal(logits[:, :, 0])
    fixed = torch.logaddexp(target, own[:, None])
    low = -_log_mean_normalizer(logits, offset, fixed) - TAIL
    high = math.log(40.0) - fixed.amin(1)
    n_points = math.ceil(float((high - low).max()) / step) + 1
    log_t = low[:, None] + step * torch.arange(n_points, dtype=torch.float64)  # (query, points)
    t = log_t.exp()
    weights = logits.exp().permute(2, 1, 0).contiguous()  # (offset, key, query)
    log_product = torch.zeros_like(t)
    result = {}
    for start, stop in segments(lengths, 8):
        others = [d for d in range(start, stop) if d not in (0, offset)]
        if others:
            decay = weights[others][..., None] * t  # (offset, key, query, points)
            log_product += decay.neg_().exp_().mean(1).log_().sum(0)
        if stop in lengths:
            log_integrand = log_t[:, None] + target[..., None] + log_product[:, None]
            integrand = (log_integrand - (fixed[..., None] + log_t[:, None]).exp()).exp()
            below = (target + low[:, None]).exp() / math.expm1(step)  # the integrand is e^T t there
            result[stop] = step * (integrand.sum(-1) + below)
    return torch.stack([result[length] for length in lengths])


def _log_mean_normalizer(logits: Tensor, offset: int, fixed: Tensor) -> Tensor:
    """Return log E[S] of each query token, for the target token with the largest, at all offsets.

    Args:
        logits: T(a, b, D).
        offset: target offset K.
        fixed: log of the two terms of S that are given, (query, target).
    """
    others = logits.clone()
    others[:, :, [0, offset]] = -torch.inf
    drawn = others.flatten(1).logsumexp(1) - math.log(logits.shape[1])
    return torch.logaddexp(fixed.amax(1), drawn)


def quadrature_error(step: float) -> float:
    r"""Bound the relative error of `attention_law`'s trapezoidal rule.

    For every value of the normalizer, Poisson summation gives the error exactly; it is at most
    $2 \sum_{k \ge 1} |\Gamma(1 + 2 \pi i k / h)|$ with $|\Gamma(1 + i x)|^2 = \pi x / \sinh \pi x$.

    Example:
        >>> f"{quadrature_error(0.5):.1e}"
        '4.8e-08'
    """
    xs = [2 * math.pi**2 * k / step for k in range(1, 20)]
    return 2 * sum(math.sqrt(2 * x) * math.exp(-x / 2) for x in xs) * 1.0001


def kernel_attention(
    kernel: Float64[Tensor, " offsets"], offset: int, lengths: Sequence[int]
) -> Float64[Tensor, " lengths"]:
    r"""Return attention if tokens did not matter, $e^{\kappa(K)} / \sum_{D < L} e^{\kappa(D)}$."""
    total = kernel.logcumsumexp(0)
    return (kernel[offset] - total[[length - 1 for length in lengths]]).exp()


def kernel_only(
    logits: Float64[Tensor, "vocabulary vocabulary offsets"],
) -> Float64[Tensor, "vocabulary vocabulary offsets"]:
    """Replace every token pair's logits by their mean over pairs, the carrier kernel."""
    return logits.mean((0, 1)).expand_as(logits)
