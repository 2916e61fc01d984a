"""The explorable of chapter 9: train a linear recurrent model, and listen beyond the range."""

from __future__ import annotations

from typing import Any

from lengthgen.chapter import frozen
from lengthgen.experiments.connections import LIMIT
from lengthgen.explorables.base import Explorable
from lengthgen.position_head import TRAINING_LENGTHS

__all__ = ["Recurrent"]


class Recurrent(Explorable):
    """Descend from any initial scale in the page, beside the frozen seeds of `connections`."""

    name = "recurrence"
    files = ("spectral", "recurrence")

    def load(self) -> dict[str, Any]:
        """Return the setting, and the largest response beyond the range of every frozen seed."""
        result = frozen("connections")
        config, level = result.config, result.config["levels"][-1]
        rows = result.select(kind="recurrence", level=level, balanced=False, too_narrow=False)
        tails: dict[tuple[int, int], list[list[float]]] = {}
        for row in rows:
            # Three digits are more than a dot shows.
            dot = [row["std"], float(f"{row['tail']:.3g}")]
            tails.setdefault((row["offset"], row["width"]), []).append(dot)
        return {
            "longest": max(TRAINING_LENGTHS),
            "limit": LIMIT,
            "level": level,
            "stds": config["trainings"][0]["stds"],
            "width": config["trainings"][0]["width"],
            "n_seeds": config["n_seeds"],
            "tails": [{"offset": k, "width": n, "dots": d} for (k, n), d in tails.items()],
        }
