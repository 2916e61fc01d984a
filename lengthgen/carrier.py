r"""The carrier kernel: what one measures on any rotary head, with tokens or without.

The *carrier* of a rotary head is its kernel $\kappa(D) = \mathrm{Re} \sum_f c_f e^{-i \omega_f D}$,
the logit as a function of offset alone; for a head with tokens, the mean over token pairs.
`lengthgen.early_carrier` and `lengthgen.late_carrier` predict it for the position-only head.
"""

from __future__ import annotations

import torch
from jaxtyping import Complex, Complex128, Float, Float64, Int
from torch import Tensor

from lengthgen.position_head import kernel, waves

__all__ = [
    "aligned_coefficients",
    "alignment",
    "complex_channels",
    "correlation",
    "effective_rank",
    "explained_share",
    "first_lost_offset",
    "log_bessel_constant",
    "mean_kernel",
    "spectrum",
    "support_size",
    "token_coefficients",
]


def aligned_coefficients(
    amplitudes: Float64[Tensor, "models frequencies"],
    frequencies: Float64[Tensor, " frequencies"],
    offset: Int[Tensor, " models"],
) -> Complex128[Tensor, "models frequencies"]:
    r"""Return $c_f = A_f e^{i \omega_f K}$, all waves in phase at $K$.

    Then $\kappa(K) = \sum_f A_f \ge \kappa(D)$ for every integer $D$ (aligned-phase theorem), but
    with no uniform margin: $\sup_{D \ne K} \kappa(D) = \kappa(K)$.

    Source: ours.
    """
    return amplitudes * waves(frequencies, -offset)


def alignment(
    coefficients: Complex128[Tensor, "models frequencies"],
    frequencies: Float64[Tensor, " frequencies"],
    offset: Int[Tensor, " models"],
) -> Float64[Tensor, " models"]:
    r"""Return $\kappa(K) / \sum_f |c_f|$, in [-1, 1]: 1 where all waves are in phase at $K$.

    Source: ours.

    Example:
        >>> w, k = torch.tensor([1.0, 0.1], dtype=torch.float64), torch.tensor([3])
        >>> alignment(aligned_coefficients(torch.ones_like(w)[None], w, k), w, k)
        tensor([1.0000], dtype=torch.float64)
    """
    in_phase = (coefficients * waves(frequencies, offset)).real.sum(-1)
    return in_phase / coefficients.abs().sum(-1)


def spectrum(
    coefficients: Complex128[Tensor, "*models frequencies"],
) -> Float64[Tensor, "*models frequencies"]:
    r"""Return each frequency's share of the amplitude, $|c_f| / \sum_g |c_g|$.

    Source: ours.
    """
    amplitudes = coefficients.abs()
    return amplitudes / amplitudes.sum(-1, keepdim=True)


