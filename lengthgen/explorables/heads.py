"""Trained heads as the few arrays an explorable needs, and how to train new ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.experiments.heads import OFFSETS, head_stacks
from lengthgen.explorables.base import Report, pack
from lengthgen.training import TrainingConfig, load_heads, train

__all__ = ["book_heads", "column", "learned_heads", "new_heads", "rotary_heads"]


def book_heads(encoding: str, seeds: Sequence[int] = (0,)) -> HeadStack:
    """Return the book's heads of some of its first four seeds at every offset, seeds slowest."""
    config = head_stacks(encoding, 1)[0]
    return load_heads(config).select([i for i, (s, _) in enumerate(config.models) if s in seeds])


def new_heads(encoding: str, seed: int, report: Report, steps: int = 1_000) -> HeadStack:
    """Train heads of one seed at every offset, not kept in the cache."""
    return train(TrainingConfig(HeadConfig(encoding), (seed,), OFFSETS, steps=steps), report)[0]


def _double(stack: HeadStack) -> dict[str, Tensor]:
    return {name: value.double() for name, value in stack.parameters.items()}


def rotary_heads(stack: HeadStack) -> dict[str, Any]:
    """Export rotary heads: unrotated queries and keys of every token, and the token's readout.

    Raises:
        ValueError: another encoding, rotary with options, or logits that grow with the length.
    """
    config = stack.config
    if config.encoding != "rotary" or config.encoding_options or config.log_length is not None:
        raise ValueError(
            f"encoding {config.encoding!r} with options {config.encoding_options}, log_length="
            f"{config.log_length} is not allowed: rotary with its defaults"
        )
    p = _double(stack)
    return {
        "query": pack((p["token"] @ p["query"]).float()),
        "key": pack((p["token"] @ p["key"]).float()),
        "readout": pack((p["token"] @ p["value"] @ p["output"]).float()),
    }


def learned_heads(stack: HeadStack, longest: int, n_rows: int) -> dict[str, Any]:
    r"""Export learned heads: token embeddings, $W_q W_k^\top / \sqrt d$, $W_v W_o$ and the table.

    Rows that no training sequence reached never moved, so heads of one seed share them.

    Args:
        stack: heads of one seed.
        longest: longest training length, the number of rows that each head has for itself.
        n_rows: rows exported in all.

    Raises:
        ValueError: another encoding, heads that differ in rows beyond `longest`, or fewer rows
            than asked for.
    """
    config = stack.config
    if config.encoding != "learned" or config.log_length is not None:
        raise ValueError(
            f"encoding {config.encoding!r}, log_length={config.log_length} is not allowed: learned"
        )
    table = stack.parameters["encoding.table"]
    if n_rows > table.shape[1]:
        raise ValueError(f"n_rows={n_rows} is not allowed: the table has {table.shape[1]} rows")
    shared = table[:, longest:n_rows]
    if not (shared == shared[:1]).all():
        raise ValueError(f"the heads differ in rows beyond {longest}: give heads of one seed")
    p = _double(stack)
    form = p["query"] @ p["key"].transpose(1, 2) / stack.config.d_head**0.5
    return {
        "token": pack(stack.parameters["token"]),
        "form": pack(form.float()),
        "output": pack((p["value"] @ p["output"]).float()),
        "trained": pack(table[:, :longest]),
        "untrained": pack(shared[0]),
    }


def column(
    rows: Iterable[dict[str, Any]], value: str, axes: Sequence[tuple[str, Sequence[Any]]]
) -> Tensor:
    """Arrange frozen rows as an array, one axis for each named column; several rows are averaged.

    Args:
        rows: frozen rows.
        value: the column to arrange.
        axes: columns and the values each takes, in order.

    Raises:
        ValueError: a cell that no row fills.
    """
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(name) for name, _ in axes), []).append(row[value])
    keys = list(torch.cartesian_prod(*(torch.arange(len(v)) for _, v in axes)).view(-1, len(axes)))
    cells = [tuple(v[int(i)] for i, (_, v) in zip(key, axes, strict=True)) for key in keys]
    if missing := [cell for cell in cells if cell not in found]:
        names = ", ".join(name for name, _ in axes)
        raise ValueError(f"no row with ({names}) = {missing[0]}")
    numbers = torch.tensor([fmean(found[cell]) for cell in cells], dtype=torch.float32)
    return numbers.view([len(v) for _, v in axes])
