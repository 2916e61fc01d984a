"""The explorable of chapter 8: two encodings of the atlas side by side."""

from __future__ import annotations

from typing import Any

from lengthgen import figures
from lengthgen.chapter import frozen
from lengthgen.encoding_measures import FIT, TOLERANCE, TRAINED
from lengthgen.experiments.variants import VARIANTS
from lengthgen.explorables.base import Explorable
from lengthgen.results import Result

__all__ = ["Atlas", "color"]

MEASURES = ("equivariance_error", "pinning_index", "alignment", "dilution_error")


def color(name: str) -> str:
    """Return an encoding's colour as the book's CSS variable, or its own value elsewhere.

    Example:
        >>> color("t5-within")
        'var(--lg-bias, #00805A)'
    """
    variant = VARIANTS[name]
    encoding = (variant.tested or variant.trained).encoding
    value = figures.COLORS[encoding]
    shared = {figures.ROTARY: "rotary", figures.BIAS: "bias"}
    return f"var(--lg-{shared.get(value, encoding)}, {value})"


def _could(margins: dict[str, float], name: str) -> float | None:
    """Return the margin of an encoding's family: its own, or that of what it is trained as."""
    encoding = VARIANTS[name].trained.encoding
    for family in (name, encoding, encoding.split("-")[0]):
        if family in margins:
            return margins[family]
    return None


def _card(result: Result, name: str, offset: int) -> dict[str, Any]:
    """Return what was measured of one encoding at one offset, each length over all seeds."""
    measured = result.summary["encodings"][name][str(offset)]
    rows = [r for r in result.select(encoding=name, offset=offset) if "accuracy" in r]
    lengths = sorted({row["length"] for row in rows})
    by_length = [[row["accuracy"] for row in rows if row["length"] == n] for n in lengths]
    margins = result.summary.get("margins", {}).get(str(offset), {})
    return {
        "lengths": lengths,
        "low": [min(values) for values in by_length],
        "mean": [round(sum(values) / len(values), 4) for values in by_length],
        "high": [max(values) for values in by_length],
        "kernel": [round(value, 3) for value in result.summary["kernels"][name][str(offset)]],
        "fitted": [measured["fitted"], measured["n_heads"]],
        "could": [_could(margins[n], name) for n in sorted(margins, key=int)],
        **{measure: measured.get(measure) for measure in MEASURES},
    }


class Atlas(Explorable):
    """Choose two encodings and an offset: accuracy by length, kernels and report cards."""

    name = "atlas"

    def load(self) -> dict[str, Any]:
        """Return what the frozen results know of every encoding."""
        return self.export(frozen("variants"))

    @staticmethod
    def export(result: Result) -> dict[str, Any]:
        """Return the data of every encoding that the results hold."""
        names = [name for name in VARIANTS if name in result.summary["encodings"]]
        offsets = result.config["offsets"]
        return {
            "offsets": offsets,
            "trained": TRAINED,
            "fit": FIT,
            "tolerance": TOLERANCE,
            "vocabulary": VARIANTS["none"].trained.vocabulary,
            "margin_offsets": sorted(result.config["margin_offsets"]),
            "encodings": {
                name: {
                    "color": color(name),
                    "cards": [_card(result, name, offset) for offset in offsets],
                }
                for name in names
            },
        }
