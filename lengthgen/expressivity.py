r"""What an encoding could represent, apart from what training selects: margins, and a bound.

Leave the tokens out. A head's logits are then a kernel $\kappa(D)$ of the offset, and a family of
encodings is a set of kernels. Its *margin* at offset K over $n$ offsets is the largest
$\kappa(K) - \max_{D < n, D \ne K} \kappa(D)$ among its kernels with logits between -1 and 1. The
rule can be represented if and only if the margin is above 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Complex128, Float64, Integer
from scipy.optimize import linprog
from torch import Tensor

from lengthgen.encodings import ClippedRelative, Rotary, T5Bias, XPos
from lengthgen.results import unit

__all__ = [
    "MarginConfig",
    "largest_mass",
    "margin_rows",
    "margins",
    "monotone_bound",
    "swap_keeps_answers",
    "table_margin",
    "wave_features",
    "wave_margin",
]


def wave_features(encoding: Rotary, n_offsets: int) -> Complex128[Tensor, "offsets frequencies"]:
    r"""Return $\zeta_f^{D/s} e^{-i \omega_f D}$, the waves of a rotary or xPos head.

    Rotary waves do not decay, $\zeta_f = 1$. Source: Su et al. (2024); Sun et al. (2022).
    """
    offsets = torch.arange(n_offsets, dtype=torch.float64)[:, None]
    decay = encoding.log_decay if isinstance(encoding, XPos) else 0 * encoding.frequencies
    return torch.polar((offsets * decay).exp(), -offsets * encoding.frequencies)


def wave_margin(features: Complex128[Tensor, "offsets frequencies"], offset: int) -> float:
    r"""Return the largest margin of $\kappa(D) = \mathrm{Re} \sum_f c_f \phi_f(D)$.

    Among coefficients with $\sum_f |c_f| \le 1$, which bounds every logit where no wave grows: a
    cone program. Rotary waves have a margin above 0 on every range (aligned phases), but it
    shrinks as the range grows.

    Raises:
        ValueError: an offset outside the features.

    Source: ours, the program of `lengthgen.late_carrier` in other units.
    """
    import cvxpy  # it takes a second or two

    _check(offset, len(features))
    gaps = (features[offset] - features[torch.arange(len(features)) != offset]).numpy()
    c, margin = cvxpy.Variable((gaps.shape[1], 2)), cvxpy.Variable()
    limits = [
        gaps.real @ c[:, 0] - gaps.imag @ c[:, 1] >= margin,
        cvxpy.sum(cvxpy.norm(c, axis=1)) <= 1,
    ]
    problem = cvxpy.Problem(cvxpy.Maximize(margin), limits)
    problem.solve(solver=cvxpy.CLARABEL)
    return max(0.0, float(problem.value))


def table_margin(
    features: Float64[Tensor, "offsets entries"], offset: int, *, falling: bool = False
) -> float:
    r"""Return the largest margin of $\kappa(D) = \sum_e \beta_e \phi_e(D)$ with $|\kappa| \le 1$.

    A linear program. Features are one-hot for a table with a number per bucket of offsets.

    Args:
        features: $\phi_e(D)$.
        offset: target offset K.
        falling: only $\beta_e \le 0$, for penalties that grow with the offset.

    Raises:
        ValueError: an offset outside the features.

    Source: ours.

    Example:
        Offsets 2 and 3 share a bucket: neither can be told from the other.

        >>> buckets = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 2]]
        >>> table_margin(buckets, 1), table_margin(buckets, 2)
        (2.0, 0.0)
    """
    _check(offset, len(features))
    phi = features.numpy()
    n, entries = phi.shape
    others = np.arange(n) != offset
    above = np.hstack([phi[others] - phi[offset], np.ones((n - 1, 1))])  # margin - gap <= 0
    bounds = np.hstack([np.vstack([phi, -phi]), np.zeros((2 * n, 1))])
    solution = linprog(
        np.append(np.zeros(entries), -1.0),
        A_ub=np.vstack([above, bounds]),
        b_ub=np.append(np.zeros(n - 1), np.ones(2 * n)),
        bounds=[(None, 0.0 if falling else None)] * entries + [(0.0, None)],
    )
    return 0.0 if solution.status == 2 else round(-float(solution.fun), 9) + 0.0


def margins(offset: int, n_offsets: int) -> dict[str, float]:
    """Return each family's largest margin at an offset; by the family's name.

    Families that contain another have at least its margin: absolute vectors can be those of
    `sinusoidal`, whose products contain the rotary waves; FIRE below its threshold is any function
    of the offset.
    """
    generator = torch.Generator().manual_seed(0)
    distance = torch.arange(n_offsets)[:, None]
    query = torch.tensor([n_offsets - 1])
    keys = query - torch.arange(n_offsets)
    d_head = 32  # the book's
    t5, clipped = T5Bias(1, generator), ClippedRelative(1, generator)
    t5_entry = t5.bucket(query[:, None] - keys)[0]
    clipped_entry = (query - keys).clamp(max=clipped.max_offset)
    rotary = wave_margin(wave_features(Rotary(d_head), n_offsets), offset)
    any_function = table_margin(torch.eye(n_offsets, dtype=torch.float64), offset)
    return {
        "none": table_margin(torch.ones(n_offsets, 1, dtype=torch.float64), offset),
        "learned": rotary,
        "sinusoidal": rotary,
        "rotary": rotary,
        "rotary-partial": wave_margin(wave_features(Rotary(d_head, width=8), n_offsets), offset),
        "xpos": wave_margin(wave_features(XPos(d_head), n_offsets), offset),
        "alibi": table_margin(distance.double() / n_offsets, offset, falling=True),
        "kerple": table_margin(distance.double().log1p(), offset, falling=True),
        "t5": table_margin(torch.nn.functional.one_hot(t5_entry).double(), offset),
        "clipped-relative": table_margin(
            torch.nn.functional.one_hot(clipped_entry).double(), offset
        ),
        "fire": any_function,
    }


@dataclass(frozen=True)
class MarginConfig:
    """A target offset, and the number of offsets to tell it from."""

    offset: int
    n_offsets: int


@unit
def margin_rows(config: MarginConfig) -> list[dict[str, Any]]:
    """Compute every family's margin (a unit of work); a row per family."""
    found = margins(config.offset, config.n_offsets)
    return [{"family": name, "margin": round(value, 6)} for name, value in found.items()]


