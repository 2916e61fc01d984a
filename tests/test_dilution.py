import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lengthgen import dilution
from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.carrier import mean_kernel
from lengthgen.encodings import rotary_frequencies
from lengthgen.evaluation import accuracy
from lengthgen.task import TestSequences

VOCABULARY = 3


def head(seed=0, offsets=40, scale=1.5, vocabulary=VOCABULARY):
    """Return logits that favour offset 2, without any structure, and a readout."""
    generator = torch.Generator().manual_seed(seed)
    shape = (vocabulary, vocabulary, offsets)
    logits = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    logits[:, :, 2] += 3.0
    noise = torch.randn(vocabulary, vocabulary, generator=generator, dtype=torch.float64)
    return logits, torch.eye(vocabulary, dtype=torch.float64) + 0.3 * noise


def stack(seeds=(0, 1), **options):
    return HeadStack.initialize(HeadConfig("rotary", **options), seeds)


def all_sequences(length, vocabulary=VOCABULARY):
    """Return every sequence; column D is the token D positions before the query."""
    return torch.cartesian_prod(*[torch.arange(vocabulary)] * length)


def enumerate_head(logits, readout, offset, length):
    """Return attention on the target and correctness of every sequence, by brute force."""
    tokens = all_sequences(length, len(logits))
    weights = logits.exp()[tokens[:, :1], tokens, torch.arange(length)]
    mass = torch.zeros(len(tokens), len(logits), dtype=torch.float64)
    mass.scatter_add_(1, tokens, weights)
    share = weights[:, offset] / weights.sum(1)
    return tokens, share, (mass @ readout).argmax(1) == tokens[:, offset]


# -- attention law


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.floats(0.0, 4.0))
@example(60, 4, 4.0)  # a target far below the others: the integral must start early
def test_attention_law_is_the_mean_over_all_sequences(seed, offset, scale):
    logits, readout = head(seed, 6, scale)
    law = dilution.attention_law(logits, offset, [5, 6])
    bound = dilution.quadrature_error(0.5) + dilution.START_ERROR
    for row, length in zip(law, (5, 6), strict=True):
        tokens, share, _ = enumerate_head(logits, readout, offset, length)
        for a in range(VOCABULARY):
            for y in range(VOCABULARY):
                chosen = (tokens[:, 0] == a) & (tokens[:, offset] == y)
                assert row[a, y] == pytest.approx(float(share[chosen].mean()), rel=bound, abs=0)


def test_quadrature_error_is_bounded_by_the_gamma_function():
    logits, _ = head(3, 64)
    fine = dilution.attention_law(logits, 2, [16, 64], step=0.1)
    for step in (0.5, 1.0, 1.5):
        error = (dilution.attention_law(logits, 2, [16, 64], step=step) / fine - 1).abs().max()
        assert error <= dilution.quadrature_error(step) + dilution.START_ERROR


def test_attention_law_ignores_a_constant_added_to_all_logits():
    logits, _ = head(4)
    shifted = dilution.attention_law(logits + 7.0, 2, [40])
    torch.testing.assert_close(shifted, dilution.attention_law(logits, 2, [40]), rtol=1e-6, atol=0)


def test_lengths_share_one_pass():
    logits, _ = head(5)
    together = dilution.attention_law(logits, 2, [5, 17, 40])
    alone = torch.cat([dilution.attention_law(logits, 2, [n]) for n in (5, 17, 40)])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=0)


def test_without_tokens_the_law_is_the_kernel_attention():
    logits, _ = head(6)
    flat = dilution.kernel_only(logits)
    law = dilution.attention_law(flat, 2, [10, 40])
    expected = dilution.kernel_attention(mean_kernel(logits), 2, [10, 40])
    torch.testing.assert_close(law, expected[:, None, None].expand_as(law), rtol=1e-6, atol=0)


@pytest.mark.parametrize("lengths", [[2], [41]])
def test_impossible_lengths_are_refused(lengths):
    logits, _ = head()
    for function in (dilution.attention_law, dilution.mass_model):
        with pytest.raises(ValueError, match=f"length={lengths[0]}"):
            function(logits, 2, lengths)


# -- accuracy law


def predict(logits, readout, offset, lengths, n_aliases, n_draws=60_000):
    model = dilution.mass_model(logits, offset, lengths, n_aliases)
    draws = dilution.Draws(n_draws, len(logits), max(n_aliases, 1))
    return dilution.predicted_accuracy(model[None], readout[None], draws)[0]


