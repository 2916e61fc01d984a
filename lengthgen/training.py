"""One training loop: a stack of heads, each on its own stream of sequences."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.head_gradient import Batch, loss_and_gradient
from lengthgen.results import unit
from lengthgen.task import FixedOffsetTask, Stream, generator_for

__all__ = [
    "TrainingConfig",
    "TrainingError",
    "TrainingWarning",
    "check_loop",
    "default_steps",
    "fit",
    "load_heads",
    "train",
    "trained_heads",
]

OPTIMIZERS = ("adam", "adamw", "sgd")


class TrainingError(ValueError):
    """Training left no model whose loss is finite."""


class TrainingWarning(UserWarning):
    """A model stopped because its loss was no longer finite; the others went on."""


def default_steps(encoding: str | type) -> int:
    """Return the book's number of steps: 4,000 with random starts, which see each row less."""
    return 4_000 if encoding == "learned-random-offset" else 1_000


def check_loop(config: Any) -> None:
    """Refuse seeds and settings of `fit` that a configuration cannot have.

    Raises:
        ValueError: names the value and what is allowed.
    """
    if not config.seeds or min(config.seeds) < 0:
        raise ValueError(f"seeds={config.seeds} are not allowed: at least one of 0, 1, 2, ...")
    for name in ("steps", "batch_size"):
        if (value := getattr(config, name)) < 1:
            raise ValueError(f"{name}={value} is not allowed: it must be at least 1")
    if not config.learning_rate > 0:
        raise ValueError(f"learning_rate={config.learning_rate} is not allowed: it must exceed 0")
    if not config.weight_decay >= 0:
        raise ValueError(f"weight_decay={config.weight_decay} is not allowed: at least 0")
    if config.optimizer not in OPTIMIZERS:
        raise ValueError(
            f"unknown optimizer {config.optimizer!r}; choose from {', '.join(OPTIMIZERS)}"
        )


@dataclass(frozen=True)
class TrainingConfig:
    """What a stack of heads is trained on: every seed at every offset.

    Args:
        head: the model.
        seeds: initializations; a seed also chooses, with the offset, the training data.
        offsets: tasks.
        lengths: shortest and longest training length; each model draws one per step, uniformly.
        steps: optimizer steps.
        batch_size: sequences per step and model.
        learning_rate: step size.
        optimizer: `adam`, `adamw` or `sgd`.
        weight_decay: added to the gradient (adam, sgd) or decoupled (adamw).

    Raises:
        ValueError: a value out of range, or an offset that the shortest length cannot hold.
    """

    head: HeadConfig
    seeds: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, int] = (10, 16)
    steps: int = 1_000
    batch_size: int = 64
    learning_rate: float = 3e-3
    optimizer: str = "adam"
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for offset in self.offsets:
            FixedOffsetTask(offset, self.head.vocabulary).check_length(self.lengths[0])
        if not self.offsets:
            raise ValueError("offsets=() is not allowed: at least one")
        if self.lengths[0] > self.lengths[1]:
            raise ValueError(f"lengths={self.lengths} are reversed: (shortest, longest)")
        check_loop(self)

    @property
    def models(self) -> list[tuple[int, int]]:
        """(seed, offset) of each model in the stack, seeds slowest."""
        return [(seed, offset) for seed in self.seeds for offset in self.offsets]

    def stack(self, parameters: dict[str, Tensor] | None = None) -> HeadStack:
        """Return the stack: as initialized, or with stored parameters."""
        seeds = [seed for seed, _ in self.models]
        if parameters is None:
            return HeadStack.initialize(self.head, seeds)
        return HeadStack.from_state(self.head, parameters, seeds)

    def draw(
        self, seed: int, offset: int
    ) -> tuple[
        UInt8[Tensor, "steps batch longest"],
        Int64[Tensor, " steps"],
        Float64[Tensor, "steps batch"],
    ]:
        """Draw the training data of one model, which depend on its seed and offset alone.

        Returns:
            sequences as long as the longest; how many of their tokens each step uses, from the
            first; uniform numbers that choose where in the table each sequence starts.
        """
        generator = generator_for(Stream.TRAINING_DATA, seed, offset)
        shortest, longest = self.lengths
        shape = (self.steps, self.batch_size)
        length = torch.randint(shortest, longest + 1, shape[:1], generator=generator)
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
        task = FixedOffsetTask(offset, self.head.vocabulary)
        tokens = task.sample(self.steps * self.batch_size, longest, generator)
        return tokens.view(*shape, longest), length, uniform


