"""The namespace T: tensor programs, and scalar expressions in the graph level.

    from relaxpy.script import tir as T

A `@T.prim_func` is read from its source by `relaxpy.tir`; Python itself never runs it. So whatever follows `T.`
and is not defined here is
a placeholder that may be called, indexed and compared: it stands in annotations that Python evaluates.
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
    """`T.int64`: called without arguments a new symbolic variable, with a value that value."""

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
    """Stands for something of a tensor program where Python evaluates an annotation."""

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
    """Make a tensor program of a Python function: `@T.prim_func`.

    In a class that `@I.ir_module` takes, the function is left as it is: the class is read as a whole.
    """
    del options  # read from the source
    if func is None:
        return prim_func
    from relaxpy.script.parser import in_class_body, parse_decorated_prim_func

    frame = sys._getframe(1)
    return func if in_class_body(frame) else parse_decorated_prim_func(func, frame)


def index_map(
    mapping: Any, *, inverse_index_map: Any = None, index_dtype: str = "int64"
) -> IndexMap:
    """Where the element at (i, j, …) goes: `T.index_map(lambda i, j: (j, i // 4, i % 4))`."""
    del inverse_index_map, index_dtype  # found, and always int64
    return IndexMap.of(mapping)


_SCALARS = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool",
)  # fmt: skip
_TYPES = {name: ScalarDType(name) for name in _SCALARS}


def _literal(dtype: str, value: Any) -> Any:
    """`T.FloatImm("float32", 0.5)`, `T.IntImm("int32", 3)`: a number."""
    if dtype not in _TYPES:
        raise ScriptError("bad-value", f"{dtype!r} is no dtype of a number")
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
        )  # it knows functions of the graph level, which know T

        return macro
    return DIM_FUNCTIONS.get(name) or Placeholder(name)


__all__ = ["index_map", "prim_func"]
