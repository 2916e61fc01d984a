"""The explorable of chapter 4: train the position-only head in the page, from any start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lengthgen.chapter import frozen
from lengthgen.experiments.heads import OFFSETS
from lengthgen.explorables.base import Explorable, pack

__all__ = ["Carrier"]


class Carrier(Explorable):
    """Descend from a random draw or a bad twin, and hold the early and late predictions beside it.

    Training happens in the page. What is exported are the solutions of the cone programs for the
    book's spectrum: the maximum-margin kernels, and their bad twins.
    """

    name = "carrier"
    files = ("descent",)

    def load(self) -> dict[str, Any]:
        """Return the coefficients of the frozen cone programs at every offset."""
        rows = {row["offset"]: row for row in frozen("selection").select(kind="twin")}

        def coefficients(name: str) -> Tensor:
            pairs = [rows[offset][f"{name}_coefficients"] for offset in OFFSETS]
            return torch.tensor(pairs, dtype=torch.float64)  # (offsets, frequencies, 2)

        return {
            "offsets": OFFSETS,
            "max_margin": pack(coefficients("good")),
            "twins": pack(coefficients("twin")),
            "wrong_offsets": [rows[offset]["wrong_offset"] for offset in OFFSETS],
        }
