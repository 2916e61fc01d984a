"""The explorable of chapter 7: where each head of a decoder looks, rotary beside learned."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from lengthgen.chapter import frozen
from lengthgen.experiments import transformer
from lengthgen.experiments.transformer_units import MapConfig, attention_maps
from lengthgen.explorables.base import Explorable, pack

__all__ = ["LENGTHS", "Transformer", "rounded_triangle"]

LENGTHS = (32, 48, 64, 128)
"""Lengths of the maps: the training length, and beyond it."""


def rounded_triangle(
    attention: Float[Tensor, "layers heads query key"],
) -> UInt8[Tensor, "all_heads entries"]:
    r"""Round attention weights to $1/255$ and drop the future: $\lfloor 255\,\alpha + 1/2 \rfloor$.

    Args:
        attention: causal weights of every head.

    Returns:
        of every head, layers slowest, the rows of its lower triangle, one after the other.

    Raises:
        ValueError: a weight outside [0, 1], or one on the future.

    Example:
        >>> rounded_triangle(torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]]))
        tensor([[255,  64, 191]], dtype=torch.uint8)
    """
    n = attention.shape[-1]
    if attention.triu(1).any() or attention.min() < 0 or attention.max() > 1 + 1e-6:
        worst = attention.flatten()[attention.abs().argmax()]
        raise ValueError(
            f"attention up to {worst:.4g}, on the future up to {attention.triu(1).max():.4g}: "
            "weights in [0, 1] on the past alone are allowed"
        )
    queries, keys = torch.tril_indices(n, n)  # row by row
    kept = attention[..., queries, keys].flatten(0, 1)
    return (255 * kept).round().clamp(max=255).to(torch.uint8)


class Transformer(Explorable):
    """Step through the heads of two decoders, and lengthen the sequence past the training range."""

    name = "transformer"

    def load(self) -> dict[str, Any]:
        """Return the maps of seed 0 of the experiment, rotary and learned."""
        config = transformer.Config()
        training = {e: transformer.training(config, e, 0) for e in ("rotary", "learned")}
        maps = {e: attention_maps(MapConfig(t, LENGTHS)) for e, t in training.items()}
        return self.export(maps, config.offset, config.length)

    @staticmethod
    def export(
        maps: Mapping[str, Mapping[str, Tensor]], offset: int, longest: int
    ) -> dict[str, Any]:
        """Return rounded maps, right answers, and the mean accuracy of all seeds by position.

        Args:
            maps: by encoding, what `attention_maps` returns at `LENGTHS`.
            offset: K.
            longest: training length.
        """
        by_position = frozen("transformer").summary["by_position"]
        data: dict[str, Any] = {"offset": offset, "longest": longest, "lengths": LENGTHS}
        for encoding, found in maps.items():
            first = found[f"attention_{LENGTHS[0]}"]
            data["layers"], data["heads"] = first.shape[:2]
            accuracy = [fmean(values) for values in zip(*by_position[encoding], strict=True)]
            data[encoding] = {
                "accuracy": [round(a, 3) for a in accuracy[: max(LENGTHS) - offset]],
                "maps": [pack(rounded_triangle(found[f"attention_{n}"])) for n in LENGTHS],
                "right": [
                    pack((found[f"answers_{n}"][offset:] == found[f"tokens_{n}"][:-offset]).byte())
                    for n in LENGTHS
                ],
            }
        return data
