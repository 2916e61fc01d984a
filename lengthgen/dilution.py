r"""The dilution law: what a relative head attends to and answers at any length, without sampling.

A relative head is a function of tokens and offset: $T(a, b, D)$ is the logit of query token a and
a key token b that stands D positions before the query, and key token b adds `readout[b]` to the
answer's logits. Tokens are independent and uniform. The query is the token at D = 0 itself, the
target the token at D = K. With $w_D = e^{T(a, t_D, D)}$ the attention on the target is $w_K / S$,
$S = \sum_{D < L} w_D$, and the answer reads the *mass* $M_b = \sum_D w_D [t_D = b]$ of each token.

- *Attention law*: $\mathbb{E}[w_K / S]$ is a one-dimensional integral (`attention_law`).
- *Accuracy law*: $M$ is a sum of independent terms, few of them large. Those few, the *aliases*,
  are drawn exactly, the rest is a Gaussian with their mean and covariance (`mass_model`,
  `predicted_accuracy`).
- *Bessel law*: $L\,\alpha(L)$ tends to a constant (`reach_constant`).

Everything here is ours; of the paper's dilution law only the name is known to us.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Complex128, Float, Float32, Float64, Int64
from torch import Tensor

from lengthgen.attention import HeadStack
from lengthgen.carrier import complex_channels, log_bessel_constant, token_coefficients
from lengthgen.task import FixedOffsetTask, TestSequences

__all__ = [
    "Draws",
    "Measured",
    "aligned",
    "attention_law",
    "half_accuracy_length",
    "kernel_attention",
    "kernel_only",
    "mass_model",
    "mean_exponential",
    "measure",
    "offset_logits",
    "predicted_accuracy",
    "quadrature_error",
    "reach_bound",
    "reach_constant",
    "rotary_coefficients",
    "torus_mean",
]

TAIL = 14.0
"""How far below the largest target logit the integral starts, in nats."""


# -- a head as a function of the offset -----------------------------------------------------------


@torch.no_grad()
def offset_logits(
    stack: HeadStack, n_offsets: int
) -> Float64[Tensor, "models vocabulary vocabulary offsets"]:
    """Return $T(a, b, D)$ for D = 0 .. `n_offsets` - 1, in float64.

    One query position is enough if the encoding is relative (chapter 2).
    """
    query = torch.tensor([n_offsets - 1])
    keys = query - torch.arange(n_offsets)
    return stack.map(Tensor.double).tables(query, keys).logit


@torch.no_grad()
def rotary_coefficients(
    stack: HeadStack,
) -> Complex128[Tensor, "models vocabulary vocabulary frequencies"]:
    r"""Return $c_f(a, b)$ of rotary heads of full width, interleaved layout."""
    double = stack.map(Tensor.double).parameters
    query, key = (double["token"] @ double[name] for name in ("query", "key"))
    return token_coefficients(query, key)


@torch.no_grad()
def aligned(stack: HeadStack, offsets: Sequence[int]) -> HeadStack:
    r"""Return rotary heads whose carrier is in phase at its target offset.

    Every frequency of the key is turned by one angle, common to all tokens, so that the mean
    coefficient becomes $|\bar c_f| e^{i \omega_f K}$. Amplitudes stay; nothing is trained.

    Args:
        stack: rotary heads of full width, interleaved layout.
        offsets: target offset of each head.
    """
    mean = rotary_coefficients(stack).mean((1, 2))  # (models, frequencies)
    wanted = torch.tensor(list(offsets))[:, None] * stack.encodings[0].frequencies
    turn = torch.polar(torch.ones_like(wanted), wanted - mean.angle())
    key = complex_channels(stack.parameters["key"].double()) * turn[:, None]
    return stack.with_parameters(key=torch.view_as_real(key).flatten(-2).to(stack.dtype))


# -- attention ------------------------------------------------------------------------------------


def attention_law(
    logits: Float64[Tensor, "vocabulary vocabulary offsets"],
    offset: int,
    lengths: Sequence[int],
    step: float = 0.5,
) -> Float64[Tensor, "lengths vocabulary vocabulary"]:
    r"""Return the expected attention on the target, given query token a and target token y.

    $$\mathbb{E}[\alpha \mid a, y] = \int_0^\infty e^{T(a,y,K)} e^{-t (e^{T(a,y,K)} + e^{T(a,a,0)})}
      \prod_{D \ne 0, K} \frac1V \sum_b \exp(-t\, e^{T(a,b,D)}) \, dt$$

    by the trapezoidal rule in $\log t$. The product does not depend on y and is accumulated over
    D, so that one pass gives all lengths and targets.

    Args:
        logits: $T(a, b, D)$ of one head.
        offset: target offset K.
        lengths: sequence lengths, at most the number of offsets.
        step: step in $\log t$; see `quadrature_error`.

    Raises:
        ValueError: a length that does not hold the offset or that the logits do not reach.

    Example:
        A head that looks at nothing spreads its attention evenly.

        >>> attention_law(torch.zeros(2, 2, 8, dtype=torch.float64), 1, [4, 8])[:, 0, 0]
        tensor([0.2500, 0.1250], dtype=torch.float64)
    """
    _check(logits, offset, lengths)
    target, own = logits[:, :, offset], torch.diagonal(logits[:, :, 0])
    fixed = torch.logaddexp(target, own[:, None])
    low = -target.amax(1) - TAIL
    high = math.log(40.0) - fixed.amin(1)
    n_points = math.ceil(float((high - low).max()) / step) + 1
    log_t = low[:, None] + step * torch.arange(n_points, dtype=torch.float64)  # (query, points)
    t = log_t.exp()
    weights = logits.exp().permute(2, 1, 0).contiguous()  # (offset, key, query)
    log_product = torch.zeros_like(t)
    result = {}
    for start, stop in _segments(lengths, 8):
        others = [d for d in range(start, stop) if d not in (0, offset)]
        if others:
            decay = weights[others][..., None] * t  # (offset, key, query, points)
            log_product += decay.neg_().exp_().mean(1).log_().sum(0)
        if stop in lengths:
            log_integrand = log_t[:, None] + target[..., None] + log_product[:, None]
            integrand = (log_integrand - (fixed[..., None] + log_t[:, None]).exp()).exp()
            below = (target + low[:, None]).exp() / math.expm1(step)  # the integrand is e^T t there
            result[stop] = step * (integrand.sum(-1) + below)
    return torch.stack([result[length] for length in lengths])


def quadrature_error(step: float) -> float:
    r"""Bound the relative error of `attention_law`'s trapezoidal rule.

    For every value of the normalizer, Poisson summation gives the error exactly; it is at most
    $2 \sum_{k \ge 1} |\Gamma(1 + 2 \pi i k / h)|$ with $|\Gamma(1 + i x)|^2 = \pi x / \sinh \pi x$.

    Example:
        >>> f"{quadrature_error(0.5):.1e}"
        '4.8e-08'
    """
    xs = [2 * math.pi**2 * k / step for k in range(1, 20)]
    return 2 * sum(math.sqrt(2 * x) * math.exp(-x / 2) for x in xs) * 1.0001


def kernel_attention(
    kernel: Float64[Tensor, " offsets"], offset: int, lengths: Sequence[int]
) -> Float64[Tensor, " lengths"]:
    r"""Return attention if tokens did not matter, $e^{\kappa(K)} / \sum_{D < L} e^{\kappa(D)}$."""
    total = kernel.logcumsumexp(0)
    return (kernel[offset] - total[[length - 1 for length in lengths]]).exp()


def kernel_only(
    logits: Float64[Tensor, "vocabulary vocabulary offsets"],
) -> Float64[Tensor, "vocabulary vocabulary offsets"]:
    """Replace every token pair's logits by their mean over pairs, the carrier kernel."""
    return logits.mean((0, 1)).expand_as(logits)


