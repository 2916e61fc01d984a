"""`frequency`: the carrier, predicted and measured: spectrum, rank, phases, with causal tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from lengthgen import carrier, figures
from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.descent import Descent, snapshots, trajectory
from lengthgen.early_carrier import early_head, first_step_coefficients
from lengthgen.encodings import rotary_frequencies
from lengthgen.evaluation import accuracy
from lengthgen.experiments.experiment import Experiment
from lengthgen.experiments.heads import OFFSETS, head_stacks
from lengthgen.late_carrier import kkt_residual, max_margin, normalized_margin
from lengthgen.position_head import TRAINING_LENGTHS, PositionHead, initialize, kernel
from lengthgen.results import Result, Unit, unit
from lengthgen.task import TestSequences
from lengthgen.training import TrainingConfig, load_heads

__all__ = ["EXPERIMENT", "INTERVENTIONS", "Config", "Spectrum", "intervene"]

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
OTHERS = (
    *(Spectrum(base=base) for base in (10.0, 100.0, 1e3, 1e5, 1e6)),
    *(Spectrum(width=width) for width in (8, 16, 64, 128)),
)


@dataclass(frozen=True)
class Config:
    """Settings of `frequency`; `others` are the spectra beside the main one.

    `early_stds` and `late_std` are initial scales in the unit of `position_head.initialize`;
    `early_shares` are training losses as shares of the loss of uniform attention. Heads of other
    spectra are trained for a few seeds and offsets only.
    """

    n_seeds: int = 20
    offsets: tuple[int, ...] = OFFSETS
    early_stds: tuple[float, ...] = (1e-5, 0.04, 0.1)
    early_shares: tuple[float, ...] = (0.95, 0.8)
    late_std: float = 0.04
    late_steps: tuple[int, ...] = (0, 10, 20, 30, 50, 80, 150, 300, 600, 1_000, 3_000)
    others: tuple[Spectrum, ...] = OTHERS
    n_other_seeds: int = 4
    other_offsets: tuple[int, ...] = (1, 2, 4, 8)
    lengths: tuple[int, ...] = (16, 48, 128)
    n_sequences: int = 1_000


# -- position-only heads --------------------------------------------------------------------------


@dataclass(frozen=True)
class _PositionConfig:
    n_seeds: int
    offsets: tuple[int, ...]
    std: float
    spectrum: Spectrum = MAIN
    shares: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()

    @property
    def models(self) -> list[tuple[int, int]]:
        return [(seed, offset) for seed in range(self.n_seeds) for offset in self.offsets]

    def start(self) -> tuple[PositionHead, Tensor]:
        seeds, offsets = zip(*self.models, strict=True)
        return initialize(seeds, self.std, self.spectrum.frequencies), torch.tensor(offsets)

    def rows(self, kind: str, columns: dict[str, Tensor], **constant: Any) -> list[dict[str, Any]]:
        where = {"base": self.spectrum.base, "width": self.spectrum.width, "std": self.std}
        return [
            {"kind": kind, **where, "offset": offset, "seed": seed, **constant}
            | {name: _number(column[model]) for name, column in columns.items()}
            for model, (seed, offset) in enumerate(self.models)
        ]


def _number(value: Tensor) -> float | int | bool:
    """Return a plain number, with ten significant digits: enough for every criterion."""
    value = value.item()
    return float(f"{value:.10g}") if isinstance(value, float) else value


def _agreement(first: Tensor, second: Tensor, frequencies: Tensor, length: int) -> Tensor:
    offsets = torch.arange(length)
    return carrier.correlation(
        kernel(first, frequencies, offsets), kernel(second, frequencies, offsets)
    )


@unit
def early_rows(config: _PositionConfig) -> list[dict[str, Any]]:
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
            "correlation": _agreement(closed, trained, frequencies, NEAR),
            "naive_correlation": _agreement(naive, trained, frequencies, NEAR),
            "largest_share": carrier.spectrum(trained).amax(-1),
        }
        rows += config.rows("early", columns, share=share)
    return rows


@unit
def late_rows(config: _PositionConfig) -> list[dict[str, Any]]:
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
            "early_correlation": _agreement(now, early, frequencies, NEAR),
            "correlation": _agreement(now, best, frequencies, NEAR),
            "far_correlation": _agreement(now, best, frequencies, FAR),
            "normalized_margin": normalized_margin(head, offset) * norm,
            "support": carrier.support_size(now),
            "alignment": carrier.alignment(now, frequencies, offset),
            "stationarity": stationarity,
            "slackness": slackness,
        }
        rows += config.rows("late", columns, step=step)
    return rows


@dataclass(frozen=True)
class _CarrierConfig:
    spectrum: Spectrum
    offsets: tuple[int, ...]
    limit: int


@unit
def carrier_rows(config: _CarrierConfig) -> list[dict[str, Any]]:
    """Solve the cone program: its norm, its certificate and where its own argmax is lost."""
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
            "certificate_off_support": off_support.max() if len(off_support) else torch.tensor(0.0),
            "support": carrier.support_size(coefficients)[0],
            "alignment": carrier.alignment(coefficients, frequencies, target)[0],
            "first_lost": lost[0],
        }
        rows.append(
            {"kind": "max-margin", "base": config.spectrum.base, "width": config.spectrum.width}
            | {"offset": offset, "limit": config.limit}
            | {name: _number(value) for name, value in columns.items()}
            | {"amplitudes": [round(a, 6) for a in (active / active.sum()).tolist()]}
            | {"certificates": [round(s, 6) for s in certificate.tolist()]}
        )
    return rows


# -- heads with tokens ----------------------------------------------------------------------------


def _coefficients(stack: HeadStack) -> Tensor:
    """Return every token pair's coefficients, (models, query token, key token, frequencies)."""
    token = stack.parameters["token"].double()
    query, key = (token @ stack.parameters[side].double() for side in ("query", "key"))
    return carrier.token_coefficients(query, key)


