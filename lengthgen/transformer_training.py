"""Training of decoders: every position answers, one fixed length, a stream of its own per model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lengthgen.results import unit
from lengthgen.task import FixedOffsetTask, Stream, generator_for
from lengthgen.training import check_loop, fit
from lengthgen.transformer import TransformerConfig, TransformerStack

__all__ = [
    "TransformerTraining",
    "load_transformers",
    "train_transformers",
    "trained_transformers",
]


@dataclass(frozen=True)
class TransformerTraining:
    """What a stack of decoders is trained on: the full-sequence task, every seed.

    Args:
        model: the decoder.
        seeds: initializations; a seed also chooses, with the offset, the training data.
        offset: K; every position i >= K answers with the token at i - K.
        length: length of every training sequence.
        steps: optimizer steps.
        batch_size: sequences per step and model.
        learning_rate: step size.
        optimizer: `adam`, `adamw` or `sgd`.
        weight_decay: added to the gradient (adam, sgd) or decoupled (adamw).

    Raises:
        ValueError: a value out of range.
    """

    model: TransformerConfig
    seeds: tuple[int, ...]
    offset: int = 3
    length: int = 32
    steps: int = 800
    batch_size: int = 64
    learning_rate: float = 1e-3
    optimizer: str = "adamw"
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        FixedOffsetTask(self.offset, self.model.vocabulary).check_length(self.length)
        check_loop(self)

    def stack(self, parameters: dict[str, Tensor] | None = None) -> TransformerStack:
        """Return the stack: as initialized, or with stored parameters."""
        if parameters is None:
            return TransformerStack.initialize(self.model, self.seeds)
        return TransformerStack.from_state(self.model, parameters, self.seeds)


class _Batches:
    """Training data of a stack, drawn step by step from each model's own generator.

    An encoding that draws first positions is given one per sequence.
    """

    def __init__(self, config: TransformerTraining, stack: TransformerStack) -> None:
        self.config = config
        n_starts = getattr(stack.encodings[0], "n_starts", lambda length: 1)
        self.n_starts = n_starts(config.length)
        self.generators = [
            generator_for(Stream.TRAINING_DATA, seed, config.offset) for seed in config.seeds
        ]

    def draw(self) -> tuple[Tensor, Tensor | None]:
        """Return tokens (models, batch, length) and first positions (models, batch) or `None`."""
        config = self.config
        shape = (config.batch_size, config.length)
        draws = [
            (
                torch.randint(config.model.vocabulary, shape, generator=generator),
                torch.randint(self.n_starts, shape[:1], generator=generator),
            )
            for generator in self.generators
        ]
        tokens, starts = (torch.stack(parts) for parts in zip(*draws, strict=True))
        return tokens, None if self.n_starts == 1 else starts


def train_transformers(
    config: TransformerTraining, report: Callable[[int, int, Tensor], None] | None = None
) -> tuple[TransformerStack, Tensor]:
    """Train every decoder of a stack; return it and the loss of each model at each step.

    Models share the loop and nothing else: each has its own initialization (from its seed), its
    own data (from its seed and offset) and its own entries of the optimizer's state.

    Args:
        config: what to train.
        report: called as `report(step, steps, losses)` after every step.

    Returns:
        the trained stack and a (models, steps) tensor of training losses, in nats.

    Raises:
        TrainingError: the loss of every model stopped being finite; names seed and step.
    """
    stack = config.stack()
    batches = _Batches(config, stack)

    def loss(step: int) -> Tensor:
        tokens, starts = batches.draw()
        answers = stack.forward(tokens, starts=starts)[:, :, config.offset :]
        targets = tokens[..., : -config.offset]
        losses = cross_entropy(answers.flatten(0, 2), targets.flatten(), reduction="none")
        return losses.view(stack.n_models, -1).mean(1)

    losses = fit(
        list(stack.trainable.values()),
        loss,
        [f"seed {seed}" for seed in config.seeds],
        config.steps,
        optimizer=config.optimizer,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        report=report,
    )
    return stack.map(lambda parameter: parameter.detach()), losses


@unit
def trained_transformers(config: TransformerTraining) -> dict[str, Tensor]:
    """Train a stack (a unit of work); its parameters, and its `losses` at every step.

    Put the parameters back into a stack with `config.stack(...)`, or call `load_transformers`.
    """
    stack, losses = train_transformers(config)
    return {**stack.parameters, "losses": losses}


def load_transformers(config: TransformerTraining) -> TransformerStack:
    """Return the trained stack, from the cache if it was trained before."""
    parameters = dict(trained_transformers(config))
    del parameters["losses"]
    return config.stack(parameters)
