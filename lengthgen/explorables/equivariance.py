"""The explorable of chapter 2: a shift of all positions, up to a million."""

from __future__ import annotations

from typing import Any

import torch

from lengthgen.attention import HeadStack
from lengthgen.experiments.heads import OFFSETS
from lengthgen.explorables.base import Explorable, Report, pack
from lengthgen.explorables.heads import book_heads, learned_heads, new_heads, rotary_heads
from lengthgen.position_head import TRAINING_LENGTHS

__all__ = ["Equivariance"]


class Equivariance(Explorable):
    """Shift every position and compare the maps of mean logits, rotary beside learned."""

    name = "equivariance"
    files = ("heads",)

    def load(self) -> dict[str, Any]:
        """Return seed 0 at every offset: mean query and key, and the whole position table."""
        return self.export(book_heads("rotary"), book_heads("learned"))

    def retrain(self, report: Report, seed: int) -> dict[str, Any]:
        """Train both kinds of head from another seed."""
        return self.export(*(new_heads(name, seed, report) for name in ("rotary", "learned")))

    @staticmethod
    def export(rotary: HeadStack, learned: HeadStack) -> dict[str, Any]:
        """Return the data of one seed of each: mean query and key, form, whole table."""
        rotary_heads(rotary)  # refuses what the script cannot rotate
        n_rows = learned.config.max_length
        table = learned_heads(learned, max(TRAINING_LENGTHS), n_rows)
        kept = {name: table[name] for name in ("form", "trained", "untrained")}
        token = rotary.parameters["token"].double().mean(1, keepdim=True)  # logits are bilinear
        mean = {
            k: pack((token @ rotary.parameters[k].double())[:, 0].float()) for k in ("query", "key")
        }
        of_learned = pack(learned.parameters["token"].double().mean(1).to(torch.float32))
        return {"offsets": OFFSETS, "rotary": mean, "learned": {"mean": of_learned, **kept}}
