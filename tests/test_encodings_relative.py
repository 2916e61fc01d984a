import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthgen.attention import HeadStack
from lengthgen.encodings import (
    ENCODINGS,
    ALiBi,
    ClippedRelative,
    Fire,
    Kerple,
    Rotary,
    RotaryInterpolated,
    RotaryNTK,
    RotaryYaRN,
    Sinusoidal,
    T5Bias,
    XPos,
    alibi_slopes,
    bucket_starts,
    construct,
    has_hook,
    rotary_frequencies,
)

few = settings(max_examples=25, deadline=None)
LAYOUTS = ("interleaved", "half-split")
SCALED = (RotaryInterpolated, RotaryNTK, RotaryYaRN)
FAR = 2**20


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def build(encoding, options=None, seed=0, n_heads=3):
    sizes = {"d_model": 8, "d_head": 8, "n_heads": n_heads, "max_length": 64}
    cls = ENCODINGS.get(encoding, encoding)
    built = construct(cls, **sizes, generator=generator(seed), options=options)
    return built.double()


def logits(encoding, query_positions, key_positions, dtype=torch.float64):
    """Logits (heads or 1, query, key) of one random query and key at every pair of positions."""
    q, k = torch.randn(2, 8, generator=generator(7), dtype=torch.float64).to(dtype)
    query, key = q.expand(len(query_positions), -1), k.expand(len(key_positions), -1)
    if has_hook(encoding, "embed"):
        query = query + encoding.embed(query_positions)
        key = key + encoding.embed(key_positions)
    if has_hook(encoding, "transform_query"):
        query = encoding.transform_query(query, query_positions)
        key = encoding.transform_key(key, key_positions)
    product = (query @ key.T)[None]
    if has_hook(encoding, "bias"):
        product = product + encoding.bias(query_positions, key_positions)
    return product


OFFSET_ONLY = [
    ("none", {}),
    ("rotary", {}),
    *((name, {"factor": 3.0}) for name in ("rotary-interpolated", "rotary-ntk", "rotary-yarn")),
    ("rotary-yarn", {"factor": 8.0, "trained_length": 2048, "layout": "half-split"}),
    ("xpos", {}),
    ("xpos", {"width": 4, "layout": "half-split", "scale": 700.0, "gamma": 0.2}),
    ("alibi", {}),
    ("alibi", {"strength": 32.0}),
    ("t5", {"std": 0.5}),
    ("t5", {"std": 0.5, "buckets": 6, "max_distance": 9}),
    ("clipped-relative", {"std": 0.5}),
    ("clipped-relative", {"std": 0.5, "max_offset": 3}),
    ("kerple", {}),
]
OTHERS = [
    ("learned", {"std": 0.5}),
    ("learned-random-offset", {"std": 0.5}),
    ("sinusoidal", {}),
    ("fire", {"threshold": 5.0}),
]


def ids(cases):
    return ["-".join(map(str, (name, *options.values()))) for name, options in cases]


offset_only = pytest.mark.parametrize(("name", "options"), OFFSET_ONLY, ids=ids(OFFSET_ONLY))
everything = pytest.mark.parametrize(
    ("name", "options"), OFFSET_ONLY + OTHERS, ids=ids(OFFSET_ONLY + OTHERS)
)


def test_every_encoding_is_among_those_tested_here():
    assert {name for name, _ in OFFSET_ONLY + OTHERS} == set(ENCODINGS)


# -- what holds for every encoding, or for every relative one ------------------------------------


@offset_only
@few
@given(data=st.data())
def test_the_logit_is_a_function_of_the_offset_alone(name, options, data):
    encoding = build(name, options)
    shift = data.draw(st.integers(0, 2**17 if name == "xpos" else FAR))
    first = data.draw(st.integers(0, 50))
    positions = first + torch.arange(40)
    near = logits(encoding, positions, positions)
    far = logits(encoding, positions + shift, positions + shift)
    # angles below 2^20 + 90 carry 2^20 * 2^-53 = 1.2e-10 at worst, times |q||k|, shared by
    # channels; the decay of xPos, an exponential of at most 690, as little
    assert (far - near).abs().max() <= 1e-10 * near.abs().max()