def support_size(
    coefficients: Complex128[Tensor, "*models frequencies"], threshold: float = 0.01
) -> Int[Tensor, "*models"]:
    r"""Count the frequencies with $|c_f| \ge$ `threshold` times the largest.

    Raises:
        ValueError: a threshold outside (0, 1].

    Source: ours.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold={threshold} is not allowed: it must be in (0, 1]")
    amplitudes = coefficients.abs()
    return (amplitudes >= threshold * amplitudes.amax(-1, keepdim=True)).sum(-1)


def correlation(
    first: Float[Tensor, "*models offsets"], second: Float[Tensor, "*models offsets"]
) -> Float[Tensor, "*models"]:
    """Return Pearson's correlation of two kernels over their offsets (softmax ignores constants).

    Source: standard.
    """
    first = first - first.mean(-1, keepdim=True)
    second = second - second.mean(-1, keepdim=True)
    return (first * second).sum(-1) / (first.norm(dim=-1) * second.norm(dim=-1))


def first_lost_offset(
    coefficients: Complex128[Tensor, "models frequencies"],
    frequencies: Float64[Tensor, " frequencies"],
    offset: Int[Tensor, " models"],
    limit: int,
    block: int = 8192,
) -> Int[Tensor, " models"]:
    r"""Return the first $D \ne K$ with $\kappa(D) \ge \kappa(K)$, or `limit` if none is below it.

    A head retrieves at length $L \le$ `limit` if and only if $L \le$ this number.

    Args:
        coefficients: $c_f$.
        frequencies: $\omega_f$.
        offset: target offset of each model.
        limit: offsets 0 .. limit - 1 are scanned.
        block: offsets evaluated at a time; it changes memory, not the result.

    Raises:
        ValueError: a limit not above every offset.

    Source: ours.
    """
    if limit <= int(offset.max()):
        raise ValueError(f"limit={limit} is too small: it must exceed {int(offset.max())}")
    target = (coefficients * waves(frequencies, offset)).real.sum(-1, keepdim=True)
    lost = torch.full((len(offset),), limit)
    for start in range(0, limit, block):
        offsets = torch.arange(start, min(start + block, limit))
        wins = kernel(coefficients, frequencies, offsets) >= target  # (models, offsets)
        wins &= offsets != offset[:, None]
        first = torch.where(wins.any(-1), start + wins.int().argmax(-1), limit)
        lost = torch.minimum(lost, first)
        if (lost < limit).all():
            break
    return lost


def log_bessel_constant(
    coefficients: Complex[Tensor, "*models frequencies"],
) -> Float[Tensor, "*models"]:
    r"""Return $\log \prod_f I_0(|c_f|)$, the log mean of $e^{\kappa(D)}$ over all offsets.

    Exact for rationally independent $\omega_f / 2\pi$ (Weyl); each large amplitude adds about
    $A_f - \frac12 \log(2 \pi A_f)$.

    Source: ours.
    """
    amplitudes = coefficients.abs()
    return (amplitudes + torch.special.i0e(amplitudes).log()).sum(-1)


def mean_kernel(
    logits: Float[Tensor, "*models queries keys offsets"],
) -> Float[Tensor, "*models offsets"]:
    r"""Return a token-level head's kernel, the mean of its logits over pairs of a query and a key.

    Args:
        logits: $T(a, b, D)$ for query $a$, key $b$ and offset $D$: all pairs of tokens, or a
            sample of queries and keys.

    Source: ours.
    """
    return logits.mean((-3, -2))


def explained_share(
    logits: Float[Tensor, "*models queries keys offsets"],
    explanation: Float[Tensor, "*models offsets"] | None = None,
) -> Float[Tensor, "*models"]:
    r"""Return the share of the logits' variance over offsets that one kernel explains.

    $1 - \sum (\tilde T(a,b,D) - \tilde\kappa(D))^2 / \sum \tilde T(a,b,D)^2$, where the tilde
    removes the mean over $D$ of every query and key. Negative for a kernel worse than none.

    Args:
        logits: $T(a, b, D)$.
        explanation: $\kappa(D)$; the mean kernel, the best one, by default.

    Source: ours.
    """
    if explanation is None:
        explanation = mean_kernel(logits)
    centered = logits - logits.mean(-1, keepdim=True)
    explanation = (explanation - explanation.mean(-1, keepdim=True))[..., None, None, :]
    residual = (centered - explanation).square().sum((-3, -2, -1))
    return 1 - residual / centered.square().sum((-3, -2, -1))


def effective_rank(matrix: Float[Tensor, "*models rows columns"]) -> Float[Tensor, "*models"]:
    r"""Return the participation ratio $(\sum_i \sigma_i^2)^2 / \sum_i \sigma_i^4$.

    Between 1 and the rank; a product of two square Gaussian matrices of width $d$ has $d / 3$.

    Source: ours for $W_q W_k^\top$; the participation ratio is standard.

    Example:
        >>> effective_rank(torch.eye(5))
        tensor(5.)
    """
    gram = matrix.transpose(-2, -1) @ matrix  # its eigenvalues are the squared singular values
    return matrix.square().sum((-2, -1)).square() / gram.square().sum((-2, -1))


def complex_channels(
    x: Float[Tensor, "*batch d_head"], layout: str = "interleaved"
) -> Complex[Tensor, "*batch frequencies"]:
    """Read a real query or key as one complex number per rotary frequency.

    Raises:
        ValueError: an odd width, or a layout other than `interleaved` and `half-split`.

    Source: ours; the layouts are those of `lengthgen.encodings.Rotary`.
    """
    if x.shape[-1] % 2:
        raise ValueError(f"d_head={x.shape[-1]} has no channel pairs: it must be even")
    if layout == "half-split":
        first, second = x.chunk(2, dim=-1)
    elif layout == "interleaved":
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        raise ValueError(f"layout={layout!r} is unknown; choose from interleaved, half-split")
    return torch.complex(first.contiguous(), second.contiguous())


def token_coefficients(
    query: Float[Tensor, "*models vocabulary d_head"],
    key: Float[Tensor, "*models vocabulary d_head"],
    layout: str = "interleaved",
) -> Complex[Tensor, "*models vocabulary vocabulary frequencies"]:
    r"""Return $c_f(a, b) = \bar q_f(a) k_f(b) / \sqrt d$ for every query and key token.

    Their mean over token pairs are the coefficients of `mean_kernel`.

    Args:
        query: unrotated queries, one row per token.
        key: unrotated keys.
        layout: how channels pair up into frequencies.

    Raises:
        ValueError: as `complex_channels`.

    Source: ours.
    """
    q, k = complex_channels(query, layout), complex_channels(key, layout)
    return q.conj()[..., :, None, :] * k[..., None, :, :] / query.shape[-1] ** 0.5
