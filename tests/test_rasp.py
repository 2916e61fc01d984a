import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthgen.encodings import rotary_frequencies
from lengthgen.evaluation import accuracy
from lengthgen.position_head import kernel
from lengthgen.rasp import (
    RaspError,
    aggregate,
    compiled_learned,
    compiled_rotary,
    guaranteed_length,
    indices,
    retrieve,
    retrieve_by_arithmetic,
    retrieve_by_table,
    select,
    shift_right,
    tok_map,
    unrestricted,
)
from lengthgen.task import FixedOffsetTask, TestSequences

WORD = torch.tensor([3, 1, 4, 1, 5])


# -- the language --------------------------------------------------------------------------------


def test_no_selector_sees_the_future():
    everything = select(WORD, WORD, lambda k, q: torch.ones_like(k - q, dtype=torch.bool))
    assert torch.equal(everything, torch.ones(5, 5, dtype=torch.bool).tril())


def test_aggregate_is_a_mean_rounded_down_and_a_default_for_nobody():
    same = select(WORD, torch.tensor([9, 9, 9, 1, 9]), operator.eq)
    assert aggregate(same, torch.tensor([0, 5, 0, 8, 0]), default=7).tolist() == [7, 7, 7, 6, 7]


@settings(max_examples=25, deadline=None)
@given(a=st.integers(0, 6), b=st.integers(0, 6), seed=st.integers(0, 99))
def test_shifts_add(a, b, seed):
    tokens = torch.randint(9, (2, 11), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(shift_right(shift_right(tokens, a), b), shift_right(tokens, a + b))


def test_a_prefix_decides_its_own_outputs():
    """Causal programs answer the same however the sequence goes on."""
    assert torch.equal(shift_right(WORD, 2)[:4], shift_right(WORD[:4], 2))


@pytest.mark.parametrize(
    "program",
    [
        lambda index: index * 2,
        lambda index: index % 2,
        lambda index: index // 2,
        lambda index: index + WORD,
        lambda index: index + index,
        lambda index: tok_map(index, abs),
        lambda index: select(index, WORD, operator.eq),
    ],
)
def test_index_arithmetic_is_refused(program):
    with pytest.raises(RaspError):
        program(indices(WORD))


def test_unrestricted_opens_an_index():
    assert unrestricted(indices(WORD) - 1).tolist() == [-1, 0, 1, 2, 3]


# -- the task ------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [9, 16, 17, 200])
@pytest.mark.parametrize("offset", [1, 3, 8])
def test_program_and_arithmetic_solve_the_task_at_every_length(length, offset):
    task = FixedOffsetTask(offset)
    tokens = task.sample(20, length, torch.Generator().manual_seed(length))
    assert torch.equal(retrieve(tokens, offset), task.target(tokens))
    assert torch.equal(retrieve_by_arithmetic(tokens, offset), task.target(tokens))


def test_a_table_of_addresses_solves_it_where_it_has_rows():
    table = {i: i - 2 for i in range(16)}
    task = FixedOffsetTask(2)
    tokens = task.sample(400, 17, torch.Generator().manual_seed(0))
    assert torch.equal(retrieve_by_table(tokens[:, :16], table), task.target(tokens[:, :16]))
    assert torch.equal(retrieve_by_table(tokens, table, otherwise=3), tokens[:, 3].long())


# -- heads written down --------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1, 5])
def test_the_logits_of_the_compiled_head_are_the_aligned_kernel(offset):
    head = compiled_rotary(offset, 2.0)
    positions = torch.arange(40)
    logit = head.tables(positions[-1:], positions).logit[0]  # (query token, key token, position)
    frequencies = rotary_frequencies(32)
    aligned = 2.0 * torch.polar(torch.ones_like(frequencies), frequencies * offset)
    wanted = kernel(aligned, frequencies, 39 - positions).float()
    # 1e-4: float32 sums of 16 waves of size 2
    assert (logit - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("offset", [1, 2, 4, 8])
def test_the_compiled_rotary_head_answers_right_at_every_length(offset):
    found = accuracy(
        compiled_rotary(offset, 4.0), [offset], [16, 17, 200, 2_000], TestSequences(50)
    )
    assert (found == 1).all()


def test_the_table_head_is_the_rotary_head_inside_its_table_and_stops_at_its_end():
    rotary, table = compiled_rotary(3, 4.0), compiled_learned(3, 4.0, rows=64)
    positions = torch.arange(64)
    logits = [head.tables(positions[-1:], positions).logit[0] for head in (rotary, table)]
    assert (logits[0] - logits[1]).abs().max() < 2e-4
    with pytest.raises(ValueError, match="64 rows"):
        accuracy(table, [3], [65], TestSequences(10))


def test_its_twin_agrees_on_the_training_range_only():
    whole, twin = compiled_learned(2, 4.0, 64), compiled_learned(2, 4.0, 64, written=16)
    tokens = TestSequences(50).sequences(16)[None]
    assert torch.equal(whole.forward(tokens)[0], twin.forward(tokens)[0])
    assert accuracy(twin, [2], [48], TestSequences(200)) < 0.3
    with pytest.raises(ValueError, match=r"written=65 .*1\.\.64"):
        compiled_learned(2, 4.0, 64, written=65)


def test_the_guarantee_holds_against_the_worst_sequence():
    offset, amplitude = 2, 1.2
    frequencies = rotary_frequencies(32)
    aligned = amplitude * torch.polar(torch.ones_like(frequencies), frequencies * offset)
    reach = guaranteed_length(aligned, frequencies, offset, 4_096)
    assert offset < reach < 4_096
    head = compiled_rotary(offset, amplitude)
    for length, right in ((reach, True), (reach + 1, False)):
        tokens = torch.ones(1, 1, length, dtype=torch.long)  # all others agree on a wrong answer
        tokens[..., -1 - offset] = 0
        assert bool(head.forward(tokens)[0].argmax(-1) == 0) == right


def test_a_compiled_head_holds_no_more_tokens_than_it_is_wide():
    assert compiled_rotary(1, 1.0, vocabulary=32).config.vocabulary == 32
    with pytest.raises(ValueError, match=r"vocabulary=33 .*2\.\.32"):
        compiled_rotary(1, 1.0, vocabulary=33)