@pytest.mark.parametrize(("name", "options"), OTHERS, ids=ids(OTHERS))
def test_the_others_do_depend_on_where_the_pair_stands(name, options):
    encoding, positions = build(name, options), torch.arange(10)
    near, later = (logits(encoding, positions + m, positions + m) for m in (0, 10))
    assert (later - near).abs().max() > 1e-2 * near.abs().max()


@everything
@few
@given(data=st.data())
def test_a_pair_has_one_logit_whatever_other_positions_are_asked_for(name, options, data):
    """... so nothing depends on the length of the sequence or on the order of a call."""
    encoding = build(name, options)
    places = st.lists(st.integers(0, 63), min_size=1, max_size=12)
    query, key = (torch.tensor(data.draw(places)) for _ in range(2))
    together = logits(encoding, query, key)
    i, j = (data.draw(st.integers(0, len(p) - 1)) for p in (query, key))
    alone = logits(encoding, query[i : i + 1], key[j : j + 1])
    # one product of 8 terms, summed in another order
    torch.testing.assert_close(together[:, i, j], alone[:, 0, 0], rtol=1e-12, atol=1e-12)


UNBOUNDED = [case for case in OFFSET_ONLY + OTHERS if not case[0].startswith("learned")]


@pytest.mark.parametrize(("name", "options"), UNBOUNDED, ids=ids(UNBOUNDED))
def test_logits_are_finite_far_out_and_in_float32(name, options):
    far = 65_536 if name == "xpos" else FAR  # xPos ends before 2^20, and says so
    encoding = build(name, options).float()
    positions = torch.tensor([0, 1, far - 1, far])
    found = logits(encoding, positions, positions, torch.float32)
    assert bool(found.isfinite().all())


@everything
def test_initial_values_depend_on_the_seed_alone(name, options):
    one, same, other = (dict(build(name, options, s).named_parameters()) for s in (3, 3, 4))
    assert all(torch.equal(one[key], same[key]) for key in one)
    random = set(one) - {"scale", "threshold_factor"}  # FIRE starts c and L at fixed values
    assert all(not torch.equal(one[key], other[key]) for key in random)


@everything
def test_every_parameter_receives_a_gradient(name, options):
    encoding, positions = build(name, options), torch.arange(64)
    names = [key for key, _ in encoding.named_parameters()]
    if names:
        loss = logits(encoding, positions, positions).square().sum()
        gradients = torch.autograd.grad(loss, list(encoding.parameters()))
        for key, gradient in zip(names, gradients, strict=True):
            assert bool(gradient.isfinite().all()) and bool(gradient.any()), key


@everything
def test_int32_positions_are_the_same_positions(name, options):
    encoding, positions = build(name, options), torch.tensor([3, 0, 63])
    wide, narrow = (logits(encoding, p, p) for p in (positions, positions.int()))
    assert torch.equal(wide, narrow)


@everything
def test_a_stack_of_heads_reads_them_all(small_head, name, options):
    """The plain head equals its tables, model by model, with options too."""
    stack = HeadStack.initialize(small_head(name, **options), (0, 4)).map(torch.Tensor.double)
    tokens = torch.randint(5, (2, 3, 14), generator=generator(), dtype=torch.uint8)
    positions = 5 + torch.arange(14)
    answer, attention = stack.forward(tokens, positions)
    tables = stack.tables(positions[-1:], positions)
    weights = tables.attention(tokens, tokens[..., -1])
    # float64 sums of some hundred terms in another order
    torch.testing.assert_close(weights, attention, rtol=0, atol=1e-10)
    torch.testing.assert_close(tables.answer(tokens, weights), answer, rtol=0, atol=1e-10)


# -- sinusoidal ----------------------------------------------------------------------------------


