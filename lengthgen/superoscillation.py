r"""Beyond the training range: energy of a kernel, and why a spike in a narrow band is expensive.

A kernel whose highest frequency is $\Omega < \pi$ oscillates slower than the integers. To be 1 at
one training offset and 0 at the others it must *superoscillate*, and that costs a norm which grows
exponentially with the training length. Parseval turns the norm into energy beyond the range, which
drowns the target: the interpolant does not extrapolate.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from lengthgen.linear import check_top, design_matrix

__all__ = [
    "chebyshev_dual",
    "efficiency",
    "growth_rate",
    "interpolant_energy",
    "interpolant_energy_bound",
    "mean_square",
    "mean_square_error_bound",
]


def mean_square(
    parameters: Float64[Tensor, "*models parameters"],
    frequencies: Float64[Tensor, " frequencies"],
    start: int,
    stop: int,
) -> Float64[Tensor, "*models"]:
    r"""Return the mean of $w(D)^2$ over $\mathrm{start} \le D < \mathrm{stop}$.

    As the range grows it tends to $\|\theta\|^2 / 2$ (Parseval, distinct frequencies in
    $(0, \pi)$): of all interpolants the least-norm one is the quietest beyond the range.

    Raises:
        ValueError: an empty range.

    Source: ours.
    """
    if stop <= start:
        raise ValueError(f"stop={stop} is not allowed: it must be above start={start}")
    return (parameters @ design_matrix(frequencies, torch.arange(start, stop)).T).square().mean(-1)


def mean_square_error_bound(frequencies: Float64[Tensor, " frequencies"], length: int) -> float:
    r"""Return $B/R$, the relative distance of `mean_square` from its limit at most.

    Over any $R$ consecutive offsets $|\mathrm{mean}\, w^2 - \|\theta\|^2/2| \le \tfrac{B}{R}
    \|\theta\|^2 / 2$ with $B = \max_f \sum_{\nu \ne \omega_f} 1 / |\sin \tfrac12
    (\omega_f - \nu)|$ with $\nu$ running over all $\pm \omega_g$ (geometric sums, Gershgorin).

    Raises:
        ValueError: a length below 1, or frequencies that are not distinct inside (0, pi).

    Source: ours.
    """
    both = torch.cat([frequencies, -frequencies])
    gaps = (frequencies[:, None] - both).div(2).sin().abs()  # (frequencies, 2 frequencies)
    gaps[:, : len(frequencies)].fill_diagonal_(torch.inf)
    if length < 1 or float(gaps.min()) < 1e-12 or float(frequencies.min()) <= 0:
        raise ValueError(
            f"length={length}, frequencies={frequencies.tolist()} is not allowed: length >= 1 and "
            "distinct frequencies in (0, pi) are needed"
        )
    return float((1 / gaps).sum(-1).max()) / length


def efficiency(
    parameters: Float64[Tensor, "models parameters"],
    frequencies: Float64[Tensor, " frequencies"],
    offset: Int[Tensor, " models"],
) -> Float64[Tensor, " models"]:
    r"""Return $w(K)^2 / (n \|\theta\|^2) \in [0, 1]$, the share of energy that serves the target.

    By Cauchy-Schwarz it is 1 only for $\theta \propto \phi(K)$, which is where the *first* step
    of descent from zero goes; at the interpolant it is $1 / (n \|\theta\|^2)$.

    Source: ours.
    """
    values = (parameters * design_matrix(frequencies, offset)).sum(-1)
    return values.square() / (len(frequencies) * parameters.square().sum(-1))


def growth_rate(top: float) -> float:
    r"""Return $\ln \cot(\Omega / 4)$, the growth rate of the norm with the training length.

    With $\Omega = \pi\,\mathrm{top}$. It is 0 for the full band and about
    $\pi (1 - \mathrm{top}) / 2$ just below it.

    Args:
        top: edge of the band in units of $\pi$, in (0, 1].

    Raises:
        ValueError: `top` outside (0, 1].

    Source: ours (Chebyshev polynomial of an arc).

    Example:
        >>> [round(growth_rate(top), 3) for top in (0.5, 0.8, 1.0)]
        [0.881, 0.319, 0.0]
    """
    check_top(top)
    return -math.log(math.tan(math.pi * top / 4)) if top < 1 else 0.0


def chebyshev_dual(length: int, top: float) -> Float64[Tensor, " offsets"]:
    r"""Return real $\lambda$ whose Fourier transform is at most 1 in the band and huge at $\pi$.

    Up to a phase, $\sum_D \lambda_D e^{-i \omega D} = e^{-i\omega (N-1)/2}\, T_{N-1}\!\big(
    \tfrac{\sin \omega/2}{\sin \Omega/2}\big)$ with the Chebyshev polynomial $T$. At $\omega = \pi$
    its size is at least $\tfrac12 \cot(\Omega/4)^{N-1}$.

    Args:
        length: $N$, number of training offsets.
        top: edge of the band in units of $\pi$.

    Raises:
        ValueError: `length` below 1 or `top` outside (0, 1].

    Source: ours.
    """
    check_top(top)
    if length < 1:
        raise ValueError(f"length={length} is not allowed: it must be >= 1")
    half = torch.pi * torch.arange(length, dtype=torch.float64) / length  # omega / 2
    values = torch.special.chebyshev_polynomial_t(
        half.sin() / math.sin(math.pi * top / 2), torch.tensor(length - 1)
    )
    phase = torch.polar(torch.ones_like(half), -half * (length - 1))
    turn = 1j if length % 2 == 0 else 1  # odd powers of the sine have imaginary coefficients
    return torch.fft.ifft(values * phase * turn).real


def interpolant_energy(
    frequencies: Float64[Tensor, " frequencies"], length: int
) -> Float64[Tensor, " offsets"]:
    r"""Return $\|\theta_K\|^2 = [(\Phi \Phi^\top)^{-1}]_{KK}$, the least norm for each impulse $K$.

    It is at least $1/n$, the price of the target alone.

    Raises:
        ValueError: the impulses cannot be interpolated (in double precision).

    Source: ours.
    """
    s, vt = torch.linalg.svd(design_matrix(frequencies, torch.arange(length)).T)[1:]
    if len(s) < length or float(s[-1]) < 1e-13 * float(s[0]):
        raise ValueError(
            f"length={length} is not allowed: {len(frequencies)} frequencies interpolate only "
            f"{int((s > 1e-13 * s[0]).sum())} offsets in double precision"
        )
    return (vt / s[:, None]).square().sum(0)


def interpolant_energy_bound(
    frequencies: Float64[Tensor, " frequencies"], top: float, length: int
) -> Float64[Tensor, " offsets"]:
    r"""Return a lower bound of $\|\theta\|^2$ for *every* interpolant of each impulse $K$.

    $1 = \theta^\top \Phi^\top \lambda / \lambda_K$ gives $\|\theta\|^2 \ge \lambda_K^2 /
    \sum_f |\sum_D \lambda_D e^{-i\omega_f D}|^2 \ge \lambda_K^2 / n$ with `chebyshev_dual`. The
    larger of this and $1/n$ is returned.

    Raises:
        ValueError: a frequency above the band's edge.

    Source: ours.
    """
    if float(frequencies.max()) > math.pi * top:
        raise ValueError(
            f"frequencies reach {float(frequencies.max()):.6g}, above the band's edge top={top} "
            f"times pi = {math.pi * top:.6g}"
        )
    dual = chebyshev_dual(length, top)
    transform = dual @ design_matrix(frequencies, torch.arange(length))
    return (dual.square() / transform.square().sum()).clamp(min=1 / len(frequencies))
