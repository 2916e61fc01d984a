"""The one interface that every positional encoding implements: three optional hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = [
    "HOOKS",
    "PositionalEncoding",
    "construct",
    "has_hook",
    "is_isometric",
    "takes_generator",
]

HOOKS = ("embed", "transform_query", "transform_key", "bias")
"""Where position can enter an attention head."""


class PositionalEncoding(nn.Module):
    r"""Base class of the encodings; a subclass defines only the hooks it uses.

    - `embed(positions) -> (length, d_model)`: added to the token embeddings;
    - `transform_query(x, positions)` and `transform_key(x, positions)`: applied to queries and
      keys, `x` is `(..., length, d_head)`;
    - `bias(query_positions, key_positions) -> (query, key)` or `(heads, query, key)`: added to
      the logits.

    Positions are 1-D integer tensors. What a hook returns may be in float64, however low the
    precision of the model: the model rounds it last. `__init__` may name any of `d_model`,
    `d_head`, `n_heads`, `max_length` and `generator`, and options of its own with defaults. A
    class need not inherit from this one: any class with at least one of the hooks works.
    """

    name: str = ""
    max_length: int | None = None
    """Number of positions that exist (0 .. max_length - 1); `None` if every position does."""
    isometric: bool = False
    """Whether the transforms are rotations: linear maps, undone by the negative positions."""

    def n_starts(self, length: int) -> int:
        """Number of first positions from which training draws; 1 means: always position 0."""
        return 1


def has_hook(encoding: object, hook: str) -> bool:
    """Tell whether an encoding (or its class) defines one of the `HOOKS`."""
    return callable(getattr(encoding, hook, None))


def is_isometric(encoding: object) -> bool:
    """Tell whether an encoding's transforms are rotations.

    They are if the class that says so, by `isometric`, is also where they come from: a subclass
    that changes one has to say it again.
    """
    found = type(encoding)
    owner = next((base for base in found.__mro__ if "isometric" in vars(base)), object)
    hooks = ("transform_query", "transform_key")
    unchanged = all(getattr(found, hook, 0) is getattr(owner, hook, 0) for hook in hooks)
    return unchanged and getattr(owner, "isometric", False)


def construct(
    encoding_class: Callable[..., object],
    *,
    d_model: int,
    d_head: int,
    n_heads: int,
    max_length: int,
    generator: torch.Generator,
    options: dict[str, object] | None = None,
) -> object:
    """Build an encoding from those of the standard arguments that its `__init__` names.

    Raises:
        ValueError: an option that `__init__` does not name, or a class without any hook.
    """
    offered = {
        "d_model": d_model,
        "d_head": d_head,
        "n_heads": n_heads,
        "max_length": max_length,
        "generator": generator,
    }
    class_name = getattr(encoding_class, "__name__", str(encoding_class))
    if not any(has_hook(encoding_class, hook) for hook in HOOKS):
        raise ValueError(f"{class_name} defines none of the hooks {', '.join(HOOKS)}")
    named = _parameters(encoding_class)
    options = options or {}
    if unknown := sorted(set(options) - set(named)):
        raise ValueError(
            f"{class_name} has no option {unknown[0]!r}; it names {', '.join(named) or 'none'}"
        )
    return encoding_class(**{k: v for k, v in offered.items() if k in named}, **options)


def takes_generator(encoding_class: Callable[..., object]) -> bool:
    """Tell whether instances of a class may differ by seed: its `__init__` names `generator`."""
    return "generator" in _parameters(encoding_class)


def _parameters(encoding_class: Callable[..., object]) -> list[str]:
    if encoding_class.__init__ in (object.__init__, nn.Module.__init__):
        return []
    return list(inspect.signature(encoding_class).parameters)


def check_range(positions: Tensor, max_length: int, name: str) -> None:
    """Refuse positions outside a table of `max_length` rows.

    Raises:
        ValueError: a position below 0 or at or past `max_length`.
    """
    wrong = positions[(positions < 0) | (positions >= max_length)]
    if wrong.numel():
        raise ValueError(
            f"position {int(wrong[-1])} asked of the {name} encoding, whose table has "
            f"{max_length} rows (0..{max_length - 1}): use shorter sequences or a larger max_length"
        )