@few
@given(st.integers(0, FAR), st.integers(0, FAR), st.sampled_from((2, 8, 32)))
def test_sines_and_cosines_of_two_positions_meet_in_a_function_of_the_offset(i, j, d_model):
    """sin a sin b + cos a cos b = cos(a - b): the raw product is relative, W_q and W_k break it."""
    vectors = Sinusoidal(d_model).embed(torch.tensor([i, j]))
    expected = torch.cos(rotary_frequencies(d_model) * (i - j)).sum()
    # angles up to 2^20 carry 1.2e-10 each
    assert abs(vectors[0] @ vectors[1] - expected) < 1e-9


def test_each_pair_of_channels_is_sine_and_cosine_of_its_angle():
    found = Sinusoidal(6, base=100.0, scale=0.5).embed(torch.tensor([0, 7]))
    angles = [7 * 100.0 ** (-2 * f / 6) for f in range(3)]
    row = [0.5 * g(angle) for angle in angles for g in (math.sin, math.cos)]
    expected = torch.tensor([[0, 0.5] * 3, row], dtype=torch.float64)
    # one rounding of the frequency and one of the angle, below 10
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


# -- rotary at test time ------------------------------------------------------------------------


@pytest.mark.parametrize("cls", SCALED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"width": 6, "layout": "half-split", "base": 500.0}])
def test_factor_one_is_the_plain_rotary_to_the_bit(cls, dtype, options):
    x = torch.randn(2, 50, 8, generator=generator()).to(dtype)
    positions = 1000 * torch.arange(50)
    for length in (16, 4096) if cls is RotaryYaRN else (None,):
        scaled = cls(8, **({"trained_length": length} if length else {}), **options)
        for hook in ("transform_query", "transform_key"):
            found, plain = (getattr(e, hook)(x, positions) for e in (scaled, Rotary(8, **options)))
            assert torch.equal(found, plain)
            assert found.dtype == dtype


@few
@given(st.integers(1, 64), st.integers(0, 2**14), st.sampled_from(LAYOUTS))
def test_interpolation_stands_at_position_times_factor_as_plain_rotary_at_the_position(
    factor, position, layout
):
    x = torch.randn(1, 8, generator=generator(), dtype=torch.float64)
    slow = RotaryInterpolated(8, float(factor), layout=layout)
    found = slow.transform_query(x, torch.tensor([position * factor]))
    expected = Rotary(8, layout=layout).transform_query(x, torch.tensor([position]))
    # angles up to 2^14, rounded twice: 2^14 * 2^-52 = 4e-12
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@few
@given(st.floats(1, 100), st.sampled_from((4, 8, 64)), st.floats(10, 1e6))
def test_ntk_keeps_the_fastest_pair_and_divides_the_slowest_by_the_factor(factor, width, base):
    plain, scaled = rotary_frequencies(width, base), RotaryNTK(width, factor, base).frequencies
    assert scaled[0] == plain[0] == 1
    # powers of a base up to 1e8, in float64
    assert scaled[-1].item() == pytest.approx(plain[-1].item() / factor, rel=1e-12)
    ratio = plain / scaled
    slowing = ratio[1:] / ratio[:-1]  # geometric between the two ends
    torch.testing.assert_close(slowing, slowing[:1].expand_as(slowing), rtol=1e-12, atol=0)


@few
@given(st.floats(1, 100), st.integers(1, 8192), st.floats(0, 4), st.floats(0.1, 60))
def test_yarn_keeps_fast_pairs_interpolates_slow_ones_and_blends_between(
    factor, length, slow, ramp
):
    options = {"trained_length": length, "slow": slow, "fast": slow + ramp}
    scaled, plain = RotaryYaRN(64, factor, **options), rotary_frequencies(64)
    turns = length / (2 * math.pi / plain)  # trained length over wavelength
    kept = scaled.frequencies / plain
    low, high = turns <= slow, turns >= slow + ramp
    # rounding of a product and a division
    torch.testing.assert_close(kept[high], torch.ones_like(kept[high]), rtol=1e-14, atol=0)
    torch.testing.assert_close(kept[low] * factor, torch.ones_like(kept[low]), rtol=1e-12, atol=0)
    gamma = (turns - slow) / ramp
    between = ~(low | high)
    expected = ((1 - gamma) / factor + gamma)[between]
    torch.testing.assert_close(kept[between], expected, rtol=1e-12, atol=0)


