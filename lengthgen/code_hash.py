"""A hash of the code that a number depends on: no stale number is taken for a fresh one."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from lengthgen.files import ResultError

__all__ = ["classes", "code_hash", "code_text"]

PACKAGE = "lengthgen"
WITHOUT_NUMBERS = {
    PACKAGE,
    *(
        f"{PACKAGE}.{name}"
        for name in (
            "code_hash",
            "device",
            "experiments.experiment",
            "figures",
            "files",
            "results",
            "units",
        )
    ),
}
"""Modules that cannot change a number: they keep numbers, draw them and order their making."""

ROOT = Path(__file__).parent
IMPORTED = {p: p.stat().st_mtime_ns for p in ROOT.rglob("*.py") if p.is_file()}
"""When each file of the package was last edited, at the time this process imported it."""


@functools.cache
def code_hash(module: str) -> str:
    """Return a hash of the syntax trees of a module and of all package modules it imports.

    Comments, docstrings and functions named `_plot` are left out: correcting a typo or a picture
    does not make a number stale.

    Raises:
        ResultError: a module was edited after it was imported here, so that its file is not what
            runs.
    """
    digest = hashlib.sha256()
    for name in sorted(_dependencies(module)):
        digest.update(name.encode())
        digest.update(_parsed(name)[1].encode())
    return digest.hexdigest()[:16]


def _dependencies(module: str) -> set[str]:
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        outside = name != module and not name.startswith(PACKAGE)
        if name in found or name in WITHOUT_NUMBERS or outside:
            continue
        found.add(name)
        waiting += _parsed(name)[0]
    return found


@functools.cache
def _parsed(module: str) -> tuple[list[str], str]:
    """Return the package modules that a module imports, and its source without what may change."""
    tree = ast.parse(_source(module))
    imports = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            imports.append(node.module)
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            imports += [name for name in submodules if _file(name)]
    return imports, _bare_source(tree)


def _file(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ModuleNotFoundError, ValueError):  # the latter: a console or a notebook
        return None
    return Path(spec.origin) if spec and spec.has_location else None


def _source(module: str) -> str:
    path = _file(module)
    if path is None:
        return ""
    if IMPORTED.get(path, now := path.stat().st_mtime_ns) != now:
        raise ResultError(
            f"{path.relative_to(ROOT.parent)} was edited after this process imported the package: "
            "restart it (in a notebook: restart the kernel), so that no number is kept under the "
            "wrong code"
        )
    return path.read_text(encoding="utf-8")


def _bare_source(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not (_is_bare_string(part) or _draws(part))]
    return ast.unparse(tree)  # unlike a dump, the same text in every version of Python


def _draws(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "_plot"


def _is_bare_string(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def classes(value: Any) -> list[type]:
    """Return the classes in a configuration, and those outside the package that it is made of."""
    if isinstance(value, type):
        return [value]
    made_of = []
    if is_dataclass(value):
        made_of = [] if _of_package(type(value).__module__) else [type(value)]
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, list, tuple)):
        made_of += [found for part in parts for found in classes(part)]
    return made_of


def code_text(value: Callable[..., Any] | type) -> str:
    """Return a text that changes with the code of a function or class.

    What is of the package changes with its module, as `code_hash`. What is not changes with the
    code that this process has of it, its defaults and constants, and with what it names of its
    own module and of the package: a reader edits it in a notebook, or loads it again.
    """
    return _text(value, set())


PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


def _text(value: Any, seen: set[int]) -> str:
    """Return a text that changes with a value, or with its code, and is the same in any process."""
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_text(part, seen) for part in value)}]"
    if isinstance(value, (set, frozenset)):  # their order is another in every process
        return f"{{{', '.join(sorted(_text(part, seen) for part in value))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(_text(item, seen) for item in value.items())}}}"
    if isinstance(value, CodeType):
        constants = _text(value.co_consts, seen)
        return f"{value.co_code.hex()} {value.co_names} {value.co_varnames} {constants}"
    if isinstance(value, property):
        return _text((value.fget, value.fset, value.fdel), seen)
    if isinstance(value, functools.cached_property):
        return _text(value.func, seen)
    if isinstance(value, ModuleType):
        return code_hash(value.__name__) if _of_package(value.__name__) else value.__name__
    if is_dataclass(value) and not isinstance(value, type):
        return _text({name: getattr(value, name) for name in value.__dataclass_fields__}, seen)
    name = f"{type(value).__name__} {getattr(value, '__qualname__', '')}"
    coded = value if isinstance(value, type) else _plain_function(value)
    if coded is None or id(coded) in seen:
        return name
    seen.add(id(coded))
    if _of_package(coded.__module__):
        return code_hash(coded.__module__)
    parts = _class_parts(coded) if isinstance(coded, type) else _function_parts(coded)
    return "\n".join([name, *(f"{part} = {_text(member, seen)}" for part, member in parts)])


def _of_package(module: str | None) -> bool:
    return (module or "").startswith(PACKAGE)


def _plain_function(value: Any) -> Any:
    """Return the function inside a method, a unit or a decorated function; `None` if none is."""
    function = inspect.unwrap(getattr(value, "__func__", value))
    return function if hasattr(function, "__code__") else None


def _class_parts(found: type) -> Iterator[tuple[str, Any]]:
    """Yield what a class outside the package, and its bases, are made of."""
    for base in found.__mro__:
        if _of_package(base.__module__):
            yield "base", base
        elif base.__module__.split(".")[0] not in {"torch", *sys.stdlib_module_names}:
            for name, member in sorted(vars(base).items()):
                if _plain_function(member) or not name.startswith("__"):
                    yield name, member


def _function_parts(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function is made of, and what it names of its module and of the package."""
    yield "code", function.__code__
    yield "defaults", (function.__defaults__, function.__kwdefaults__)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    inside = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
    known = ChainMap(inside, function.__globals__)
    names = sorted(set(_names(function.__code__)))
    for name in names:
        if _of_package(name) and _file(name):  # imported inside the function
            yield name, importlib.import_module(name)
        if name not in known:
            continue
        value = known[name]
        if isinstance(value, ModuleType) and value.__name__ == PACKAGE:
            yield name, [getattr(value, part, None) for part in names]
        module = getattr(_plain_function(value) or value, "__module__", None)
        own = _of_package(module) or module == function.__module__
        if own or isinstance(value, (*PLAIN, ModuleType, tuple, frozenset)):
            yield name, value


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function's code, or code inside it, looks up elsewhere."""
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
