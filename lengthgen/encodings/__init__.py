"""Positional encodings: one short file each, one registry."""

from lengthgen.encodings.base import HOOKS, PositionalEncoding, construct, has_hook, takes_generator
from lengthgen.encodings.learned import Learned, LearnedRandomOffset
from lengthgen.encodings.none import NoEncoding
from lengthgen.encodings.rotary import Rotary, rotary_frequencies

__all__ = [
    "ENCODINGS",
    "HOOKS",
    "Learned",
    "LearnedRandomOffset",
    "NoEncoding",
    "PositionalEncoding",
    "Rotary",
    "construct",
    "encoding_class",
    "has_hook",
    "rotary_frequencies",
    "takes_generator",
]

ENCODINGS: dict[str, type[PositionalEncoding]] = {
    cls.name: cls for cls in (NoEncoding, Learned, LearnedRandomOffset, Rotary)
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
