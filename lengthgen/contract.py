"""What a reader's encoding must keep to: load it from a file, call each hook once, check values.

Errors name the class and the hook, and print the shape that was expected and the one that came.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lengthgen.attention import HeadConfig
from lengthgen.encodings import HOOKS, encoding_class, has_hook
from lengthgen.training import TrainingConfig, train

__all__ = ["check_encoding", "load_class"]

CALLS = {
    "embed": "embed(positions)",
    "transform_query": "transform_query(x, positions)",
    "transform_key": "transform_key(x, positions)",
    "bias": "bias(query_positions, key_positions)",
}
"""How the package calls each hook."""

N_POSITIONS = 16


def load_class(place: str) -> type:
    """Return the class that `path/to/file.py:ClassName` names.

    Raises:
        ValueError: not of that form, no such file or class, or a file that fails to run.
    """
    path, _, name = place.rpartition(":")
    if not path.endswith(".py"):
        raise ValueError(f"{place!r} is not of the form path/to/file.py:ClassName")
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"reader_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} does not run: {_named(error)}") from error
    found = getattr(module, name, None)
    if not isinstance(found, type):
        own = [v for v in vars(module).values() if getattr(v, "__module__", None) == spec.name]
        names = [v.__name__ for v in own if isinstance(v, type) and _hooks(v)]
        has = f"it has {', '.join(names)}" if names else f"no class in it has {', '.join(HOOKS)}"
        raise ValueError(f"{path} defines no class {name!r}; {has}")
    return found


def check_encoding(head: HeadConfig, offset: int, lengths: tuple[int, ...]) -> None:
    """Call each hook on the first positions, the last and all, then train two steps.

    Args:
        head: the head that is to use the encoding.
        offset: the task of the two steps.
        lengths: lengths to be tested; the first must be within the encoding's reach.

    Raises:
        ValueError: whatever goes wrong in the encoding's code, or a wrong shape, or a value that
            is not finite; names the class and the hook.
    """
    name = encoding_class(head.encoding).__name__
    if not _hooks(encoding_class(head.encoding)):
        raise ValueError(f"{name} defines none of the hooks {', '.join(HOOKS)}")
    encoding = _guarded(
        lambda: head.new_encoding(0),
        f"{name}.__init__ failed",
        "it may name d_model, d_head, n_heads, max_length, generator, and options with defaults",
    )
    reach = getattr(encoding, "max_length", None)
    if reach is not None and (not isinstance(reach, int) or reach < lengths[0]):
        raise ValueError(
            f"{name}.max_length={reach!r} is not allowed: it must be None or an integer >= "
            f"{lengths[0]}, the longest training length"
        )
    last = max(lengths) if reach is None else min(reach, max(lengths))
    for first, stop in ((0, N_POSITIONS), (last - N_POSITIONS, last), (0, last)):
        positions = torch.arange(first, stop)
        for hook in _hooks(encoding):
            _check_hook(encoding, name, hook, positions, head)
    config = TrainingConfig(head, (0, 1), (offset,), steps=2)
    _guarded(lambda: train(config), f"{name} cannot be trained", "its hooks work when called alone")


def _check_hook(
    encoding: object, name: str, hook: str, positions: Tensor, head: HeadConfig
) -> None:
    generator = torch.Generator().manual_seed(0)
    n = len(positions)
    if hook == "embed":
        arguments, shapes = (positions,), [(n, head.d_model)]
    elif hook == "bias":  # keys before their queries only, in unequal numbers
        arguments, shapes = (positions[-3:], positions[:-2]), [(3, n - 2), (1, 3, n - 2)]
    else:
        x = torch.randn(2, 3, n, head.d_head, generator=generator)
        arguments, shapes = (x, positions), [tuple(x.shape)]
    where = f"at positions {int(positions[0])}..{int(positions[-1])}"
    wanted = " or ".join(map(str, shapes))
    value = _guarded(
        lambda: getattr(encoding, hook)(*arguments),
        f"{name}.{hook} failed {where}",
        f"it is called as {CALLS[hook]} and must return a tensor of shape {wanted}; an encoding "
        "with a last position says so in max_length",
    )
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise ValueError(f"{name}.{hook} returned a {kind}, not a tensor of shape {wanted}")
    if tuple(value.shape) not in shapes:
        raise ValueError(
            f"{name}.{hook} returned shape {tuple(value.shape)}, not {wanted}: it is called as "
            f"{CALLS[hook]}, here {where}"
        )
    if not value.isfinite().all():
        raise ValueError(
            f"{name}.{hook} returned values that are not finite {where}; expected finite values "
            f"of shape {wanted}"
        )


def _hooks(encoding: object) -> list[str]:
    return [hook for hook in HOOKS if has_hook(encoding, hook)]


def _guarded(call: Callable[[], object], what: str, hint: str) -> object:
    """Call a reader's code; turn whatever it raises into a ValueError that says what to do."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{what}: {_named(error)}; {hint}") from error


def _named(error: BaseException) -> str:
    first_line = (inspect.cleandoc(str(error)) or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first_line}"
