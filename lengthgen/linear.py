r"""The position-only linear head: no softmax, so training, limit and extrapolation are exact.

The output is $\sum_{D < L} w(D)\, x_{L-1-D}$ with one-hot tokens $x$ and a kernel that is *linear
in its parameters*,

$$w(D) = \sum_f [a_f \cos \omega_f D + b_f \sin \omega_f D] = \phi(D)^\top \theta, \qquad
\theta = (a, b),$$

so that $w = \Phi \theta$ on the training offsets. Gradient descent on the squared loss is then a
spectral filter, and its limit is the interpolant of smallest norm. With $c_f = a_f + i b_f$ this
is the kernel of `lengthgen.position_head`; only the parameters differ. Everything is float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Complex128, Float64, Int
from torch import Tensor

from lengthgen.position_head import TRAINING_LENGTHS

__all__ = [
    "Conditioning",
    "as_coefficients",
    "conditioning",
    "descent",
    "descent_closed_form",
    "design_matrix",
    "impulse",
    "largest_step",
    "loss_metric",
    "minimum_norm",
    "scaled_midpoints",
    "squared_loss",
]


def scaled_midpoints(n_frequencies: int, top: float) -> Float64[Tensor, " frequencies"]:
    r"""Return $\omega_i = \pi\, \mathrm{top}\, (i + 1/2) / n$, evenly spaced in the band.

    The band is $(0, \mathrm{top}\,\pi)$. If $m = 2n / \mathrm{top}$ is an integer, every
    kernel on this spectrum repeats with the other sign, $w(D + m) = -w(D)$.

    Args:
        n_frequencies: $n$.
        top: edge of the band in units of $\pi$, in (0, 1].

    Raises:
        ValueError: `n_frequencies` below 1, or `top` outside (0, 1].

    Source: ours.

    Example:
        >>> scaled_midpoints(2, top=1.0) / torch.pi
        tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    if n_frequencies < 1:
        raise ValueError(f"n_frequencies={n_frequencies} is not allowed: it must be >= 1")
    check_top(top)
    middle = torch.arange(n_frequencies, dtype=torch.float64) + 0.5
    return torch.pi * top * middle / n_frequencies


def check_top(top: float) -> None:
    """Refuse the edge of a band that is not in (0, 1], in units of pi."""
    if not 0 < top <= 1:
        raise ValueError(f"top={top} is not allowed: it must be in (0, 1], in units of pi")


def design_matrix(
    frequencies: Float64[Tensor, " frequencies"], offsets: Int[Tensor, " offsets"]
) -> Float64[Tensor, "offsets parameters"]:
    r"""Return $\Phi$: row $\phi(D) = (\cos \omega_1 D, .., \sin \omega_1 D, ..)$ for each offset.

    Its Gram matrix is $(\Phi \Phi^\top)_{DD'} = \sum_f \cos \omega_f (D - D')$.

    Returns:
        One row per offset, $2n$ columns: the cosines, then the sines.

    Source: ours.

    Example:
        >>> design_matrix(scaled_midpoints(1, top=1.0), torch.arange(2)).abs().round(decimals=3)
        tensor([[1., 0.],
                [0., 1.]], dtype=torch.float64)
    """
    angles = offsets.to(torch.float64)[:, None] * frequencies  # (offsets, frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def as_coefficients(
    parameters: Float64[Tensor, "*models parameters"],
) -> Complex128[Tensor, "*models frequencies"]:
    r"""Return $c_f = a_f + i b_f$, so that $w(D) = \mathrm{Re} \sum_f c_f e^{-i \omega_f D}$.

    Source: ours.
    """
    return torch.complex(*parameters.chunk(2, dim=-1))


