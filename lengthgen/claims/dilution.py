"""Claims about the dilution law."""

from __future__ import annotations

from lengthgen.claims.claim import Claim
from lengthgen.results import Result

__all__ = ["CLAIMS"]


def _gain_by_alignment(result: Result) -> float:
    """Return what turning the carrier in phase adds to the mean accuracy at length 256."""
    remedies = result.summary["remedies"]
    return remedies["aligned"]["accuracy"]["256"] - remedies["none"]["accuracy"]["256"]


CLAIMS = (
    Claim(
        "dilution.attention",
        "The attention law is exact: largest deviation of measured mean attention, in standard "
        "errors, over all heads and lengths",
        "book",
        "dilution",
        lambda r: r.summary["attention"]["worst_standard_errors"],
        most=4.0,
    ),
    Claim(
        "dilution.accuracy_mean",
        "Accuracy follows a law without a parameter: mean absolute error over all heads and "
        "lengths 16 to 1024",
        "book",
        "dilution",
        lambda r: r.summary["accuracy"]["predicted, every head"]["mean"],
        most=0.005,
    ),
    Claim(
        "dilution.accuracy_worst",
        "The same, worst cell",
        "book",
        "dilution",
        lambda r: r.summary["accuracy"]["predicted, every head"]["worst"],
        most=0.015,
    ),
    Claim(
        "dilution.multiseed",
        "The accuracy law against the sequences of chapter 1, to length 4096: what is left of "
        "the worst cell beyond three standard errors",
        "book",
        "dilution",
        lambda r: r.summary["multiseed"]["worst_beyond_3_errors"],
        most=0.01,
    ),
    Claim(
        "dilution.gaussian",
        "Aliases are needed: worst error with everything Gaussian",
        "book",
        "dilution",
        lambda r: r.summary["accuracy"]["gaussian"]["worst"],
        least=0.1,
    ),
    Claim(
        "dilution.kernel",
        "Token pairs are needed: worst error with the kernel alone",
        "book",
        "dilution",
        lambda r: r.summary["accuracy"]["kernel_only"]["worst"],
        least=0.1,
    ),
    Claim(
        "dilution.half_length",
        "The length of half accuracy is predicted: mean relative error over heads",
        "book",
        "dilution",
        lambda r: r.summary["half_length"]["mean_error"],
        most=0.02,
    ),
    Claim(
        "dilution.bessel",
        "The Bessel law: worst relative error over token pairs at 10^6 offsets",
        "book",
        "dilution",
        lambda r: r.summary["bessel"]["worst_pair"],
        most=0.01,
    ),
    Claim(
        "dilution.alignment",
        "Turning the carrier in phase, without training, lengthens the reach: gain of mean "
        "accuracy at length 256",
        "book",
        "dilution",
        _gain_by_alignment,
        least=0.15,
    ),
)
