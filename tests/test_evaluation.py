import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.encodings import ENCODINGS
from lengthgen.evaluation import AccuracyConfig, accuracy, accuracy_rows, attention
from lengthgen.task import TestSequences

few = settings(max_examples=8, deadline=None)
SHARP = {"learned": {"std": 0.7}, "learned-random-offset": {"std": 0.7}}


class Recency:
    """A reader's plain class: hides what is more than five tokens away, wholly."""

    def bias(self, query_positions, key_positions):
        distance = query_positions[:, None] - key_positions
        return torch.where(distance > 5, -torch.inf, 0.2 * distance.float())


EVERY = (*ENCODINGS, Recency)


def sharp_stack(small_head, encoding, seeds, dtype=torch.float64):
    """Heads whose attention is far from uniform, and whose answers therefore differ."""
    config = small_head(encoding, **SHARP.get(encoding, {}))
    return HeadStack.initialize(config, seeds).map(lambda p: (2 * p).to(dtype))


def plain_accuracy(stack, offsets, length, test):
    tokens = test.sequences(length)
    answer, _ = stack.forward(tokens.expand(stack.n_models, -1, -1))
    targets = torch.stack([tokens[:, length - 1 - k].long() for k in offsets])
    return (answer.argmax(-1) == targets).float().mean(-1)


@pytest.mark.parametrize(
    ("encoding", "block"), [*((encoding, 16) for encoding in EVERY), ("learned", 7), ("rotary", 7)]
)
def test_streaming_accuracy_is_that_of_the_plain_head(small_head, encoding, block):
    """Exactly: float64 sums in another order move no answer of a few hundred."""
    stack = sharp_stack(small_head, encoding, range(11))  # not a multiple of the columns
    offsets = [1, 2, 4, 6, 1, 3, 5, 2, 6, 1, 4]
    lengths = [7, 8, 16, 17, 33, 64]
    test = TestSequences(90, vocabulary=5, block=block)
    table = accuracy(stack, offsets, lengths, test)
    assert table.shape == (11, len(lengths))
    for column, length in enumerate(lengths):
        assert torch.equal(table[:, column], plain_accuracy(stack, offsets, length, test))
    assert len(table.unique()) > 5  # heads differ, so equality says something


def test_float32_accuracy_is_that_of_the_plain_head_up_to_ties(small_head):
    stack = sharp_stack(small_head, "rotary", range(8), torch.float32)
    test = TestSequences(400, vocabulary=5, block=32)
    table = accuracy(stack, [2] * 8, [100], test)
    # answers that differ by less than float32 resolves may fall either way: one in a hundred
    assert (table[:, 0] - plain_accuracy(stack, [2] * 8, 100, test)).abs().max() <= 0.01


@pytest.mark.parametrize("encoding", EVERY)
def test_a_model_has_the_same_accuracy_alone_and_in_a_stack_of_eighty(small_head, encoding):
    seeds = [seed for seed in range(10) for _ in range(8)]
    offsets = [1, 2, 3, 4, 5, 6, 1, 2] * 10
    stack = sharp_stack(small_head, encoding, seeds, torch.float32)
    test = TestSequences(150, vocabulary=5, block=16)
    together = accuracy(stack, offsets, [7, 16, 37], test)
    for model in (0, 7, 8, 58, 79):
        alone = accuracy(stack.select([model]), [offsets[model]], [7, 16, 37], test)
        assert torch.equal(alone[0], together[model])
        part = accuracy(stack.select([3, model]), [offsets[3], offsets[model]], [37], test)
        assert torch.equal(part[1, 0], together[model, 2])


@few
@given(st.permutations([7, 12, 30, 41]), st.integers(1, 4))
def test_lengths_are_selected_by_value(small_head, order, n):
    stack = sharp_stack(small_head, "rotary", (0, 1), torch.float32)
    test = TestSequences(60, vocabulary=5, block=16)
    lengths = order[:n]
    table = accuracy(stack, [2, 5], lengths, test)
    for column, length in enumerate(lengths):
        assert torch.equal(table[:, column], accuracy(stack, [2, 5], [length], test)[:, 0])