def _rotate(stack: HeadStack, angles: Tensor) -> Tensor:
    """Return query weights that multiply every model's coefficients c_f by e^{i angle_f}."""
    query = carrier.complex_channels(stack.parameters["query"])
    turned = query * torch.polar(torch.ones_like(angles), -angles)[:, None].to(query.dtype)
    return torch.view_as_real(turned).flatten(-2)


def _keep(stack: HeadStack, kept: Tensor) -> HeadStack:
    """Set the query's channels of all other frequencies to zero; `kept` is (models, freq.)."""
    channels = kept.repeat_interleave(2, dim=-1)[:, None].to(stack.dtype)
    return stack.with_parameters(query=stack.parameters["query"] * channels)


def _truncate(stack: HeadStack, rank: int) -> HeadStack:
    """Replace W_q W_k^T by its best approximation of a rank, by projecting both factors."""
    query, key = stack.parameters["query"], stack.parameters["key"]
    left, _, right = torch.linalg.svd(query @ key.transpose(1, 2))
    left, right = left[..., :rank], right[:, :rank].transpose(1, 2)
    return stack.with_parameters(
        query=left @ (left.transpose(1, 2) @ query), key=right @ (right.transpose(1, 2) @ key)
    )


def _content(stack: HeadStack, only_mean: bool) -> HeadStack:
    """Give every token the mean query and key (the kernel alone), or take the means away."""
    token = stack.parameters["token"]
    changed = {}
    for side in ("query", "key"):
        rows = token @ stack.parameters[side]
        mean = rows.mean(1, keepdim=True).expand_as(rows)
        wanted = mean if only_mean else rows - mean
        changed[side] = torch.linalg.pinv(token) @ wanted
    return stack.with_parameters(**changed)


