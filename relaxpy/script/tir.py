"""The namespace T: tensor programs, and scalar expressions at the graph level.

    from relaxpy.script import tir as T

The body of a `@T.prim_func` is parsed by `relaxpy.tir` and never run by Python. Any name after `T.` that is not defined
here gives a placeholder, which can be called, indexed and compared, so that Python can evaluate annotations.
"""

from __future__ import annotations

import sys
from typing import Any

from relaxpy.errors import ScriptError
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import FloatOf
from relaxpy.ir.index_map import IndexMap
from relaxpy.script.dims import DIM_FUNCTIONS


class ScalarDType:
    """A scalar dtype, such as `T.int64`. A call without arguments makes a new symbolic variable; a call with a value
    returns a scalar of that value."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, value: Any = None, is_size_var: bool = False, **options: Any) -> Any:
        del is_size_var, options
        is_number = isinstance(value, (bool, int, float)) or value in ("inf", "-inf", "nan")
        if is_number and "float" in self.name:
            return FloatOf(value, self.name)  # T.float32("inf")
        if value is None or (isinstance(value, str) and value.isidentifier()):
            return SymVar(str(value or ""), self.name).dim
        if self.name == "bool":
            return bool(value)
        return value

    def __repr__(self) -> str:
        return f"T.{self.name}"


class Placeholder:
    """A dummy value for a name of T in annotations that Python evaluates."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Placeholder:
        return self

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self._name}.{name}")

    def __getitem__(self, index: Any) -> Placeholder:
        return self

    def __or__(self, other: object) -> Placeholder:
        return self

    def __repr__(self) -> str:
        return f"T.{self._name}"


def prim_func(func: Any = None, **options: Any) -> Any:
    """Decorator that turns a Python function into a tensor program: `@T.prim_func`.

    In a class decorated with `@I.ir_module` the function is left as it is: the class is parsed as a whole.
    """
    del options  # parsed from the source
    if func is None:
        return prim_func
    from relaxpy.script.parser import in_class_body, parse_decorated_prim_func

    frame = sys._getframe(1)
    return func if in_class_body(frame) else parse_decorated_prim_func(func, frame)


def index_map(
    mapping: Any, *, inverse_index_map: Any = None, index_dtype: str = "int64"
) -> IndexMap:
    """An index map, from the index (i, j, …) of an element to its new index: `T.index_map(lambda i, j: (j, i // 4, i %
    4))`."""
    del inverse_index_map, index_dtype  # inferred, and always int64
    return IndexMap.of(mapping)


_SCALARS = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool",
)  # fmt: skip
_TYPES = {name: ScalarDType(name) for name in _SCALARS}


def _literal(dtype: str, value: Any) -> Any:
    """A number: `T.FloatImm("float32", 0.5)`, `T.IntImm("int32", 3)`."""
    if dtype not in _TYPES:
        raise ScriptError("bad-value", f"{dtype!r} is not a numeric dtype")
    return _TYPES[dtype](value)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _TYPES:
        return _TYPES[name]
    if name in ("FloatImm", "IntImm"):
        return _literal
    if name == "macro":
        from relaxpy.script.macro import (
            macro,
        )  # imported here: it imports the graph level, which imports T

        return macro
    return DIM_FUNCTIONS.get(name) or Placeholder(name)


__all__ = ["index_map", "prim_func"]