def monotone_bound(offset: int, vocabulary: int) -> float:
    r"""Bound the accuracy at offset K of heads whose bias never rises with the offset.

    1 at $K = 1$ and $(V + 1) / 2V$ at every $K \ge 2$, whatever the content logits and the bias,
    if the head answers the token with the largest mass.

    Source: ours, chapter 8.

    Example:
        >>> monotone_bound(1, 16), monotone_bound(2, 16)
        (1.0, 0.53125)
    """
    return 1.0 if offset == 1 else (vocabulary + 1) / (2 * vocabulary)


def swap_keeps_answers(
    logits: Float64[Tensor, "vocabulary vocabulary offsets"],
    tokens: Integer[Tensor, "sequences offsets"],
    offset: int,
    nearer: int,
) -> Bool[Tensor, " sequences"]:
    r"""Tell whether an answer follows its token when target and a nearer token change places.

    Sequences that a head answers with their target $v = t_K \ne t_D$ must, with $t_K$ and $t_D$
    exchanged, be answered with $v$ again, now at the nearer offset: the step of the proof in
    chapter 8. True where there is nothing to check.

    Args:
        logits: $T(a, b, D)$ of one head; answers are tokens of the largest mass.
        tokens: token at each offset, the query's own at offset 0.
        offset: target offset K.
        nearer: D, in 1 .. K - 1.
    """
    swapped = tokens.clone()
    swapped[:, [offset, nearer]] = tokens[:, [nearer, offset]]
    before, after = largest_mass(logits, tokens), largest_mass(logits, swapped)
    target = tokens[:, offset]
    relevant = (before == target) & (target != tokens[:, nearer])
    return ~relevant | (after == target)


def largest_mass(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the token with the largest attention mass in each sequence, (sequences,)."""
    tokens = tokens.long()
    where = torch.arange(tokens.shape[1])
    weights = logits[tokens[:, :1], tokens, where].softmax(-1)
    mass = weights.new_zeros(len(tokens), logits.shape[0])
    return mass.scatter_add_(1, tokens, weights).argmax(1)


def _check(offset: int, n_offsets: int) -> None:
    if not 0 <= offset < n_offsets:
        raise ValueError(f"offset={offset} is not allowed: it must be in 0..{n_offsets - 1}")
