"""The explorable of chapter 5: the dilution law up to a million tokens, beside measured heads."""

from __future__ import annotations

from typing import Any

from lengthgen.attention import HeadStack
from lengthgen.chapter import frozen
from lengthgen.experiments.heads import OFFSETS
from lengthgen.explorables.base import Explorable, pack
from lengthgen.explorables.heads import book_heads, column, rotary_heads
from lengthgen.position_head import TRAINING_LENGTHS

__all__ = ["Dilution"]

SEEDS = (0, 1, 2, 3)


class Dilution(Explorable):
    """Stretch the sequence on a logarithmic axis, scale the logits, turn the temperature on."""

    name = "dilution"
    files = ("heads", "laws")

    def load(self) -> dict[str, Any]:
        """Return four seeds at every offset, and what was measured of them and of all seeds."""
        return self.export(book_heads("rotary", SEEDS))

    @staticmethod
    def export(stack: HeadStack) -> dict[str, Any]:
        """Return the data of seeds 0 to 3, seeds slowest, and what was measured of them."""
        result = frozen("dilution")
        lengths, seeds = result.config["lengths"], range(result.config["n_seeds"])
        axes = [("offset", OFFSETS), ("seed", list(seeds)), ("length", lengths)]
        cells = [row for row in result.select(kind="cell") if row["length"] in lengths]
        remedy_lengths = result.config["remedy_lengths"]
        remedies = result.select(kind="remedy", remedy="log-length")
        remedy_axes = [("offset", OFFSETS), ("seed", SEEDS), ("length", remedy_lengths)]
        return {
            "offsets": OFFSETS,
            "longest": max(TRAINING_LENGTHS),
            "vocabulary": stack.config.vocabulary,
            "rotary": rotary_heads(stack),
            "measured": {
                "lengths": lengths,
                "accuracy": pack(column(cells, "accuracy", axes)),
                "attention": pack(column(cells, "attention", axes)),
            },
            "remedy": {
                "lengths": remedy_lengths,
                "accuracy": pack(column(remedies, "measured", remedy_axes)),
            },
        }