@pytest.mark.parametrize("seed", range(3))
def test_accuracy_law_is_exact_where_every_offset_is_an_alias(seed):
    logits, readout = head(seed, 7)
    _, _, correct = enumerate_head(logits, readout, 2, 7)
    predicted = predict(logits, readout, 2, [7], n_aliases=7)
    assert float(predicted) == pytest.approx(float(correct.double().mean()), abs=0.01)  # 5 errors


def test_mass_model_has_the_exact_mean_and_covariance():
    logits, _ = head(1, 6, scale=0.7)
    tokens = all_sequences(6)
    for n_aliases in (0, 2):
        model = dilution.mass_model(logits, 2, [6], n_aliases).double()[..., 0]
        for a in range(VOCABULARY):
            scale = logits[a].exp().max()
            mine = tokens[tokens[:, 0] == a]
            weights = logits[a].exp()[mine, torch.arange(6)] / scale
            mass = torch.zeros(len(mine), VOCABULARY, dtype=torch.float64)
            mass.scatter_add_(1, mine, weights)
            fixed = model[a, :, : n_aliases + 1]  # weights of aliases and target
            mean = model[a, :, -1] + fixed.sum(1) / VOCABULARY
            torch.testing.assert_close(mean, mass.mean(0), rtol=1e-5, atol=1e-6)
            root = model[a, :, n_aliases + 1 : -1]
            covariance = root @ root.T
            for column in fixed.T:
                covariance += torch.diag(column**2) / VOCABULARY
                covariance -= torch.outer(column, column) / VOCABULARY**2
            expected = torch.cov(mass.T, correction=0)
            torch.testing.assert_close(covariance, expected, rtol=1e-5, atol=1e-6)


def test_accuracy_law_ignores_the_normalizer():
    logits, readout = head(2)
    shift = torch.randn(VOCABULARY, 1, 1, generator=torch.Generator().manual_seed(0)).double()
    first, second = (
        predict(x, r, 2, [12, 40], 4, 6_000)
        for x, r in ((logits, readout), (logits + 5 * shift, 3.0 * readout))
    )
    torch.testing.assert_close(first, second, rtol=0, atol=5e-4)


def test_accuracy_law_meets_sampled_sequences_where_gauss_fails():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 8, 200, generator=generator, dtype=torch.float64)
    logits[:, :, 2] += 4.5
    logits[:, :, [40, 90]] += 4.0  # two aliases
    readout = torch.eye(8)
    lengths = [30, 60, 100, 200]
    test = TestSequences(20_000, 8)
    measured = dilution.measure(logits[None], readout[None], [2], lengths, test).accuracy[0]
    law = predict(logits, readout, 2, lengths, n_aliases=16)
    gauss = predict(logits, readout, 2, lengths, n_aliases=0)
    assert (law - measured).abs().max() <= 0.015
    assert (gauss - measured).abs().max() >= 0.05


