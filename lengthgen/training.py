"""One training loop: a stack of heads, each on its own stream of sequences."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.results import unit
from lengthgen.task import FixedOffsetTask, Stream, generator_for

__all__ = [
    "TrainingConfig",
    "TrainingError",
    "default_steps",
    "load_heads",
    "train",
    "trained_heads",
]

OPTIMIZERS = {
    "adam": lambda p, lr, decay: torch.optim.Adam(p, lr, weight_decay=decay, fused=True),
    "adamw": lambda p, lr, decay: torch.optim.AdamW(p, lr, weight_decay=decay, fused=True),
    "sgd": lambda p, lr, decay: torch.optim.SGD(p, lr, weight_decay=decay),
}


class TrainingError(ValueError):
    """Training of at least one model produced numbers that are not finite."""


def default_steps(encoding: str | type) -> int:
    """Return the book's number of steps: 4,000 with random offsets, which see each row less."""
    return 4_000 if encoding == "learned-random-offset" else 1_000


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
        if not self.seeds or not self.offsets:
            raise ValueError(f"seeds={self.seeds}, offsets={self.offsets}: at least one of each")
        if min(self.seeds) < 0:
            raise ValueError(f"seed {min(self.seeds)} is not allowed: seeds are 0, 1, 2, ...")
        if self.lengths[0] > self.lengths[1]:
            raise ValueError(f"lengths={self.lengths} are reversed: (shortest, longest)")
        if self.steps < 1 or self.batch_size < 1:
            raise ValueError(f"steps={self.steps}, batch_size={self.batch_size}: at least 1")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"unknown optimizer {self.optimizer!r}; choose from {', '.join(OPTIMIZERS)}"
            )

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


@dataclass(frozen=True)
class _Batches:
    """Training data of a stack: sequences in reading order, padded behind their last token."""

    tokens: Tensor  # (models, steps, batch, longest), uint8
    lengths: Tensor  # (models, steps)
    starts: Tensor  # (models, steps, batch), first position of each sequence

    @functools.cached_property
    def n_positions(self) -> int:
        """Number of positions that any sequence reaches."""
        return int((self.starts.amax(2) + self.lengths).max())

    @classmethod
    def draw(cls, config: TrainingConfig, stack: HeadStack) -> _Batches:
        n_starts = getattr(stack.encodings[0], "n_starts", lambda length: 1)
        shortest, longest = config.lengths
        room = torch.tensor([n_starts(length) for length in range(longest + 1)])
        if room.max() > 1 and not stack.additive:
            raise ValueError(
                f"encoding {config.head.encoding!r} draws first positions, which needs an "
                "encoding that defines the hook embed and no other"
            )
        tokens, lengths, starts = [], [], []
        for seed, offset in config.models:
            generator = generator_for(Stream.TRAINING_DATA, seed, offset)
            drawn = torch.randint(shortest, longest + 1, (config.steps,), generator=generator)
            shape = (config.steps, config.batch_size)
            uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
            task = FixedOffsetTask(offset, config.head.vocabulary)
            sequences = task.sample(config.steps * config.batch_size, longest, generator)
            tokens.append(sequences.view(config.steps, config.batch_size, longest))
            lengths.append(drawn)
            starts.append((uniform * room[drawn, None]).long())
        return cls(torch.stack(tokens), torch.stack(lengths), torch.stack(starts))


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
        TrainingError: a loss that is not finite; names seed, offset and step.
    """
    stack = config.stack()
    batches = _Batches.draw(config, stack)
    parameters = list(stack.trainable.values())
    for parameter in parameters:
        parameter.requires_grad_(True)
    optimizer = OPTIMIZERS[config.optimizer](parameters, config.learning_rate, config.weight_decay)
    losses = torch.empty(len(config.models), config.steps)
    for step in range(config.steps):
        loss = _losses(stack, config, batches, step)
        optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        optimizer.step()
        losses[:, step] = loss.detach()
        if report is not None:
            report(step + 1, config.steps, stack, losses[:, : step + 1])
    _check_finite(config, losses)
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


def _losses(stack: HeadStack, config: TrainingConfig, batches: _Batches, step: int) -> Tensor:
    """Return the cross-entropy of each model on its batch of this step, (models,)."""
    length, start = batches.lengths[:, step], batches.starts[:, step]
    tokens = batches.tokens[:, step].long()
    column = torch.arange(tokens.shape[2])
    last = length - 1
    mask = (column <= last[:, None])[:, None]
    query = _column(tokens, last)
    if stack.additive:
        tables = stack.additive_tables(torch.arange(batches.n_positions))
        key_positions = (start[..., None] + column).clamp(max=batches.n_positions - 1)
        query_positions = start + last[:, None]
        attention = tables.attention(tokens, query, query_positions, key_positions, mask)
        answer = tables.answer(tokens, key_positions, attention)
    else:
        tables = stack.tables(column, column, last)
        attention = tables.attention(tokens, query, mask)
        answer = tables.answer(tokens, attention)
    target = _column(tokens, last - torch.tensor([offset for _, offset in config.models]))
    loss = cross_entropy(answer.flatten(0, 1), target.flatten(), reduction="none")
    return loss.view(stack.n_models, -1).mean(1)


def _column(tokens: Tensor, index: Tensor) -> Tensor:
    """Return one column per model, (models, batch)."""
    return tokens.gather(2, index[:, None, None].expand(-1, tokens.shape[1], 1))[..., 0]


def _check_finite(config: TrainingConfig, losses: Tensor) -> None:
    broken = (~losses.isfinite()).any(1).nonzero().flatten().tolist()
    if broken:
        first = int((~losses[broken[0]].isfinite()).nonzero()[0])
        seed, offset = config.models[broken[0]]
        raise TrainingError(
            f"the loss of seed {seed} at offset {offset} is not finite at step {first} "
            f"({len(broken)} of {len(config.models)} models): lower the learning rate "
            f"(now {config.learning_rate}) or check the encoding"
        )
