"""The explorable of chapter 3: where attention stays, and how it follows a row of the table."""

from __future__ import annotations

from typing import Any

from lengthgen.explorables.base import Explorable, Report
from lengthgen.explorables.heads import book_heads, new_heads
from lengthgen.explorables.task import head_pair

__all__ = ["Pinning"]


class Pinning(Explorable):
    """Drag the length past the training range; copy or exchange rows of the position table."""

    name = "pinning"
    files = ("heads",)

    def load(self) -> dict[str, Any]:
        """Return seed 0 at every offset, both encodings."""
        return head_pair(book_heads("rotary"), book_heads("learned"))

    def retrain(self, report: Report, seed: int) -> dict[str, Any]:
        """Train both kinds of head from another seed."""
        return head_pair(*(new_heads(name, seed, report) for name in ("rotary", "learned")))
