"""`variants`: how a bias that falls with the distance can still answer at offset 1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from lengthgen.encoding_measures import TRAINED
from lengthgen.results import unit
from lengthgen.task import FixedOffsetTask, TestSequences
from lengthgen.training import TrainingConfig, load_heads

__all__ = ["SuppressionConfig", "suppression_rows"]


@dataclass(frozen=True)
class SuppressionConfig:
    """Which heads to intervene in, and on how many sequences."""

    training: TrainingConfig
    n_sequences: int


@unit
def suppression_rows(config: SuppressionConfig) -> list[dict[str, Any]]:
    """Take from trained heads what they know of the query's own token, or all but that.

    `without_suppression`: a key that holds the query's token gets the mean logit of the other
    keys at its offset. `suppression_alone`: logits between different tokens become their mean.
    """
    training = config.training
    stack = load_heads(training)
    tokens = TestSequences(config.n_sequences, training.head.vocabulary).sequences(TRAINED)
    tables = stack.tables(torch.tensor([TRAINED - 1]), torch.arange(TRAINED))
    own = torch.eye(training.head.vocabulary, dtype=torch.bool)[..., None]
    others = tables.logit.masked_fill(own, 0.0).sum(2, keepdim=True)
    others = others / (training.head.vocabulary - 1)  # (models, query token, 1, keys)
    logits = {
        "trained": tables.logit,
        "without_suppression": torch.where(own, others, tables.logit),
        "suppression_alone": torch.where(
            own, _own_mean(tables.logit), others.mean(1, keepdim=True)
        ),
    }
    shared = tokens.expand(stack.n_models, -1, -1)
    rows: dict[str, list[float]] = {}
    for name, logit in logits.items():
        changed = replace(tables, logit=logit.expand_as(tables.logit).contiguous())
        answers = changed.answer(shared, changed.attention(shared, shared[..., -1])).argmax(-1)
        targets = [FixedOffsetTask(offset).target(tokens) for _, offset in training.models]
        rows[name] = (answers == torch.stack(targets)).double().mean(1).tolist()
    return [
        {"offset": offset, "seed": seed, **{name: round(v[m], 6) for name, v in rows.items()}}
        for m, (seed, offset) in enumerate(training.models)
    ]


def _own_mean(logit: torch.Tensor) -> torch.Tensor:
    """Return the mean logit of keys with the query's own token, (models, 1, 1, keys)."""
    return torch.diagonal(logit, dim1=1, dim2=2).mean(-1)[:, None, None]
