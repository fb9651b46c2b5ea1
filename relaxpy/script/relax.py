"""The namespace R: annotations, statements and operators of graph-level functions.

    from relaxpy.script import relax as R

Operators come from the operator table: `R.add`, `R.nn.relu` and `R.memory.alloc_tensor` exist because `relaxpy.op`
defines operators with these names. All other names come from `relaxpy.script.intrinsics` and
`relaxpy.script.annotations`.
"""

from __future__ import annotations

import typing
from functools import lru_cache

from relaxpy import services
from relaxpy.op.function import function_of, names_below
from relaxpy.script.annotations import Callable_ as Callable
from relaxpy.script.annotations import Object, Prim, Shape, Tensor, Tuple
from relaxpy.script.calls import (
    call_builtin_with_ctx,
    call_dps_library,
    call_inplace_packed,
    call_packed,
    call_pure_packed,
    call_tir,
    call_tir_inplace,
    call_tir_with_grad,
    invoke_closure,
    invoke_pure_closure,
)
from relaxpy.script.constants import const_ref
from relaxpy.script.data import Type, data, type_param
from relaxpy.script.data import type_ as type
from relaxpy.script.dialects.lowered import SPELLINGS
from relaxpy.script.dialects.older_words import R_NAMES
from relaxpy.script.intrinsics import (
    const,
    cpu,
    cuda,
    dataflow,
    device,
    func_attr,
    function,
    match_cast,
    output,
    prim_value,
    shape,
)
from relaxpy.script.intrinsics import data_type as dtype
from relaxpy.script.intrinsics import extern_func as ExternFunc  # noqa: N812
from relaxpy.script.intrinsics import string as str
from relaxpy.script.intrinsics import tuple_ as tuple
from relaxpy.script.intrinsics import tuple_get_item as TupleGetItem  # noqa: N812
from relaxpy.script.macro import macro

__all__ = [
    "Callable", "ExternFunc", "Object", "Prim", "Shape", "Tensor", "Tuple", "TupleGetItem", "Type",
    "call_builtin_with_ctx",
    "call_dps_library", "call_inplace_packed", "call_packed", "call_pure_packed", "call_tir",
    "call_tir_inplace", "call_tir_with_grad", "const", "const_ref", "cpu", "cuda", "data", "dataflow", "device",
    "dtype", "func_attr", "function", "invoke_closure", "invoke_pure_closure", "macro", "match_cast", "output",
    "prim_value", "shape", "str", "tuple", "type", "type_param",
]  # fmt: skip


class Namespace:
    """The operators with a common prefix: `R.nn`."""

    def __init__(self, prefix: typing.Any) -> None:
        self._prefix = prefix

    def __getattr__(self, name: typing.Any) -> typing.Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return find(f"{self._prefix}.{name}")

    def __call__(self, function: typing.Any, argnums: typing.Any = 0) -> typing.Any:
        """`R.grad(f)`: the gradient of a function. Other namespaces cannot be called."""
        if self._prefix != "grad":
            raise TypeError(f"{self!r} is a namespace of operators, which cannot be called")
        return services.gradient(function, argnums)

    def __repr__(self) -> typing.Any:
        return f"R.{self._prefix}"

    def __dir__(self) -> typing.Any:
        return names_below(f"{self._prefix}.", operators())


def operators() -> typing.Any:
    """The complete operator table."""
    import relaxpy.op  # its files register the operators

    return relaxpy.op.OPS


def find(name: typing.Any) -> typing.Any:
    """The member `R.<name>`: an operator's function, or a namespace of operators. Raises `AttributeError`."""
    table = operators()
    if name in SPELLINGS:
        return SPELLINGS[name]
    if name in R_NAMES:
        return globals()[R_NAMES[name]]
    if name in table:
        return function_of(table[name])
    return _namespace(name)


@lru_cache(maxsize=64)
def _namespace(name: typing.Any) -> Namespace:
    if any(known.startswith(name + ".") for known in (*operators(), *SPELLINGS)):
        return Namespace(name)
    raise AttributeError(f"R has no {name!r}")


def known_names() -> typing.Any:
    """All names that can follow `R.`, for suggestions."""
    return sorted({*operators(), *SPELLINGS, *R_NAMES, *__all__})


def __getattr__(name: typing.Any) -> typing.Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return find(name)


def __dir__() -> typing.Any:
    return sorted({*__all__, *names_below("", operators())})
