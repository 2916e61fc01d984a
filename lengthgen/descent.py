"""Gradient descent of position-only heads, with snapshots at matched training loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from lengthgen.position_head import (
    TRAINING_LENGTHS,
    PositionHead,
    equation_of_motion,
    log_loss,
)

__all__ = ["RULES", "Descent", "Snapshot", "descend", "scale_to_loss", "snapshots", "trajectory"]

RULES = ("loss", "log_loss", "adam")
"""The step rules of `Descent`."""


@dataclass(frozen=True)
class Descent:
    r"""How a head descends.

    Args:
        rule: `loss`: plain gradient descent, $\theta \leftarrow \theta - \eta \nabla \ell$ with the
            constant $\eta$ = `step_size`. `log_loss`: the same flow on a clock that does not slow
            down, $\theta \leftarrow \theta - \eta \nabla \log \ell$ with
            $\eta = s \sqrt d / (1 + N)$, $s$ = `step_size` and $N$ = `PositionHead.size`; the
            curvature of $\log \ell$ is of order $N / \sqrt d$, so one $s \le 1$ serves every
            scale. `adam`: Adam on $\ell$ with learning rate `step_size` (0.9, 0.999, 1e-8).
        step_size: see `rule`.
        weight_decay: $\lambda$; the loss of the gradient becomes $\ell + \lambda |\theta|^2 / 2$.
            Losses are reported without it.
        lengths: training lengths, each with equal weight.

    Raises:
        ValueError: an unknown rule, or a number outside its range.

    Source: ours; Adam is Kingma and Ba (2015).
    """

    rule: str = "log_loss"
    step_size: float = 0.5
    weight_decay: float = 0.0
    lengths: tuple[int, ...] = TRAINING_LENGTHS

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule={self.rule!r} is unknown; choose from {', '.join(RULES)}")
        if not self.step_size > 0:
            raise ValueError(f"step_size={self.step_size} is not allowed: it must be > 0")
        if self.rule == "log_loss" and self.step_size > 1:
            raise ValueError(f"step_size={self.step_size} is not allowed: log_loss needs <= 1")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay={self.weight_decay} is not allowed: it must be >= 0")
        if not self.lengths or min(self.lengths) < 2:
            raise ValueError(f"lengths={self.lengths} is not allowed: at least one, each >= 2")


def descend(
    head: PositionHead, offset: Int[Tensor, " models"], descent: Descent
) -> Iterator[tuple[PositionHead, Float64[Tensor, " models"]]]:
    """Yield the stack and its log loss before every step, without end.

    Raises:
        ValueError: an offset outside 1 .. min(lengths) - 1.
    """
    adam = _Adam() if descent.rule == "adam" else None
    while True:
        log = descent.rule == "log_loss"
        d_query, d_key, log_value = equation_of_motion(head, offset, descent.lengths, log)
        yield head, log_value
        motion = torch.stack([d_query, d_key])  # (query or key, models, frequencies)
        if descent.weight_decay:
            clock = log_value.exp()[:, None] if log else 1.0
            motion = motion - descent.weight_decay / clock * torch.stack([head.query, head.key])
        if adam:
            motion = adam(motion)
        eta = descent.step_size * (head.d_head**0.5 / (1 + head.size[:, None]) if log else 1.0)
        query, key = torch.stack([head.query, head.key]) + eta * motion
        head = PositionHead(query, key, head.frequencies)


class _Adam:
    """Adam's direction, element by element on real and imaginary parts."""

    def __init__(self) -> None:
        self.mean, self.square, self.step = 0.0, 0.0, 0

    def __call__(self, motion: Tensor) -> Tensor:
        real, self.step = torch.view_as_real(motion), self.step + 1
        self.mean = 0.9 * self.mean + 0.1 * real
        self.square = 0.999 * self.square + 0.001 * real.square()
        mean = self.mean / (1 - 0.9**self.step)
        square = self.square / (1 - 0.999**self.step)
        return torch.view_as_complex(mean / (square.sqrt() + 1e-8))


def trajectory(
    head: PositionHead, offset: Int[Tensor, " models"], steps: Sequence[int], descent: Descent
) -> list[tuple[PositionHead, Float64[Tensor, " models"]]]:
    """Return the stack and its log loss after each of the given numbers of steps.

    Raises:
        ValueError: steps empty, negative or not rising.
    """
    if not steps or steps[0] < 0 or any(a >= b for a, b in pairwise(steps)):
        raise ValueError(f"steps={list(steps)} must be non-negative and strictly rising")
    wanted = set(steps)
    states = islice(descend(head, offset, descent), steps[-1] + 1)
    return [state for step, state in enumerate(states) if step in wanted]


