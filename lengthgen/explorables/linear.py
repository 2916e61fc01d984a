"""The explorable of chapter 6: the linear head at any step of descent, softmax beside it."""

from __future__ import annotations

from typing import Any

from lengthgen.explorables.base import Explorable

__all__ = ["Linear"]


class Linear(Explorable):
    """Scrub the steps of descent and the band of frequencies; all of it is computed in the page."""

    name = "linear"
    files = ("descent", "spectral")

    def load(self) -> dict[str, Any]:
        """Return the setting: number of waves, vocabulary, and how long the softmax head trains."""
        return {"count": 16, "vocabulary": 16, "softmax_steps": 3_000}
