r"""A linear recurrent model on the same task: what a small start selects.

One hidden state, one matrix used at every step, no attention:

$$s_t = A s_{t-1} + B x_t, \qquad y_t = C s_t, \qquad y_t = \sum_{D \ge 0} h(D)\, x_{t-D},
\qquad h(D) = C A^D B .$$

Retrieval asks for the impulse response $h(D) = 1\{D = K\}$. The training range asks for it at
$D < N$ only; beyond, the model repeats whatever it has learned. Everything is float64, stacked on
a leading axis of independent models, and differentiated by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Complex128, Float64, Int
from torch import Tensor

from lengthgen.linear import impulse, loss_metric
from lengthgen.position_head import TRAINING_LENGTHS

__all__ = [
    "CEILING",
    "Caught",
    "Recurrence",
    "descend",
    "forcing_width",
    "hankel",
    "initialize",
    "response",
    "ring",
    "shift_register",
    "training_loss",
]

CEILING = 1e30
"""Responses beyond this size are cut: an unstable model has no finite response for long."""


@dataclass(frozen=True)
class Recurrence:
    """A stack of linear recurrent models with one input and one output.

    Args:
        transition: $A$.
        input: $B$, from the input into the state.
        output: $C$, from the state to the output.

    Raises:
        ValueError: shapes that do not belong together.
    """

    transition: Float64[Tensor, "models width width_"]
    input: Float64[Tensor, "models width"]
    output: Float64[Tensor, "models width"]

    def __post_init__(self) -> None:
        shape = tuple(self.input.shape)
        if shape != tuple(self.output.shape) or tuple(self.transition.shape) != (*shape, shape[-1]):
            raise ValueError(
                f"transition {tuple(self.transition.shape)}, input {shape} and output "
                f"{tuple(self.output.shape)} must be (n_models, n, n), (n_models, n), (n_models, n)"
            )

    @property
    def width(self) -> int:
        """Number of hidden states $n$."""
        return self.input.shape[1]

    @property
    def eigenvalues(self) -> Complex128[Tensor, "models width"]:
        """Eigenvalues of the transition: the response is a sum of their powers."""
        return torch.linalg.eigvals(self.transition)

    @property
    def parameters(self) -> Float64[Tensor, "models parameters"]:
        """All parameters in one row per model, $A$ first, then $B$ and $C$."""
        return torch.cat([self.transition.flatten(1), self.input, self.output], 1)

    @classmethod
    def from_parameters(
        cls, parameters: Float64[Tensor, "models parameters"], width: int
    ) -> Recurrence:
        """Return the models whose `parameters` these are."""
        transition, input_, output = parameters.split([width * width, width, width], 1)
        return cls(transition.unflatten(1, (width, width)), input_, output)


# -- models written down --------------------------------------------------------------------------


def shift_register(offset: int) -> Recurrence:
    r"""Return the delay by $K$: $K + 1$ states in a row, each handing on what it holds.

    Its transition is nilpotent, $A^{K+1} = 0$, so the response is $1\{D = K\}$ for *every* $D$.

    Raises:
        ValueError: an offset below 0.

    Source: textbook (FIR filter in state space).

    Example:
        >>> response(shift_register(2), 6)
        tensor([[0., 0., 1., 0., 0., 0.]], dtype=torch.float64)
    """
    if offset < 0:
        raise ValueError(f"offset={offset} is not allowed: it must be at least 0")
    width = offset + 1
    transition = torch.ones(width - 1, dtype=torch.float64).diag(-1)
    ends = torch.eye(width, dtype=torch.float64)
    return Recurrence(transition[None], ends[:1], ends[-1:])


def ring(offset: int, period: int) -> Recurrence:
    r"""Return a shift register closed to a ring: $h(D) = 1\{D \equiv K \bmod P\}$.

    On $D < N \le K + P$ nothing tells it from the delay; at $D = K + P$ the pulse comes back.

    Raises:
        ValueError: an offset outside 0 .. period - 1.

    Source: textbook.

    Example:
        >>> response(ring(1, 3), 6)
        tensor([[0., 1., 0., 0., 1., 0.]], dtype=torch.float64)
    """
    if not 0 <= offset < period:
        raise ValueError(f"offset={offset} is not allowed: it must be in 0..{period - 1}")
    ends = torch.eye(period, dtype=torch.float64)
    return Recurrence(ends.roll(1, 0)[None], ends[:1], ends[offset : offset + 1])


def forcing_width(offset: int, length: int) -> int:
    r"""Return $N - 1 - K$, the largest width at which every exact fit extrapolates.

    A model of $n$ states obeys one linear recurrence of order $n$ (Cayley and Hamilton). If $n$
    zeros follow the impulse inside the range, $K + n \le N - 1$, all later values are zero. A
    ring of $N - K$ states shows for $2K < N$ that no larger width has this property.

    Args:
        offset: $K$.
        length: $N$, number of training offsets.

    Source: ours; the tool is the realization theory of Kalman (1963).
    """
    return length - 1 - offset


def hankel(
    response: Float64[Tensor, "*models offsets"], size: int
) -> Float64[Tensor, "*models size size"]:
    r"""Return the matrix $H_{ij} = h(i + j)$, whose rank is at most the number of states.

    $H$ factors into $(C A^i)_i$ and $(A^j B)_j$ (Kalman 1963).

    Raises:
        ValueError: the response is shorter than `2 size - 1`.

    Example:
        >>> int(torch.linalg.matrix_rank(hankel(response(shift_register(3), 9)[0], 5)))
        4
    """
    if size < 1 or response.shape[-1] < 2 * size - 1:
        raise ValueError(
            f"size={size} is not allowed: a response of {response.shape[-1]} values fills at most "
            f"{(response.shape[-1] + 1) // 2} rows"
        )
    return response.unfold(-1, size, 1)[..., :size, :]


# -- models trained -------------------------------------------------------------------------------


def initialize(seeds: Sequence[int], width: int, std: float, balanced: bool = False) -> Recurrence:
    r"""Draw models whose parameters are $N(0, \mathrm{std}^2 / n)$, one per seed.

    The circular law puts the eigenvalues of $A$ into a disk of radius `std`, whatever the width.
    The same seed at another `std` is the same draw rescaled.

    Args:
        seeds: one per model.
        width: $n$.
        std: initial scale.
        balanced: make $A$ symmetric and $C = B$.

    Raises:
        ValueError: no seed, a width below 1, or `std` not above 0.

    Source: ours.
    """
    if len(seeds) == 0 or width < 1 or not std > 0:
        raise ValueError(
            f"{len(seeds)} seeds, width={width}, std={std} is not allowed: at least one seed, "
            "width >= 1 and std > 0 are needed"
        )
    draws = torch.stack([_draw(seed, width) for seed in seeds]) * std / width**0.5
    model = Recurrence.from_parameters(draws, width)
    if not balanced:
        return model
    a = model.transition
    return Recurrence((a + a.mT) / 2**0.5, model.input, model.input.clone())


def _draw(seed: int, width: int) -> Float64[Tensor, " parameters"]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(width * (width + 2), dtype=torch.float64, generator=generator)


def response(model: Recurrence, length: int) -> Float64[Tensor, "models offsets"]:
    r"""Return $h(D) = C A^D B$ for $0 \le D <$ `length`, cut at `CEILING`."""
    state, values = model.input, []
    for _ in range(length):
        values.append((model.output * state).sum(-1))
        state = (model.transition @ state[..., None])[..., 0].clamp(-CEILING, CEILING)
    return torch.stack(values, -1).clamp(-CEILING, CEILING)


def training_loss(
    model: Recurrence,
    offset: Int[Tensor, " models"],
    lengths: Sequence[int] = TRAINING_LENGTHS,
) -> Float64[Tensor, " models"]:
    r"""Return $\tfrac12 \sum_D P(L > D)\, (h(D) - 1\{D = K\})^2$, as in `lengthgen.linear`."""
    weight = loss_metric(lengths).diag()
    residual = response(model, len(weight)) - impulse(offset, len(weight))
    return (weight * residual.square()).sum(-1) / 2


def _loss_and_gradient(
    parameters: Tensor, width: int, target: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss, (models,), and its gradient: one pass forward in time, one backward."""
    model = Recurrence.from_parameters(parameters, width)
    states = [model.input]
    for _ in range(target.shape[1] - 1):
        states.append((model.transition @ states[-1][..., None])[..., 0])
    state = torch.stack(states, 1)  # (models, offsets, width), A^D B
    residual = (state @ model.output[..., None])[..., 0] - target
    pull = weight * residual
    back, adjoints = pull[:, -1:] * model.output, []
    for step in range(target.shape[1] - 2, -1, -1):
        adjoints.append(back)
        back = pull[:, step, None] * model.output
        back = back + (model.transition.mT @ adjoints[-1][..., None])[..., 0]
    adjoint = torch.stack(adjoints[::-1], 1)  # (models, offsets - 1, width)
    transition = adjoint.mT @ state[:, :-1]
    output = (pull[:, None] @ state)[:, 0]
    return (pull * residual).sum(-1) / 2, torch.cat([transition.flatten(1), back, output], 1)