@dataclass(frozen=True)
class Snapshot:
    """The stack at one training loss, each model caught in its own step.

    Args:
        level: the loss asked for, in nats.
        head: every model at that loss; one that never reached it, as it was at the end.
        steps: when, in steps; the fraction tells where inside the last step.
        reached: whether each model came down to the level.
    """

    level: float
    head: PositionHead
    steps: Float64[Tensor, " models"]
    reached: Bool[Tensor, " models"]


def snapshots(
    head: PositionHead,
    offset: Int[Tensor, " models"],
    levels: Sequence[float],
    max_steps: int,
    descent: Descent,
) -> list[Snapshot]:
    """Descend and catch every model at the same training losses: runs compared at equal fit.

    A model is caught in the first step that crosses a level, at the fraction of that step (by
    bisection) at which its loss equals the level, so it is what plain descent with a shorter last
    step gives. A model that starts below a level is caught at step 0, above no level.

    Raises:
        ValueError: levels not positive and strictly falling, `max_steps` below 1, an offset
            outside 1 .. min(lengths) - 1.

    Source: ours.
    """
    falling = all(a > b for a, b in pairwise(levels))
    if not levels or min(levels) <= 0 or not falling:
        raise ValueError(f"levels={list(levels)} must be positive and strictly falling")
    if max_steps < 1:
        raise ValueError(f"max_steps={max_steps} is not allowed: it must be >= 1")
    crossings = [_Crossing(head, offset, level, descent.lengths) for level in levels]
    before = head
    for step, (now, log_value) in enumerate(descend(head, offset, descent)):
        for crossing in crossings:
            crossing.watch(before, now, log_value, step)
        if step == max_steps or crossings[-1].reached.all():
            break
        before = now
    return [crossing.snapshot(now, step) for crossing in crossings]


class _Crossing:
    """The step in which each model of a stack first comes down to one loss."""

    def __init__(
        self, head: PositionHead, offset: Tensor, level: float, lengths: Sequence[int]
    ) -> None:
        self.offset, self.level, self.lengths = offset, level, lengths
        self.reached = torch.zeros(head.n_models, dtype=torch.bool)
        self.before, self.after = head, head
        self.step = torch.zeros(head.n_models, dtype=torch.float64)

    def watch(self, before: PositionHead, now: PositionHead, log_value: Tensor, step: int) -> None:
        """Keep both ends of the step for the models that crossed in it."""
        new = ~self.reached & (log_value <= math.log(self.level))
        if new.any():
            self.before, self.after = _where(new, before, self.before), _where(new, now, self.after)
            self.step = torch.where(new, float(step), self.step)
            self.reached = self.reached | new

    def snapshot(self, last: PositionHead, last_step: int) -> Snapshot:
        """Bisect inside the step; models that never crossed are as they were last."""
        low, high = torch.zeros_like(self.step), torch.ones_like(self.step)
        for _ in range(50):
            middle = (low + high) / 2
            between = _between(self.before, self.after, middle)
            above = log_loss(between, self.offset, self.lengths) > math.log(self.level)
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        head = _where(self.reached, _between(self.before, self.after, high), last)
        steps = torch.where(self.reached, (self.step - 1 + high).clamp(min=0), float(last_step))
        return Snapshot(self.level, head, steps, self.reached)


def _where(condition: Tensor, one: PositionHead, other: PositionHead) -> PositionHead:
    query = torch.where(condition[:, None], one.query, other.query)
    return PositionHead(query, torch.where(condition[:, None], one.key, other.key), one.frequencies)


def _between(before: PositionHead, after: PositionHead, fraction: Tensor) -> PositionHead:
    weight = fraction[:, None]  # (models, 1)
    query = before.query + weight * (after.query - before.query)
    return PositionHead(query, before.key + weight * (after.key - before.key), before.frequencies)


def scale_to_loss(
    head: PositionHead,
    offset: Int[Tensor, " models"],
    level: float,
    lengths: Sequence[int] = TRAINING_LENGTHS,
) -> PositionHead:
    """Rescale heads that solve the task so that all have one training loss.

    The loss falls with the scale wherever all margins are positive, so bisection finds it.

    Raises:
        ValueError: a level outside (0, log of the shortest length), or a head that misses the
            target inside the training range.

    Source: ours.
    """
    if not 0 < level < math.log(min(lengths)):
        raise ValueError(f"level={level} must be in (0, {math.log(min(lengths)):.3f})")
    low = torch.zeros(head.n_models, dtype=torch.float64)
    high = torch.full_like(low, 1e4)
    if not bool((log_loss(_times(head, high), offset, lengths) < math.log(level)).all()):
        raise ValueError("a head cannot reach the level at any scale: it misses its target")
    for _ in range(100):
        middle = (low + high) / 2
        above = log_loss(_times(head, middle), offset, lengths) > math.log(level)
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return _times(head, high)


def _times(head: PositionHead, scale: Tensor) -> PositionHead:
    scale = scale[:, None]
    return PositionHead(scale * head.query, scale * head.key, head.frequencies)
