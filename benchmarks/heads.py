"""The head of chapter 1 as one would write it in PyTorch: one at a time, and stacked by `vmap`.

Same initial weights, same sequences, same optimizer as `lengthgen.training`; every function here
takes its `TrainingConfig` and returns the (models, steps) losses. What is peculiar to the package,
the lookup tables, is absent: this is attention over the sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lengthgen.encodings import rotary_frequencies
from lengthgen.stack import ModelStack
from lengthgen.training import TrainingConfig

__all__ = ["RotaryHead", "draw", "initial", "one_by_one", "vectorized"]


def draw(config: TrainingConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the sequences that `lengthgen.training` trains on.

    Returns:
        tokens (steps, models, batch, longest), the first `length` of each are the sequence;
        lengths (steps, models); targets (steps, models, batch).
    """
    tokens, lengths, targets = [], [], []
    for seed, offset in config.models:
        drawn, length, _ = config.draw(seed, offset)
        column = (length - 1 - offset)[:, None, None].expand(*drawn.shape[:2], 1)
        tokens.append(drawn)
        lengths.append(length)
        targets.append(drawn.gather(2, column)[..., 0].long())
    return torch.stack(tokens, 1), torch.stack(lengths, 1), torch.stack(targets, 1)


def initial(config: TrainingConfig) -> dict[str, Tensor]:
    """Return the weights that `lengthgen.training` starts from, with a leading axis of models."""
    return ModelStack.initialize(config.head, [seed for seed, _ in config.models]).parameters


class RotaryHead(nn.Module):
    """One softmax head with rotary positions that answers at the last token.

    Args:
        config: what is trained; sizes and the longest sequence are read from it.
    """

    def __init__(self, config: TrainingConfig) -> None:
        super().__init__()
        head, longest = config.head, config.lengths[1]
        self.token = nn.Parameter(torch.empty(head.vocabulary, head.d_model))
        for name in ("query", "key", "value"):
            setattr(self, name, nn.Parameter(torch.empty(head.d_model, head.d_head)))
        self.output = nn.Parameter(torch.empty(head.d_head, head.vocabulary))
        frequencies = rotary_frequencies(head.d_head)
        angles = torch.arange(longest, dtype=torch.float64)[:, None] * frequencies
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        self.scale = head.d_head**-0.5

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the answer's logits of whole sequences, (batch, vocabulary)."""
        length = tokens.shape[1]
        x = nn.functional.embedding(tokens, self.token)  # (batch, length, d_model)
        key = self._rotate(x @ self.key, self.cos[:length], self.sin[:length])
        query = self._rotate(x[:, -1] @ self.query, self.cos[length - 1], self.sin[length - 1])
        logits = (key @ query[..., None])[..., 0] * self.scale  # (batch, length)
        return self._answer(logits, x)

    def padded(self, tokens: Tensor, length: Tensor) -> Tensor:
        """Return the answers' logits of sequences padded behind, whose length is a tensor."""
        x = nn.functional.embedding(tokens, self.token)
        last = (length - 1).view(1)
        key = self._rotate(x @ self.key, self.cos, self.sin)
        at_last = x.index_select(1, last)[:, 0]
        cos, sin = self.cos.index_select(0, last), self.sin.index_select(0, last)
        query = self._rotate(at_last @ self.query, cos, sin)
        logits = (key @ query[..., None])[..., 0] * self.scale
        behind = torch.arange(tokens.shape[1]) > last
        return self._answer(logits.masked_fill(behind, -torch.inf), x)

    def _answer(self, logits: Tensor, x: Tensor) -> Tensor:
        # The mean of the embeddings is taken first: one row per sequence for the value's matrix.
        mixed = (logits.softmax(-1)[:, None] @ x)[:, 0]
        return mixed @ self.value @ self.output

    @staticmethod
    def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def one_by_one(config: TrainingConfig) -> Tensor:
    """Train one model after the other, each with its own module and optimizer."""
    tokens, lengths, targets = draw(config)
    weights = initial(config)
    losses = torch.empty(len(config.models), config.steps)
    for index in range(len(config.models)):
        model = RotaryHead(config)
        model.load_state_dict({name: value[index] for name, value in weights.items()})
        adam = torch.optim.Adam(model.parameters(), config.learning_rate, fused=True)
        own_tokens, own_lengths = tokens[:, index].long(), lengths[:, index].tolist()
        own_targets = targets[:, index]
        for step, length in enumerate(own_lengths):
            loss = cross_entropy(model(own_tokens[step, :, :length]), own_targets[step])
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses[index, step] = loss.detach()
    return losses


def vectorized(config: TrainingConfig) -> Tensor:
    """Train all models together: `torch.func.functional_call` under `vmap`, parameters stacked."""
    tokens, lengths, targets = draw(config)
    tokens = tokens.long()
    weights = {name: value.requires_grad_(True) for name, value in initial(config).items()}
    skeleton = _Padded(RotaryHead(config))

    def loss(weights: dict[str, Tensor], tokens: Tensor, length: Tensor, target: Tensor) -> Tensor:
        named = {f"head.{name}": value for name, value in weights.items()}
        return cross_entropy(torch.func.functional_call(skeleton, named, (tokens, length)), target)

    gradients = torch.vmap(torch.func.grad_and_value(loss))
    adam = torch.optim.Adam(list(weights.values()), config.learning_rate, fused=True)
    losses = torch.empty(len(config.models), config.steps)
    for step in range(config.steps):
        frozen = {name: value.detach() for name, value in weights.items()}
        found, value = gradients(frozen, tokens[step], lengths[step], targets[step])
        for name, weight in weights.items():
            weight.grad = found[name]
        adam.step()
        losses[:, step] = value
    return losses


class _Padded(nn.Module):
    """Gives `functional_call`, which knows only `forward`, a way to `padded`."""

    def __init__(self, head: RotaryHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, tokens: Tensor, length: Tensor) -> Tensor:
        return self.head.padded(tokens, length)
