r"""The early carrier: what a position-only head learns while its attention is still uniform.

The equation of motion $q' = G k / \sqrt d$, $k' = \bar G q / \sqrt d$ is linear as long as $G$
stands still. At small initialization it does, until the loss begins to fall: every frequency grows
at its own rate $|g_f|$, from its own initial draw, and the head is known in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Complex128, Float64, Int
from torch import Tensor

from lengthgen.position_head import TRAINING_LENGTHS, PositionHead, waves

__all__ = ["early_head", "first_step_coefficients", "growth_rates"]


def growth_rates(
    frequencies: Float64[Tensor, " frequencies"],
    offset: Int[Tensor, " models"],
    lengths: Sequence[int] = TRAINING_LENGTHS,
) -> Complex128[Tensor, "models frequencies"]:
    r"""Return the error's Fourier transform while attention is still uniform.

    $$g_f = \mathrm{mean}_L \Big[ e^{-i\omega_f K} - \frac1L \sum_{D<L} e^{-i\omega_f D} \Big]$$

    Source: ours.
    """
    uniform = torch.stack([waves(frequencies, torch.arange(n)).mean(0) for n in lengths]).mean(0)
    return waves(frequencies, offset) - uniform


def early_head(
    start: PositionHead,
    offset: Int[Tensor, " models"],
    step_size: float,
    steps: Float64[Tensor, " models"],
    lengths: Sequence[int] = TRAINING_LENGTHS,
) -> PositionHead:
    r"""Predict a head after `steps` of gradient descent on the loss, in closed form.

    With $g_f = |g_f| e^{i\theta_f}$ frozen, $u = q + e^{i\theta} k$ grows and
    $v = q - e^{i\theta} k$ decays: $u(t) = u(0) (1 + r)^t$ and $v(t) = v(0) (1 - r)^t$ with
    $r_f = \eta |g_f| / \sqrt d$. Exact for as long as attention is uniform; nothing is fitted.

    Args:
        start: the heads at initialization.
        offset: target offset of each model.
        step_size: $\eta$.
        steps: $t$; a fraction is a last step of that fraction of $\eta$.
        lengths: training lengths.

    Source: ours.
    """
    g = growth_rates(start.frequencies, offset, lengths)
    turn = torch.polar(torch.ones_like(g.real), g.angle())  # e^{i theta}
    rate = step_size * g.abs() / start.d_head**0.5
    whole, part = steps.floor()[:, None], steps.frac()[:, None]
    grown = (start.query + turn * start.key) * (1 + rate) ** whole * (1 + part * rate)
    decayed = (start.query - turn * start.key) * (1 - rate) ** whole * (1 - part * rate)
    return PositionHead(
        (grown + decayed) / 2, turn.conj() * (grown - decayed) / 2, start.frequencies
    )


def first_step_coefficients(
    frequencies: Float64[Tensor, " frequencies"],
    offset: Int[Tensor, " models"],
    lengths: Sequence[int] = TRAINING_LENGTHS,
) -> Complex128[Tensor, "models frequencies"]:
    r"""Return $\bar g_f$, the direction in which the first step moves $c_f$ on average.

    The naive carrier: it knows neither the initial draw nor that growth compounds, so it fails
    where several $|g_f|$ are nearly equal and the draw decides which of them wins.

    Source: ours.
    """
    return growth_rates(frequencies, offset, lengths).conj()