def _balanced(parameters: Tensor, width: int) -> Tensor:
    """Return the nearest parameters with $A = A^T$ and $C = B$."""
    model = Recurrence.from_parameters(parameters, width)
    a, b = (model.transition + model.transition.mT) / 2, (model.input + model.output) / 2
    return Recurrence(a, b, b).parameters


@dataclass(frozen=True)
class Caught:
    """A stack of models, each caught when its training loss came down to one level.

    Args:
        level: the loss asked for.
        model: every model at that loss; one that never reached it, as it was at the end.
        steps: after how many steps.
        reached: whether the model came down to the level.
    """

    level: float
    model: Recurrence
    steps: Int[Tensor, " models"]
    reached: Bool[Tensor, " models"]


def descend(
    model: Recurrence,
    offset: Int[Tensor, " models"],
    levels: Sequence[float],
    max_steps: int,
    lengths: Sequence[int] = TRAINING_LENGTHS,
    balanced: bool = False,
) -> list[Caught]:
    r"""Descend the gradient and catch every model at the same training losses.

    Each model has its own step size: it grows by a tenth after every step that lowers the loss,
    and a step that does not is taken back and halved. No step moves the parameters by more than
    a twentieth of their norm, so that from every scale the path stays near gradient flow.

    Args:
        model: where to start.
        offset: $K$ of each model.
        levels: losses, falling.
        max_steps: give up after as many.
        lengths: training lengths, each with equal weight.
        balanced: hold $A = A^\top$, $C = B$ exactly. The gradient keeps them, but not stably:
            rounding errors grow until the model leaves them.

    Raises:
        ValueError: levels not positive and strictly falling, or an offset outside the range.

    Source: ours.
    """
    if not levels or min(levels) <= 0 or any(a <= b for a, b in pairwise(levels)):
        raise ValueError(f"levels={list(levels)} must be positive and strictly falling")
    weight = loss_metric(lengths).diag()
    target = impulse(offset, len(weight))
    now, width = model.parameters, model.width
    caught = [_Level(level, now) for level in levels]
    keep = _balanced if balanced else lambda parameters, width: parameters
    loss, gradient = _loss_and_gradient(now, width, target, weight)
    gradient = keep(gradient, width)
    running, step_size = torch.arange(len(now)), torch.ones(len(now), dtype=torch.float64)
    for step in range(max_steps + 1):
        for level in caught:
            level.watch(now, loss, running, step)
        going = loss > levels[-1]
        if not going.all():  # drop the models that are done
            now, loss, gradient, step_size = (x[going] for x in (now, loss, gradient, step_size))
            target, running = target[going], running[going]
        if not len(running) or step == max_steps:
            break
        size = gradient.norm(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
        rate = torch.minimum(step_size, 0.05 * now.norm(dim=1) / size)
        there = now - rate[:, None] * gradient
        new_loss, new_gradient = _loss_and_gradient(there, width, target, weight)
        new_gradient = keep(new_gradient, width)
        lower = new_loss <= loss
        now, gradient = (
            torch.where(lower[:, None], new, old)
            for new, old in ((there, now), (new_gradient, gradient))
        )
        loss = torch.where(lower, new_loss, loss)
        step_size = torch.where(lower, rate * 1.1, rate / 2)
    for level in caught:
        level.finish(now, running, step)
    return [level.result(width) for level in caught]


class _Level:
    """Collects the models as they come down to one training loss."""

    def __init__(self, level: float, start: Tensor) -> None:
        self.level, self.parameters = level, start.clone()
        self.steps = torch.zeros(len(start), dtype=torch.long)
        self.reached = torch.zeros(len(start), dtype=torch.bool)

    def watch(self, now: Tensor, loss: Tensor, running: Tensor, step: int) -> None:
        new = (loss <= self.level) & ~self.reached[running]
        self._keep(now[new], running[new], step)
        self.reached[running[new]] = True

    def finish(self, now: Tensor, running: Tensor, step: int) -> None:
        late = ~self.reached[running]
        self._keep(now[late], running[late], step)

    def _keep(self, now: Tensor, models: Tensor, step: int) -> None:
        self.parameters[models], self.steps[models] = now, step

    def result(self, width: int) -> Caught:
        model = Recurrence.from_parameters(self.parameters, width)
        return Caught(self.level, model, self.steps, self.reached)
