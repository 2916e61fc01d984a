"""The encodings against implementations by others: `transformers` and `rotary-embedding-torch`.

Both work in float32, so positions stay below 128: an angle of 128 radians is rounded there by
128 * 2^-24 = 8e-6. They are imported inside the tests, because `transformers` takes seconds.
"""

import math

import pytest
import torch

from lengthgen.encodings import (
    ALiBi,
    Rotary,
    RotaryInterpolated,
    RotaryNTK,
    RotaryYaRN,
    Sinusoidal,
    T5Bias,
    XPos,
)

POSITIONS = torch.arange(128)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed))


def assert_close(found, expected):
    """To 1e-4: float32 angles up to 128 radians (8e-6), times entries up to 4, in sums of two."""
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def llama():
    from transformers.models.llama import modeling_llama

    return modeling_llama


def llama_rotary(llama, d_head, trained_length=128, **parameters):
    config = llama.LlamaConfig(
        hidden_size=d_head,
        num_attention_heads=1,
        max_position_embeddings=trained_length,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, **parameters},
    )
    return llama.LlamaRotaryEmbedding(config)


def llama_rotated(llama, rotary, x):
    cos, sin = rotary(x, POSITIONS[None])
    return llama.apply_rotary_pos_emb(x[None], x[None], cos, sin)[0][0, 0]


@pytest.mark.parametrize(
    ("ours", "parameters"),
    [
        (Rotary(32, layout="half-split"), {}),
        (Rotary(32, base=500.0, layout="half-split"), {"rope_theta": 500.0}),
        (
            RotaryInterpolated(32, 4.0, layout="half-split"),
            {"rope_type": "linear", "factor": 4.0},
        ),
    ],
    ids=("rotary", "rotary-base", "rotary-interpolated"),
)
def test_rotated_queries_are_those_of_llama(llama, ours, parameters):
    x = random(len(POSITIONS), 32)
    theirs = llama_rotary(llama, 32, **parameters)
    torch.testing.assert_close(ours.frequencies.float(), theirs.inv_freq, rtol=1e-6, atol=0)
    assert_close(ours.transform_query(x, POSITIONS), llama_rotated(llama, theirs, x))


def test_yarn_is_that_of_llama_where_no_pair_lies_on_the_ramp(llama):
    """Theirs is drawn over the pair's index, ours over its turns; between neighbours both jump."""
    turns = 4096 * Rotary(32).frequencies / (2 * math.pi)
    for pair in (2, 5, 9):
        low, high = turns[pair + 1].item(), turns[pair].item()
        slow, fast = low + 0.1 * (high - low), low + 0.9 * (high - low)
        ours = RotaryYaRN(32, 8.0, 4096, slow, fast, layout="half-split")
        theirs = llama_rotary(
            llama,
            32,
            8 * 4096,
            rope_type="yarn",
            factor=8.0,
            beta_slow=slow,
            beta_fast=fast,
            original_max_position_embeddings=4096,
        )
        assert ours.sharpness == pytest.approx(theirs.attention_scaling, rel=1e-12)
        torch.testing.assert_close(ours.frequencies.float(), theirs.inv_freq, rtol=1e-6, atol=0)
        x = random(len(POSITIONS), 32)
        assert_close(ours.transform_key(x, POSITIONS), llama_rotated(llama, theirs, x))


def test_yarn_keeps_and_interpolates_the_same_pairs_as_llama_by_default(llama):
    ours = RotaryYaRN(64, 8.0, 4096)
    theirs = llama_rotary(
        llama,
        64,
        8 * 4096,
        rope_type="yarn",
        factor=8.0,
        original_max_position_embeddings=4096,
    ).inv_freq
    end = (ours.kept == 0) | (ours.kept == 1)
    assert 0 < int(end.sum()) < 32
    torch.testing.assert_close(ours.frequencies[end].float(), theirs[end], rtol=1e-6, atol=0)
    plain = Rotary(64).frequencies[~end].float()
    assert bool(((theirs[~end] <= plain) & (theirs[~end] >= plain / 8)).all())


@pytest.mark.parametrize("factor", [1.0, 2.0, 7.5])
@pytest.mark.parametrize("width", [16, 32])
def test_ntk_is_that_of_rotary_embedding_torch(factor, width):
    from rotary_embedding_torch import RotaryEmbedding

    x = random(len(POSITIONS), 32)
    theirs = RotaryEmbedding(width, theta_rescale_factor=factor)
    expected = theirs.rotate_queries_or_keys(x[None])[0].detach()
    assert_close(RotaryNTK(32, factor, width=width).transform_query(x, POSITIONS), expected)


def test_logits_of_xpos_are_those_of_rotary_embedding_torch():
    """They center positions, which cancels in the logit."""
    from rotary_embedding_torch import RotaryEmbedding

    q, k = random(len(POSITIONS), 32, seed=1), random(len(POSITIONS), 32, seed=2)
    query, key = RotaryEmbedding(32, use_xpos=True, xpos_scale_base=64).rotate_queries_and_keys(
        q[None], k[None]
    )
    expected = (query @ key.transpose(1, 2))[0].detach()
    ours = XPos(32, scale=64.0)
    found = ours.transform_query(q, POSITIONS) @ ours.transform_key(k, POSITIONS).T
    # keys after the query grow to some hundred: relative to the largest logit
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("width", [8, 30])
def test_sinusoids_interleave_as_in_distilbert_and_are_those_of_marian_in_another_order(width):
    from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    found = Sinusoidal(width).embed(POSITIONS).float()
    interleaved = create_sinusoidal_embeddings(len(POSITIONS), width, torch.empty(128, width))
    marian = MarianSinusoidalPositionalEmbedding(len(POSITIONS), width)
    # both are computed in float64 and rounded last, as ours are
    torch.testing.assert_close(found, interleaved, rtol=0, atol=1e-7)
    halves = torch.cat([found[:, 0::2], found[:, 1::2]], dim=1)
    torch.testing.assert_close(halves, marian.create_weight(), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("buckets", "limit"), [(32, 128), (64, 300), (10, 50)])
def test_buckets_are_those_of_t5(buckets, limit):
    from transformers.models.t5.modeling_t5 import T5Attention

    offset = torch.cat([torch.arange(-10, 2 * limit), torch.tensor([10_000, 2**20])])[None]
    expected = T5Attention._relative_position_bucket(-offset, False, buckets, limit)
    assert torch.equal(T5Bias(1, generator(), buckets, limit).bucket(offset), expected)


@pytest.mark.parametrize("n_heads", [1, 2, 3, 8, 12, 20, 32, 71])
def test_alibi_is_that_of_bloom(n_heads):
    """Theirs is slope times key position: the same up to a constant per query."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    expected = build_alibi_tensor(torch.ones(1, 128), n_heads, torch.float32)[:, 0]
    bias = ALiBi(n_heads).bias(POSITIONS, POSITIONS)
    found = bias - bias[..., :1]
    for query in (0, 50, 127):
        # powers of a float32 base: exponents up to 2 * 71 multiply its rounding
        torch.testing.assert_close(found[:, query].float(), expected, rtol=2e-5, atol=0)