def _strongest(stack: HeadStack, number: int) -> Tensor:
    """Tell which frequencies carry the largest amplitudes of the mean kernel, (models, freq.)."""
    amplitudes = _coefficients(stack).mean((1, 2)).abs()
    return amplitudes >= amplitudes.topk(number, dim=-1).values[:, -1:]


def _random_angles(seed: int, offset: int, n_frequencies: int) -> Tensor:
    generator = torch.Generator().manual_seed(1_000 * seed + offset)
    return 2 * math.pi * torch.rand(n_frequencies, generator=generator)


def _band(stack: HeadStack, index: int) -> HeadStack:
    n_frequencies = stack.config.d_head // 2
    kept = torch.arange(n_frequencies) // (n_frequencies // 4) != index
    return _keep(stack, kept.expand(stack.n_models, -1))


def _randomized(stack: HeadStack, models: list[tuple[int, int]]) -> HeadStack:
    n_frequencies = stack.config.d_head // 2
    angles = torch.stack([_random_angles(*model, n_frequencies) for model in models])
    return stack.with_parameters(query=_rotate(stack, angles))


def _aligned(stack: HeadStack, models: list[tuple[int, int]]) -> HeadStack:
    offset = torch.tensor([offset for _, offset in models])
    frequencies = rotary_frequencies(stack.config.d_head)
    wanted = offset[:, None] * frequencies
    angles = wanted - _coefficients(stack).mean((1, 2)).angle()
    return stack.with_parameters(query=_rotate(stack, angles.float()))


INTERVENTIONS: dict[str, Callable[[HeadStack, list[tuple[int, int]]], HeadStack]] = {
    "none": lambda stack, models: stack,
    **{f"rank {r}": lambda stack, models, r=r: _truncate(stack, r) for r in (1, 2, 3, 4, 8)},
    "kernel alone": lambda stack, models: _content(stack, only_mean=True),
    "means removed": lambda stack, models: _content(stack, only_mean=False),
    **{f"without band {i}": lambda stack, models, i=i: _band(stack, i) for i in range(4)},
    **{
        f"strongest {n} alone": lambda stack, models, n=n: _keep(stack, _strongest(stack, n))
        for n in (2, 4, 6)
    },
    "without strongest 4": lambda stack, models: _keep(stack, ~_strongest(stack, 4)),
    "random phases": _randomized,
    "aligned phases": _aligned,
}
"""Changes to trained heads by name; bands are quarters of the spectrum, band 0 the fastest."""


def intervene(stack: HeadStack, models: list[tuple[int, int]], name: str) -> HeadStack:
    """Return rotary heads of the main spectrum with one change to their weights.

    Args:
        stack: trained heads.
        models: (seed, offset) of each.
        name: one of `INTERVENTIONS`.

    Raises:
        ValueError: an unknown name.
    """
    if name not in INTERVENTIONS:
        raise ValueError(f"unknown intervention {name!r}; choose from {', '.join(INTERVENTIONS)}")
    return INTERVENTIONS[name](stack, models)


@dataclass(frozen=True)
class _TokenConfig:
    training: TrainingConfig
    spectrum: Spectrum = MAIN
    interventions: tuple[str, ...] = ("none",)
    lengths: tuple[int, ...] = ()
    n_sequences: int = 1
    offsets: tuple[int, ...] = field(default=OFFSETS)


def _measures(stack: HeadStack, spectrum: Spectrum, offset: Tensor) -> dict[str, Tensor]:
    frequencies = spectrum.frequencies
    solved = {k: max_margin(frequencies, k).coefficients for k in set(offset.tolist())}
    best = torch.stack([solved[int(k)] for k in offset])
    pairs = _coefficients(stack)
    mean = pairs.mean((1, 2))
    far = kernel(pairs, frequencies, torch.arange(FAR))
    matrix = stack.parameters["query"] @ stack.parameters["key"].transpose(1, 2)
    shares = carrier.spectrum(mean)
    return {
        "explained": carrier.explained_share(far[..., :NEAR]),
        "far_explained": carrier.explained_share(far),
        "effective_rank": carrier.effective_rank(matrix.double()),
        "alignment": carrier.alignment(mean, frequencies, offset),
        "support": carrier.support_size(mean),
        "support_tenth": carrier.support_size(mean, 0.1),
        "effective_frequencies": 1 / shares.square().sum(-1),
        "margin_correlation": _agreement(mean, best, frequencies, NEAR),
        "far_margin_correlation": _agreement(mean, best, frequencies, FAR),
        "naive_correlation": _agreement(
            mean, first_step_coefficients(frequencies, offset), frequencies, NEAR
        ),
    }