def impulse(offset: Int[Tensor, " models"], length: int) -> Float64[Tensor, "models offsets"]:
    r"""Return the kernel that retrieval asks for, $1\{D = K\}$ for $0 \le D < L$.

    Raises:
        ValueError: an offset outside 0 .. length - 1.

    Source: ours.

    Example:
        >>> impulse(torch.tensor([1]), length=3)
        tensor([[0., 1., 0.]], dtype=torch.float64)
    """
    if int(offset.min()) < 0 or int(offset.max()) >= length:
        raise ValueError(
            f"offset={offset.tolist()} is not allowed: offsets must be in 0..{length - 1}"
        )
    return (torch.arange(length) == offset[:, None]).to(torch.float64)


def loss_metric(
    lengths: Sequence[int] = TRAINING_LENGTHS, vocabulary: int | None = None
) -> Float64[Tensor, "offsets offsets"]:
    r"""Return the matrix $\Pi$ of the population loss $\tfrac12 r^\top \Pi r$ with $r = w - 1_K$.

    For i.i.d. uniform tokens, centred one-hot $x - \tfrac1V$, lengths $L$ drawn evenly and
    $K < \min L$, the loss of the squared error in units of the target's power $1 - 1/V$ is

    $$\frac{1}{1 - 1/V}\, \tfrac12\, E \big\| \textstyle\sum_{D<L} w(D) x_D - x_K \big\|^2
    = \tfrac12 \sum_D P(L > D)\, r(D)^2 :$$

    $\Pi$ is diagonal. Without centring, $\frac{1}{V-1} E_L[1_L 1_L^\top]$ is added to it: the mean
    token makes residuals of all offsets add up.

    Args:
        lengths: training lengths, each with equal weight.
        vocabulary: $V$ if tokens are plain one-hot; None if they are centred.

    Raises:
        ValueError: no length, a length below 1, or a vocabulary below 2.

    Source: ours.

    Example:
        >>> loss_metric([1, 2]).diag()
        tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    if len(lengths) == 0 or min(lengths) < 1:
        raise ValueError(f"lengths={list(lengths)} is not allowed: one or more lengths, each >= 1")
    if vocabulary is not None and vocabulary < 2:
        raise ValueError(f"vocabulary={vocabulary} is not allowed: it must be >= 2, or None")
    inside = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]  # (lengths, offsets)
    inside = inside.to(torch.float64) / len(lengths) ** 0.5
    metric = inside.square().sum(0).diag()
    return metric if vocabulary is None else metric + inside.T @ inside / (vocabulary - 1)


def squared_loss(
    parameters: Float64[Tensor, "*models parameters"],
    design: Float64[Tensor, "offsets parameters"],
    target: Float64[Tensor, "*models offsets"],
    metric: Float64[Tensor, "offsets offsets"],
) -> Float64[Tensor, "*models"]:
    r"""Return $\tfrac12 r^\top \Pi r$ with $r = \Phi \theta - y$.

    Source: ours.
    """
    residual = parameters @ design.T - target
    return ((residual @ metric) * residual).sum(-1) / 2


def largest_step(
    design: Float64[Tensor, "offsets parameters"], metric: Float64[Tensor, "offsets offsets"]
) -> float:
    r"""Return $2 / \lambda_{\max}(\Phi^\top \Pi \Phi)$: descent converges for every smaller step.

    Source: textbook, for a quadratic loss.
    """
    return 2 / float(torch.linalg.eigvalsh(design.T @ metric @ design)[-1])


def descent(
    design: Float64[Tensor, "offsets parameters"],
    target: Float64[Tensor, "models offsets"],
    metric: Float64[Tensor, "offsets offsets"],
    step_size: float,
    start: Float64[Tensor, "models parameters"] | None = None,
) -> Iterator[Float64[Tensor, "models parameters"]]:
    r"""Yield the iterates of $\theta \leftarrow \theta - \eta\, \Phi^\top \Pi (\Phi \theta - y)$.

    The first one is `start`, zero by default.

    Raises:
        ValueError: a step at which descent diverges.

    Source: ours.
    """
    _check_step(design, metric, step_size)
    hessian, pull = design.T @ metric @ design, target @ metric @ design
    parameters = torch.zeros_like(pull) if start is None else start
    while True:
        yield parameters
        parameters = parameters - step_size * (parameters @ hessian - pull)


def descent_closed_form(
    design: Float64[Tensor, "offsets parameters"],
    target: Float64[Tensor, "models offsets"],
    metric: Float64[Tensor, "offsets offsets"],
    step_size: float,
    steps: Int[Tensor, " steps"],
    start: Float64[Tensor, "models parameters"] | None = None,
) -> Float64[Tensor, "steps models parameters"]:
    r"""Return iterate $t$ of `descent` without iterating: a spectral filter.

    With $\Pi = C C^\top$, $C^\top \Phi = U S V^\top$ and $\rho_i = 1 - \eta s_i^2$,

    $$\theta_t = \theta_0 + \sum_i v_i \frac{1 - \rho_i^t}{s_i}
    \big[u_i^\top C^\top (y - \Phi \theta_0)\big] :$$

    a direction is learned after about $1 / (\eta s_i^2)$ steps, one with $s_i = 0$ never.

    Raises:
        ValueError: a step at which descent diverges, or a negative number of steps.

    Source: ours; the filter is Landweber (1951).
    """
    _check_step(design, metric, step_size)
    if int(steps.min()) < 0:
        raise ValueError(f"steps={steps.tolist()} is not allowed: every entry must be >= 0")
    start = design.new_zeros(len(target), design.shape[1]) if start is None else start
    root = torch.linalg.cholesky(metric)
    u, s, vt = torch.linalg.svd(root.T @ design, full_matrices=False)
    error = (target - start @ design.T) @ root @ u  # (models, directions)
    shrink = step_size * s.square()  # (directions,)
    t = steps[:, None].to(torch.float64)
    slow = -torch.expm1(t * torch.log1p(-shrink.clamp(max=0.5)))  # exact where shrink is tiny
    learned = torch.where(shrink < 0.5, slow, 1 - (1 - shrink) ** t)  # (steps, directions)
    gain = learned / s.clamp(min=torch.finfo(s.dtype).tiny)
    return start + (gain[:, None, :] * error) @ vt


def minimum_norm(
    design: Float64[Tensor, "offsets parameters"],
    target: Float64[Tensor, "models offsets"],
    tolerance: float = 1e-12,
) -> Float64[Tensor, "models parameters"]:
    r"""Return $\Phi^+ y$, the interpolant of least $\|\theta\|$ and the limit of descent from zero.

    If $\Phi$ has full row rank the limit does not depend on the positive definite metric.

    Args:
        design: $\Phi$.
        target: $y$ of each model.
        tolerance: singular values below this share of the largest are treated as zero; the
            result then minimizes $\|\Phi\theta - y\|$ instead of interpolating.

    Source: textbook (pseudo-inverse).
    """
    return target @ torch.linalg.pinv(design, rtol=tolerance).T


@dataclass(frozen=True)
class Conditioning:
    """How well-posed interpolation is."""

    condition_number: float
    rank: int


def conditioning(
    design: Float64[Tensor, "offsets parameters"], tolerance: float = 1e-12
) -> Conditioning:
    r"""Measure $s_1 / s_{\min}$ and the numerical rank $\#\{s_i > \mathrm{tolerance}\, s_1\}$.

    Source: textbook.

    Example:
        >>> conditioning(design_matrix(scaled_midpoints(16, 1.0), torch.arange(16))).rank
        16
    """
    s = torch.linalg.svdvals(design)
    smallest = float(s[-1])
    condition = float(s[0]) / smallest if smallest > 0 else math.inf
    return Conditioning(condition, int((s > tolerance * s[0]).sum()))


def _check_step(design: Tensor, metric: Tensor, step_size: float) -> None:
    limit = largest_step(design, metric)
    if not 0 < step_size < limit:
        raise ValueError(
            f"step_size={step_size} is not allowed: descent converges only for 0 < step_size < "
            f"{limit:.6g}"
        )
