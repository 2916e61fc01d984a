"""Gradient descent of position-only heads, with snapshots at matched training loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from lengthgen.position_head import TRAINING_LENGTHS, PositionHead
from lengthgen.position_loss import Motion

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
    for state, log_value in _walk(head, offset, descent):
        yield PositionHead(*state, head.frequencies), log_value


def _walk(head: PositionHead, offset: Tensor, descent: Descent) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield query and key as one tensor (2, models, frequencies), and the log loss (models,)."""
    motion = Motion(head.frequencies, offset, descent.lengths)
    adam = _Adam() if descent.rule == "adam" else None
    log, root_d = descent.rule == "log_loss", head.d_head**0.5
    state = torch.stack([head.query, head.key])
    while True:
        d_query, d_key, log_value = motion(state[0], state[1], log)
        yield state, log_value
        step = torch.stack([d_query, d_key])
        if descent.weight_decay:
            clock = log_value.exp()[:, None] if log else 1.0
            step = step - descent.weight_decay / clock * state
        if adam:
            step = adam(step)
        eta = descent.step_size
        if log:
            size = torch.view_as_real(state).square().sum((0, 2, 3)) / (2 * root_d)
            eta = (eta * root_d / (1 + size))[:, None]
        state = state + eta * step


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
    crossings = [_Crossing(head.n_models, level) for level in levels]
    before = torch.stack([head.query, head.key])
    for step, (now, log_value) in enumerate(_walk(head, offset, descent)):
        for crossing in crossings:
            crossing.watch(before, now, log_value, step)
        if step == max_steps or crossings[-1].reached.all():
            break
        before = now
    motion = Motion(head.frequencies, offset, descent.lengths)
    return [crossing.snapshot(motion, head.frequencies, now, step) for crossing in crossings]


class _Crossing:
    """The step in which each model of a stack first comes down to one loss."""

    def __init__(self, n_models: int, level: float) -> None:
        self.level = level
        self.reached = torch.zeros(n_models, dtype=torch.bool)
        self.step = torch.zeros(n_models, dtype=torch.float64)
        self.before = self.after = None

    def watch(self, before: Tensor, now: Tensor, log_value: Tensor, step: int) -> None:
        """Keep both ends of the step for the models that crossed in it."""
        new = ~self.reached & (log_value <= math.log(self.level))
        if self.before is None:
            self.before, self.after = before, now
        if new.any():
            self.before = torch.where(new[:, None], before, self.before)
            self.after = torch.where(new[:, None], now, self.after)
            self.step = torch.where(new, float(step), self.step)
            self.reached = self.reached | new

    def snapshot(
        self, motion: Motion, frequencies: Tensor, last: Tensor, last_step: int
    ) -> Snapshot:
        """Bisect inside the step; models that never crossed are as they were last."""

        def above(fraction: Tensor) -> Tensor:
            query, key = self._at(fraction)
            return motion(query, key, True)[2] > math.log(self.level)

        fraction = _bisect(above, torch.zeros_like(self.step), torch.ones_like(self.step), 50)
        query, key = torch.where(self.reached[:, None], self._at(fraction), last)
        steps = torch.where(self.reached, (self.step - 1 + fraction).clamp(min=0), float(last_step))
        return Snapshot(self.level, PositionHead(query, key, frequencies), steps, self.reached)

    def _at(self, fraction: Tensor) -> Tensor:
        return self.before + fraction[:, None] * (self.after - self.before)


def _bisect(above: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, n_steps: int) -> Tensor:
    """Return where `above` turns from true at `low` to false at `high`, from the false side."""
    for _ in range(n_steps):
        middle = (low + high) / 2
        is_above = above(middle)
        low, high = torch.where(is_above, middle, low), torch.where(is_above, high, middle)
    return high


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
    motion = Motion(head.frequencies, offset, lengths)

    def above(scale: Tensor) -> Tensor:
        return motion(scale[:, None] * head.query, scale[:, None] * head.key, True)[2] > target

    target = math.log(level)
    low = torch.zeros(head.n_models, dtype=torch.float64)
    if above(low + 1e4).any():
        raise ValueError("a head cannot reach the level at any scale: it misses its target")
    scale = _bisect(above, low, low + 1e4, 100)[:, None]
    return PositionHead(scale * head.query, scale * head.key, head.frequencies)