def test_draws_are_reproducible_and_checked():
    first, second = (dilution.Draws(64, 4, 3, 5).of_query(2)[1] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(first[..., :4].sum(0), torch.ones(16, 4))  # one token each
    with pytest.raises(ValueError, match="n_draws=3"):
        dilution.Draws(3, 4)
    with pytest.raises(ValueError, match="n_aliases=-1"):
        dilution.Draws(n_aliases=-1)
    logits, readout = head()
    model = dilution.mass_model(logits, 2, [9], 5)[None]
    with pytest.raises(ValueError, match="5 aliases"):
        dilution.predicted_accuracy(model, readout[None], dilution.Draws(30, VOCABULARY, 4))


# -- measurement


def test_measure_gives_what_evaluation_gives():
    heads, test, lengths = stack(vocabulary=5), TestSequences(300, 5, block=16), [6, 17, 40]
    heads = heads.with_parameters(query=5 * heads.parameters["query"])
    logits = dilution.offset_logits(heads, 40)
    measured = dilution.measure(logits, dilution.token_readouts(heads), [1, 3], lengths, test)
    expected = accuracy(heads, [1, 3], lengths, test).double()
    torch.testing.assert_close(measured.accuracy, expected, rtol=0, atol=1e-6)
    tokens = test.sequences(40)
    _, attention = heads.forward(tokens.expand(2, -1, -1))
    shares = torch.stack([attention[0, :, -2], attention[1, :, -4]]).double()
    torch.testing.assert_close(measured.attention[:, 2], shares.mean(1), rtol=1e-4, atol=0)
    error = shares.std(1) / 300**0.5
    torch.testing.assert_close(measured.attention_error[:, 2], error, rtol=1e-3, atol=0)


def test_half_accuracy_length():
    lengths = [16, 32, 64]
    assert dilution.half_accuracy_length(lengths, torch.tensor([1.0, 0.9, 0.6])) is None
    assert dilution.half_accuracy_length(lengths, torch.tensor([0.4, 0.9, 0.6])) == 16.0
    half = dilution.half_accuracy_length(lengths, torch.tensor([1.0, 0.75, 0.25]))
    assert half == pytest.approx(32 * 2**0.5)


# -- long sequences


def test_offset_logits_are_the_coefficients_waves():
    heads = stack()
    coefficients = dilution.rotary_coefficients(heads)
    offsets = torch.arange(20, dtype=torch.float64)
    waves = torch.polar(torch.ones(20, 16).double(), -offsets[:, None] * rotary_frequencies(32))
    expected = torch.einsum("mabf,df->mabd", coefficients, waves).real
    torch.testing.assert_close(dilution.offset_logits(heads, 20), expected, rtol=0, atol=1e-12)


def test_aligned_heads_are_in_phase_and_keep_amplitudes():
    heads, offsets = stack(), [2, 5]
    turned = dilution.aligned(heads, offsets)
    before = dilution.rotary_coefficients(heads)
    after = dilution.rotary_coefficients(turned)
    # parameters are stored in float32
    torch.testing.assert_close(after.abs(), before.abs(), rtol=1e-5, atol=1e-6)
    kernels = mean_kernel(dilution.offset_logits(turned, 400))
    total = before.mean((1, 2)).abs().sum(1)
    for kernel, offset, height in zip(kernels, offsets, total, strict=True):
        assert int(kernel.argmax()) == offset
        assert float(kernel[offset]) == pytest.approx(float(height), rel=1e-5)


def test_bessel_law_for_independent_frequencies():
    frequencies = torch.tensor([1.0, 2**-0.5, 3**-0.5], dtype=torch.float64)
    coefficients = torch.polar(
        torch.tensor([[1.0, 2.0, 0.5], [0.3, 0.1, 3.0]]).double(), torch.rand(2, 3).double()
    )
    summed = dilution.mean_exponential(coefficients, frequencies, 200_000)
    product = torch.special.i0(coefficients.abs()).prod(1)
    torch.testing.assert_close(summed, product, rtol=1e-3, atol=0)
    target = torch.tensor(0.7, dtype=torch.float64)
    constant = dilution.reach_constant(coefficients, target)
    assert float(constant) == pytest.approx(math.exp(0.7) / float(product.mean()), rel=1e-12)


def test_torus_mean_sees_resonances_that_the_bessel_law_misses():
    frequencies = torch.tensor([1.0, 0.5], dtype=torch.float64)  # a resonance of low order
    coefficients = torch.tensor([[2.0 + 0j, 2.0 + 0j]], dtype=torch.complex128)
    summed = dilution.mean_exponential(coefficients, frequencies, 400_000)
    exact = dilution.torus_mean(coefficients, ratio=2, classes=1)
    torch.testing.assert_close(summed, exact, rtol=1e-3, atol=0)
    bessel = torch.special.i0(coefficients.abs()).prod(1)
    assert float(exact / bessel) > 1.2


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-3, 60.0), min_size=1, max_size=16))
def test_reach_is_bounded_by_a_power_of_the_total_amplitude(amplitudes):
    a = torch.tensor(amplitudes, dtype=torch.float64)
    log_reach = float(-torch.special.i0e(a).log().sum())  # aligned: e^A / I0(A) each
    total, r = float(a.sum()), len(a)
    assert math.exp(log_reach) <= dilution.reach_bound(total, r) * (1 + 1e-9)
    equal = torch.full((r,), total / r, dtype=torch.float64)
    assert log_reach <= float(-torch.special.i0e(equal).log().sum()) + 1e-9


def test_reach_grows_with_the_number_of_frequencies():
    r = torch.arange(1, 17, dtype=torch.float64)
    log_reach = -r * torch.special.i0e(12.0 / r).log()
    assert (log_reach.diff() > 0).all()
    with pytest.raises(ValueError, match="n_frequencies=0"):
        dilution.reach_bound(3.0, 0)