# -- accuracy -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draws:
    """Common random numbers for `predicted_accuracy`, the same for every head and length.

    Args:
        n_draws: draws in all, shared equally among the query tokens.
        vocabulary: number of tokens.
        n_aliases: offsets drawn exactly.
        seed: of the generator.
    """

    n_draws: int = 64_000
    vocabulary: int = 16
    n_aliases: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_draws < self.vocabulary:
            raise ValueError(
                f"n_draws={self.n_draws} is not allowed: at least one for each of "
                f"{self.vocabulary} query tokens"
            )
        if self.n_aliases < 0:
            raise ValueError(f"n_aliases={self.n_aliases} is not allowed: it must be at least 0")

    def of_query(
        self, query_token: int
    ) -> tuple[Int64[Tensor, " draws"], Float32[Tensor, "vocabulary draws columns"]]:
        """Return target tokens, and a design matrix for the mass of every token.

        Columns: does alias m hold this token; does the target; a standard normal vector; 1.
        """
        n, v = self.n_draws // self.vocabulary, self.vocabulary
        generator = torch.Generator().manual_seed(self.seed * v + query_token)
        aliases = torch.randint(v, (n, self.n_aliases), generator=generator)
        target = torch.randint(v, (n,), generator=generator)
        normal = torch.randn(n, v, generator=generator)
        design = torch.ones(v, n, self.n_aliases + v + 2)
        token = torch.arange(v)[:, None, None]
        design[..., : self.n_aliases] = (aliases == token).float()
        design[..., self.n_aliases] = (target == token[..., 0]).float()
        design[..., self.n_aliases + 1 : -1] = normal
        return target, design


