"""Units of `frequency` without tokens: the early carrier, the late one, and the way between."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lengthgen import carrier
from lengthgen.descent import Descent, snapshots, trajectory
from lengthgen.early_carrier import early_head, first_step_coefficients
from lengthgen.encodings import rotary_frequencies
from lengthgen.late_carrier import kkt_residual, max_margin, normalized_margin
from lengthgen.position_head import TRAINING_LENGTHS, PositionHead, initialize, kernel
from lengthgen.results import unit

__all__ = [
    "FAR",
    "MAIN",
    "NEAR",
    "UNIFORM_LOSS",
    "CarrierConfig",
    "PositionConfig",
    "Spectrum",
    "agreement",
    "carrier_rows",
    "early_rows",
    "late_rows",
]

NEAR, FAR = TRAINING_LENGTHS[-1], 256
"""Offsets 0 .. NEAR - 1 are those of the training range; FAR shows what repeats beyond it."""

UNIFORM_LOSS = sum(math.log(length) for length in TRAINING_LENGTHS) / len(TRAINING_LENGTHS)
"""Training loss of a head with uniform attention, in nats."""


@dataclass(frozen=True)
class Spectrum:
    """A rotary spectrum: base and width of the head."""

    base: float = 10_000.0
    width: int = 32

    @property
    def frequencies(self) -> Tensor:
        """Frequencies in radians per token."""
        return rotary_frequencies(self.width, self.base)


MAIN = Spectrum()


@dataclass(frozen=True)
class PositionConfig:
    """Position-only heads: seeds, offsets and scale, and when they are looked at."""

    n_seeds: int
    offsets: tuple[int, ...]
    std: float
    spectrum: Spectrum = MAIN
    shares: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()

    @property
    def models(self) -> list[tuple[int, int]]:
        """(seed, offset) of each head, seeds slowest."""
        return [(seed, offset) for seed in range(self.n_seeds) for offset in self.offsets]

    def start(self) -> tuple[PositionHead, Tensor]:
        """Return the heads before training, and the offset of each."""
        seeds, offsets = zip(*self.models, strict=True)
        return initialize(seeds, self.std, self.spectrum.frequencies), torch.tensor(offsets)

    def rows(self, kind: str, columns: dict[str, Tensor], **constant: Any) -> list[dict[str, Any]]:
        """Return one row per head."""
        where = {"base": self.spectrum.base, "width": self.spectrum.width, "std": self.std}
        return [
            {"kind": kind, **where, "offset": offset, "seed": seed, **constant}
            | {name: column[model].item() for name, column in columns.items()}
            for model, (seed, offset) in enumerate(self.models)
        ]


def agreement(first: Tensor, second: Tensor, frequencies: Tensor, length: int) -> Tensor:
    """Return the correlation of two kernels over offsets 0 .. length - 1."""
    offsets = torch.arange(length)
    return carrier.correlation(
        kernel(first, frequencies, offsets), kernel(second, frequencies, offsets)
    )


@unit
def early_rows(config: PositionConfig) -> list[dict[str, Any]]:
    """Compare heads early in training with the closed form and with the naive first step."""
    (start, offset), frequencies = config.start(), config.spectrum.frequencies
    naive = first_step_coefficients(frequencies, offset)
    levels = [share * UNIFORM_LOSS for share in config.shares]
    rows = []
    for share, snap in zip(
        config.shares, snapshots(start, offset, levels, 2_000, Descent("loss", 1.0)), strict=True
    ):
        trained = snap.head.coefficients
        closed = early_head(start, offset, 1.0, snap.steps).coefficients
        columns = {
            "reached": snap.reached,
            "correlation": agreement(closed, trained, frequencies, NEAR),
            "naive_correlation": agreement(naive, trained, frequencies, NEAR),
            "largest_share": carrier.spectrum(trained).amax(-1),
        }
        rows += config.rows("early", columns, share=share)
    return rows


@unit
def late_rows(config: PositionConfig) -> list[dict[str, Any]]:
    """Follow heads from their start towards the max-margin carrier."""
    (start, offset), frequencies = config.start(), config.spectrum.frequencies
    solved = {k: max_margin(frequencies, k) for k in config.offsets}
    best = torch.stack([solved[int(k)].coefficients for k in offset])
    norm = torch.tensor([solved[int(k)].norm for k in offset], dtype=torch.float64)
    level = [config.shares[0] * UNIFORM_LOSS]
    snap = snapshots(start, offset, level, 2_000, Descent("loss", 1.0))[0]
    early = early_head(start, offset, 1.0, snap.steps).coefficients
    rows = []
    path = trajectory(start, offset, config.steps, Descent("log_loss", 1.0))
    for step, (head, log_value) in zip(config.steps, path, strict=True):
        now = head.coefficients
        stationarity, slackness = kkt_residual(head, offset)
        columns = {
            "log_loss": log_value,
            "early_correlation": agreement(now, early, frequencies, NEAR),
            "correlation": agreement(now, best, frequencies, NEAR),
            "far_correlation": agreement(now, best, frequencies, FAR),
            "normalized_margin": normalized_margin(head, offset) * norm,
            "support": carrier.support_size(now),
            "alignment": carrier.alignment(now, frequencies, offset),
            "stationarity": stationarity,
            "slackness": slackness,
        }
        rows += config.rows("late", columns, step=step)
    return rows


@dataclass(frozen=True)
class CarrierConfig:
    """A spectrum, its target offsets, and how far its max-margin kernels are followed."""

    spectrum: Spectrum
    offsets: tuple[int, ...]
    limit: int


@unit
def carrier_rows(config: CarrierConfig) -> list[dict[str, Any]]:
    """Solve the cone program: norm, certificate, duality gap, and where its own argmax is lost."""
    frequencies, rows = config.spectrum.frequencies, []
    for offset in config.offsets:
        best, target = max_margin(frequencies, offset), torch.tensor([offset])
        coefficients = best.coefficients[None]
        certificate, active = best.certificate(), best.coefficients.abs()
        off_support = certificate[active < 0.01 * active.max()]
        lost = carrier.first_lost_offset(coefficients, frequencies, target, config.limit)
        columns = {
            "norm": torch.tensor(best.norm),
            "certificate": certificate.max(),
            "duality_gap": (best.multipliers.sum() - best.norm).abs() / best.norm,
            "certificate_off_support": off_support.max() if len(off_support) else torch.tensor(0.0),
            "support": carrier.support_size(coefficients)[0],
            "alignment": carrier.alignment(coefficients, frequencies, target)[0],
            "first_lost": lost[0],
        }
        rows.append(
            {"kind": "max-margin", "base": config.spectrum.base, "width": config.spectrum.width}
            | {"offset": offset, "limit": config.limit}
            | {name: value.item() for name, value in columns.items()}
            | {"amplitudes": [round(a, 6) for a in (active / active.sum()).tolist()]}
            | {"certificates": [round(s, 6) for s in certificate.tolist()]}
        )
    return rows
