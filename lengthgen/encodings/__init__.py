"""Positional encodings: one short file each, one registry."""

from lengthgen.encodings.alibi import ALiBi, alibi_slopes
from lengthgen.encodings.base import (
    HOOKS,
    PositionalEncoding,
    construct,
    has_hook,
    is_isometric,
    takes_generator,
)
from lengthgen.encodings.clipped_relative import ClippedRelative
from lengthgen.encodings.fire import Fire
from lengthgen.encodings.kerple import Kerple
from lengthgen.encodings.learned import Learned, LearnedRandomOffset
from lengthgen.encodings.none import NoEncoding
from lengthgen.encodings.rotary import Rotary, rotary_frequencies
from lengthgen.encodings.rotary_scaled import RotaryInterpolated, RotaryNTK, RotaryYaRN
from lengthgen.encodings.sinusoidal import Sinusoidal
from lengthgen.encodings.t5 import T5Bias, bucket_starts
from lengthgen.encodings.xpos import XPos

__all__ = [
    "ENCODINGS",
    "HOOKS",
    "ALiBi",
    "ClippedRelative",
    "Fire",
    "Kerple",
    "Learned",
    "LearnedRandomOffset",
    "NoEncoding",
    "PositionalEncoding",
    "Rotary",
    "RotaryInterpolated",
    "RotaryNTK",
    "RotaryYaRN",
    "Sinusoidal",
    "T5Bias",
    "XPos",
    "alibi_slopes",
    "bucket_starts",
    "construct",
    "encoding_class",
    "has_hook",
    "is_isometric",
    "rotary_frequencies",
    "takes_generator",
]

ENCODINGS: dict[str, type[PositionalEncoding]] = {
    cls.name: cls
    for cls in (
        NoEncoding,
        # absolute: vectors added to the tokens
        Learned,
        LearnedRandomOffset,
        Sinusoidal,
        # relative: queries and keys are turned
        Rotary,
        RotaryInterpolated,
        RotaryNTK,
        RotaryYaRN,
        XPos,
        # relative: a bias of the logits (FIRE's depends on the query's position too)
        ALiBi,
        T5Bias,
        ClippedRelative,
        Kerple,
        Fire,
    )
}
"""Every encoding of the book by its name."""


def encoding_class(encoding: str | type) -> type:
    """Return the class of a named encoding; a class is returned as it is.

    Raises:
        ValueError: an unknown name.

    Example:
        >>> encoding_class("rotary")
        <class 'lengthgen.encodings.rotary.Rotary'>
    """
    if not isinstance(encoding, str):
        return encoding
    if encoding not in ENCODINGS:
        raise ValueError(f"unknown encoding {encoding!r}; choose from {', '.join(ENCODINGS)}")
    return ENCODINGS[encoding]
