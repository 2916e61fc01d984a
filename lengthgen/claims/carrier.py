"""Claims about the carrier kernel and about what training selects."""

from __future__ import annotations

from typing import Any

from lengthgen.claims.claim import Claim, column
from lengthgen.results import Result

__all__ = ["CLAIMS"]

MAIN_SPECTRUM = {"base": 10_000.0, "width": 32}


def _early(result: Result, name: str) -> list[float]:
    return column(result, name, kind="early", share=0.95)


def _late(result: Result, name: str, n_seeds: int = 5) -> list[float | int]:
    """Return a column of position-only heads of the first seeds at the end of training."""
    rows = result.select(kind="late", **MAIN_SPECTRUM)
    last = max(row["step"] for row in rows)
    return [row[name] for row in rows if row["step"] == last and row["seed"] < n_seeds]


def _optimality(result: Result) -> float:
    """Return by how much the worst cone program's multipliers fail to prove its kernel optimal."""
    return max(
        max(row["certificate"] - 1, row["duality_gap"]) for row in result.select(kind="max-margin")
    )


def _token_median(result: Result, name: str) -> float:
    return result.summary["token"]["trained"][name]["median"]


def _intervened(result: Result, name: str, length: int) -> float:
    return result.summary["causal"][name][f"mean_{length}"]


def _run(result: Result, std: float, level: float = 1e-4) -> dict[str, Any]:
    """Return the summary of the default setting's runs at one scale and training loss."""
    (found,) = (
        row
        for row in result.summary["runs"]
        if (row["setting"], row["std"], row["level"]) == ("default", std, level)
    )
    return found


def _decayed(result: Result, std: float, level: float | None) -> list[float]:
    """Return the share that keeps its argmax at length 1,024, for each decay that gets there."""
    return [
        row["kept_1024"]
        for row in result.summary["runs"]
        if row["setting"] in _decays(result)
        and (row["std"], row["level"]) == (std, level)
        and row["kept_1024"] is not None
    ]


def _decays(result: Result) -> dict[str, float]:
    """Return the decays with which training goes on to its end, by the name of the setting."""
    others = [setting for setting in result.config["others"] if setting["to_the_end"]]
    return {setting["name"]: setting["descent"]["weight_decay"] for setting in others}


def _decayed_loss_error(result: Result) -> float:
    """Return how far the loss at the end is from decay times sqrt(d) times the least norm."""
    root_d, decays = result.config["main"]["width"] ** 0.5, _decays(result)
    norms = {row["offset"]: row["norm"] for row in result.select(kind="twin")}
    ends = [r for r in result.select(kind="run", level=None) if r["setting"] in decays]
    return max(
        abs(r["loss"] / (decays[r["setting"]] * root_d * norms[r["offset"]]) - 1) for r in ends
    )


