"""What relative heads do on sampled sequences, at many lengths in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lengthgen.dilution.heads import segments
from lengthgen.task import TestSequences

__all__ = ["Measured", "half_accuracy_length", "measure"]


@dataclass(frozen=True)
class Measured:
    """What heads did on test sequences: accuracy, mean attention on the target, its error."""

    accuracy: Float64[Tensor, "models lengths"]
    attention: Float64[Tensor, "models lengths"]
    attention_error: Float64[Tensor, "models lengths"]


def measure(
    logits: Float[Tensor, "models vocabulary vocabulary offsets"],
    readouts: Float[Tensor, "models vocabulary vocabulary"],
    offsets: Sequence[int],
    lengths: Sequence[int],
    test: TestSequences,
    block: int = 128,
) -> Measured:
    """Answer test sequences with relative heads; one pass over the offsets serves all lengths.

    The same numbers as `lengthgen.evaluation.accuracy`, which runs any head but starts anew for
    every length.

    Args:
        logits: $T(a, b, D)$.
        readouts: `readout[b, v]`.
        offsets: target offset of each head.
        lengths: sequence lengths.
        test: the sequences.
        block: offsets per matrix product; it changes memory, not the result.
    """
    weights = (logits - logits.amax((2, 3), keepdim=True)).exp().float()
    readouts = readouts.float()
    n_models, vocabulary = weights.shape[:2]
    columns = torch.tensor(list(offsets))
    tokens = torch.cat([part for _, part in test.blocks(max(lengths))], dim=1)
    model, token = torch.arange(n_models), torch.arange(vocabulary, dtype=torch.uint8)
    shape = (n_models, len(lengths))
    correct, first, second = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    for query_token in range(vocabulary):
        group = tokens[tokens[:, 0] == query_token]
        target = group[:, columns].long()  # (sequence, model)
        table = weights[:, query_token].permute(1, 2, 0)  # (key, offset, model)
        at_target = table[target, columns, model].T  # (model, sequence)
        mass = table.new_zeros(vocabulary, len(group), n_models)
        for start, stop in segments(lengths, block):
            for part in range(0, len(group), 256):  # so that one block stays in the cache
                held = group[None, part : part + 256, start:stop] == token[:, None, None]
                mass[:, part : part + 256].baddbmm_(held.float(), table[:, start:stop])
            if stop not in lengths:
                continue
            by_model = mass.permute(2, 1, 0).contiguous()
            answer = by_model @ readouts
            found = answer.gather(2, target.T[..., None])[..., 0] >= answer.amax(2)
            share = (at_target / by_model.sum(2)).double()
            column = lengths.index(stop)
            correct[:, column] += found.sum(1)
            first[:, column] += share.sum(1)
            second[:, column] += share.square().sum(1)
    n = len(tokens)
    mean = first / n
    variance = (second / n - mean.square()).clamp(min=0) * n / max(n - 1, 1)
    return Measured(correct / n, mean, (variance / n).sqrt())


def half_accuracy_length(
    lengths: Sequence[int], accuracy: Float[Tensor, " lengths"], level: float = 0.5
) -> float | None:
    """Return the length at which accuracy first falls below `level`, linear in log length between.

    `None` if it never does within the lengths.

    Example:
        >>> half_accuracy_length([16, 64], torch.tensor([1.0, 0.0]))
        32.0
    """
    below = (accuracy < level).nonzero().flatten()
    if not len(below):
        return None
    i = int(below[0])
    if i == 0:
        return float(lengths[0])
    high, low = float(accuracy[i - 1]), float(accuracy[i])
    part = (high - level) / (high - low)
    return float(lengths[i - 1] * (lengths[i] / lengths[i - 1]) ** part)
