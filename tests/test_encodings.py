import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lengthgen.encodings import (
    ENCODINGS,
    HOOKS,
    Learned,
    LearnedRandomOffset,
    NoEncoding,
    PositionalEncoding,
    Rotary,
    construct,
    encoding_class,
    has_hook,
    is_isometric,
    rotary_frequencies,
)
from lengthgen.equivariance import RoundedProductRotary

few = settings(max_examples=40, deadline=None)
LAYOUTS = ("interleaved", "half-split")
FAR = 2**20


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def offered(**changes):
    sizes = {"d_model": 8, "d_head": 6, "n_heads": 1, "max_length": 12}
    return {**sizes, "generator": generator(), **changes}


# -- the registry and the interface -------------------------------------------------------------


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_is_found_by_its_name_and_has_a_hook_with_the_documented_shape(name):
    encoding = construct(encoding_class(name), **offered())
    assert encoding.name == name
    assert any(has_hook(encoding, hook) for hook in HOOKS)
    positions = torch.arange(5)
    if has_hook(encoding, "embed"):
        assert encoding.embed(positions).shape == (5, 8)
    for hook in ("transform_query", "transform_key"):
        if has_hook(encoding, hook):
            assert getattr(encoding, hook)(torch.randn(2, 3, 5, 6), positions).shape == (2, 3, 5, 6)
    if has_hook(encoding, "bias"):
        assert encoding.bias(positions[-1:], positions).shape[-2:] == (1, 5)


def test_an_unknown_encoding_is_refused_with_the_names_that_exist():
    with pytest.raises(ValueError, match=r"'rotery'.*none, learned, .*rotary"):
        encoding_class("rotery")


def test_a_class_is_taken_as_it_is():
    assert encoding_class(NoEncoding) is NoEncoding


class AllArguments:
    def __init__(self, d_model, d_head, n_heads, max_length, generator, slope=1.0):
        self.arguments = (d_model, d_head, n_heads, max_length)
        self.draw, self.slope = torch.rand(1, generator=generator), slope

    def bias(self, query_positions, key_positions): ...


class NoArguments:
    def bias(self, query_positions, key_positions): ...


class ModuleWithoutInit(nn.Module):
    def embed(self, positions): ...


def test_a_class_is_built_with_those_arguments_that_its_init_names():
    built = construct(AllArguments, **offered(), options={"slope": 2.0})
    assert built.arguments == (8, 6, 1, 12)
    assert built.slope == 2.0
    assert torch.equal(built.draw, torch.rand(1, generator=generator()))
    assert isinstance(construct(NoArguments, **offered()), NoArguments)
    assert isinstance(construct(ModuleWithoutInit, **offered()), ModuleWithoutInit)


def test_an_unknown_option_is_refused_with_those_that_exist():
    with pytest.raises(ValueError, match=r"AllArguments has no option 'slop'.*slope"):
        construct(AllArguments, **offered(), options={"slop": 2.0})
    with pytest.raises(ValueError, match=r"NoArguments has no option 'slope'.*none"):
        construct(NoArguments, **offered(), options={"slope": 2.0})


@pytest.mark.parametrize("empty", [int, nn.Linear, PositionalEncoding])
def test_a_class_without_a_hook_is_refused(empty):
    with pytest.raises(ValueError, match="none of the hooks embed, transform_query"):
        construct(empty, **offered())


# -- learned ------------------------------------------------------------------------------------


@few
@given(st.integers(1, 40), st.integers(0, 200))
def test_a_position_past_the_table_is_refused_with_both_numbers(rows, excess):
    encoding = Learned(4, rows, generator())
    last = rows + excess
    with pytest.raises(ValueError, match=rf"position {last} .*{rows} rows .*max_length"):
        encoding.embed(torch.tensor([0, last]))
    assert encoding.embed(torch.tensor([rows - 1])).shape == (1, 4)


def test_a_position_below_the_table_is_refused():
    with pytest.raises(ValueError, match="8 rows"):  # row -1 would be the last one, silently
        Learned(4, 8, generator()).embed(torch.tensor([-1, 3]))


@few
@given(st.lists(st.integers(0, 11), min_size=1, max_size=20))
def test_a_learned_position_is_its_row_whatever_the_order(positions):
    encoding = Learned(4, 12, generator())
    index = torch.tensor(positions)
    assert torch.equal(encoding.embed(index), encoding.table[index])


@pytest.mark.parametrize("max_length", [0, -3])
def test_a_table_without_rows_is_refused(max_length):
    with pytest.raises(ValueError, match=f"max_length={max_length}"):
        Learned(4, max_length, generator())


def test_the_initial_table_has_the_standard_deviation_asked_for():
    for std in (0.02, 1.0):
        table = Learned(32, 1024, generator(), std).table
        # 32,768 normal draws: the sample deviation has a relative error of 0.4 %
        assert table.std().item() == pytest.approx(std, rel=0.02)


