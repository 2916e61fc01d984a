r"""The late carrier: the max-margin kernel as a cone program, its certificate, and its bad twins.

Once the terms of the loss sum to less than $\log 2$, so that every margin is positive, gradient
flow on a homogeneous model converges in direction (Ji and Telgarsky 2020) to a stationary point of
$\min (|q|^2 + |k|^2) / 2$ under unit margins (Lyu and Li 2020). For the position-only head the same
problem in the coefficients is convex,

$$\min_c \sum_f |c_f| \quad \text{subject to} \quad \kappa(K) - \kappa(D) \ge 1
\quad (0 \le D < L_{\max},\ D \ne K),$$

a group lasso: low rank is sparsity in frequency. Stationary is not yet optimal (the best kernel on
any subset of frequencies is stationary too); the dual variables tell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Complex128, Float64, Int
from torch import Tensor

from lengthgen.position_head import TRAINING_LENGTHS, PositionHead, kernel, margin, waves
from lengthgen.position_loss import attention_error, equation_of_motion

__all__ = [
    "MaxMargin",
    "bad_twin",
    "kkt_residual",
    "max_margin",
    "normalized_margin",
    "smallest_head",
]

MAX_LENGTH = max(TRAINING_LENGTHS)
"""The longest training length."""


@dataclass(frozen=True)
class MaxMargin:
    r"""A solution of the cone program: constraint $i$ is $\kappa(B_i) - \kappa(W_i) \ge 1$.

    Args:
        coefficients: $c_f$.
        frequencies: $\omega_f$ in radians per token.
        norm: $\sum_f |c_f|$, the least norm of any kernel with these margins; $1/$`norm` is the
            optimal normalized margin.
        better: offset $B_i$ of every constraint.
        worse: offset $W_i$ of every constraint.
        multipliers: dual variables $\lambda_i \ge 0$; they sum to `norm` (strong duality).
    """

    coefficients: Complex128[Tensor, " frequencies"]
    frequencies: Float64[Tensor, " frequencies"]
    norm: float
    better: Int[Tensor, " constraints"]
    worse: Int[Tensor, " constraints"]
    multipliers: Float64[Tensor, " constraints"]

    def certificate(self) -> Float64[Tensor, " frequencies"]:
        r"""Return $s_f = |\sum_i \lambda_i (e^{-i\omega_f B_i} - e^{-i\omega_f W_i})|$.

        1 on the support and at most 1 elsewhere: no kernel with these margins has a smaller norm.
        Off the support it is also the speed of forgetting: in the flow's late phase
        $|c_f| / \sum_g |c_g|$ fades as $N^{s_f - 1}$, with $N$ = `PositionHead.size`.

        Source: ours.
        """
        gaps = waves(self.frequencies, self.better) - waves(self.frequencies, self.worse)
        return (self.multipliers.to(gaps.dtype) @ gaps).abs()

    def kernel(self, offsets: Int[Tensor, " offsets"]) -> Float64[Tensor, " offsets"]:
        r"""Evaluate $\kappa(D)$."""
        return kernel(self.coefficients, self.frequencies, offsets)


def max_margin(
    frequencies: Float64[Tensor, " frequencies"], offset: int, length: int = MAX_LENGTH
) -> MaxMargin:
    r"""Find the kernel of least $\sum_f |c_f|$ with $\kappa(K) - \kappa(D) \ge 1$ for $D < L$.

    Args:
        frequencies: $\omega_f$ in radians per token.
        offset: target offset $K$.
        length: $L$, the longest training length.

    Raises:
        ValueError: an offset outside 1 .. length - 1, or no kernel with these frequencies that
            retrieves the offset.

    Source: ours.
    """
    worse = _others(offset, length)
    return _solve(frequencies, [offset] * len(worse), worse)


def bad_twin(
    frequencies: Float64[Tensor, " frequencies"],
    offset: int,
    wrong_offset: int,
    length: int = MAX_LENGTH,
) -> MaxMargin:
    r"""Find the cheapest kernel that fits the training range and prefers a wrong offset beyond it.

    The program of `max_margin` with one more constraint, $\kappa(D^*) \ge \kappa(K) + 1$ at
    $D^* \ge L$: an exactly equivariant rotary head with the same training margin that fails.

    Args:
        frequencies: $\omega_f$ in radians per token.
        offset: target offset $K$.
        wrong_offset: $D^*$.
        length: $L$, the longest training length.

    Raises:
        ValueError: an offset outside 1 .. length - 1, a wrong offset below `length`, or no such
            kernel.

    Source: ours.
    """
    worse = _others(offset, length)
    if wrong_offset < length:
        raise ValueError(
            f"wrong_offset={wrong_offset} is inside the training range: it must be >= {length}"
        )
    return _solve(frequencies, [offset] * len(worse) + [wrong_offset], [*worse, offset])


def _others(offset: int, length: int) -> list[int]:
    if not 1 <= offset < length:
        raise ValueError(f"offset={offset} is not allowed: it must be in 1..{length - 1}")
    return [d for d in range(length) if d != offset]


def _solve(frequencies: Tensor, better: list[int], worse: list[int]) -> MaxMargin:
    import cvxpy  # it takes a second or two, and most readers of this module solve nothing

    better, worse = torch.tensor(better), torch.tensor(worse)
    gaps = (waves(frequencies, better) - waves(frequencies, worse)).numpy()  # (constraints, freq.)
    c = cvxpy.Variable((len(frequencies), 2))  # real and imaginary part of c_f
    margins = gaps.real @ c[:, 0] - gaps.imag @ c[:, 1] >= 1
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(cvxpy.norm(c, axis=1))), [margins])
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    if problem.status not in (cvxpy.OPTIMAL, cvxpy.OPTIMAL_INACCURATE):
        raise ValueError(
            f"no kernel on {len(frequencies)} frequencies meets the margins: {problem.status}"
        )
    return MaxMargin(
        torch.view_as_complex(torch.as_tensor(np.ascontiguousarray(c.value))),
        frequencies,
        float(problem.value),
        better,
        worse,
        torch.as_tensor(np.ascontiguousarray(margins.dual_value)),
    )


def normalized_margin(
    head: PositionHead, offset: Int[Tensor, " models"], length: int = MAX_LENGTH
) -> Float64[Tensor, " models"]:
    r"""Return the margin over $D < L$ divided by $N = (|q|^2 + |k|^2) / (2 \sqrt d)$.

    At most $1/$`norm` of `max_margin`, with equality for its smallest head.

    Raises:
        ValueError: an offset outside 1 .. length - 1.

    Source: Lyu and Li (2020), in logit units.
    """
    return margin(head.coefficients, head.frequencies, offset, length) / head.size


def smallest_head(
    coefficients: Complex128[Tensor, "models frequencies"],
    frequencies: Float64[Tensor, " frequencies"],
) -> PositionHead:
    r"""Build the heads of least norm with given $c_f$: $|q_f| = |k_f|$, here with $q_f$ real.

    They attain $N = \sum_f |c_f|$, the bound of `PositionHead.size`.

    Source: ours.
    """
    amplitude = (coefficients.abs() * (2 * len(frequencies)) ** 0.5).sqrt()
    return PositionHead(amplitude + 0j, torch.polar(amplitude, coefficients.angle()), frequencies)


def kkt_residual(
    head: PositionHead,
    offset: Int[Tensor, " models"],
    lengths: tuple[int, ...] = TRAINING_LENGTHS,
) -> tuple[Float64[Tensor, " models"], Float64[Tensor, " models"]]:
    r"""Measure how far a head is from a stationary point of the max-margin problem.

    With multipliers $\lambda_D \ge 0$ proportional to the attention errors at $D \ne K$:

    - stationarity: the sine of the angle between $\theta = (q, k)$ and
      $\sum_D \lambda_D \nabla [\kappa(K) - \kappa(D)] \propto -\nabla \ell$;
    - slackness: the mean excess of the margins over the smallest, weighted by $\lambda$, divided
      by the smallest.

    Both are 0 exactly at a stationary point.

    Raises:
        ValueError: an offset outside 1 .. min(lengths) - 1.

    Source: after the approximate KKT conditions of Lyu and Li (2020).
    """
    d_query, d_key, _ = equation_of_motion(head, offset, lengths, log=True)
    theta = torch.view_as_real(torch.cat([head.query, head.key], -1)).flatten(1)
    motion = torch.view_as_real(torch.cat([d_query, d_key], -1)).flatten(1)
    theta = theta / theta.norm(dim=-1, keepdim=True)
    motion = motion / motion.norm(dim=-1, keepdim=True)
    along = (theta * motion).sum(-1, keepdim=True)
    stationarity = (motion - along * theta).norm(dim=-1)
    error, _ = attention_error(head, offset, lengths, log=True)
    values = kernel(head.coefficients, head.frequencies, torch.arange(max(lengths)))
    mean_margin = (error * values).sum(-1) / error.gather(1, offset[:, None])[:, 0]
    smallest = margin(head.coefficients, head.frequencies, offset, max(lengths))
    return stationarity, mean_margin / smallest - 1
