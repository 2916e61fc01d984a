import pytest
import torch

from lengthgen import carrier, circuit
from lengthgen.encodings import rotary_frequencies
from lengthgen.position_head import waves
from lengthgen.transformer import TransformerConfig, TransformerStack

K = 3


def stack(encoding="rotary", seeds=(0, 7), **values):
    """Large initial weights, so that attention is not uniform; float64."""
    sizes = {"vocabulary": 5, "d_model": 8, "n_heads": 2, "max_length": 64, "std": 0.5}
    config = TransformerConfig(encoding, **sizes | values)
    return TransformerStack.initialize(config, seeds).map(torch.Tensor.double)


def tokens(n_sequences, length, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, (n_sequences, length), generator=generator)


def test_the_first_positions_of_a_long_run_are_those_of_a_short_one(monkeypatch):
    models, sequences = stack(), tokens(20, 24)
    long = circuit.accuracy_by_position(models, sequences, K)
    short = circuit.accuracy_by_position(models, sequences[:, :9], K)
    assert long.shape == (2, 24 - K) and torch.equal(long[:, : 9 - K], short)
    monkeypatch.setattr(circuit, "CHUNK", 50)
    assert torch.equal(circuit.accuracy_by_position(models, sequences, K), long)


def test_accuracy_counts_answers_by_hand():
    models, sequences = stack(), tokens(20, 9)
    answers = models.forward(sequences.expand(2, -1, -1)).argmax(-1)
    found = circuit.accuracy_by_position(models, sequences, K)
    for i in range(K, 9):
        right = (answers[:, :, i] == sequences[:, i - K]).double().mean(1)
        # counts of 20 sequences, kept in float32
        torch.testing.assert_close(found[:, i - K].double(), right, rtol=0, atol=1e-7)


def test_cutting_a_head_is_cutting_that_head():
    models, sequences = stack(), tokens(30, 9)
    found = circuit.cut_one_head(models, sequences, K)
    keep = torch.ones(2, 2, 2)
    keep[:, 1, 0] = 0
    alone = circuit.accuracy_by_position(models, sequences, K, keep).mean(-1)
    assert found.shape == (2, 2, 2) and torch.equal(found[:, 1, 0], alone)


def test_attention_at_the_offset_is_a_mean_over_queries_that_have_a_target():
    found = circuit.trace(stack(), tokens(4, 9))
    wanted = torch.stack([found.attention[..., i, i - K] for i in range(K, 9)]).mean((0, 3))
    torch.testing.assert_close(circuit.attention_at_offset(found, K), wanted, rtol=0, atol=1e-12)


def test_uniform_attention_gives_the_first_keys_their_number():
    """With queries zero every visible key weighs the same."""
    models = stack("none")
    models = models.with_parameters(query=torch.zeros_like(models.parameters["query"]))
    found = circuit.trace(models, tokens(4, 12))
    mass = circuit.mass_on_first(found, 4)
    torch.testing.assert_close(mass, torch.full_like(mass, 4 / 12), rtol=0, atol=1e-12)


def test_logits_of_one_kernel_are_explained_by_it_and_noise_is_not():
    generator = torch.Generator().manual_seed(0)
    kernel = torch.randn(12, generator=generator, dtype=torch.float64)
    level = torch.randn(400, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(400, 12, generator=generator, dtype=torch.float64)
    shares = carrier.explained_share(torch.stack([kernel + level, noise])[..., None, :])
    assert shares[0] == pytest.approx(1, abs=1e-12)
    assert 0 <= shares[1] < 0.02  # the mean of 400 draws explains 1/400 by chance


@pytest.mark.parametrize("layout", ["interleaved", "half-split"])
def test_in_the_first_layer_the_mean_kernel_is_the_mean_over_token_pairs(layout):
    """Every pair of tokens once: the logits at an offset average to the kernel there."""
    models = stack(encoding_options={"layout": layout})
    every = torch.cartesian_prod(*[torch.arange(5)] * 4)  # all sequences of four tokens
    found = circuit.trace(models, every)
    coefficients = circuit.carrier_coefficients(models, found)[:, 0]
    offsets = torch.arange(1, 4)
    kernel = (coefficients[..., None, :] * waves(rotary_frequencies(4), offsets)).real.sum(-1)
    mean = circuit.last_query(found).mean(-2)[:, 0, :, 1:]
    torch.testing.assert_close(mean, kernel, rtol=0, atol=1e-10)


def test_ranks_are_those_of_each_heads_form():
    models = stack()
    query, key = (models.parameters[name][1, 0][:, 4:] for name in ("query", "key"))
    rank = carrier.effective_rank(query @ key.T)
    torch.testing.assert_close(circuit.head_ranks(models)[1, 0, 1], rank, rtol=0, atol=1e-10)


def test_a_shift_changes_learned_logits_and_not_rotary_ones():
    sequences = tokens(4, 9)
    rotary = circuit.shift_effect(stack(), sequences, 2**20)
    # angles near 2^20 carry 2^20 * 2^-53 = 1.2e-10, through two layers
    assert rotary["logit_change"].max() < 1e-8 and rotary["answers_changed"].max() == 0
    options = {"std": 1.0}
    learned = circuit.shift_effect(stack("learned", encoding_options=options), sequences, 30)
    assert learned["logit_change"].amax((1, 2)).min() > 0.1


def test_a_longer_past_changes_weights_in_the_first_layer_and_logits_in_the_second():
    effect = circuit.context_effect(stack(), tokens(6, 30), 9, K)
    change = effect["logit_change"]
    # the same products in float64, in another shape
    assert change[:, 0].max() < 1e-12 and change[:, 1].min() > 1e-3
    # the same logits over more keys: a larger normalizer
    assert bool((effect["attention_after"][:, 0] < effect["attention_alone"][:, 0]).all())
