import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthgen.task import FixedOffsetTask, Stream, TestSequences, generator_for

few = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31 - 1)


@st.composite
def tasks_and_lengths(draw):
    offset = draw(st.integers(1, 30))
    return FixedOffsetTask(offset, draw(st.integers(2, 256))), draw(st.integers(offset + 1, 64))


@few
@given(tasks_and_lengths(), seeds)
def test_the_answer_is_the_token_offset_positions_before_the_last(task_and_length, seed):
    task, length = task_and_length
    tokens = task.sample(7, length, generator_for(Stream.TEST_DATA, seed))
    assert tokens.shape == (7, length)
    assert torch.equal(task.target(tokens), tokens[:, length - 1 - task.offset].long())


@few
@given(tasks_and_lengths(), seeds)
def test_tokens_before_the_target_do_not_matter_and_the_target_does(task_and_length, seed):
    task, length = task_and_length
    tokens = task.sample(5, length, generator_for(Stream.TEST_DATA, seed))
    moved = (tokens.int() + 1).remainder(task.vocabulary).to(torch.uint8)
    column = length - 1 - task.offset
    elsewhere = moved.clone()
    elsewhere[:, column] = tokens[:, column]
    assert torch.equal(task.target(elsewhere), task.target(tokens))
    assert not bool((task.target(moved) == task.target(tokens)).any())


@few
@given(tasks_and_lengths(), seeds)
def test_every_token_is_in_the_vocabulary_and_the_same_seed_gives_the_same_tokens(pair, seed):
    task, length = pair
    draw = [task.sample(20, length, generator_for(Stream.TRAINING_DATA, seed)) for _ in range(2)]
    assert torch.equal(*draw)
    assert int(draw[0].max()) < task.vocabulary


def test_tokens_are_uniform_and_independent_of_the_last_one():
    tokens = FixedOffsetTask(2).sample(4000, 16, generator_for(Stream.TEST_DATA, 0)).long()
    expected = tokens.numel() / 16
    chi_square = ((tokens.flatten().bincount(minlength=16) - expected) ** 2 / expected).sum()
    assert chi_square < 44.3  # 15 degrees of freedom, upper 1e-4 quantile; the draw is fixed
    pairs = (tokens[:, -1] * 16 + tokens[:, -3]).bincount(minlength=256)
    expected = 4000 / 256
    assert ((pairs - expected) ** 2 / expected).sum() < 350  # 255 degrees of freedom, 1e-4: 348


@given(st.integers(-5, 0))
def test_an_offset_below_one_is_refused(offset):
    with pytest.raises(ValueError, match=rf"offset={offset} .*at least 1"):
        FixedOffsetTask(offset)


@pytest.mark.parametrize("vocabulary", [-1, 0, 1, 257])
def test_a_vocabulary_out_of_range_is_refused(vocabulary):
    with pytest.raises(ValueError, match=rf"vocabulary={vocabulary} .*2..256"):
        FixedOffsetTask(1, vocabulary)


@given(st.integers(1, 20), st.data())
def test_an_offset_that_does_not_fit_the_length_is_refused(offset, data):
    length = data.draw(st.integers(0, offset))
    message = rf"length={length} .*offset={offset}.*at least {offset + 1}"
    with pytest.raises(ValueError, match=message):
        FixedOffsetTask(offset).sample(3, length, torch.Generator())
    with pytest.raises(ValueError, match=message):
        FixedOffsetTask(offset).target(torch.zeros(3, length, dtype=torch.uint8))


def test_a_length_of_offset_plus_one_is_enough():
    tokens = torch.tensor([[4, 1, 2, 3]], dtype=torch.uint8)
    assert FixedOffsetTask(3).target(tokens).item() == 4


@few
@given(seeds, seeds, st.sampled_from(Stream), st.sampled_from(Stream))
def test_streams_and_seeds_are_independent(a, b, stream_a, stream_b):
    def draw(stream, seed):
        return torch.randint(2**31, (8,), generator=generator_for(stream, seed))

    same = torch.equal(draw(stream_a, a), draw(stream_b, b))
    assert same == ((stream_a, a) == (stream_b, b))


def test_a_generator_does_not_depend_on_global_random_state():
    before = torch.get_rng_state()
    first = torch.rand(3, generator=generator_for(Stream.WEIGHTS, 7))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1234)
    assert torch.equal(first, torch.rand(3, generator=generator_for(Stream.WEIGHTS, 7)))


@few
@given(st.integers(1, 150), st.integers(1, 150), st.integers(1, 70), seeds)
def test_a_longer_test_sequence_is_a_shorter_one_with_more_tokens_before(a, b, block, seed):
    test = TestSequences(3, 16, seed, block)
    short, long = sorted((a, b))
    assert torch.equal(test.sequences(long)[:, long - short :], test.sequences(short))


@few
@given(st.integers(1, 150), st.integers(1, 70))
def test_blocks_cover_every_offset_once_from_the_query_backwards(length, block):
    test = TestSequences(2, block=block)
    firsts, tokens = zip(*test.blocks(length), strict=True)
    widths = [t.shape[1] for t in tokens]
    assert sum(widths) == length
    assert list(firsts) == [sum(widths[:i]) for i in range(len(widths))]
    assert all(t.shape[1] <= block for t in tokens)
    assert torch.equal(torch.cat(tokens, dim=1).flip(1), test.sequences(length))


def test_every_field_of_the_test_sequences_changes_them():
    default = TestSequences(50, 16, 0, 64).sequences(100)
    assert TestSequences(40, 16, 0, 64).sequences(100).shape[0] == 40
    assert int(TestSequences(50, 7, 0, 64).sequences(100).max()) < 7
    assert not torch.equal(TestSequences(50, 16, 1, 64).sequences(100), default)
    assert not torch.equal(TestSequences(50, 16, 0, 32).sequences(100), default)


def test_no_sequences_are_refused():
    with pytest.raises(ValueError, match=r"n_sequences=0 .*at least 1"):
        TestSequences(0)
