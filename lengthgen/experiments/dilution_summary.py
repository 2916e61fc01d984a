"""What the rows of `dilution` say: errors of the laws, half-accuracy lengths, remedies."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

import torch

from lengthgen.dilution import half_accuracy_length, quadrature_error
from lengthgen.experiments.dilution_units import VERSIONS

__all__ = ["head_rows", "summary"]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the summary over the experiment's rows of all kinds."""
    cells, heads, bessel, remedies = (
        [row for row in rows if row["kind"] == kind]
        for kind in ("cell", "head", "bessel", "remedy")
    )
    return {
        "accuracy": _errors(cells),
        "multiseed": _multiseed_summary(cells),
        "attention": _attention_summary(cells),
        "half_length": _half_summary(heads),
        "bessel": _bessel_summary(bessel),
        "remedies": _remedy_summary(remedies),
    }


def head_rows(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the half-accuracy length of each head, predicted and measured."""
    curves: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in cells:
        if "accuracy" in row:
            curves.setdefault((row["seed"], row["offset"]), []).append(row)
    rows = []
    for (seed, offset), of in curves.items():
        lengths = [row["length"] for row in of]
        halves = {
            name: half_accuracy_length(lengths, torch.tensor([row[name] for row in of]))
            for name in ("accuracy", "predicted")
        }
        rows.append(
            {
                "kind": "head",
                "offset": offset,
                "seed": seed,
                "half_measured": halves["accuracy"],
                "half_predicted": halves["predicted"],
            }
        )
    return rows


def _errors(cells: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return mean and worst |predicted - measured| of each version, over the same heads or all."""
    compared = [row for row in cells if "gaussian" in row]
    groups = {name: (name, compared) for name in VERSIONS}
    groups["predicted, every head"] = ("predicted", [r for r in cells if "accuracy" in r])
    summary = {}
    for group, (name, rows) in groups.items():
        errors = [abs(row[name] - row["accuracy"]) for row in rows]
        summary[group] = {
            "mean": fmean(errors),
            "worst": max(errors),
            "n_cells": len(errors),
            "n_heads": len({(row["seed"], row["offset"]) for row in rows}),
            "n_lengths": len({row["length"] for row in rows}),
        }
    return summary


def _multiseed_summary(cells: list[dict[str, Any]]) -> dict[str, float]:
    excess, errors = [], []
    for row in cells:
        if "multiseed" in row:
            p, error = row["predicted"], abs(row["predicted"] - row["multiseed"])
            errors.append(error)
            excess.append(error - 3 * (p * (1 - p) / row["multiseed_n"]) ** 0.5)
    return {
        "n_cells": len(errors),
        "mean": fmean(errors),
        "worst": max(errors),
        "worst_beyond_3_errors": max(excess),
    }


def _attention_summary(cells: list[dict[str, Any]]) -> dict[str, float]:
    rows = [row for row in cells if "accuracy" in row]
    deviations = [
        abs(row["attention_law"] - row["attention"]) / row["attention_error"] for row in rows
    ]
    ratios = [row["attention_kernel"] / row["attention_law"] for row in rows]
    return {
        "n_cells": len(rows),
        "worst_standard_errors": max(deviations),
        "mean_squared_standard_errors": fmean(d * d for d in deviations),
        "kernel_lowest_ratio": min(ratios),
        "kernel_highest_ratio": max(ratios),
        "quadrature_error": quadrature_error(0.5),
    }


def _half_summary(heads: list[dict[str, Any]]) -> dict[str, Any]:
    both = [row for row in heads if row["half_measured"] and row["half_predicted"]]
    errors = [abs(row["half_predicted"] / row["half_measured"] - 1) for row in both]
    measured = [row["half_measured"] for row in both]
    return {
        "n_heads": len(both),
        "n_beyond": sum(row["half_measured"] is None for row in heads),
        "n_disagree": sum(
            (row["half_measured"] is None) != (row["half_predicted"] is None) for row in heads
        ),
        "mean_error": fmean(errors) if errors else None,
        "worst_error": max(errors) if errors else None,
        "lowest": min(measured) if errors else None,
        "median": median(measured) if errors else None,
        "highest": max(measured) if errors else None,
    }


def _bessel_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    by_head: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_head.setdefault(row["offset"], []).append(row)
    heads = [sum(r["mean"] for r in of) / sum(r["bessel"] for r in of) for of in by_head.values()]
    return {
        "n_pairs": len(rows),
        "limit": rows[0]["limit"],
        "worst_pair": max(abs(row["mean"] / row["bessel"] - 1) for row in rows),
        "worst_torus": max(abs(row["mean"] / row["torus"] - 1) for row in rows),
        "worst_resonance": max(abs(row["torus"] / row["bessel"] - 1) for row in rows),
        "worst_head": max(abs(ratio - 1) for ratio in heads),
    }


def _remedy_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    summary = {}
    for remedy in dict.fromkeys(row["remedy"] for row in rows):
        of = [row for row in rows if row["remedy"] == remedy]
        summary[remedy] = {
            "accuracy": {
                str(length): fmean(row["measured"] for row in of if row["length"] == length)
                for length in sorted({row["length"] for row in of})
            },
            "mean_error": fmean(abs(row["measured"] - row["law"]) for row in of),
            "worst_error": max(abs(row["measured"] - row["law"]) for row in of),
        }
    return summary
