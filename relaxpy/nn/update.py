"""Updates in place of a part of a tensor, such as a cache."""

from __future__ import annotations

import ast
from functools import cache
from typing import Any

from relaxpy.ir import Dim, TensorProgram, TensorType
from relaxpy.ir.dim import DimLike
from relaxpy.nn.calls import call_tir_inplace
from relaxpy.nn.construction import mistake
from relaxpy.nn.tensor import Tensor, Value
from relaxpy.op.deduce import deduce


def update_slice(x: Value, value: Value, start: DimLike, axis: int = 0) -> Tensor:
    """Write `value` into x in place, from index `start` along `axis` on; its other sizes are those of x. x is a buffer,
    or an argument of the method, whose caller sees the update. The result is the updated x, which is used in its place
    from then on. A slice that does not fit into x is an error of the call."""
    into, of = (deduce(each.__relax_expr__) for each in (x, value))
    if not isinstance(into, TensorType) or not isinstance(of, TensorType) or into.dims is None:
        raise mistake("unknown-shape", f"a slice of {of} cannot be written into {into}")
    ndim = len(into.dims)
    if of.dims is None or len(of.dims) != ndim:
        raise mistake(
            "shape-mismatch",
            f"value has {of.ndim} axes, x has {ndim}",
            help="a single row has an axis of size 1: value[None]",
        )
    if not -ndim <= axis < ndim:
        raise mistake("op-axis", f"axis {axis} of a tensor with {ndim} axes")
    if of.dtype != into.dtype:
        raise mistake(
            "op-dtype",
            f"value is {of.dtype}, x is {into.dtype}",
            help=f'write op.astype(value, "{into.dtype}")',
        )
    at = axis % ndim
    sizes = tuple(dim.value for dim in into.dims)
    new = tuple(dim.value for dim in of.dims)
    for i, (a, b) in enumerate(zip(sizes, new, strict=True)):
        if i != at and a is not None and b is not None and a != b:
            raise mistake("shape-mismatch", f"axis {i} has {a} elements in x, {b} in value")
    first = Dim.of(start)
    end = (first + of.dims[at]).value
    if (first.value or 0) < 0 or (end is not None and (sizes[at] or end) < end):
        raise mistake(
            "shape-mismatch",
            f"indices {first} to {first + of.dims[at]} are out of range for axis {at} of size {into.dims[at]}",
        )
    program = _program(sizes, new[at], at, str(into.dtype))
    return call_tir_inplace(program, (x, value), [0], tir_vars=(first,), name="update_slice")


@cache
def _program(
    sizes: tuple[int | None, ...], count: int | None, axis: int, dtype: str
) -> TensorProgram:
    """The tensor program of an update; None is a symbolic size."""
    from relaxpy.tir.parse import parse_prim_func  # loads TVM

    ndim = range(len(sizes))
    into = [f"n{i}" if size is None else str(size) for i, size in enumerate(sizes)]
    of = ["count" if i == axis and count is None else into[i] for i in ndim]
    of[axis] = of[axis] if count is None else str(count)
    symbols = sorted({name for name in (*into, *of) if not name.isdigit()})
    loops, axes = [f"i{i}" for i in ndim], [f"v{i}" for i in ndim]
    at = [f"start + {v}" if i == axis else v for i, v in enumerate(axes)]
    defined = "".join(f"    {name} = T.int64()\n" for name in symbols)
    # With one loop, `T.grid` and `T.axis.remap` give a single variable.
    source = f"""
@T.prim_func(private=True)
def update_slice(x: T.Buffer({_shape(into)}, "{dtype}"), value: T.Buffer({_shape(of)}, "{dtype}"), start: T.int64):
{defined}    for {", ".join(loops)} in T.grid({", ".join(of)}):
        with T.sblock("update"):
            {", ".join(axes)} = T.axis.remap("{"S" * len(axes)}", [{", ".join(loops)}])
            x[{", ".join(at)}] = value[{", ".join(axes)}]
"""
    node: Any = ast.parse(source).body[0]
    return parse_prim_func(node, source, "<update_slice>", {})


def _shape(dims: list[str]) -> str:
    """A buffer's shape as script."""
    return "(" + "".join(f"{d}, " if d.isdigit() else f'"{d}", ' for d in dims) + ")"