class _Batches:
    """Training data of a stack, one batch per step."""

    def __init__(self, config: TrainingConfig, stack: HeadStack) -> None:
        n_starts = getattr(stack.encodings[0], "n_starts", lambda length: 1)
        longest = config.lengths[1]
        room = torch.tensor([n_starts(length) for length in range(longest + 1)])
        if room.max() > 1:
            stack.check_starts()
        by_sequence = (config.steps, len(config.models), config.batch_size)
        self.tokens = torch.empty(*by_sequence, longest, dtype=torch.uint8)
        self.query_tokens = torch.empty(by_sequence, dtype=torch.uint8)
        self.target = torch.empty(by_sequence, dtype=torch.uint8)
        self.starts = torch.empty(by_sequence, dtype=torch.int32)
        self.last = torch.empty(by_sequence[:2], dtype=torch.long)
        step = torch.arange(config.steps)
        for model, (seed, offset) in enumerate(config.models):
            tokens, length, uniform = config.draw(seed, offset)
            self.tokens[:, model] = tokens
            self.last[:, model] = last = length - 1
            self.query_tokens[:, model] = tokens[step, :, last]
            self.target[:, model] = tokens[step, :, last - offset]
            self.starts[:, model] = uniform.mul_(room[length, None])
        behind = torch.arange(longest) > self.last[:, :, None, None]
        self.mask = torch.zeros(behind.shape).masked_fill_(behind, -torch.inf)
        self.shifted = bool(self.starts.any())
        n_positions = int((self.starts.amax(2) + self.last).max()) + 1 if self.shifted else longest
        self.positions = torch.arange(n_positions)

    def __getitem__(self, step: int) -> Batch:
        return Batch(
            self.tokens[step],
            self.last[step],
            self.mask[step],
            self.query_tokens[step],
            self.target[step],
            self.starts[step] if self.shifted else None,
        )


def fit(
    parameters: Sequence[Tensor],
    losses: Callable[[int], Tensor],
    names: Sequence[str],
    steps: int,
    *,
    optimizer: str = "adam",
    learning_rate: float = 3e-3,
    weight_decay: float = 0.0,
    report: Callable[[int, int, Tensor], None] | None = None,
) -> Tensor:
    """Minimize the losses of many models that share a loop and nothing else; the one such loop.

    A model whose loss is no longer finite stops there, with a warning that names it and the
    step; the others go on.

    Args:
        parameters: tensors with a leading axis of models, changed in place.
        losses: called with the step; returns the (models,) losses of the current parameters, and
            either leaves their gradients in `.grad` itself or returns losses to differentiate.
        names: what to call each model in a warning or an error.
        steps: number of steps.
        optimizer: `adam`, `adamw` or `sgd`.
        learning_rate: step size.
        weight_decay: added to the gradient (adam, sgd) or decoupled (adamw).
        report: called as `report(step, steps, losses)` after every step.

    Returns:
        the (models, steps) losses; not finite from the step on at which a model stopped.

    Raises:
        TrainingError: every model stopped; names the first.
    """
    _keep_freed_memory()
    for parameter in parameters:
        parameter.requires_grad_(True)
    update = _updates(optimizer, parameters, learning_rate, weight_decay)
    history = torch.empty(steps, len(names)).T  # a step's losses lie together
    stopped = torch.zeros(len(names), dtype=torch.bool)
    any_stopped = False
    for step in range(steps):
        for parameter in parameters:
            parameter.grad = None
        loss = losses(step)
        if loss.requires_grad:
            loss.sum().backward()
        history[:, step] = loss = loss.detach()
        if any_stopped or not math.isfinite(loss.sum()):
            history[stopped, step] = torch.nan
            finite = history[:, step].isfinite()
            _report_stopped(~(stopped | finite), names, step, learning_rate)
            stopped |= ~finite
            any_stopped = bool(stopped.any())
            if stopped.all():
                first = int((~history[:, : step + 1].isfinite()).any(0).nonzero()[0])
                model = int((~history[:, first].isfinite()).nonzero()[0])
                raise TrainingError(
                    f"all {len(names)} models stopped: {_stopped(names[model], first)}: lower "
                    f"the learning rate (now {learning_rate}) or check the encoding"
                )
        with _kept(parameters, stopped) if any_stopped else nullcontext():
            update()
        if report is not None:
            report(step + 1, steps, history[:, : step + 1])
    for parameter in parameters:
        parameter.requires_grad_(False)
    return history.contiguous()


