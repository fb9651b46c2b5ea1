"""Operators on the tensors of `forward`: `op.matmul(x, w)`, `op.nn.softmax(x)`, and all others of `relaxpy.op`, by
name.

Nothing is listed here: a name is looked up in the table of operators and called with its arguments and attributes, as
in `R.<name>(…)`. Its result is bound in the function being exported. An error is located at the line of the model that
caused it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaxpy.ir import PrimValue, StringImm, TensorType
from relaxpy.ir.dim import Dim, DimLike
from relaxpy.nn.apply import index as index
from relaxpy.nn.calls import call_dps_library as call_dps_library
from relaxpy.nn.calls import call_inplace_packed as call_inplace_packed
from relaxpy.nn.calls import call_packed as call_packed
from relaxpy.nn.calls import call_pure_packed as call_pure_packed
from relaxpy.nn.calls import call_te as call_te
from relaxpy.nn.calls import call_tir as call_tir
from relaxpy.nn.calls import call_tir_inplace as call_tir_inplace
from relaxpy.nn.construction import Construction, caller_span
from relaxpy.nn.function import function_on_tensors
from relaxpy.nn.loops import while_loop as while_loop
from relaxpy.nn.tensor import Tensor, Value
from relaxpy.op import OPS
from relaxpy.op import call as ir_call
from relaxpy.op.base import Op
from relaxpy.op.deduce import deduce
from relaxpy.op.function import functions, names_below, unknown

CALLS = (
    "call_dps_library",
    "call_inplace_packed",
    "call_packed",
    "call_pure_packed",
    "call_te",
    "call_tir",
    "call_tir_inplace",
    "while_loop",
)
"""The calls of `relaxpy.nn.calls`, and loops (`relaxpy.nn.loops`)."""


def match_cast(x: Value, shape: Sequence[DimLike], dtype: str | None = None) -> Tensor:
    """`x` with a shape (and dtype, if it has none) that is checked at run time."""
    expr = x.__relax_expr__
    known = deduce(expr)
    if dtype is None and isinstance(known, TensorType):
        dtype = known.dtype
    return Construction.current().match_cast(expr, TensorType(tuple(shape), dtype), caller_span())


def check_range(x: Value, count: DimLike, what: str = "indices", lowest: int = 0) -> Tensor:
    """`x`, an integer tensor, after a check at run time that its elements are at least `lowest` and below `count`.
    Without the check, `take` clamps an index out of range. `what` is the name of the elements in the error."""
    expr = x.__relax_expr__
    numbers = (
        PrimValue(Dim.of(count)),
        StringImm(what),
        *([PrimValue(Dim.of(lowest))] * (lowest != 0)),
    )
    call = ir_call.call_pure_packed("relaxpy.check_range", expr, *numbers, ty_args=deduce(expr))
    return Construction.current().emit(call, "checked", caller_span())


def check_finite(x: Value, what: str) -> Tensor:
    """`x` after a check at run time that it has no NaN and no infinity. `what` is its name in the error."""
    expr = x.__relax_expr__
    call = ir_call.call_pure_packed(
        "relaxpy.check_finite", expr, StringImm(what), ty_args=deduce(expr)
    )
    return Construction.current().emit(call, "checked", caller_span())


class Namespace:
    """The operators with a common prefix such as `nn.`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _lookup(self._prefix + name)

    def __dir__(self) -> list[str]:
        return names_below(self._prefix, functions())

    def __repr__(self) -> str:
        return f"nn.op.{self._prefix[:-1]}"


def _lookup(name: str) -> Callable[..., Any] | Namespace:
    cls = OPS.get(name)
    if cls is not None and issubclass(cls, Op):
        return function_on_tensors(cls)
    if names_below(f"{name}.", functions()):
        return Namespace(f"{name}.")
    if name in _TVM_NAMES:
        raise AttributeError(f"nn.op has no {name!r}: write nn.op.{_TVM_NAMES[name]}")
    raise AttributeError(f"nn.op has no {name!r}{unknown(name, 'nn.op.')}")


_TVM_NAMES = {
    "tensor_ir_op": "call_tir(program, args, out_ty)",
    "tensor_ir_inplace_op": "call_tir_inplace(program, args, inplace_indices)",
    "tensor_expr_op": "call_te(function, args)",
    "extern": "call_dps_library(name, args, out_ty)",
}
"""Functions of TVM's `nn.op` → the call here."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _lookup(name)


def __dir__() -> list[str]:
    return sorted(
        {
            *CALLS,
            "check_finite",
            "check_range",
            "index",
            "match_cast",
            *names_below("", functions()),
        }
    )
