r"""What normalization changes: position-only heads that differ only in how logits become weights.

All of them share the bilinear kernel $\kappa(D) = \mathrm{Re} \sum_f c_f e^{-i\omega_f D}$,
$c_f = \bar q_f k_f / \sqrt d$, its spectrum, the data and the squared loss

$$\ell = \mathrm{mean}_L\, \tfrac12 \sum_{D<L} (w_L(D) - 1\{D = K\})^2,$$

the population loss of i.i.d. centred one-hot tokens (see `lengthgen.linear.loss_metric`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from jaxtyping import Complex128, Float64, Int
from torch import Tensor

from lengthgen.linear import as_coefficients, conditioning, design_matrix, impulse, loss_metric
from lengthgen.position_head import TRAINING_LENGTHS, PositionHead, kernel

__all__ = [
    "NORMALIZATIONS",
    "descent",
    "group_l1_interpolant",
    "group_l1_norm",
    "position_weights",
    "squared_loss",
]

Normalization = Callable[[PositionHead, Tensor, Tensor], Tensor]
Gradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def _none(head: PositionHead, values: Tensor, inside: Tensor) -> Tensor:
    return values * inside


def _sum(head: PositionHead, values: Tensor, inside: Tensor) -> Tensor:
    values = values * inside
    return values / values.sum(-1, keepdim=True)


def _exponential(head: PositionHead, values: Tensor, inside: Tensor) -> Tensor:
    return values.exp() * inside / TRAINING_LENGTHS[-1]


def _softmax(head: PositionHead, values: Tensor, inside: Tensor) -> Tensor:
    return values.masked_fill(~inside, -torch.inf).softmax(-1)


def _linear_attention(head: PositionHead, values: Tensor, inside: Tensor) -> Tensor:
    mapped = PositionHead(_features(head.query), _features(head.key), head.frequencies)
    coefficients = mapped.coefficients
    values = kernel(coefficients, head.frequencies, torch.arange(values.shape[-1]))[:, None, :]
    normalizer = coefficients.real.sum(-1)[:, None, None] * inside.sum(-1, keepdim=True)
    return values * inside / normalizer


def _features(x: Tensor) -> Tensor:
    """Return elu + 1 of real and imaginary part: every channel of a query or key is positive."""
    return torch.view_as_complex(torch.nn.functional.elu(torch.view_as_real(x)) + 1)


NORMALIZATIONS: Mapping[str, Normalization] = {
    "none": _none,
    "sum": _sum,
    "exponential": _exponential,
    "softmax": _softmax,
    "linear-attention": _linear_attention,
}
r"""How the kernel becomes weights at length $L$ (all sums over $D' < L$):

- `none`: $\kappa(D)$, the bilinear linear head;
- `sum`: $\kappa(D) / \sum \kappa(D')$, division without positivity;
- `exponential`: $e^{\kappa(D)} / 16$, positivity with a fixed factor, near softmax at $\kappa = 0$;
- `softmax`: $e^{\kappa(D)} / \sum e^{\kappa(D')}$;
- `linear-attention`: $\kappa_\phi(D) / (L \kappa_\phi(0))$ with the kernel of $\phi(q), \phi(k)$,
  $\phi = \mathrm{elu} + 1$ (Su et al. 2024, equation 19: the rotation only in the numerator).
"""


def position_weights(
    head: PositionHead, lengths: Sequence[int], normalization: str
) -> Float64[Tensor, "models lengths offsets"]:
    r"""Return $w_L(D)$ for each length; zero at offsets $D \ge L$.

    Raises:
        ValueError: another normalization, no length, or a length below 1.

    Source: ours; see `NORMALIZATIONS`.
    """
    if normalization not in NORMALIZATIONS:
        raise ValueError(
            f"normalization={normalization!r} is unknown; choose from {', '.join(NORMALIZATIONS)}"
        )
    if len(lengths) == 0 or min(lengths) < 1:
        raise ValueError(f"lengths={list(lengths)} is not allowed: one or more lengths, each >= 1")
    offsets = torch.arange(max(lengths))
    values = kernel(head.coefficients, head.frequencies, offsets)  # (models, offsets)
    inside = offsets < torch.tensor(lengths)[:, None]  # (lengths, offsets)
    return NORMALIZATIONS[normalization](head, values[:, None, :], inside)


def squared_loss(
    head: PositionHead,
    offset: Int[Tensor, " models"],
    normalization: str,
    lengths: Sequence[int] = TRAINING_LENGTHS,
) -> Float64[Tensor, " models"]:
    r"""Return $\mathrm{mean}_L\, \tfrac12 \sum_{D<L} (w_L(D) - 1\{D=K\})^2$.

    Raises:
        ValueError: an offset outside 0 .. min(lengths) - 1, or another normalization.

    Source: ours.
    """
    impulse(offset, min(lengths))
    error = position_weights(head, lengths, normalization) - impulse(offset, max(lengths))[:, None]
    return error.square().sum(-1).mean(-1) / 2


def descent(
    head: PositionHead,
    offset: Int[Tensor, " models"],
    normalization: str,
    safety: float = 0.5,
    max_step: float = 1.0,
    lengths: Sequence[int] = TRAINING_LENGTHS,
) -> Iterator[tuple[PositionHead, Float64[Tensor, " models"]]]:
    r"""Yield `(head, loss)` before every step of gradient descent, without end.

    The step is $\eta = \min\big(\eta_{\max},\ s\, d / (\lambda_{\max}(\Phi \Phi^\top) \max_f
    (|q_f|^2 + |k_f|^2))\big)$ with $s$ = `safety`: at most $s$ over the curvature of the `none`
    head at its minimum. It changes the clock of the gradient flow, not its path.

    Raises:
        ValueError: `safety` outside (0, 2), `max_step` not above 0, or another normalization.

    Source: ours.
    """
    if not 0 < safety < 2 or not max_step > 0:
        raise ValueError(
            f"safety={safety}, max_step={max_step} is not allowed: 0 < safety < 2, max_step > 0"
        )
    design = design_matrix(head.frequencies, torch.arange(max(lengths)))
    top = float(torch.linalg.matrix_norm(design, 2).square())
    gradient = _gradient(head.frequencies, offset, normalization, lengths)
    while True:
        loss, d_query, d_key = gradient(head.query, head.key)
        yield head, loss
        size = (head.query.abs().square() + head.key.abs().square()).amax(-1)  # (models,)
        eta = (safety * head.d_head / (top * size)).clamp(max=max_step)[:, None]
        head = PositionHead(head.query - eta * d_query, head.key - eta * d_key, head.frequencies)


def _gradient(
    frequencies: Tensor, offset: Tensor, normalization: str, lengths: Sequence[int]
) -> Gradient:
    """Return the function (query, key) -> loss, its gradient in query, its gradient in key."""
    if normalization == "none":
        return _bilinear_gradient(frequencies, offset, lengths)
    return _autograd_gradient(frequencies, offset, normalization, lengths)


def _autograd_gradient(
    frequencies: Tensor, offset: Tensor, normalization: str, lengths: Sequence[int]
) -> Gradient:
    def gradient(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        leaves = query.detach().requires_grad_(), key.detach().requires_grad_()
        loss = squared_loss(PositionHead(*leaves, frequencies), offset, normalization, lengths)
        return loss.detach(), *torch.autograd.grad(loss.sum(), leaves)

    return gradient


def _bilinear_gradient(frequencies: Tensor, offset: Tensor, lengths: Sequence[int]) -> Gradient:
    r"""Return the gradient of `none` by hand, which is faster: $q'_f = G_f k_f / \sqrt d$."""
    impulse(offset, min(lengths))
    weight, target = loss_metric(lengths).diag(), impulse(offset, max(lengths))
    angles = frequencies[:, None] * torch.arange(max(lengths))  # (frequencies, offsets)
    waves = torch.polar(torch.full_like(angles, (2 * len(frequencies)) ** -0.5), -angles)

    def gradient(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        error = ((query.conj() * key) @ waves).real - target  # (models, offsets)
        growth = (error * weight + 0j) @ waves.T  # -G_f / sqrt(d), (models, frequencies)
        return error.square() @ weight / 2, growth * key, growth.conj() * query

    return gradient


def group_l1_norm(
    coefficients: Complex128[Tensor, "*models frequencies"],
) -> Float64[Tensor, "*models"]:
    r"""Return $\sum_f |c_f|$, the least $(|q|^2 + |k|^2) / (2\sqrt d)$ of any factorization.

    Source: ours.
    """
    return coefficients.abs().sum(-1)


def group_l1_interpolant(
    frequencies: Float64[Tensor, " frequencies"], offset: int, length: int
) -> Complex128[Tensor, " frequencies"]:
    r"""Return $\arg\min_c \sum_f |c_f|$ subject to $\kappa(D) = 1\{D = K\}$ for $0 \le D < L$.

    Raises:
        ValueError: an offset outside 0 .. length - 1, or no interpolant for a generic target.

    Source: ours; a second-order cone program.
    """
    import cvxpy  # it takes a second or two

    target = impulse(torch.tensor([offset]), length)[0].numpy()
    design = design_matrix(frequencies, torch.arange(length))
    if (rank := conditioning(design).rank) < length:
        raise ValueError(
            f"length={length} is not allowed: this spectrum interpolates at most {rank} offsets"
        )
    cosines, sines = design.chunk(2, dim=-1)
    c = cvxpy.Variable((len(frequencies), 2))  # real and imaginary part of c_f
    problem = cvxpy.Problem(
        cvxpy.Minimize(cvxpy.sum(cvxpy.norm(c, axis=1))),
        [cosines.numpy() @ c[:, 0] + sines.numpy() @ c[:, 1] == target],
    )
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return as_coefficients(torch.as_tensor(c.value.T.reshape(-1).copy()))
