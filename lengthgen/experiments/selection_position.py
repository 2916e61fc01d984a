"""Units of `selection` without tokens: heads at matched training loss, and their bad twins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lengthgen import carrier
from lengthgen.descent import Descent, scale_to_loss, snapshots
from lengthgen.encodings import rotary_frequencies
from lengthgen.late_carrier import bad_twin, max_margin, normalized_margin, smallest_head
from lengthgen.position_head import equivariance_error, initialize, keeps_argmax
from lengthgen.position_loss import log_loss
from lengthgen.results import unit

__all__ = [
    "DEFAULT",
    "LIMIT",
    "RunConfig",
    "Setting",
    "TwinConfig",
    "run_rows",
    "twin_rows",
]

DEFAULT = "default"
FLOW = Descent()
LIMIT = 1_024
"""Offsets below this one are scanned for the first one that beats the target."""

NEVER = 1e-300
"""A training loss that no run reaches."""


@dataclass(frozen=True)
class Setting:
    r"""One way to train position-only heads; the name says what differs from the default.

    Scales are in the unit of `position_head.initialize`, $N(0, \mathrm{std}^2 \sqrt d)$, or, with
    `plain`, $N(0, \mathrm{std}^2)$. Heads are measured at the training losses `levels` and, with
    `to_the_end`, once more after `max_steps`: weight decay ends training at a loss of its own.
    """

    name: str = DEFAULT
    stds: tuple[float, ...] = (0.01, 1.0)
    levels: tuple[float, ...] = (1e-4,)
    base: float = 10_000.0
    width: int = 32
    plain: bool = False
    descent: Descent = FLOW
    max_steps: int = 8_000
    to_the_end: bool = False

    @property
    def frequencies(self) -> Tensor:
        """Frequencies in radians per token."""
        return rotary_frequencies(self.width, self.base)


@dataclass(frozen=True)
class RunConfig:
    """One setting at one initial scale."""

    setting: Setting
    std: float
    n_seeds: int
    offsets: tuple[int, ...]


@unit
def run_rows(config: RunConfig) -> list[dict[str, Any]]:
    """Train from one initial scale and measure at each training loss.

    The rows of the end have no level; every head gets there.
    """
    setting, frequencies = config.setting, config.setting.frequencies
    models = [(seed, offset) for seed in range(config.n_seeds) for offset in config.offsets]
    offset = torch.tensor([offset for _, offset in models])
    std = config.std / setting.width**0.25 if setting.plain else config.std
    start = initialize([seed for seed, _ in models], std, frequencies)
    levels = (*setting.levels, NEVER) if setting.to_the_end else setting.levels
    rows = []
    for snap in snapshots(start, offset, levels, setting.max_steps, setting.descent):
        coefficients, at_end = snap.head.coefficients, snap.level == NEVER
        columns = {
            "reached": snap.reached | at_end,
            "steps": snap.steps,
            "loss": log_loss(snap.head, offset, setting.descent.lengths).exp(),
            "first_lost": carrier.first_lost_offset(coefficients, frequencies, offset, LIMIT),
            "alignment": carrier.alignment(coefficients, frequencies, offset),
            "support": carrier.support_size(coefficients),
            "equivariance_error": equivariance_error(snap.head, 1_000),
        }
        rows += [
            {
                "kind": "run",
                "setting": setting.name,
                "std": config.std,
                "level": None if at_end else snap.level,
            }
            | {"offset": task, "seed": seed}
            | {name: column[model].item() for name, column in columns.items()}
            for model, (seed, task) in enumerate(models)
        ]
    return rows


@dataclass(frozen=True)
class TwinConfig:
    """A target offset, and the wrong offsets that a twin may prefer."""

    offset: int
    wrong: tuple[int, int]
    level: float


@unit
def twin_rows(config: TwinConfig) -> list[dict[str, Any]]:
    """Find the cheapest head that fits as well as the best one and prefers a wrong offset."""
    frequencies = rotary_frequencies(32)
    good = max_margin(frequencies, config.offset)
    twins = {d: bad_twin(frequencies, config.offset, d) for d in range(*config.wrong)}
    wrong = min(twins, key=lambda d: twins[d].norm)
    coefficients = torch.stack([good.coefficients, twins[wrong].coefficients])
    offset = torch.tensor([config.offset] * 2)
    unit_margin = smallest_head(coefficients, frequencies)
    heads = scale_to_loss(unit_margin, offset, config.level)
    log_value = log_loss(heads, offset)
    columns = {
        "loss": log_value.exp(),
        "margin": normalized_margin(unit_margin, offset) * unit_margin.size,
        "size": heads.size,
        "first_lost": carrier.first_lost_offset(heads.coefficients, frequencies, offset, 100_000),
        "keeps_48": keeps_argmax(heads, offset, 48),
        "alignment": carrier.alignment(heads.coefficients, frequencies, offset),
        "support": carrier.support_size(coefficients),
        "equivariance_error": equivariance_error(heads, 1_000),
    }
    ratios = [twin.norm / good.norm for twin in twins.values()]
    row = {"kind": "twin", "offset": config.offset, "wrong_offset": wrong}
    row |= {"norm_ratio": min(ratios), "largest_ratio": max(ratios), "level": config.level}
    row["norm"] = good.norm
    row["loss_difference"] = (log_value[1] - log_value[0]).expm1().item()
    row |= {f"good_{name}": column[0].item() for name, column in columns.items()}
    row |= {f"twin_{name}": column[1].item() for name, column in columns.items()}
    pairs = {"good": coefficients[0], "twin": coefficients[1]}
    for name, c in pairs.items():
        row[f"{name}_coefficients"] = [[round(x, 8) for x in pair] for pair in _pairs(c)]
    return [row]


def _pairs(coefficients: Tensor) -> list[list[float]]:
    return torch.view_as_real(coefficients).tolist()
