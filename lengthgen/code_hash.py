"""A hash of the code that a number depends on: no stale number is taken for a fresh one."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
from dataclasses import is_dataclass
from pathlib import Path
from types import CodeType
from typing import Any

__all__ = ["class_code", "classes", "code_hash"]

PACKAGE = "lengthgen"
WITHOUT_NUMBERS = {
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
}
"""Modules that cannot change a number: they keep numbers, draw them and order their making."""


@functools.cache
def code_hash(module: str) -> str:
    """Return a hash of the syntax trees of a module and of all package modules it imports.

    Comments, docstrings and functions named `_plot` are left out: correcting a typo or a picture
    does not make a number stale.
    """
    digest = hashlib.sha256()
    for name in sorted(_dependencies(module)):
        digest.update(name.encode())
        digest.update(_bare_source(_source(name)).encode())
    return digest.hexdigest()[:16]


def _dependencies(module: str) -> set[str]:
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name in found or name in WITHOUT_NUMBERS or not name.startswith(PACKAGE):
            continue
        found.add(name)
        for node in ast.walk(ast.parse(_source(name))):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                waiting.append(node.module)
                submodules = [f"{node.module}.{alias.name}" for alias in node.names]
                waiting += [name for name in submodules if _is_module(name)]
    return found


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _source(module: str) -> str:
    return Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8")


def _bare_source(source: str) -> str:
    tree = ast.parse(source)
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
    """Return the classes in a configuration."""
    if isinstance(value, type):
        return [value]
    if is_dataclass(value):
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    parts = value.values() if isinstance(value, dict) else value
    return [c for p in parts for c in classes(p)] if isinstance(value, (dict, list, tuple)) else []


def class_code(found: type) -> str:
    """Return a text that changes with the methods and constants of a class and its bases."""
    if found.__module__.startswith(PACKAGE):
        return code_hash(found.__module__)
    parts = []
    for base in found.__mro__:
        if base.__module__.split(".")[0] in ("builtins", "torch", PACKAGE):
            continue
        for name, member in sorted(vars(base).items()):
            code = getattr(inspect.unwrap(getattr(member, "__func__", member)), "__code__", None)
            if code is not None:
                parts.append(f"{name}: {_code_text(code)}")
            elif isinstance(member, (bool, int, float, str, tuple)) and not name.startswith("__"):
                parts.append(f"{name} = {member!r}")
    return "\n".join(parts)


def _code_text(code: CodeType) -> str:
    constants = [_code_text(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