def _keep_freed_memory() -> None:
    """Have the C library keep what a step frees for the next, not return and fetch it again.

    glibc keeps blocks as large as the largest that was ever freed, up to 32 MiB. This one is
    never touched, so it costs nothing. Other libraries do not care.
    """
    torch.empty(31 << 20, dtype=torch.uint8, device="cpu")


@torch.no_grad()
def _updates(
    optimizer: str, parameters: Sequence[Tensor], rate: float, decay: float
) -> Callable[[], None]:
    """Return what makes one step of an optimizer, by the gradients in `.grad`.

    PyTorch's functional forms: its classes import the compiler, which takes seconds, and spend
    more time on bookkeeping than on the arithmetic of small models.
    """
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    count = [torch.zeros((), device=p.device) for p in parameters]
    common = {"lr": rate, "weight_decay": decay, "maximize": False}

    @torch.no_grad()
    def update() -> None:
        moved = [k for k, parameter in enumerate(parameters) if parameter.grad is not None]
        values, *moments = ([of[k] for k in moved] for of in (parameters, first, second))
        gradients = [value.grad for value in values]
        if optimizer == "sgd":
            no_momentum = {"momentum": 0.0, "dampening": 0.0, "nesterov": False}
            sgd(values, gradients, [None] * len(values), **no_momentum, **common)
        else:
            usual = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, "fused": True}
            decoupled = {"decoupled_weight_decay": optimizer == "adamw"}
            counts = [count[k] for k in moved]
            adam(values, gradients, *moments, [], counts, **usual, **decoupled, **common)

    return update


def _stopped(name: str, step: int) -> str:
    return f"the loss of {name} is not finite at step {step}"


def _report_stopped(stopped: Tensor, names: Sequence[str], step: int, rate: float) -> None:
    for model in stopped.nonzero().flatten().tolist():
        warnings.warn(
            f"{_stopped(names[model], step)}: it stops here (learning rate {rate})",
            TrainingWarning,
            stacklevel=3,
        )


@contextmanager
def _kept(parameters: Sequence[Tensor], models: Tensor) -> Iterator[None]:
    """Leave some models as they are, whatever is done to the parameters meanwhile."""
    before = [parameter.detach()[models] for parameter in parameters]
    yield
    for parameter, values in zip(parameters, before, strict=True):
        parameter.detach()[models] = values


def train(
    config: TrainingConfig, report: Callable[[int, int, HeadStack, Tensor], None] | None = None
) -> tuple[HeadStack, Tensor]:
    """Train every model of a stack; return the stack and the loss of each model at each step.

    Models share the loop and nothing else: each has its own initialization (from its seed), its
    own data (from its seed and offset) and its own entries of the optimizer's state.

    Args:
        config: what to train.
        report: called as `report(step, steps, stack, losses)` after every step.

    Returns:
        the trained stack and a (models, steps) tensor of training losses, in nats.

    Raises:
        TrainingError: the loss of every model stopped being finite; see `fit`.
    """
    stack = config.stack()
    batches = _Batches(config, stack)
    losses = fit(
        list(stack.trainable.values()),
        lambda step: loss_and_gradient(stack, batches[step], batches.positions),
        [f"seed {seed} at offset {offset}" for seed, offset in config.models],
        config.steps,
        optimizer=config.optimizer,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        report=report and (lambda step, steps, losses: report(step, steps, stack, losses)),
    )
    return stack.map(lambda parameter: parameter.detach()), losses


@unit
def trained_heads(config: TrainingConfig) -> dict[str, Tensor]:
    """Train a stack (a unit of work); its parameters, and its `losses` at every step.

    Put the parameters back into a stack with `config.stack(...)`, or call `load_heads`.
    """
    stack, losses = train(config)
    return {**stack.parameters, "losses": losses}


def load_heads(config: TrainingConfig) -> HeadStack:
    """Return the trained stack, from the cache if it was trained before."""
    parameters = dict(trained_heads(config))
    del parameters["losses"]
    return config.stack(parameters)
