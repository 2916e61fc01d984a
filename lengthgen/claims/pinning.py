"""Claims about absolute pinning."""

from __future__ import annotations

from statistics import fmean

from lengthgen.claims.claim import Claim, column
from lengthgen.results import Result

__all__ = ["CLAIMS"]


def _shares(result: Result, name: str) -> list[float]:
    """Return a share of seeds for each offset of `mechanics`."""
    return [by_offset[name] for by_offset in result.summary["by_offset"].values()]


CLAIMS = (
    Claim(
        "pinning.untrained_rows",
        "Rows of the position table beyond the training range stay bit-identical: "
        "largest change over all heads",
        "abstract",
        "mechanics",
        lambda r: max(column(r, "untrained_rows_moved", setting="default")),
        most=0.0,
    ),
    Claim(
        "pinning.in_range",
        "The peak of attention stays inside the training range at every length 32 to 1024: "
        "share of heads",
        "abstract",
        "mechanics",
        lambda r: fmean(_shares(r, "peak_in_range")),
        least=0.9,
    ),
    Claim(
        "pinning.predicted",
        "The mean content predicts the position of the peak: share of heads",
        "book",
        "mechanics",
        lambda r: fmean(_shares(r, "predicted")),
        least=0.8,
    ),
    Claim(
        "pinning.fixed_point",
        "Trained on one length, the peak does not move from length 32 to 1024: share of seeds, "
        "offset 2",
        "book",
        "mechanics",
        lambda r: r.summary["by_setting"]["fixed length 16"]["pinned"],
        least=0.95,
    ),
    Claim(
        "pinning.fixed_mix",
        "Trained on the book's lengths, 10 to 16, the peak stays at one and the same position in "
        "most heads, though not in all: share that has it there at every length 32 to 1024",
        "abstract",
        "mechanics",
        lambda r: fmean(_shares(r, "pinned")),
        least=0.5,
    ),
    Claim(
        "pinning.copy",
        "A trained row copied onto an untrained position draws the same attention there: "
        "mean ratio of the two masses",
        "book",
        "mechanics",
        lambda r: fmean(column(r, "copied_row_mass", setting="default")),
        least=0.9,
        most=1.1,
    ),
    Claim(
        "pinning.exchange",
        "Exchange the pinned row with an untrained one and the peak follows: share of heads",
        "book",
        "mechanics",
        lambda r: fmean(column(r, "exchanged_peak_follows", setting="default")),
        least=0.95,
    ),
    Claim(
        "pinning.content",
        "The query's content holds the pin: fall of the agreement with the peak when the mean "
        "content is removed",
        "book",
        "mechanics",
        lambda r: fmean(
            row["agreement"] - row["agreement_without_mean_content"]
            for row in r.select(setting="default")
        ),
        least=0.2,
    ),
    Claim(
        "pinning.decay",
        "Weight decay moves untrained rows (L2 1e-4): smallest of the largest changes",
        "book",
        "mechanics",
        lambda r: min(column(r, "untrained_rows_moved", setting="L2 penalty 1e-4")),
        least=1e-3,
    ),
)
