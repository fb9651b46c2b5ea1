"""Tensor expressions: the language of an operator's `legalize`.

TVM's `te` with dimensions in place of index expressions: `compute((n * 4, 8), lambda i, j: …)` takes the `Dim`s of the
deduced annotation. The lambda computes with TVM expressions; `dim(n)` converts a dimension. All indices are int64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from relaxpy.errors import UsageError
from relaxpy.ir.dim import Dim, DimLike, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.tir.analyzer import PrimExpr, int64, to_tvm, to_tvm_var
from relaxpy.tir.expression_size import Sizes
from relaxpy.tir.tvm import te as _te
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

Tensor: TypeAlias = _te.Tensor
Index: TypeAlias = "Dim | SymVar | int | PrimExpr"

topi = tvm.topi


def dim(value: Index) -> PrimExpr:
    """Convert a dimension or Python integer to an int64 index expression; TVM expressions are returned unchanged."""
    if isinstance(value, (Dim, SymVar)):
        return to_tvm(Dim.of(value))
    return int64(value) if isinstance(value, int) else value


def substituted(formula: Dim, values: Mapping[SymVar, PrimExpr]) -> PrimExpr:
    """Convert a dimension to an index expression, with `values` in place of variables."""
    given = {to_tvm_var(var): value for var, value in values.items()}
    return tvm_ffi.structural_map(dim(formula), (tvm.ir.Var, lambda var: given.get(var, var)))


def placeholder(shape: Sequence[DimLike], dtype: str, name: str) -> Tensor:
    """An input tensor."""
    return _te.placeholder([dim(Dim.of(d)) for d in shape], str(dtype), name=name)


class Scalar:
    """A constant over all elements, in place of a 0-d tensor."""

    def __init__(self, value: PrimExpr) -> None:
        self.value = value
        self.shape: tuple[PrimExpr, ...] = ()
        self.dtype = str(value.ty.dtype)

    def __call__(self, *index: Any) -> PrimExpr:
        return self.value

    def __getitem__(self, index: Any) -> PrimExpr:
        return self.value


def compute(shape: Sequence[Index], body: Callable[..., PrimExpr], name: str = "compute") -> Tensor:
    """The tensor of `shape` whose element at (i, j, …) is `body(i, j, …)`. For a 0-d tensor `body` takes no
    argument."""
    dims = [dim(d) for d in shape]
    if not dims:
        return _te.compute((), lambda *_: _bounded(body(), name), name=name)
    return _te.compute(dims, lambda *i: _bounded(body(*i), name), name=name)


def _bounded(value: Any, name: str) -> Any:
    """The value, if it is not too large as a tree."""
    problem = Sizes().problem(value) if isinstance(value, tvm.ir.Expr) else None
    if problem is None:
        return value
    raise UsageError(
        "tir-script",
        f"the value of {name} is too large: {problem}",
        help="compute a part of it in a te.compute of its own",
    )


def as_tensor(value: Tensor | Scalar) -> Tensor:
    """The 0-d tensor of a scalar."""
    return compute((), lambda: value.value, "scalar") if isinstance(value, Scalar) else value


def reduce_axis(extent: Index, name: str = "k") -> Any:
    """A reduction axis."""
    return _te.reduce_axis((int64(0), dim(extent)), name=name)


def sum(value: PrimExpr, axis: Any) -> PrimExpr:
    """Reduction by addition."""
    return _te.sum(value, axis=axis)


def max(value: PrimExpr, axis: Any) -> PrimExpr:
    """Reduction by maximum."""
    return _te.max(value, axis=axis)


def min(value: PrimExpr, axis: Any) -> PrimExpr:
    """Reduction by minimum."""
    return _te.min(value, axis=axis)


def prod(value: PrimExpr, axis: Any) -> PrimExpr:
    """Reduction by multiplication."""
    combine = _te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype), name="prod")
    return combine(value, axis=axis)


def const(value: float | bool, dtype: str) -> PrimExpr:
    """A literal of `dtype`."""
    return tirx.const(value, str(DType(dtype)))


def select(condition: PrimExpr, then: PrimExpr, otherwise: PrimExpr) -> PrimExpr:
    """A choice whose sides are both evaluated. For reads that must not happen use `if_then_else`."""
    return tirx.Select(condition, then, otherwise)


def if_then_else(condition: PrimExpr, then: PrimExpr, otherwise: PrimExpr) -> PrimExpr:
    """A choice of which only the chosen side is evaluated."""
    return tirx.if_then_else(condition, then, otherwise)


def broadcast_index(
    shape: Sequence[DimLike], out: Sequence[DimLike], index: Sequence[PrimExpr]
) -> list[PrimExpr]:
    """The index of an operand of `shape` for element `index` of a result of shape `out`, by numpy's broadcasting
    (aligned at the right). A dimension that may be 1 or the result's is decided at run time."""
    shift = len(out) - len(shape)
    picked: list[PrimExpr] = []
    for size, target, i in zip(
        map(Dim.of, shape), map(Dim.of, out[shift:]), index[shift:], strict=True
    ):
        if size == target:
            picked.append(i)
        elif size == 1:
            picked.append(int64(0))
        else:
            picked.append(tirx.Select(to_tvm(size) == int64(1), int64(0), i))
    return picked
