"""The fixed-offset retrieval task: answer with the token K positions before the last one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

__all__ = ["FixedOffsetTask", "Stream", "TestSequences", "generator_for"]

MAX_VOCABULARY = 256
"""Tokens are stored as bytes."""


class Stream(IntEnum):
    """Independent streams of random numbers that one seed gives."""

    WEIGHTS = 0
    ENCODING = 1
    TRAINING_DATA = 2
    TEST_DATA = 3


def generator_for(stream: Stream, *key: int) -> torch.Generator:
    """Return a generator whose numbers depend on the stream and the integers of `key` alone.

    Example:
        >>> draw = lambda *key: torch.rand(1, generator=generator_for(Stream.WEIGHTS, *key)).item()
        >>> draw(7) == draw(7), draw(7) == draw(8)
        (True, False)
    """
    state = np.random.SeedSequence([int(stream), *key]).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(state[0]) << 31 ^ int(state[1]))


def _check_vocabulary(vocabulary: int) -> None:
    if not 2 <= vocabulary <= MAX_VOCABULARY:
        raise ValueError(f"vocabulary={vocabulary} is not allowed: it must be 2..{MAX_VOCABULARY}")


@dataclass(frozen=True)
class FixedOffsetTask:
    """Sequences of i.i.d. uniform tokens; the answer is the token `offset` before the last.

    Args:
        offset: K, at least 1 (0 would be the last token itself).
        vocabulary: number of distinct tokens, 2..256; guessing is right once in `vocabulary`.

    Raises:
        ValueError: a value outside these ranges.

    Example:
        In `3 1 4 1 5` with offset 2 the answer is 4.

        >>> tokens = torch.tensor([[3, 1, 4, 1, 5]], dtype=torch.uint8)
        >>> FixedOffsetTask(offset=2).target(tokens)
        tensor([4])
    """

    offset: int
    vocabulary: int = 16

    def __post_init__(self) -> None:
        if self.offset < 1:
            raise ValueError(f"offset={self.offset} is not allowed: it must be at least 1")
        _check_vocabulary(self.vocabulary)

    def check_length(self, length: int) -> None:
        """Refuse a length that the offset does not fit into.

        Raises:
            ValueError: `length` not above the offset.
        """
        if length <= self.offset:
            raise ValueError(
                f"length={length} is too short for offset={self.offset}: "
                f"it must be at least {self.offset + 1}"
            )

    def sample(
        self, n_sequences: int, length: int, generator: torch.Generator
    ) -> UInt8[Tensor, "n_sequences length"]:
        """Draw sequences of i.i.d. uniform tokens."""
        self.check_length(length)
        shape = (n_sequences, length)
        return torch.randint(self.vocabulary, shape, generator=generator, dtype=torch.uint8)

    def target(self, tokens: UInt8[Tensor, "*batch length"]) -> Int64[Tensor, " *batch"]:
        """Return the answer of each sequence."""
        self.check_length(tokens.shape[-1])
        return tokens[..., -1 - self.offset].long()


@dataclass(frozen=True)
class TestSequences:
    """Test sequences of any length, drawn block by block from the query backwards.

    Column D is the token D positions before the query (D = 0 is the query itself), so a longer
    sequence is a shorter one with more tokens before it: every model and every length meets the
    same sequences, and none of them has to be held in memory whole.
    """

    __test__ = False  # not a test class, whatever pytest thinks of its name

    n_sequences: int
    vocabulary: int = 16
    seed: int = 0
    block: int = 512

    def __post_init__(self) -> None:
        if self.n_sequences < 1:
            raise ValueError(f"n_sequences={self.n_sequences} is not allowed: at least 1")
        _check_vocabulary(self.vocabulary)

    def blocks(self, length: int) -> Iterator[tuple[int, UInt8[Tensor, "n_sequences offsets"]]]:
        """Yield `(first offset, tokens)` until `length` offsets are covered."""
        for index, first in enumerate(range(0, length, self.block)):
            generator = generator_for(Stream.TEST_DATA, self.seed, self.vocabulary, index)
            shape = (self.n_sequences, self.block)
            tokens = torch.randint(self.vocabulary, shape, generator=generator, dtype=torch.uint8)
            yield first, tokens[:, : length - first]

    def sequences(self, length: int) -> UInt8[Tensor, "n_sequences length"]:
        """Return whole sequences in reading order, the query last."""
        return torch.cat([tokens for _, tokens in self.blocks(length)], dim=1).flip(1)