def mass_model(
    logits: Float64[Tensor, "vocabulary vocabulary offsets"],
    offset: int,
    lengths: Sequence[int],
    n_aliases: int = 16,
) -> Float32[Tensor, "vocabulary vocabulary columns lengths"]:
    r"""Return the mass of each token as a linear function of `Draws`' columns.

    For query token a, the `n_aliases` offsets with the largest $\sum_b e^{2 T(a,b,D)}$ stay as
    they are. All other offsets together get their exact mean and covariance,
    $\mu_b = \frac1V \sum_D w_D(b)$ and
    $C_{bb'} = \frac1V \sum_D [b = b'] w_D(b)^2 - \frac1{V^2} \sum_D w_D(b) w_D(b')$.
    Masses are divided by their largest term for each query token, which changes no argmax.

    Args:
        logits: $T(a, b, D)$ of one head.
        offset: target offset K.
        lengths: sequence lengths.
        n_aliases: m; with 0 everything but query and target is Gaussian.

    Returns:
        for query token a and token b: weight of b at each alias, weight of b at the target,
        row b of a square root of the covariance, and the mean plus the query's own weight.
    """
    _check(logits, offset, lengths)
    vocabulary = logits.shape[0]
    weights = (logits - logits.amax((1, 2), keepdim=True)).exp()  # (query, key, offset)
    others = weights.clone()
    others[:, :, [0, offset]] = 0.0
    second = others.square().sum(1)  # (query, offset)
    own = torch.diag(torch.diagonal(weights[:, :, 0]))
    model = weights.new_zeros(vocabulary, vocabulary, n_aliases + vocabulary + 2, len(lengths))
    for column, length in enumerate(lengths):
        count = min(n_aliases, length)
        bulk = others[:, :, :length]
        if count:
            chosen = second[:, :length].topk(count).indices  # (query, alias)
            index = chosen[:, None].expand(-1, vocabulary, -1)
            model[:, :, :count, column] = bulk.gather(2, index)
            bulk = bulk.scatter(2, index, 0.0)
        mean = bulk.mean(2) * (length / vocabulary)
        covariance = torch.diag_embed(bulk.square().sum(2) / vocabulary)
        covariance -= bulk @ bulk.transpose(1, 2) / vocabulary**2
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp(min=0).sqrt()[:, None]
        model[:, :, n_aliases, column] = weights[:, :, offset]
        model[:, :, n_aliases + 1 : -1, column] = root
        model[:, :, -1, column] = mean + own
    return model.float()


