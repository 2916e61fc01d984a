r"""The task as a RASP-L program that runs, and the same program compiled into heads by hand.

RASP (Weiss et al. 2021) writes what attention can do as programs: `select` marks which keys a
query looks at, `aggregate` averages the values there. RASP-L (Zhou et al. 2024) is its part for
causal models that ought to be learnable in a way that carries over to other lengths; among other
things, an index may be compared and moved by a constant, but not fed to arbitrary functions.
This interpreter enforces that: `indices` are an `Index`, and only `unrestricted` opens it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Complex128, Float64, Int64, Integer
from torch import Tensor

from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.encodings import rotary_frequencies
from lengthgen.position_head import kernel

__all__ = [
    "Index",
    "RaspError",
    "aggregate",
    "compiled_learned",
    "compiled_rotary",
    "guaranteed_length",
    "indices",
    "retrieve",
    "retrieve_by_arithmetic",
    "retrieve_by_table",
    "select",
    "shift_right",
    "tok_map",
    "unrestricted",
]

Tokens = Integer[Tensor, "*batch length"]


class RaspError(ValueError):
    """A program did with an index what RASP-L does not allow."""


# -- the language ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Index:
    """The indices 0, 1, 2, ... of a sequence: comparable, and movable by a constant.

    Example:
        >>> (indices(torch.tensor([7, 7, 7])) + 1).values
        tensor([1, 2, 3])
        >>> indices(torch.tensor([7, 7, 7])) * 2
        Traceback (most recent call last):
        ...
        lengthgen.rasp.RaspError: an index allows comparison and + or - a constant, nothing else
    """

    values: Int64[Tensor, " length"]

    def __add__(self, constant: Any) -> Index:
        if not isinstance(constant, int):
            raise RaspError(
                f"an index moves by a constant integer, not by {type(constant).__name__}"
            )
        return Index(self.values + constant)

    def __sub__(self, constant: Any) -> Index:
        return self + (-constant if isinstance(constant, int) else constant)

    def __mul__(self, other: Any) -> Index:
        raise RaspError("an index allows comparison and + or - a constant, nothing else")

    __rmul__ = __floordiv__ = __mod__ = __mul__


def indices(tokens: Tokens) -> Index:
    """Return the index of each token."""
    return Index(torch.arange(tokens.shape[-1]))


def unrestricted(index: Index) -> Int64[Tensor, " length"]:
    """Return indices as plain numbers: this leaves RASP-L for RASP."""
    return index.values


def tok_map(
    tokens: Tokens | Index, function: Callable[[int], int]
) -> Int64[Tensor, "*batch length"]:
    """Apply a function to each token, whatever it is: what a wide enough MLP can memorize.

    Raises:
        RaspError: an index instead of tokens.
    """
    if isinstance(tokens, Index):
        raise RaspError("tok_map reads tokens; a function of an index is not RASP-L")
    return torch.tensor([function(t) for t in tokens.flatten().tolist()]).view(tokens.shape)


def select(
    keys: Tokens | Index, queries: Tokens | Index, predicate: Callable[[Any, Any], Any]
) -> Bool[Tensor, "*batch length length"]:
    """Mark the keys that each query looks at; none comes after the query (causal).

    Args:
        keys: one value per position.
        queries: likewise; indices can be compared with indices only.
        predicate: called with keys and queries, broadcast against each other.

    Raises:
        RaspError: an index against something else.

    Example:
        >>> word = torch.tensor([3, 1, 3])
        >>> select(word, word, operator.eq).int()
        tensor([[1, 0, 0],
                [0, 1, 0],
                [1, 0, 1]], dtype=torch.int32)
    """
    if isinstance(keys, Index) != isinstance(queries, Index):
        raise RaspError("an index can be compared with an index only")
    if isinstance(keys, Index):
        keys, queries = keys.values, queries.values
    return predicate(keys[..., None, :], queries[..., :, None]).tril()


def aggregate(
    selector: Bool[Tensor, "*#batch length length"],
    values: Integer[Tensor, "*#batch length"],
    default: int = 0,
) -> Int64[Tensor, "*#batch length"]:
    """Return the mean of the selected values, rounded down; `default` where none is selected."""
    chosen = selector.to(torch.float64)
    width = chosen.sum(-1)
    total = torch.einsum("...qk,...k->...q", chosen, values.to(torch.float64))
    return torch.where(width > 0, (total / width.clamp(min=1)).floor(), float(default)).long()


def shift_right(tokens: Tokens, offset: int, default: int = 0) -> Int64[Tensor, "*batch length"]:
    """Move a sequence by `offset` places: one attention head with a relative predicate.

    Example:
        >>> shift_right(torch.tensor([3, 1, 4, 1]), 2)
        tensor([0, 0, 3, 1])
    """
    index = indices(tokens)
    return aggregate(select(index + offset, index, operator.eq), tokens, default)


# -- the task, three times ------------------------------------------------------------------------


def retrieve(tokens: Tokens, offset: int) -> Int64[Tensor, " *batch"]:
    """Answer with the token `offset` before the last: RASP-L, one line, every length.

    Example:
        >>> retrieve(torch.tensor([3, 1, 4, 1, 5]), 2)
        tensor(4)
    """
    return shift_right(tokens, offset)[..., -1]


def retrieve_by_arithmetic(tokens: Tokens, offset: int) -> Int64[Tensor, " *batch"]:
    """The same in RASP: compute the address `i - offset` as a number, then look it up.

    It is right at every length as well. But a network has to *learn* the subtraction as a
    function of a number, and a function of unseen numbers is nothing that training determines.
    """
    position = unrestricted(indices(tokens))
    return aggregate(select(position, position - offset, operator.eq), tokens)[..., -1]


def retrieve_by_table(
    tokens: Tokens, table: Mapping[int, int], otherwise: int = 0
) -> Int64[Tensor, " *batch"]:
    """The same as trained: addresses come from a table of the positions that training showed.

    Args:
        tokens: sequences.
        table: the address for each position seen.
        otherwise: the address everywhere else; training does not choose it.
    """
    position = unrestricted(indices(tokens))
    address = tok_map(position, lambda i: table.get(i, otherwise))
    return aggregate(select(position, address, operator.eq), tokens)[..., -1]


# -- the program as a head ------------------------------------------------------------------------


def _head(config: HeadConfig, blocks: Mapping[str, Tensor]) -> HeadStack:
    """Return a head of zeros but for the top left blocks given; it copies the attended token."""
    parameters = HeadStack.initialize(config, [0]).parameters
    parameters = {name: torch.zeros_like(value) for name, value in parameters.items()}
    vocabulary = config.vocabulary
    one_hot = torch.eye(vocabulary)
    ones = dict.fromkeys(("token", "value", "output"), one_hot)
    for name, block in {**ones, **blocks}.items():
        parameters[name][0, : block.shape[0], : block.shape[1]] = block
    return HeadStack.from_state(config, parameters, [0])


def compiled_rotary(offset: int, amplitude: float, vocabulary: int = 16) -> HeadStack:
    r"""Write down a rotary head that runs `shift_right`: every wave in phase at the offset.

    All tokens share one query, $q_f = a \sqrt d$, and one key, $k_f = e^{i \omega_f K}$, so that
    $\kappa(D) = a \sum_f \cos \omega_f (D - K)$: the aligned carrier.

    Args:
        offset: $K$.
        amplitude: $a$, the amplitude $A_f$ of each wave in logit units.
        vocabulary: $V$, at most the width of the head, 32.

    Raises:
        ValueError: more tokens than the head is wide.

    Source: ours.
    """
    config = HeadConfig("rotary", vocabulary=vocabulary)
    if vocabulary > config.d_model:
        raise ValueError(f"vocabulary={vocabulary} is not allowed: it must be 2..{config.d_model}")
    turn = rotary_frequencies(config.d_head) * offset
    query = torch.stack([torch.ones_like(turn), torch.zeros_like(turn)], -1).flatten()
    key = torch.stack([turn.cos(), turn.sin()], -1).flatten()
    same = torch.ones(vocabulary, 1)  # one-hot tokens: equal rows mean equal vectors
    scale = amplitude * config.d_head**0.5
    return _head(config, {"query": (scale * query * same).float(), "key": (key * same).float()})


def compiled_learned(
    offset: int, amplitude: float, rows: int, written: int | None = None, vocabulary: int = 16
) -> HeadStack:
    r"""Write the same kernel into an absolute head: position $i$ holds $(\cos, \sin)\, \omega_f i$.

    The query matrix turns position vectors back by $\omega_f K$; the head equals
    `compiled_rotary` wherever both ends are rows of the table.

    Args:
        offset: $K$.
        amplitude: see `compiled_rotary`.
        rows: rows of the table.
        written: rows written down, the rest keep their random initial values; all by default.
        vocabulary: $V$.

    Raises:
        ValueError: more rows written than there are.

    Source: ours; the vectors are those of Vaswani et al. (2017), section 3.5.
    """
    written = rows if written is None else written
    if not 0 < written <= rows:
        raise ValueError(f"written={written} is not allowed: it must be in 1..{rows}")
    width = 32
    config = HeadConfig(
        "learned", vocabulary=vocabulary, d_model=vocabulary + width, max_length=rows
    )
    frequencies = rotary_frequencies(width)
    angle = torch.arange(written)[:, None] * frequencies
    turn = frequencies * offset
    waves = zip(turn.cos().tolist(), turn.sin().tolist(), strict=True)
    back = torch.block_diag(*(torch.tensor([[c, -s], [s, c]]) for c, s in waves))
    blank = torch.zeros(vocabulary, width)
    head = _head(
        config,
        {
            "query": torch.cat([blank, amplitude * width**0.5 * back]),
            "key": torch.cat([blank, torch.eye(width)]),
        },
    )
    table = HeadStack.initialize(config, [0]).parameters["encoding.table"].clone()
    vectors = torch.stack([angle.cos(), angle.sin()], -1).flatten(1).float()
    table[0, :written] = torch.cat([torch.zeros(written, vocabulary), vectors], 1)
    return head.with_parameters(encoding__table=table)


def guaranteed_length(
    coefficients: Complex128[Tensor, " frequencies"],
    frequencies: Float64[Tensor, " frequencies"],
    offset: int,
    limit: int,
) -> int:
    r"""Return the largest $L \le$ `limit` at which a kernel is right on *every* sequence.

    The answer cannot be wrong while the target outweighs all others together,

    $$\sum_{D < L,\, D \ne K} e^{\kappa(D) - \kappa(K)} < 1 ,$$

    whatever the tokens. The condition is also necessary if all other tokens may agree.

    Source: ours.
    """
    values = kernel(coefficients, frequencies, torch.arange(limit))
    rivals = (values - values[offset]).exp()
    rivals[offset] = 0
    return int((rivals.cumsum(0) < 1).sum())