@unit
def token_rows(config: _TokenConfig) -> list[dict[str, Any]]:
    """Measure the carrier of heads with tokens, before and after training."""
    training = config.training
    offset = torch.tensor([offset for _, offset in training.models])
    rows = []
    for trained, stack in ((False, training.stack()), (True, load_heads(training))):
        measures = _measures(stack, config.spectrum, offset)
        shares = carrier.spectrum(_coefficients(stack).mean((1, 2)))
        for model, (seed, task) in enumerate(training.models):
            row = {"kind": "token", "base": config.spectrum.base, "width": config.spectrum.width}
            row |= {"trained": trained, "offset": task, "seed": seed}
            row |= {name: _number(column[model]) for name, column in measures.items()}
            row["amplitudes"] = [round(share, 5) for share in shares[model].tolist()]
            rows.append(row)
    return rows


@unit
def causal_rows(config: _TokenConfig) -> list[dict[str, Any]]:
    """Measure the accuracy of trained heads after each intervention."""
    training, rows = config.training, []
    stack = load_heads(training)
    test = TestSequences(config.n_sequences, training.head.vocabulary)
    offsets = [offset for _, offset in training.models]
    for name in config.interventions:
        changed = intervene(stack, training.models, name)
        table = accuracy(changed, offsets, config.lengths, test)
        rows += [
            {"kind": "causal", "base": config.spectrum.base, "width": config.spectrum.width}
            | {"intervention": name, "encoding": "rotary", "offset": offset, "seed": seed}
            | {"length": length, "accuracy": round(float(value), 6)}
            | {"n_sequences": config.n_sequences}
            for (seed, offset), values in zip(training.models, table, strict=True)
            for length, value in zip(config.lengths, values, strict=True)
        ]
    return rows


# -- the experiment -------------------------------------------------------------------------------


def _training(config: Config, spectrum: Spectrum) -> TrainingConfig:
    head = HeadConfig("rotary", {"base": spectrum.base}, d_head=spectrum.width)
    return TrainingConfig(head, tuple(range(config.n_other_seeds)), config.other_offsets)


def _work(config: Config) -> Iterator[tuple[Unit, Any]]:
    everything = (config.n_seeds, config.offsets)
    yield carrier_rows, _CarrierConfig(MAIN, config.offsets, 200_000)
    for std in config.early_stds:
        yield early_rows, _PositionConfig(*everything, std, shares=config.early_shares)
    early = config.early_shares[:1]
    yield (
        late_rows,
        _PositionConfig(*everything, config.late_std, shares=early, steps=config.late_steps),
    )
    for training in head_stacks("rotary", config.n_seeds):
        token = _TokenConfig(
            training, MAIN, tuple(INTERVENTIONS), config.lengths, config.n_sequences
        )
        yield token_rows, token
        yield causal_rows, token
    for spectrum in config.others:
        few = (config.n_other_seeds, config.other_offsets)
        yield carrier_rows, _CarrierConfig(spectrum, config.other_offsets, 20_000)
        yield (
            late_rows,
            _PositionConfig(*few, config.late_std, spectrum, early, config.late_steps[-1:]),
        )
        token = _TokenConfig(
            _training(config, spectrum), spectrum, ("none",), config.lengths, config.n_sequences
        )
        yield token_rows, token
        yield causal_rows, token