@few
@given(st.floats(1, 100))
def test_yarn_sharpens_logits_by_the_square_of_its_temperature(factor):
    scaled, plain = RotaryYaRN(8, factor), Rotary(8)
    plain.frequencies = scaled.frequencies
    positions = torch.arange(20)
    ratio = logits(scaled, positions, positions) / logits(plain, positions, positions)
    expected = torch.full_like(ratio, (0.1 * math.log(factor) + 1) ** 2)
    # a logit near zero loses digits in its sum of eight terms
    torch.testing.assert_close(ratio, expected, rtol=1e-10, atol=0)


# -- xPos ----------------------------------------------------------------------------------------


@few
@given(st.integers(0, 2**16), st.integers(0, 2**16), st.sampled_from(LAYOUTS))
def test_each_pair_of_xpos_is_the_rotary_one_times_its_decay(i, j, layout):
    """Checked with a query and key that live in one pair only."""
    first, second = ((2, 3), (1, 5))[layout == "half-split"]
    x = torch.zeros(1, 8, dtype=torch.float64)
    x[0, [first, second]] = torch.tensor([0.6, 0.8], dtype=torch.float64)
    encoding, plain = XPos(8, layout=layout), Rotary(8, layout=layout)
    at = lambda e: (  # noqa: E731
        e.transform_query(x, torch.tensor([i])) @ e.transform_key(x, torch.tensor([j])).T
    )
    zeta = (2 / 8 + 0.4) / 1.4  # pair 1 of 4
    decay = zeta ** ((i - j) / 512)
    # exponents up to 2^16 / 512 * |log zeta| < 100 and angles up to 2^16
    assert at(encoding).item() == pytest.approx(at(plain).item() * decay, rel=0, abs=1e-10 * decay)


def test_the_factors_of_xpos_need_float64_and_their_product_does_not():
    encoding, x = XPos(8), torch.ones(1, 8)
    positions = torch.tensor([65_536])
    query, key = encoding.transform_query(x, positions), encoding.transform_key(x, positions)
    assert query.dtype == key.dtype == torch.float64
    assert not bool(key.float().isfinite().all())  # what a hook in float32 would return
    # at offset 0 nothing has decayed; rounding of 8 products
    assert (query @ key.T).item() == pytest.approx(8, rel=1e-12)


@few
@given(st.sampled_from((1, 16, 512, 4096)), st.floats(0.05, 5))
def test_xpos_reaches_its_last_position_and_refuses_the_next(scale, gamma):
    encoding = XPos(8, scale=float(scale), gamma=gamma)
    last = torch.tensor([encoding.max_length - 1])
    x = 1e3 * torch.ones(1, 8)
    query, key = encoding.transform_query(x, last), encoding.transform_key(x, last)
    assert bool(query.isfinite().all()) and bool(key.isfinite().all())
    assert (query @ key.T).item() == pytest.approx(8e6, rel=1e-10)
    with pytest.raises(ValueError, match=rf"position {encoding.max_length} .*larger scale"):
        encoding.transform_key(x, last + 1)


def test_xpos_without_decay_is_refused():
    with pytest.raises(ValueError, match=r"gamma=1e\+17 and scale=512.0 are too large"):
        XPos(4, gamma=1e17)


