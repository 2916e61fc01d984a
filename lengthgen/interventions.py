"""Causal tests of the carrier: change one thing in a trained rotary head, and keep the rest."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lengthgen.attention import HeadStack
from lengthgen.dilution.heads import aligned, rotary_coefficients, turned

__all__ = ["INTERVENTIONS", "intervene"]


def _keep(stack: HeadStack, kept: Tensor) -> HeadStack:
    """Set the query's channels of all other frequencies to zero; `kept` is (models, freq.)."""
    channels = kept.repeat_interleave(2, dim=-1)[:, None].to(stack.dtype)
    return stack.with_parameters(query=stack.parameters["query"] * channels)


def _truncate(stack: HeadStack, rank: int) -> HeadStack:
    """Replace W_q W_k^T by its best approximation of a rank, by projecting both factors."""
    query, key = stack.parameters["query"], stack.parameters["key"]
    left, _, right = torch.linalg.svd(query @ key.transpose(1, 2))
    left, right = left[..., :rank], right[:, :rank].transpose(1, 2)
    return stack.with_parameters(
        query=left @ (left.transpose(1, 2) @ query), key=right @ (right.transpose(1, 2) @ key)
    )


def _content(stack: HeadStack, only_mean: bool) -> HeadStack:
    """Give every token the mean query and key (the kernel alone), or take the means away."""
    token = stack.parameters["token"]
    changed = {}
    for side in ("query", "key"):
        rows = token @ stack.parameters[side]
        mean = rows.mean(1, keepdim=True).expand_as(rows)
        wanted = mean if only_mean else rows - mean
        changed[side] = torch.linalg.pinv(token) @ wanted
    return stack.with_parameters(**changed)


def _strongest(stack: HeadStack, number: int) -> Tensor:
    """Tell which frequencies carry the largest amplitudes of the mean kernel, (models, freq.)."""
    amplitudes = rotary_coefficients(stack).mean((1, 2)).abs()
    return amplitudes >= amplitudes.topk(number, dim=-1).values[:, -1:]


def _random_angles(seed: int, offset: int, n_frequencies: int) -> Tensor:
    generator = torch.Generator().manual_seed(1_000 * seed + offset)
    return 2 * math.pi * torch.rand(n_frequencies, generator=generator)


def _band(stack: HeadStack, index: int) -> HeadStack:
    n_frequencies = stack.config.d_head // 2
    kept = torch.arange(n_frequencies) // (n_frequencies // 4) != index
    return _keep(stack, kept.expand(stack.n_models, -1))


def _randomized(stack: HeadStack, models: list[tuple[int, int]]) -> HeadStack:
    n_frequencies = stack.config.d_head // 2
    angles = torch.stack([_random_angles(*model, n_frequencies) for model in models])
    return turned(stack, angles)


INTERVENTIONS: dict[str, Callable[[HeadStack, list[tuple[int, int]]], HeadStack]] = {
    "none": lambda stack, models: stack,
    **{f"rank {r}": lambda stack, models, r=r: _truncate(stack, r) for r in (1, 2, 3, 4, 8)},
    "kernel alone": lambda stack, models: _content(stack, only_mean=True),
    "means removed": lambda stack, models: _content(stack, only_mean=False),
    **{f"without band {i}": lambda stack, models, i=i: _band(stack, i) for i in range(4)},
    **{
        f"strongest {n} alone": lambda stack, models, n=n: _keep(stack, _strongest(stack, n))
        for n in (2, 4, 6)
    },
    "without strongest 4": lambda stack, models: _keep(stack, ~_strongest(stack, 4)),
    "random phases": _randomized,
    "aligned phases": lambda stack, models: aligned(stack, [offset for _, offset in models]),
}
"""Changes to trained heads by name; bands are quarters of the spectrum, band 0 the fastest."""


def intervene(stack: HeadStack, models: list[tuple[int, int]], name: str) -> HeadStack:
    """Return rotary heads of full width with one change to their weights.

    Args:
        stack: trained heads.
        models: (seed, offset) of each.
        name: one of `INTERVENTIONS`.

    Raises:
        ValueError: an unknown name.
    """
    if name not in INTERVENTIONS:
        raise ValueError(f"unknown intervention {name!r}; choose from {', '.join(INTERVENTIONS)}")
    return INTERVENTIONS[name](stack, models)
