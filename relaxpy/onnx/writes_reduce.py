"""Reductions, running totals, and softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxpy.ir import Dim
from relaxpy.ir.dim import product
from relaxpy.onnx.write_table import writes
from relaxpy.onnx.write_values import Tensor
from relaxpy.onnx.writer import Place
from relaxpy.onnx.writes_elementwise import converted_to, divided
from relaxpy.onnx.writes_shape import filled
from relaxpy.op import reduce, scan, softmax

_REDUCED: dict[Any, str] = {
    reduce.Sum: "ReduceSum", reduce.Prod: "ReduceProd", reduce.Max: "ReduceMax", reduce.Min: "ReduceMin",
}  # fmt: skip


def reduced(at: Place, kind: str, x: Any, axes: tuple[int, ...], keepdims: bool) -> str:
    """A reduction over some axes, perhaps none."""
    return (
        at.node(kind, x, at.ints(axes), keepdims=int(keepdims)) if axes else at.node("Identity", x)
    )


@writes(*_REDUCED)
def reduction(at: Place, op: Any, x: Tensor) -> Any:
    kind = _REDUCED[type(op)]
    is_extreme = isinstance(op, (reduce.Max, reduce.Min))
    wide: Any = x.dtype
    if x.dtype.is_int and x.dtype.bits < 32 and not (is_extreme and x.dtype.bits == 8):
        wide = "int32"  # a sum modulo a power of 2 is that of the wider sum
    found = reduced(at, kind, at.cast(x, wide), op.axes_of(x.ndim), op.keepdims)
    if is_extreme and wide != x.dtype:  # of nothing: the limit of the narrow dtype
        info = np.iinfo(x.dtype.numpy)
        found = at.node("Clip", found, at.number(info.min, wide), at.number(info.max, wide))
    return at.cast(found, x.dtype, wide)


@writes(reduce.Mean)
def mean(at: Place, op: Any, x: Tensor) -> Any:
    axes: tuple[int, ...] = op.axes_of(x.ndim)
    if x.dtype.is_float:
        return reduced(at, "ReduceMean", x, axes, op.keepdims)
    wide = "uint64" if x.dtype == "uint64" else "int64"
    total = reduced(at, "ReduceSum", at.cast(x, wide), axes, op.keepdims)
    count = at.scalar(product(tuple(at.dims(x)[a] for a in axes)), wide)
    from relaxpy.ir import DType

    return at.cast(divided(at, total, count, DType(wide), down=False), x.dtype, wide)


@writes(reduce.Variance, reduce.Std)
def variance(at: Place, op: Any, x: Tensor) -> Any:
    if not x.dtype.is_float:
        raise at.fail(f"of {x.dtype}: cast to float32")
    axes = op.axes_of(x.ndim)
    middle = reduced(at, "ReduceMean", x, axes, keepdims=True)
    apart = at.node("Sub", x, middle)
    found = reduced(at, "ReduceMean", at.node("Mul", apart, apart), axes, op.keepdims)
    return at.node("Sqrt", found) if isinstance(op, reduce.Std) else found


@writes(reduce.AllTrue, reduce.AnyTrue)
def truths(at: Place, op: Any, x: Tensor) -> Any:
    """By the number of elements that are so, or are not: there is one of none, too."""
    every = isinstance(op, reduce.AllTrue)
    zero = at.node("Not", x) if x.dtype.is_bool else at.node("Equal", x, at.number(0, x.dtype))
    counted = zero if every else at.node("Not", zero)
    ones = at.cast(counted, "int64", "bool")
    count = reduced(at, "ReduceSum", ones, op.axes_of(x.ndim), op.keepdims)
    return at.node("Equal" if every else "Greater", count, at.number(0, "int64"))


@writes(softmax.Softmax, softmax.LogSoftmax)
def softmaxes(at: Place, op: Any, x: Tensor) -> Any:
    return at.node("Softmax" if isinstance(op, softmax.Softmax) else "LogSoftmax", x, axis=op.axis)


# Running totals

_STEPS: dict[Any, str] = {scan.Cumprod: "Mul", scan.Cummax: "Max", scan.Cummin: "Min"}


def _prepared(at: Place, op: scan.Scan, x: Tensor) -> tuple[Any, int, tuple[Dim, ...]]:
    """The argument in the dtype of the result, the axis, and the sizes."""
    source: Any = x
    if op.dtype is not None and op.dtype != x.dtype:
        source = converted_to(at, x, op.dtype)
    if op.axis is not None:
        return source, op.axis % x.ndim, at.dims(x)
    return at.node("Reshape", source, at.ints([-1])), 0, (product(at.dims(x)),)


@writes(scan.Cumsum)
def cumsum(at: Place, op: scan.Cumsum, x: Tensor) -> Any:
    source, axis, _ = _prepared(at, op, x)
    dtype = op.dtype or x.dtype
    wide = dtype if dtype.is_float or dtype.bits >= 32 else "int32"
    place = at.number(axis, "int64")
    found = at.node("CumSum", at.cast(source, wide, dtype), place, exclusive=int(op.exclusive))
    return at.cast(found, dtype, wide)


@writes(*_STEPS)
def scanned(at: Place, op: scan.Scan, x: Tensor) -> Any:
    """Scan: the state is the total so far."""
    from onnx import helper

    from relaxpy.frontend.onnx.element_types import NUMBERS

    source, axis, dims = _prepared(at, op, x)
    dtype = op.dtype or x.dtype
    size = dims[axis]
    if not size.value:
        # Runtimes do not scan an axis of size 0: there is one row more.
        row = filled(
            at, at.shape([1 if a == axis else dim for a, dim in enumerate(dims)]), 0, dtype
        )
        source = at.node("Concat", source, row, axis=axis)
    rest = [dim for a, dim in enumerate(dims) if a != axis]
    start = np.asarray(op.first(dtype)).astype(dtype.numpy)
    state = (
        at.node("Expand", at.writer.constant(start), at.shape(rest))
        if rest
        else at.writer.constant(start)
    )
    names = [at.writer.fresh(name) for name in ("before", "row", "after", "kept")]
    before, row, after, kept = names
    nodes = [
        helper.make_node(_STEPS[type(op)], [before, row], [after], name=f"{after}/step"),
        helper.make_node(
            "Identity", [before if op.exclusive else after], [kept], name=f"{kept}/step"
        ),
    ]
    infos = [helper.make_tensor_value_info(name, NUMBERS[dtype], None) for name in names]
    body = helper.make_graph(nodes, f"{at.var.name}_step", infos[:2], infos[2:])
    found = at.nodes(
        "Scan", 2, state, source, body=body, num_scan_inputs=1, scan_input_axes=[axis], scan_output_axes=[axis]
    )[1]  # fmt: skip
    return found if size.value else at.slice(found, axis, 0, size)