def test_logits_of_xpos_fall_with_the_distance_of_a_key_before_the_query():
    encoding = XPos(8)
    encoding.frequencies = torch.zeros(4, dtype=torch.float64)  # no rotation: decay alone
    x = torch.ones(1, 8, dtype=torch.float64)
    keys = encoding.transform_key(x.expand(1000, -1), torch.arange(1000))
    line = (encoding.transform_query(x, torch.tensor([999])) @ keys.T)[0].flip(0)
    assert bool((line.diff() < 0).all())


# -- ALiBi ---------------------------------------------------------------------------------------


def test_eight_heads_have_slopes_one_half_to_one_256th_exactly():
    assert alibi_slopes(8).tolist() == [2.0**-h for h in range(1, 9)]


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8, 16, 32])
def test_slopes_of_a_power_of_two_are_geometric_and_end_at_one_256th(n_heads):
    slopes = alibi_slopes(n_heads)
    assert slopes[-1] == 2.0**-8
    expected = 2.0 ** (-8 * torch.arange(1, n_heads + 1, dtype=torch.float64) / n_heads)
    torch.testing.assert_close(slopes, expected, rtol=1e-15, atol=0)  # one rounding each


def test_twelve_heads_have_the_slopes_of_eight_and_four_of_sixteen():
    expected = [2.0**-h for h in range(1, 9)] + [2.0 ** -(h + 0.5) for h in range(4)]
    assert alibi_slopes(12).tolist() == expected


@few
@given(st.integers(1, 200))
def test_slopes_are_distinct_positive_and_at_most_a_power_of_two_apart(n_heads):
    slopes = alibi_slopes(n_heads)
    assert len(slopes) == len(set(slopes.tolist())) == n_heads
    assert bool(((slopes >= 2.0**-8) & (slopes < 1)).all())


@few
@given(st.integers(0, FAR), st.integers(0, FAR))
def test_alibi_is_minus_the_slope_times_the_offset_exactly(i, j):
    bias = ALiBi(8).bias(torch.tensor([i]), torch.tensor([j]))[:, 0, 0]
    assert bias.tolist() == [-(i - j) * 2.0**-h for h in range(1, 9)]


def test_strength_gives_a_single_head_the_slope_of_the_first_of_eight():
    assert ALiBi(1).slopes.tolist() == [2.0**-8]
    assert ALiBi(1, strength=128.0).slopes.tolist() == [0.5]


# -- T5 ------------------------------------------------------------------------------------------

BUCKETS = st.integers(1, 20).map(lambda half: 2 * half)


