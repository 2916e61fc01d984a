"""Claims about the linear control."""

from __future__ import annotations

from statistics import fmean

from lengthgen.claims.claim import Claim, accuracies, by_offset, column
from lengthgen.results import Result

__all__ = ["CLAIMS"]

TRIVIAL = 1 / 16
"""What sixteen waves pay for the target alone, in any band."""


def _prices(result: Result) -> list[float]:
    """Return squared norm over its bound where the theorem holds and says more than `TRIVIAL`."""
    rows = [row for row in result.rows if "squared_norm_bound" in row]
    return [
        row["squared_norm"] / row["squared_norm_bound"]
        for row in rows
        if row["spectrum"] != "midpoints 1" and row["squared_norm_bound"] > TRIVIAL
    ]


CLAIMS = (
    Claim(
        "linear.closed_form",
        "Gradient descent on the linear head is its closed form: largest difference after 20,000 "
        "steps, main and full band",
        "book",
        "linear",
        lambda r: max(
            row["iterate_error"]
            for row in r.rows
            if "iterate_error" in row and row["spectrum"].startswith("midpoints")
        ),
        most=1e-8,
    ),
    Claim(
        "linear.min_norm",
        "Its limit is the minimum-norm interpolant: largest relative distance from the "
        "pseudo-inverse, main and full band",
        "abstract",
        "linear",
        lambda r: max(
            row["limit_error"]
            for row in r.rows
            if "limit_error" in row and row["spectrum"].startswith("midpoints")
        ),
        most=1e-6,
    ),
    Claim(
        "linear.fails",
        "The minimum-norm interpolant does not extrapolate: accuracy at length 48, best of offsets "
        "1 to 8, main spectrum (chance 0.0625)",
        "abstract",
        "linear",
        lambda r: max(accuracies(r, head="min-norm", spectrum="midpoints 0.8", length=48)),
        most=0.15,
    ),
    Claim(
        "linear.fits",
        "Though it fits: accuracy at length 16, worst offset",
        "book",
        "linear",
        lambda r: min(accuracies(r, head="min-norm", spectrum="midpoints 0.8", length=16)),
        least=0.999,
    ),
    Claim(
        "linear.full_band",
        "With frequencies up to pi the same limit extrapolates: length 48, worst offset",
        "book",
        "linear",
        lambda r: min(accuracies(r, head="min-norm", spectrum="midpoints 1", length=48)),
        least=0.9,
    ),
    Claim(
        "linear.price",
        "The squared norm of an impulse respects the superoscillation bound: smallest ratio over "
        "offsets and bands narrower than pi, where the bound is above the trivial 1/16",
        "book",
        "linear",
        lambda r: min(_prices(r)),
        least=1.0,
    ),
    Claim(
        "linear.softmax",
        "Softmax on the same spectrum, data and loss extrapolates: accuracy at length 48, worst "
        "seed and offset",
        "abstract",
        "linear",
        lambda r: min(accuracies(r, head="softmax", length=48)),
        least=0.97,
    ),
    Claim(
        "linear.first_step",
        "So does the linear head after its first step: mean accuracy at length 48, main spectrum",
        "book",
        "linear",
        lambda r: fmean(accuracies(r, head="linear", spectrum="midpoints 0.8", length=48, step=1)),
        least=0.9,
    ),
    Claim(
        "linear.exactness",
        "The exponential head (no division) extrapolates until it fits exactly: fall of mean "
        "accuracy at length 48 from step 1,000 to step 10,000",
        "book",
        "linear",
        lambda r: (
            fmean(accuracies(r, head="exponential", length=48, step=1_000))
            - fmean(accuracies(r, head="exponential", length=48, step=10_000))
        ),
        least=0.5,
    ),
    Claim(
        "linear.token_level",
        "So does a token-level linear head under Adam: fall of mean accuracy at length 48 from "
        "step 200 to step 2,000",
        "book",
        "linear",
        lambda r: (
            fmean(accuracies(r, head="token-linear", length=48, step=200))
            - fmean(accuracies(r, head="token-linear", length=48, step=2_000))
        ),
        least=0.3,
    ),
    Claim(
        "linear.bilinear_fails",
        "The bilinear linear head does not extrapolate: accuracy at length 48, mean over seeds, "
        "best offset",
        "book",
        "linear",
        lambda r: max(by_offset(r, head="none", length=48, step=60_000)),
        most=0.2,
    ),
    Claim(
        "linear.not_least",
        "It reaches neither the least l2 nor the least group-l1 norm: smallest ratio of either to "
        "its minimum over all models",
        "book",
        "linear",
        lambda r: min(min(column(r, "l2_ratio")), min(column(r, "l1_ratio"))),
        least=1.005,
    ),
    Claim(
        "linear.accuracy_law",
        "Weights alone predict the accuracy (eight exact, the rest Gaussian): mean error over all "
        "bands, offsets and lengths",
        "book",
        "linear",
        lambda r: fmean(
            abs(row["predicted"] - row["accuracy"]) for row in r.rows if "predicted" in row
        ),
        most=0.01,
    ),
)