def test_the_row_of_a_length_carries_that_length_and_the_first_unseen_one_is_there(
    small_head, small_training
):
    training = small_training("rotary", steps=2)  # trained on 5 .. 8
    config = AccuracyConfig(training, (8, 9, 20), 50)
    rows = accuracy_rows(config)
    assert [row["length"] for row in rows] == [8, 9, 20] * 4
    models = [(row["seed"], row["offset"]) for row in rows[::3]]
    assert models == training.models
    for row in rows:
        assert list(row) == ["encoding", "offset", "seed", "length", "accuracy", "n_sequences"]
        assert row["encoding"] == "rotary" and row["n_sequences"] == 50
        assert (row["accuracy"] * 50) == pytest.approx(round(row["accuracy"] * 50), abs=1e-4)
    assert {row["length"] for row in rows if row["length"] > training.lengths[1]} == {9, 20}


def test_an_oracle_has_accuracy_one_and_a_guess_one_in_the_vocabulary():
    """A head made by hand: it copies the token before the query, and nothing else."""

    class Previous:
        def bias(self, query_positions, key_positions):
            return torch.where(query_positions[:, None] - key_positions == 1, 0.0, -40.0)

    config = HeadConfig(Previous, vocabulary=8, d_model=8, d_head=8)
    eye, zero = torch.eye(8)[None], torch.zeros(1, 8, 8)
    parameters = {"token": eye, "query": zero, "key": zero, "value": eye, "output": eye}
    stack = HeadStack.from_state(config, parameters, [0]).select([0, 0])
    test = TestSequences(4000, vocabulary=8, block=64)
    table = accuracy(stack, [1, 3], [4, 65, 300], test)
    assert table[0].tolist() == [1, 1, 1]
    # the wrong offset: a binomial share of 4000, standard deviation 0.0052
    assert (table[1] - 1 / 8).abs().max() < 0.022


@pytest.mark.parametrize("encoding", EVERY)
def test_attention_is_that_of_the_plain_head(small_head, encoding):
    stack = sharp_stack(small_head, encoding, (0, 1, 2))
    tokens = TestSequences(20, vocabulary=5).sequences(17)
    for first in (0, 13):
        weights = attention(stack, tokens, first)
        _, expected = stack.forward(tokens.expand(3, -1, -1), first + torch.arange(17))
        # float64 logits of order 10 from sums of 8 terms
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_length_that_does_not_hold_the_offset_is_refused(small_head, length):
    stack = sharp_stack(small_head, "rotary", (0, 1))
    with pytest.raises(ValueError, match=rf"length={length} is too short for offset="):
        accuracy(stack, [1, 3], [20, length], TestSequences(5, 5))


def test_the_shortest_length_an_offset_allows_is_measured(small_head):
    stack = sharp_stack(small_head, "rotary", (0,))
    test = TestSequences(80, 5)
    assert torch.equal(accuracy(stack, [3], [4], test)[:, 0], plain_accuracy(stack, [3], 4, test))


def test_a_length_past_a_learned_table_is_refused_with_both_numbers(small_head):
    stack = sharp_stack(small_head, "learned", (0,))
    with pytest.raises(ValueError, match=r"position 64 .*64 rows"):
        accuracy(stack, [1], [16, 65], TestSequences(5, 5))


def test_models_without_an_offset_are_refused(small_head):
    with pytest.raises(ValueError, match="1 offsets for 2 models"):
        accuracy(sharp_stack(small_head, "rotary", (0, 1)), [1], [16], TestSequences(5, 5))


def test_an_offset_beyond_the_first_block_is_refused(small_head):
    stack = sharp_stack(small_head, "rotary", (0,))
    with pytest.raises(ValueError, match=r"offset=9 .*block of 8"):
        accuracy(stack, [9], [16], TestSequences(5, 5, block=8))


def test_every_field_of_the_configuration_changes_rows_and_key(small_training):
    training = small_training("rotary", steps=2)
    default = AccuracyConfig(training, (8, 9), 40)
    rows, key = accuracy_rows(default), accuracy_rows.key(default)
    for changed in (
        AccuracyConfig(small_training("rotary", steps=3), (8, 9), 40),
        AccuracyConfig(training, (8, 10), 40),
        AccuracyConfig(training, (8, 9), 41),
    ):
        assert accuracy_rows.key(changed) != key
        assert accuracy_rows(changed) != rows
