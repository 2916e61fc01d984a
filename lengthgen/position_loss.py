r"""The loss of position-only heads and their equation of motion, in closed form.

Under gradient flow a frequency grows at the Fourier transform of the attention error:

$$q'_f = G_f k_f / \sqrt d, \qquad k'_f = \bar G_f q_f / \sqrt d, \qquad
G_f = \sum_D \epsilon(D) e^{-i \omega_f D}, \qquad
\epsilon(D) = 1_{D=K} - \mathrm{mean}_L p_L(D).$$

The early carrier is the end where attention is uniform, the late carrier the end where the error
sits on the smallest margins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Complex128, Float64, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from lengthgen.position_head import TRAINING_LENGTHS, PositionHead, check_offset

__all__ = ["Motion", "attention_error", "equation_of_motion", "log_loss"]


def log_loss(
    head: PositionHead,
    offset: Int[Tensor, " models"],
    lengths: Sequence[int] = TRAINING_LENGTHS,
) -> Float64[Tensor, " models"]:
    r"""Return $\log \ell$ of the training loss $\ell = \mathrm{mean}_L [-\log p_L(K)]$ in nats.

    With $a_L = \log \sum_{D < L, D \ne K} e^{\kappa(D) - \kappa(K)}$ the term of one length is
    the softplus $\log(1 + e^{a_L})$. Its logarithm stays exact long after the loss underflows.

    Raises:
        ValueError: an offset outside 1 .. min(lengths) - 1.

    Source: ours.
    """
    return attention_error(head, offset, lengths)[1]


def attention_error(
    head: PositionHead,
    offset: Int[Tensor, " models"],
    lengths: Sequence[int] = TRAINING_LENGTHS,
    log: bool = False,
) -> tuple[Float64[Tensor, "models offsets"], Float64[Tensor, " models"]]:
    r"""Return $\epsilon(D) = 1_{D=K} - \mathrm{mean}_L p_L(D) = -d\ell/d\kappa(D)$ and $\log \ell$.

    The log loss has the same flow on another clock, $\epsilon / \ell$. Normalized to sum 1, its
    $-\epsilon(D)$ at $D \ne K$ tend to the dual variables of the max-margin program.

    Args:
        head: the stack.
        offset: target offset $K$ of each model.
        lengths: training lengths $L$; offsets are 0 .. max(lengths) - 1.
        log: return $\epsilon / \ell$, which does not underflow.

    Raises:
        ValueError: an offset outside 1 .. min(lengths) - 1.

    Source: ours.
    """
    return Motion(head.frequencies, offset, lengths).error(head.coefficients, log)


def equation_of_motion(
    head: PositionHead,
    offset: Int[Tensor, " models"],
    lengths: Sequence[int] = TRAINING_LENGTHS,
    log: bool = False,
) -> tuple[
    Complex128[Tensor, "models frequencies"],
    Complex128[Tensor, "models frequencies"],
    Float64[Tensor, " models"],
]:
    r"""Return the descent direction $(q', k')$ and $\log \ell$.

    $$q'_f = G_f k_f / \sqrt d, \qquad k'_f = \bar G_f q_f / \sqrt d, \qquad
    G_f = \sum_D \epsilon(D) e^{-i \omega_f D}:$$

    a frequency grows at the Fourier transform of the attention error $\epsilon$.

    Args:
        head: the stack.
        offset: target offset $K$ of each model.
        lengths: training lengths $L$.
        log: return $-\nabla \log \ell$ instead of $-\nabla \ell$.

    Raises:
        ValueError: an offset outside 1 .. min(lengths) - 1.

    Source: ours.
    """
    return Motion(head.frequencies, offset, lengths)(head.query, head.key, log)


class Motion:
    r"""The equation of motion of one task, with every constant of a step computed once.

    Args:
        frequencies: $\omega_f$ in radians per token.
        offset: target offset $K$ of each model.
        lengths: training lengths $L$.

    Raises:
        ValueError: an offset outside 1 .. min(lengths) - 1.
    """

    def __init__(self, frequencies: Tensor, offset: Tensor, lengths: Sequence[int]) -> None:
        check_offset(offset, min(lengths))
        offsets = torch.arange(max(lengths))
        angles = frequencies[:, None] * offsets  # (frequencies, offsets)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.offset, self.log_lengths = offset[:, None], math.log(len(lengths))
        self.is_target = offsets == self.offset  # (models, offsets)
        outside = offsets >= torch.tensor(lengths)[:, None]  # (lengths, offsets)
        excluded = outside | self.is_target[:, None, :]
        self.excluded = (
            torch.zeros(excluded.shape).to(frequencies).masked_fill(excluded, -torch.inf)
        )
        self.root_d = (2 * len(frequencies)) ** 0.5

    def error(self, coefficients: Tensor, log: bool) -> tuple[Tensor, Tensor]:
        """Return the attention error (models, offsets) and the log loss (models,)."""
        values = coefficients.real @ self.cos + coefficients.imag @ self.sin  # (models, offsets)
        wrong = values - values.gather(1, self.offset)  # minus the margins
        wrong = wrong[:, None, :] + self.excluded  # (models, lengths, offsets)
        a = wrong.logsumexp(-1)  # (models, lengths)
        # log softplus(a); below -30 its series is exact to e^{2a} < 1e-26 and cannot underflow
        softplus = torch.logaddexp(a, torch.zeros_like(a))
        log_terms = torch.where(a < -30, a - a.exp() / 2, softplus.log())
        total = log_terms.logsumexp(-1)  # (models,)
        weight = torch.exp(logsigmoid(a) - total[:, None])  # d total / d a
        pull = (weight[:, :, None] * wrong.softmax(-1)).sum(1)  # (models, offsets)
        error = torch.where(self.is_target, pull.sum(-1, keepdim=True), -pull)
        log_value = total - self.log_lengths
        return (error if log else error * log_value.exp()[:, None]), log_value

    def __call__(self, query: Tensor, key: Tensor, log: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return q', k' (models, frequencies) and the log loss (models,)."""
        error, log_value = self.error(query.conj() * key / self.root_d, log)
        growth = torch.complex(error @ self.cos.T, -(error @ self.sin.T)) / self.root_d
        return growth * key, growth.conj() * query, log_value