def predicted_accuracy(
    models: Float32[Tensor, "models vocabulary vocabulary columns lengths"],
    readouts: Float[Tensor, "models vocabulary vocabulary"],
    draws: Draws,
) -> Float64[Tensor, "models lengths"]:
    r"""Return the probability that the answer is the target, $P(\arg\max_v (M R)_v = y)$.

    Args:
        models: `mass_model` of each head, all with the same number of aliases.
        readouts: R, `readout[b, v]` of each head.
        draws: random numbers; a model with fewer aliases uses the columns it knows.

    Raises:
        ValueError: more aliases than the draws have.
    """
    n_models, vocabulary, _, n_columns, n_lengths = models.shape
    unused = draws.n_aliases + vocabulary + 2 - n_columns
    if unused < 0:
        raise ValueError(
            f"the models have {draws.n_aliases - unused} aliases, the draws {draws.n_aliases}"
        )
    correct = torch.zeros(n_models, n_lengths, dtype=torch.float64)
    for query_token in range(vocabulary):
        target, design = draws.of_query(query_token)
        design = design[..., unused:].contiguous()
        for model in range(n_models):
            mass = torch.bmm(design, models[model, query_token])  # (token, draw, length)
            answer = readouts[model].float().T @ mass.flatten(1)
            best = answer.amax(0).view(-1, n_lengths)
            at_target = answer.view(vocabulary, -1, n_lengths).gather(
                0, target[None, :, None].expand(-1, -1, n_lengths)
            )
            correct[model] += (at_target[0] >= best).sum(0)
    return correct / (vocabulary * (draws.n_draws // vocabulary))


# -- measurement ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What heads did on test sequences: accuracy, mean attention on the target, its error."""

    accuracy: Float64[Tensor, "models lengths"]
    attention: Float64[Tensor, "models lengths"]
    attention_error: Float64[Tensor, "models lengths"]


def measure(
    weights: Float32[Tensor, "models vocabulary vocabulary offsets"],
    readouts: Float32[Tensor, "models vocabulary vocabulary"],
    offsets: Sequence[int],
    lengths: Sequence[int],
    test: TestSequences,
    block: int = 128,
) -> Measured:
    """Answer test sequences with relative heads; one pass over the offsets serves all lengths.

    The same numbers as `lengthgen.evaluation.accuracy`, which runs any head but starts anew for
    every length.

    Args:
        weights: $e^{T(a, b, D)}$, up to a factor for each query token.
        readouts: `readout[b, v]`.
        offsets: target offset of each head.
        lengths: sequence lengths.
        test: the sequences.
        block: offsets per matrix product; it changes memory, not the result.
    """
    n_models, vocabulary = weights.shape[:2]
    columns = torch.tensor(list(offsets))
    tokens = torch.cat([part for _, part in test.blocks(max(lengths))], dim=1)
    model, token = torch.arange(n_models), torch.arange(vocabulary, dtype=torch.uint8)
    shape = (n_models, len(lengths))
    correct, first, second = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    for query_token in range(vocabulary):
        group = tokens[tokens[:, 0] == query_token]
        target = group[:, columns].long()  # (sequence, model)
        table = weights[:, query_token].permute(1, 2, 0)  # (key, offset, model)
        at_target = table[target, columns, model].T  # (model, sequence)
        mass = table.new_zeros(vocabulary, len(group), n_models)
        for start, stop in _segments(lengths, block):
            for part in range(0, len(group), 256):  # so that one block stays in the cache
                held = group[None, part : part + 256, start:stop] == token[:, None, None]
                mass[:, part : part + 256].baddbmm_(held.float(), table[:, start:stop])
            if stop not in lengths:
                continue
            by_model = mass.permute(2, 1, 0).contiguous()
            answer = by_model @ readouts
            found = answer.gather(2, target.T[..., None])[..., 0] >= answer.amax(2)
            share = (at_target / by_model.sum(2)).double()
            column = lengths.index(stop)
            correct[:, column] += found.sum(1)
            first[:, column] += share.sum(1)
            second[:, column] += share.square().sum(1)
    n = len(tokens)
    mean = first / n
    variance = (second / n - mean.square()).clamp(min=0) * n / max(n - 1, 1)
    return Measured(correct / n, mean, (variance / n).sqrt())


def half_accuracy_length(
    lengths: Sequence[int], accuracy: Float[Tensor, " lengths"], level: float = 0.5
) -> float | None:
    """Return the length at which accuracy first falls to `level`, linear in log length between.

    `None` if it never does within the lengths.

    Example:
        >>> half_accuracy_length([16, 64], torch.tensor([1.0, 0.0]))
        32.0
    """
    below = (accuracy < level).nonzero().flatten()
    if not len(below):
        return None
    i = int(below[0])
    if i == 0:
        return float(lengths[0])
    high, low = float(accuracy[i - 1]), float(accuracy[i])
    part = (high - level) / (high - low)
    return float(lengths[i - 1] * (lengths[i] / lengths[i - 1]) ** part)


# -- long sequences -------------------------------------------------------------------------------


def reach_constant(
    coefficients: Complex128[Tensor, "*batch vocabulary frequencies"],
    target: Float64[Tensor, "*batch"],
) -> Float64[Tensor, "*batch"]:
    r"""Return $\lim L\,\alpha(L) = e^{T(a,y,K)} / \frac1V \sum_b \prod_f I_0(|c_f(a,b)|)$.

    It holds if the frequencies and $2\pi$ are linearly independent over the rationals.

    Args:
        coefficients: $c_f(a, b)$ of one query token a, over key tokens b.
        target: $T(a, y, K)$.
    """
    log_mean = log_bessel_constant(coefficients).logsumexp(-1) - math.log(coefficients.shape[-2])
    return (target - log_mean).exp()


def reach_bound(total: float, n_frequencies: int) -> float:
    r"""Bound $\lim L\,\alpha(L)$ of a position-only head by $(2\pi M/r + 4/\pi)^{r/2}$.

    Args:
        total: $M = \sum_f |c_f|$.
        n_frequencies: r, the number of nonzero coefficients.

    Raises:
        ValueError: fewer than one frequency.
    """
    if n_frequencies < 1:
        raise ValueError(f"n_frequencies={n_frequencies} is not allowed: it must be at least 1")
    return (2 * math.pi * total / n_frequencies + 4 / math.pi) ** (n_frequencies / 2)


def mean_exponential(
    coefficients: Complex128[Tensor, "pairs frequencies"],
    frequencies: Float64[Tensor, " frequencies"],
    limit: int,
    block: int = 4096,
) -> Float64[Tensor, " pairs"]:
    r"""Return $\frac1L \sum_{D < L} e^{\kappa(D)}$ of many kernels, summed term by term."""
    parts = torch.cat([coefficients.real, coefficients.imag], dim=1).T.contiguous()
    total = coefficients.real.new_zeros(len(coefficients))
    for start in range(0, limit, block):
        offsets = torch.arange(start, min(start + block, limit), dtype=torch.float64)
        angles = offsets[:, None] * frequencies
        total += (torch.cat([angles.cos(), angles.sin()], dim=1) @ parts).exp_().sum(0)
    return total / limit


def torus_mean(
    coefficients: Complex128[Tensor, "pairs frequencies"],
    ratio: int,
    classes: int,
    points: int = 2**15,
) -> Float64[Tensor, " pairs"]:
    r"""Return the exact long-run mean of $e^{\kappa(D)}$ for frequencies that resonate in classes.

    Frequency $f$ belongs to class $f$ mod `classes`, and within a class each frequency is the one
    before it divided by `ratio`. A class is then one angle, its members integer multiples of it,
    and the mean is a product of one-dimensional integrals, one for each class.

    With base 10,000 and width 32 the frequencies are $10^{-f/4}$: `ratio` 10, `classes` 4.

    Args:
        coefficients: $c_f$.
        ratio: quotient of neighbours in a class.
        classes: number of classes.
        points: points of the (spectrally accurate) rule on the circle.
    """
    theta = torch.arange(points, dtype=torch.float64) * (2 * math.pi / points)
    result = coefficients.real.new_ones(len(coefficients))
    for first in range(classes):
        members = coefficients[:, first::classes]
        n = members.shape[1]
        multiples = torch.tensor([ratio ** (n - 1 - j) for j in range(n)], dtype=torch.float64)
        angles = theta[:, None] * multiples
        parts = torch.cat([members.real, members.imag], dim=1).T
        result *= (torch.cat([angles.cos(), angles.sin()], dim=1) @ parts).exp_().mean(0)
    return result


# -- helpers --------------------------------------------------------------------------------------


def _check(logits: Tensor, offset: int, lengths: Sequence[int]) -> None:
    FixedOffsetTask(offset, logits.shape[0]).check_length(min(lengths))
    if max(lengths) > logits.shape[-1]:
        raise ValueError(
            f"length={max(lengths)} needs logits to offset {max(lengths) - 1}; "
            f"these end at {logits.shape[-1] - 1}"
        )


def _segments(lengths: Sequence[int], block: int) -> Iterator[tuple[int, int]]:
    """Cut 0 .. max(lengths) into blocks that end at every length."""
    start = 0
    for length in sorted(set(lengths)):
        while start < length:
            stop = min(start + block, length)
            yield start, stop
            start = stop