def test_random_offsets_fit_the_table_exactly():
    encoding = LearnedRandomOffset(4, generator(), rows=64)
    assert encoding.max_length == 64
    assert [encoding.n_starts(length) for length in (10, 16, 64)] == [55, 49, 1]
    with pytest.raises(ValueError, match=r"length=65 is too long .*64 rows"):
        encoding.n_starts(65)
    assert encoding.embed(torch.arange(64 - 16, 64)).shape == (16, 4)


def test_encodings_without_random_offsets_start_at_position_zero():
    assert Learned(4, 64, generator()).n_starts(16) == 1
    assert NoEncoding().n_starts(16) == Rotary(8).n_starts(16) == 1


def test_no_encoding_adds_nothing():
    assert torch.equal(NoEncoding().bias(torch.tensor([7]), torch.arange(9)), torch.zeros(1, 9))


# -- rotary -------------------------------------------------------------------------------------


@few
@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from((2, 4, 6, 8)),
    st.floats(2, 1e6),
    st.integers(0, FAR),
)
def test_a_rotation_keeps_lengths_and_leaves_unrotated_channels_alone(layout, width, base, first):
    rotary = Rotary(8, base, width, layout)
    x = torch.randn(2, 3, 8, dtype=torch.float64, generator=generator())
    turned = rotary.transform_query(x, first + torch.arange(3))
    # a rotation of unit-size numbers: rounding of a few 2^-53
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-14, atol=0)
    assert torch.equal(turned[..., width:], x[..., width:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_position_zero_is_not_turned_and_positions_add_up(layout):
    rotary = Rotary(8, layout=layout)
    x = torch.randn(5, 8, dtype=torch.float64, generator=generator())
    at = lambda x, position: rotary.transform_key(x, torch.full((5,), position))  # noqa: E731
    assert torch.equal(at(x, 0), x)
    # angles up to 12 carry 12 * 2^-53 = 1e-15
    torch.testing.assert_close(at(at(x, 5), 7), at(x, 12), rtol=0, atol=1e-13)


def test_the_two_layouts_are_one_rotation_of_channels_in_another_order():
    x = torch.randn(4, 8, dtype=torch.float64, generator=generator())
    positions = torch.tensor([0, 1, 7, 1000])
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # pair (f, f + 4) becomes (2f, 2f + 1)
    interleaved = Rotary(8, layout="interleaved").transform_key(x[:, order], positions)
    half_split = Rotary(8, layout="half-split").transform_key(x, positions)
    assert torch.equal(interleaved, half_split[:, order])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_pair_turns_by_its_own_angle(layout):
    rotary = Rotary(6, base=100.0, layout=layout)
    first, second = (0, 1) if layout == "interleaved" else (0, 3)
    x = torch.zeros(1, 6, dtype=torch.float64)
    for pair in range(3):
        step = 2 * pair if layout == "interleaved" else pair
        x.zero_()[0, first + step] = 1
        turned = rotary.transform_query(x, torch.tensor([11]))[0]
        angle = torch.tensor(11 * 100.0 ** (-2 * pair / 6), dtype=torch.float64)
        torch.testing.assert_close(turned[first + step], angle.cos(), rtol=0, atol=1e-14)
        torch.testing.assert_close(turned[second + step], angle.sin(), rtol=0, atol=1e-14)


def logits(rotary, first, dtype, d_head=32, span=24):
    """Logits of 16 random queries and keys at all pairs of positions from `first` on."""
    q = torch.randn(16, 1, d_head, generator=generator(1), dtype=torch.float64).to(dtype)
    k = torch.randn(16, 1, d_head, generator=generator(2), dtype=torch.float64).to(dtype)
    positions = first + torch.arange(span)
    query = rotary.transform_query(q.expand(-1, span, -1), positions)
    key = rotary.transform_key(k.expand(-1, span, -1), positions)
    return query @ key.transpose(1, 2) / d_head**0.5


def drift(rotary, dtype, first=FAR):
    near, far = logits(rotary, 0, dtype), logits(rotary, first, dtype)
    return ((far - near).abs().max() / near.abs().max()).item()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [8, 32])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_logits_do_not_drift_up_to_two_to_the_twenty(layout, width, dtype, most):
    rotary = Rotary(32, width=width, layout=layout)
    for first in (1, 1000, 2**15, FAR):
        assert drift(rotary, dtype, first) < most


def test_rounding_the_product_is_seen():
    """At 2^20 neighbouring float32 angles lie 1/16 rad apart: 100 times what float32 may drift."""
    for dtype in (torch.float64, torch.float32):
        assert drift(RoundedProductRotary(32), dtype) > 1e-3
        assert drift(RoundedProductRotary(32), dtype, 1) < 1e-5  # ... and only far out


def test_a_rotation_that_mixes_the_layouts_would_be_seen():
    rotary, mixed = Rotary(32), copy.deepcopy(Rotary(32))
    mixed._angles = lambda positions: rotary._angles(positions).flip(1)
    mixed.transform_key = rotary.transform_key
    assert drift(mixed, torch.float64, 16) > 1e-2


@pytest.mark.parametrize("cast", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_casting_the_module_does_not_change_its_frequencies(cast):
    rotary = Rotary(32).to(cast)
    assert torch.equal(rotary.frequencies, rotary_frequencies(32))
    assert rotary.frequencies.dtype == torch.float64
    assert drift(rotary, torch.float64) < 1e-10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_meet_exact_positions(dtype):
    """bfloat16 cannot tell 256 from 257; the rotation must."""
    x = torch.ones(1, 8, dtype=dtype)
    rotary = Rotary(8)
    turned = [rotary.transform_query(x, torch.tensor([p])) for p in (256, 257, 1044, FAR + 1)]
    assert all(t.dtype == dtype for t in turned)
    assert not torch.equal(turned[0], turned[1])
    for position, low in zip((256, 257, 1044, FAR + 1), turned, strict=True):
        exact = rotary.transform_query(x.double(), torch.tensor([position]))
        # one rounding at the end: half a unit of at most sqrt(2), i.e. eps(dtype)
        assert (low.double() - exact).abs().max() <= torch.finfo(dtype).eps


def test_int32_and_int64_positions_are_the_same_positions():
    x = torch.randn(3, 8, generator=generator())
    positions = torch.tensor([5, 70_000, FAR + 3])
    rotary = Rotary(8)
    assert torch.equal(rotary.transform_key(x, positions), rotary.transform_key(x, positions.int()))


@given(st.integers(1, 50).filter(lambda width: width % 2))
def test_an_odd_width_is_refused_at_construction_and_named(width):
    with pytest.raises(ValueError, match=rf"{width} .*even"):
        Rotary(width)
    with pytest.raises(ValueError, match=rf"{width} .*even"):
        Rotary(64, width=width)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 10}, "width=10 .*even and at most 8"),
        ({"width": 0}, "=0 .*even"),
        ({"width": -2}, "=-2 .*even"),
        ({"base": 1.0}, "base=1.0 .*above 1"),
        ({"base": float("nan")}, "base=nan .*above 1"),
        ({"layout": "split"}, "'split' .*interleaved, half-split"),
    ],
)
def test_bad_arguments_of_rotary_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Rotary(8, **arguments)


