"""Names of arrays: those among the arguments, and those that a function holds."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import numpy as np

from relaxpy.frontend.jax.arrays import array_of, memory
from relaxpy.frontend.jax.sizes import is_symbolic


def argument_names(function: Callable[..., Any], count: int) -> list[str]:
    """The names of the first positional arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = [f"args_{i}" for i in range(len(named), count)]
    return [*named[:count], *rest]


def path_name(root: str, path: Any) -> str:
    """`params`, ["Dense_0"]["kernel"] → `params_Dense_0_kernel`."""
    parts = [root]
    for key in path:
        for kind in ("name", "key", "idx"):
            if hasattr(key, kind):
                parts.append(str(getattr(key, kind)))
                break
    return "_".join(part for part in parts if part)


def leaf_name(path: Any, names: Sequence[str]) -> str:
    """The name of a leaf of `(args, kwargs)`: path is [0 or 1], the argument, and the rest."""
    by_name, argument = path[0].idx == 1, path[1]
    root = str(argument.key) if by_name else names[int(argument.idx)]
    return path_name(root, path[2:])


def held_arrays(function: Callable[..., Any]) -> dict[Any, str]:
    """Memory of an array that the function holds → its name: in a closure, in a `functools.partial`, in the object
    whose method it is, in a module that is called, or in a global variable that it names."""
    import jax

    found: dict[Any, str] = {}
    for root, value in _held(function, 0):
        try:
            leaves, _ = jax.tree_util.tree_flatten_with_path(value)
        except (TypeError, ValueError):  # a class that has no order of its parts
            continue
        for path, leaf in leaves:
            if isinstance(leaf, (jax.Array, np.ndarray)):
                found.setdefault(memory(array_of(leaf)), path_name(root, path))
    return found


def holds_sizes(function: Callable[..., Any]) -> bool:
    """Does the function hold symbolic sizes, in a closure or a global variable?"""
    import jax

    for _, value in _held(function, 0):
        try:
            leaves = jax.tree_util.tree_leaves(value)
        except (TypeError, ValueError):
            continue
        if any(is_symbolic(leaf) for leaf in leaves):
            return True
    return False


_DEEP = 4
"""How many functions inside of one another are looked into."""


def _held(function: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > _DEEP:
        return
    if isinstance(function, functools.partial):
        yield from _held(function.func, depth + 1)
        names = argument_names(function.func, len(function.args))
        yield from zip(names, function.args, strict=True)
        yield from function.keywords.items()
        return
    function = inspect.unwrap(function)
    owner = getattr(function, "__self__", None)
    if owner is not None:
        yield "", owner
        function = function.__func__ if hasattr(function, "__func__") else function
    if not inspect.isfunction(function):
        yield "", function
        return
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    held = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    for name, value in {**held, **_named_globals(function)}.items():
        yield name, value
        if callable(value):
            for inner, more in _held(value, depth + 1):
                own = inspect.isfunction(value) and inner
                yield inner if own else "_".join(filter(None, (name, inner))), more


def _is_filled(cell: Any) -> bool:
    """Does a variable of a closure have a value yet?"""
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _named_globals(function: Any) -> dict[str, Any]:
    """Global variables that a function names, without modules, classes and functions of packages."""
    found = {name: function.__globals__.get(name) for name in _named(function.__code__)}
    return {
        name: value
        for name, value in found.items()
        if value is not None and not inspect.ismodule(value) and not inspect.isclass(value)
        and getattr(value, "__module__", "").split(".")[0] != "jax"
    }  # fmt: skip


def _named(code: CodeType) -> Iterator[str]:
    """The names in a function's code, and in that of functions inside of it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _named(inner)
