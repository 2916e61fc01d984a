"""A trained head as a function of tokens and offset, which is all that the laws read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Complex128, Float, Float64
from torch import Tensor

from lengthgen.attention import HeadStack
from lengthgen.carrier import complex_channels, token_coefficients
from lengthgen.task import FixedOffsetTask

__all__ = [
    "aligned",
    "check_lengths",
    "offset_logits",
    "rotary_coefficients",
    "segments",
    "token_readouts",
    "turned",
]


@torch.no_grad()
def offset_logits(
    stack: HeadStack, n_offsets: int
) -> Float64[Tensor, "models vocabulary vocabulary offsets"]:
    """Return $T(a, b, D)$ for D = 0 .. `n_offsets` - 1, in float64.

    One query position is enough if the encoding is relative (chapter 2).
    """
    query = torch.tensor([n_offsets - 1])
    keys = query - torch.arange(n_offsets)
    return stack.map(Tensor.double).tables(query, keys).logit


@torch.no_grad()
def rotary_coefficients(
    stack: HeadStack,
) -> Complex128[Tensor, "models vocabulary vocabulary frequencies"]:
    r"""Return $c_f(a, b)$ of rotary heads of full width, interleaved layout."""
    double = stack.map(Tensor.double).parameters
    query, key = (double["token"] @ double[name] for name in ("query", "key"))
    return token_coefficients(query, key)


@torch.no_grad()
def turned(stack: HeadStack, angles: Float[Tensor, "models frequencies"]) -> HeadStack:
    r"""Return rotary heads with every $c_f(a, b)$ multiplied by $e^{i\,\mathrm{angle}_f}$.

    The same turn for all token pairs, put into the key weights.

    Args:
        stack: rotary heads of full width, interleaved layout.
        angles: in radians.
    """
    angles = angles.double()
    turn = torch.polar(torch.ones_like(angles), angles)
    key = complex_channels(stack.parameters["key"].double()) * turn[:, None]
    return stack.with_parameters(key=torch.view_as_real(key).flatten(-2).to(stack.dtype))


@torch.no_grad()
def aligned(stack: HeadStack, offsets: Sequence[int]) -> HeadStack:
    r"""Return rotary heads whose carrier is in phase at its target offset.

    The mean coefficient becomes $|\bar c_f| e^{i \omega_f K}$. Amplitudes stay; nothing is trained.

    Args:
        stack: rotary heads of full width, interleaved layout.
        offsets: target offset of each head.
    """
    mean = rotary_coefficients(stack).mean((1, 2))  # (models, frequencies)
    wanted = torch.tensor(list(offsets))[:, None] * stack.encodings[0].frequencies
    return turned(stack, wanted - mean.angle())


@torch.no_grad()
def token_readouts(stack: HeadStack) -> Float64[Tensor, "models vocabulary classes"]:
    """Return what each token adds to the answer's logits, `readout[b, v]`, in float64.

    For encodings that leave the values alone; every relative one does.
    """
    anywhere = torch.tensor([0])
    return stack.map(Tensor.double).tables(anywhere, anywhere).token_readout


def check_lengths(logits: Tensor, offset: int, lengths: Sequence[int]) -> None:
    """Refuse lengths that do not hold the offset, or that the logits do not reach.

    Raises:
        ValueError: as said.
    """
    FixedOffsetTask(offset, logits.shape[0]).check_length(min(lengths))
    if max(lengths) > logits.shape[-1]:
        raise ValueError(
            f"length={max(lengths)} needs logits to offset {max(lengths) - 1}; "
            f"these end at {logits.shape[-1] - 1}"
        )


def segments(lengths: Sequence[int], block: int) -> Iterator[tuple[int, int]]:
    """Cut 0 .. max(lengths) into blocks that end at every length."""
    start = 0
    for length in sorted(set(lengths)):
        while start < length:
            stop = min(start + block, length)
            yield start, stop
            start = stop