@few
@given(BUCKETS, st.integers(1, 300))
def test_every_offset_is_in_a_bucket_of_the_table_and_both_ends_are_reached(buckets, more):
    limit = buckets // 2 + more
    encoding = T5Bias(2, generator(), buckets, limit)
    offset = torch.arange(-5, limit + 50)
    bucket = encoding.bucket(offset[None])[0]
    assert bucket.min() == 0 and bucket.max() == buckets - 1
    assert bool((bucket.diff() >= 0).all())  # monotone: a bucket is an interval
    assert bool((bucket[offset <= 0] == 0).all())
    exact = offset[(offset >= 0) & (offset < buckets // 2)]
    assert torch.equal(bucket[exact + 5], exact)
    assert bool((bucket[offset >= limit] == buckets - 1).all())
    assert encoding.bucket(torch.tensor([[FAR]])) == buckets - 1
    table = encoding.table[:, bucket]
    assert torch.equal(encoding.bias(offset[-1:], offset[-1] - offset)[:, 0], table)


@few
@given(BUCKETS, st.integers(1, 300))
def test_a_wide_bucket_starts_where_the_logarithm_says(buckets, more):
    """Against the formula in float64, except where an offset lies on the boundary itself."""
    exact = buckets // 2
    limit, width = exact + more, buckets - exact
    encoding = T5Bias(1, generator(), buckets, limit)
    offset = torch.arange(exact, limit)
    place = (offset.double() / exact).log() / math.log(limit / exact) * width
    inside = (place - place.round()).abs() > 1e-9
    expected = exact + place.long()
    assert torch.equal(encoding.bucket(offset[None])[0][inside], expected[inside])


def test_offsets_on_a_boundary_open_the_bucket():
    """16 * 16^(m/16) is 32, 64, 128 at m = 4, 8, 12; a rounded logarithm may miss them."""
    encoding = T5Bias(1, generator(), 32, 256)
    for m, start in ((0, 16), (4, 32), (8, 64), (12, 128)):
        found = encoding.bucket(torch.tensor([[start - 1, start]])).tolist()
        assert found == [[15 + m, 16 + m]]


def test_the_default_table_has_32_buckets_up_to_128():
    starts = bucket_starts(32, 128)
    assert starts[:17].tolist() == list(range(17))
    assert len(starts) == 32
    assert starts[-1] < 128


# -- clipped relative ----------------------------------------------------------------------------


@few
@given(st.integers(1, 40), st.lists(st.integers(-FAR, FAR), min_size=1, max_size=20))
def test_a_clipped_offset_is_its_column_and_both_ends_hold_all_that_is_beyond(limit, offsets):
    encoding = ClippedRelative(2, generator(), limit)
    assert encoding.table.shape == (2, 2 * limit + 1)
    offset = torch.tensor([*offsets, -limit - 1, -limit, 0, limit, limit + 1])
    bias = encoding.bias(torch.zeros(1, dtype=torch.long), -offset)[:, 0]
    columns = [min(max(o, -limit), limit) + limit for o in offset.tolist()]
    assert torch.equal(bias, encoding.table[:, columns])
    assert columns[-5:] == [0, 0, limit, 2 * limit, 2 * limit]


# -- KERPLE --------------------------------------------------------------------------------------


@few
@given(st.integers(0, 2**32), st.integers(0, FAR))
def test_kerple_is_a_power_law_of_the_distance(seed, offset):
    encoding = build("kerple", seed=seed)
    bias = encoding.bias(torch.tensor([offset, 0]), torch.tensor([0, offset]))
    r1, r2 = encoding.log_r1.exp(), encoding.log_r2.exp()
    # a logarithm's argument up to 2^20, so relative to 14 units
    torch.testing.assert_close(bias[:, 0, 0].exp(), (1 + r2 * offset) ** -r1, rtol=1e-11, atol=0)
    assert torch.equal(bias[:, 0, 0], bias[:, 1, 1])  # both directions
    assert bool((bias[:, 0, 1] == 0).all())  # offset 0


def test_kerple_stays_positive_and_starts_in_its_ranges():
    encoding = Kerple(10_000, generator())
    r1, r2 = encoding.log_r1.exp(), encoding.log_r2.exp()
    # a mean of 10,000 uniform draws is off by 0.3 % of the range; the limits by one rounding
    for r, top in ((r1, 2), (r2, 1)):
        assert r.min() > 0 and r.max() <= top * (1 + 1e-6)
        assert r.mean().item() == pytest.approx(top / 2, rel=0.03)


# -- FIRE ----------------------------------------------------------------------------------------


def fire(threshold):
    return build("fire", {"threshold": threshold})


@few
@given(st.integers(0, 300), st.integers(0, 300), st.floats(0.5, 200))
def test_the_ratio_of_fire_is_that_of_its_formula(i, j, threshold):
    encoding = build("fire", {"threshold": threshold, "scale": 0.3})
    found = encoding.ratio(torch.tensor([i]), torch.tensor([j]))
    expected = math.log(1 + 0.3 * abs(i - j)) / math.log(1 + 0.3 * max(i, threshold))
    assert found.item() == pytest.approx(expected, rel=1e-6)  # c starts as the float32 of 0.3


@few
@given(st.integers(0, FAR))
def test_fire_gives_the_first_key_one_bias_from_every_query_past_the_threshold(excess):
    encoding = fire(5.0)
    bias = encoding.bias(torch.tensor([5, 5 + excess]), torch.tensor([0]))
    torch.testing.assert_close(bias[:, 0], bias[:, 1], rtol=1e-12, atol=1e-12)


@few
@given(
    st.integers(2, 16),
    st.integers(2, 16),
    st.integers(1, 5).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
)
def test_past_the_threshold_pairs_of_one_ratio_have_one_bias(first, second, powers):
    """With c = 1 a query at a^n - 1 and a key a^m - 1 before it have the ratio m / n, any a."""
    encoding = build("fire", {"threshold": 0.5, "scale": 1.0})
    m, n = powers
    found = []
    for a in (first, second):
        query = torch.tensor([a**n - 1])
        key = query - (a**m - 1)
        assert encoding.ratio(query, key).item() == pytest.approx(m / n, abs=1e-14)
        found.append(encoding.bias(query, key))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_up_to_the_threshold_fire_is_a_function_of_the_offset():
    encoding, positions = fire(100.0), torch.arange(40)
    near, later = (encoding.bias(positions + m, positions + m) for m in (0, 60))
    torch.testing.assert_close(near, later, rtol=1e-12, atol=1e-12)


def test_fire_is_piecewise_linear_in_its_ratio_and_symmetric_around_the_query():
    encoding = fire(50.0)
    bias = encoding.bias(torch.tensor([20]), torch.arange(41))
    torch.testing.assert_close(bias, bias.flip(2), rtol=0, atol=0)
    ratio = encoding.ratio(torch.tensor([20]), torch.tensor([3]))[0, 0]
    hidden = (encoding.slope * ratio + encoding.shift).clamp(min=0)
    torch.testing.assert_close(bias[:, 0, 3], encoding.weight @ hidden, rtol=1e-12, atol=1e-12)


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        *((cls, {"factor": 0.5}, "factor=0.5 .*at least 1") for cls in SCALED),
        *((cls, {"factor": math.nan}, "factor=nan .*at least 1") for cls in SCALED),
        *((cls, {"factor": math.inf}, "factor=inf .*finite") for cls in SCALED),
        *((cls, {"width": 10}, "width=10 .*at most 8") for cls in (*SCALED, XPos)),
        (RotaryNTK, {"width": 2}, "width=2 .*at least 4"),
        (RotaryYaRN, {"trained_length": 0}, "trained_length=0 .*at least 1"),
        (RotaryYaRN, {"slow": 32.0}, "slow=32.0, fast=32.0 .*slow < fast"),
        (RotaryYaRN, {"slow": -1.0}, "slow=-1.0, .*0 <= slow"),
        (XPos, {"scale": 0.0}, "scale=0.0 .*above 0"),
        (XPos, {"gamma": -0.4}, "gamma=-0.4 .*above 0"),
        (Sinusoidal, {"base": 1.0}, "base=1.0 .*above 1"),
        (Sinusoidal, {"scale": 0.0}, "scale=0.0 .*above 0"),
        (ALiBi, {"strength": 0.0}, "strength=0.0 .*above 0"),
        (T5Bias, {"buckets": 7}, "buckets=7 .*even and at least 2"),
        (T5Bias, {"buckets": 0}, "buckets=0 .*even and at least 2"),
        (T5Bias, {"max_distance": 16}, "max_distance=16 .*above 16"),
        (ClippedRelative, {"max_offset": 0}, "max_offset=0 .*at least 1"),
        (Fire, {"threshold": 0.0}, "threshold=0.0 .*above 0"),
        (Fire, {"scale": -0.1}, "scale=-0.1 .*above 0"),
        (Fire, {"hidden": 0}, "hidden=0 .*at least 1"),
    ],
)
def test_a_bad_option_is_refused_with_its_value_and_what_is_allowed(cls, options, message):
    with pytest.raises(ValueError, match=message):
        build(cls, options)


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match=r"d_model=7 .*even"):
        Sinusoidal(7)
    with pytest.raises(ValueError, match=r"d_head=7 .*even"):
        XPos(7)
    with pytest.raises(ValueError, match=r"n_heads=0 .*at least 1"):
        ALiBi(0)