CLAIMS = (
    Claim(
        "carrier.explained",
        "One kernel of the offset explains the logits of heads with tokens: median share of "
        "their variance over the training range",
        "abstract",
        "frequency",
        lambda r: _token_median(r, "explained"),
        least=0.9,
    ),
    Claim(
        "carrier.low_rank",
        "W_q W_k^T has low rank: median effective rank (untrained: above 10)",
        "abstract",
        "frequency",
        lambda r: _token_median(r, "effective_rank"),
        most=4.0,
    ),
    Claim(
        "carrier.aligned",
        "The kernel is aligned with the target offset: median alignment",
        "abstract",
        "frequency",
        lambda r: _token_median(r, "alignment"),
        least=0.85,
    ),
    Claim(
        "carrier.kernel_alone",
        "The mean kernel alone, a W_q W_k^T of rank one, retrieves at length 48: mean accuracy",
        "book",
        "frequency",
        lambda r: _intervened(r, "kernel alone", 48),
        least=0.98,
    ),
    Claim(
        "carrier.rank_four",
        "Truncated to rank 4, heads keep their accuracy at length 48: mean loss of accuracy",
        "book",
        "frequency",
        lambda r: _intervened(r, "none", 48) - _intervened(r, "rank 4", 48),
        most=0.01,
    ),
    Claim(
        "carrier.phases",
        "Amplitudes without their phases are useless: mean accuracy at length 16, phases random",
        "book",
        "frequency",
        lambda r: _intervened(r, "random phases", 16),
        most=0.25,
    ),
    Claim(
        "carrier.early",
        "A closed form predicts the kernel early in training: worst correlation over all runs "
        "at 0.95 of the loss of uniform attention",
        "book",
        "frequency",
        lambda r: min(_early(r, "correlation")),
        least=0.995,
    ),
    Claim(
        "carrier.late",
        "Late in training the kernel is the max-margin one: worst correlation on the training "
        "range, seeds 0 to 4",
        "book",
        "frequency",
        lambda r: min(_late(r, "correlation")),
        least=0.999,
    ),
    Claim(
        "carrier.late_far",
        "The same up to offset 255",
        "book",
        "frequency",
        lambda r: min(_late(r, "far_correlation")),
        least=0.99,
    ),
    Claim(
        "carrier.late_every_seed",
        "Over every seed of the result, the slow ones included, the kernel is near the max-margin "
        "one on the training range: smallest correlation",
        "book",
        "frequency",
        lambda r: min(_late(r, "correlation", n_seeds=len(r.seeds))),
        least=0.99,
    ),
    Claim(
        "carrier.late_margin",
        "Late in training the normalized margin is near its optimum: smallest ratio, seeds 0 to 4",
        "book",
        "frequency",
        lambda r: min(_late(r, "normalized_margin")),
        least=0.94,
    ),
    Claim(
        "carrier.late_support",
        "Low rank is sparsity in frequency: most frequencies above 1 % of the largest, of 16, "
        "seeds 0 to 4",
        "book",
        "frequency",
        lambda r: max(_late(r, "support")),
        most=4,
    ),
    Claim(
        "carrier.late_aligned",
        "Late in training the waves are in phase at the target: smallest alignment, seeds 0 to 4",
        "book",
        "frequency",
        lambda r: min(_late(r, "alignment")),
        least=0.98,
    ),
    Claim(
        "carrier.certificate",
        "The max-margin kernel is a global optimum: dual certificate minus 1, or relative gap "
        "between norm and multipliers, whichever is larger, over every offset and spectrum",
        "book",
        "frequency",
        _optimality,
        most=1e-5,
    ),
    Claim(
        "carrier.selection_small",
        "At training loss 1e-4 heads from a small initialization (0.01) keep their argmax at "
        "length 1,024: share",
        "book",
        "selection",
        lambda r: _run(r, 0.01)["kept_1024"],
        least=0.9,
    ),
    Claim(
        "carrier.selection_large",
        "At the same loss heads from a large one (1.0) do not: share",
        "book",
        "selection",
        lambda r: _run(r, 1.0)["kept_1024"],
        most=0.1,
    ),
    Claim(
        "carrier.selection_equivariance",
        "All of them are equivariant: largest error of any run, relative to the largest logit",
        "book",
        "selection",
        lambda r: max(column(r, "equivariance_error", kind="run")),
        most=1e-10,
    ),
    Claim(
        "carrier.selection_recovery",
        "Extrapolation arrives long after fitting: rise of the share that keeps its argmax at "
        "length 256, from loss 1e-2 to 1e-32, initial scale 1",
        "book",
        "selection",
        lambda r: _run(r, 1.0, 1e-32)["kept_256"] - _run(r, 1.0, 1e-2)["kept_256"],
        least=0.4,
    ),
    Claim(
        "carrier.decay_way",
        "Weight decay does not act on the way: at training loss 0.1 decayed heads from scale 1 "
        "keep their argmax at length 1,024 as rarely as others: largest share over decays",
        "book",
        "selection",
        lambda r: max(_decayed(r, 1.0, 0.1)),
        most=0.1,
    ),
    Claim(
        "carrier.decay_end",
        "It acts at the end: the same heads, where decay ends their training, keep it: smallest "
        "share over decays",
        "book",
        "selection",
        lambda r: min(_decayed(r, 1.0, None)),
        least=0.9,
    ),
    Claim(
        "carrier.decay_loss",
        "The loss at the end is decay times sqrt(d) times the least norm, from every initial "
        "scale: largest relative error",
        "book",
        "selection",
        _decayed_loss_error,
        most=0.1,
    ),
    Claim(
        "carrier.twin",
        "Every offset has a bad twin, equal in training loss and wrong beyond it, at little "
        "cost: norm ratio of the cheapest with a wrong offset 16 to 47, largest over offsets",
        "book",
        "selection",
        lambda r: max(column(r, "norm_ratio", kind="twin")),
        least=1.0,
        most=2.0,
    ),
    Claim(
        "carrier.twin_parity",
        "Twin and original have the same training loss: largest relative difference",
        "book",
        "selection",
        lambda r: max(abs(value) for value in column(r, "loss_difference", kind="twin")),
        most=1e-9,
    ),
)