def _measure(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    offsets = {*config.offsets, *config.other_offsets}
    rows = [
        row
        for work_unit, unit_config in _work(config)
        for row in work_unit(unit_config)
        if row.get("seed", 0) < config.n_seeds and row["offset"] in offsets
    ]
    return rows, {"token": _token_summary(rows), "causal": _causal_summary(rows)}


def _is_main(row: dict[str, Any]) -> bool:
    return (row["base"], row["width"]) == (MAIN.base, MAIN.width)


def _token_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median and range of every measure over main heads, before and after training."""
    summary: dict[str, Any] = {}
    for trained, name in ((False, "untrained"), (True, "trained")):
        heads = [r for r in rows if r["kind"] == "token" and r["trained"] == trained]
        heads = [r for r in heads if _is_main(r)]
        summary[name] = {
            measure: {
                "median": median(r[measure] for r in heads),
                "least": min(r[measure] for r in heads),
                "most": max(r[measure] for r in heads),
            }
            for measure in heads[0]
            if isinstance(heads[0][measure], (int, float))
            and measure not in ("base", "width", "trained", "offset", "seed")
        }
    return summary


def _causal_summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    summary: dict[str, dict[str, float]] = {}
    causal = [row for row in rows if row["kind"] == "causal" and _is_main(row)]
    for name in dict.fromkeys(row["intervention"] for row in causal):
        of_name = [row for row in causal if row["intervention"] == name]
        summary[name] = {}
        for length in dict.fromkeys(row["length"] for row in of_name):
            values = [row["accuracy"] for row in of_name if row["length"] == length]
            summary[name][f"mean_{length}"] = round(sum(values) / len(values), 6)
            summary[name][f"worst_{length}"] = min(values)
    return summary


def _plot(result: Result) -> Figure:
    """Draw a position-only head's way from early to late, and what interventions leave."""
    figure, ((left, right),) = figures.panels(1, 2, height=3.6)
    late = [row for row in result.rows if row["kind"] == "late" and _is_main(row)]
    steps = sorted({row["step"] for row in late})
    models = sorted({(row["offset"], row["seed"]) for row in late})
    table = {(row["offset"], row["seed"], row["step"]): row for row in late}
    lines = (
        ("early_correlation", "early carrier", figures.COLORS["learned-random-offset"]),
        ("correlation", "late carrier", figures.COLORS["rotary"]),
    )
    for measure, label, color in lines:
        curves = [[table[*model, step][measure] for step in steps] for model in models]
        figures.seed_lines(left, steps, curves, color, label, marker="o")
    left.set_xscale("symlog", linthresh=10)
    left.set_xlabel("steps on the log loss")
    left.set_ylabel("correlation with the head's kernel")
    left.legend(loc="lower center")
    causal = result.summary["causal"]
    names = list(causal)[::-1]
    longest = max(result.config["lengths"][:2])
    for shade, length in (("#888888", result.config["lengths"][0]), ("black", longest)):
        values = [causal[name][f"mean_{length}"] for name in names]
        right.plot(values, range(len(names)), "o", color=shade, label=f"length {length}")
    right.set_yticks(range(len(names)), names, fontsize=8)
    right.set_xlim(-0.02, 1.03)
    right.set_xlabel("mean accuracy")
    right.legend(loc="upper left", fontsize=8)
    return figure


QUICK = Config(
    n_seeds=4,
    early_stds=(0.04,),
    late_steps=(0, 10, 30, 80, 300, 1_000),
    others=(Spectrum(base=100.0),),
    n_other_seeds=2,
    other_offsets=(2, 8),
)
"""Fewer seeds, steps and spectra."""

EXPERIMENT = Experiment(
    name="frequency",
    title="the carrier: predictions for position-only heads, measures and causal tests of all",
    module=__name__,
    profiles={"quick": QUICK, "paper": Config()},
    plan=_work,
    measure=_measure,
    plot=_plot,
)