def test_two_bases_have_two_tables():
    """A table cached without its base would serve the second encoding the first one's angles."""
    x, positions = torch.ones(4, 8), torch.arange(4)
    small, large = (Rotary(8, base).transform_key(x, positions) for base in (100.0, 1e4))
    assert not torch.equal(small, large)


@few
@given(st.integers(1, 40), st.floats(1.001, 1e6))
def test_frequencies_fall_from_one_geometrically(half, base):
    spectrum = rotary_frequencies(2 * half, base)
    assert spectrum[0] == 1
    # each entry rounded once: ratios of neighbours agree to a few units of the last place
    ratio = spectrum[1:] / spectrum[:-1]
    torch.testing.assert_close(
        ratio, torch.full_like(ratio, base ** (-1 / half)), rtol=1e-14, atol=0
    )


# -- what training takes from rotations ---------------------------------------------------------


ISOMETRIC = [name for name, cls in ENCODINGS.items() if is_isometric(construct(cls, **offered()))]


@pytest.mark.parametrize("name", ISOMETRIC)
@pytest.mark.parametrize("hook", ["transform_query", "transform_key"])
def test_a_transform_called_isometric_is_undone_by_the_negative_positions(name, hook):
    encoding = construct(encoding_class(name), **offered(max_length=2000))
    x, y = (torch.randn(3, 9, 6, generator=generator(s), dtype=torch.float64) for s in (1, 2))
    positions = 1000 + torch.arange(9)
    turned, back = (getattr(encoding, hook)(z, p) for z, p in ((x, positions), (y, -positions)))
    # the transpose of the map: <R x, y> = <x, R' y>; sums of six products of size 1
    torch.testing.assert_close((turned * y).sum(-1), (x * back).sum(-1), rtol=0, atol=1e-12)


def test_only_who_says_so_of_its_own_transforms_is_isometric():
    class Doubled(Rotary):
        def transform_key(self, x, positions):
            return 2 * super().transform_key(x, positions)

    class Slower(Rotary):
        def __init__(self, d_head):
            super().__init__(d_head, base=50.0)

    class Reader:
        def transform_key(self, x, positions):
            return x

    assert "rotary" in ISOMETRIC
    assert not {"xpos", "rotary-yarn"} & set(ISOMETRIC)  # they also scale
    assert is_isometric(Slower(8))
    assert not is_isometric(Doubled(8))
    assert not is_isometric(Reader())
