"""Sizes as values: integers read from tensors, floats computed of sizes, assertions on sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.export import READ_AS
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.operators_elementwise import size_tensor
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Dim, Expr, PrimType, SymVar
from relaxpy.ir.dim import dim_op


@operator("_local_scalar_dense.default", "item.default", reads=True)
def item(at: Site, x: Expr) -> Any:
    """The value of a tensor of integers as a size: a new one, or one that torch took it for, which is checked."""
    dtype = at.dtype_of(x)
    if not dtype.is_int and not dtype.is_bool:
        return op.reshape(x, ())
    scalar = at.emit(op.tensor_to_scalar(op.reshape(op.astype(x, "int64"), ())))
    sizes = at.importer.sizes
    names = sizes.unknown(at.val)  # a bool is `u0 == 1`
    if dtype.is_int and names and names != [str(at.val)]:
        raise at.fail(
            "torch-size", f"torch took this value for {at.val}, of which {names[0]} is not known"
        )
    if names:
        var = SymVar(at.importer.fresh(names[0]), signed=True)
        at.match(scalar, PrimType("int64", var.dim))
        sizes.define(names[0], var.dim)
    else:
        at.match(scalar, PrimType("int64", sizes.of(at.val)))
    value = sizes.of(at.val)
    before = at.node.meta.get(READ_AS, at.val)
    names = sizes.unknown(before)
    if names == [str(before)]:
        sizes.define(names[0], value)
    elif not names:
        at.check(dim_op("eq", value, sizes.of(before)), f"the value is {before}")
    return value


@operator("sym_size.int")
def sym_size(at: Site, x: Expr, axis: int) -> Dim:
    return at.shape_of(x)[axis]


@operator("sym_float", namespace="torch")
def sym_float(at: Site, value: Any) -> Expr:
    """A number as Python's float: a tensor of float64 without dimensions."""
    if isinstance(value, Dim):
        return at.emit(size_tensor(at, value, "float64"))
    return at.emit(
        at.cast(value, "float64") if isinstance(value, Expr) else op.full((), value, "float64")
    )


def _of_floats(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda at, *values: at.emit(function(*(sym_float(at, each) for each in values)))


_FLOATS: dict[str, Callable[..., Any]] = {
    "add": op.add, "sub": op.subtract, "mul": op.multiply, "pow": op.power, "neg": op.negative,
}  # fmt: skip
"""Python's operators, where the result is a float: sizes are computed as such."""

for _name, _function in _FLOATS.items():
    operator(_name, namespace="operator")(_of_floats(_function))


@operator("truediv", namespace="operator")
def truediv(at: Site, x: Any, y: Any) -> Expr:
    if isinstance(y, Dim):
        at.check(dim_op("ne", y, 0), "the divisor is not 0")
    return _of_floats(op.divide)(at, x, y)


@operator("_assert_scalar.default")
def assert_scalar(at: Site, condition: Any, message: str) -> None:
    if isinstance(condition, (Dim, int)):
        at.check(
            dim_op("ne", condition, 0) if not Dim.of(condition).is_truth else Dim.of(condition),
            message,
        )


@operator("_assert_async.msg")
def assert_async(at: Site, condition: Expr, message: str) -> None:
    """Checked when the program runs; the error names what the message says."""
    held = at.emit(op.tensor_to_scalar(at.cast(condition, "int64")), "held")
    words = "_".join(re.findall(r"[a-z0-9]+", message.lower())[:8])
    at.match(held, PrimType("int64", 1), f"check_{words}" if words else "check")


@operator("sym_constrain_range_for_size.default", "sym_constrain_range.default")
def constrain_range(at: Site, size: Any, low: Any, high: Any) -> None:
    if low is not None and isinstance(size, Dim):
        at.check(dim_op("le", low, size), f"{size} is at least {low}")
    if high is not None and isinstance(size, Dim):
        at.check(dim_op("le", size, high), f"{size} is at most {high}")


@operator("_assert_tensor_metadata.default")
def assert_tensor_metadata(at: Site, *rest: Any) -> None:
    """Dtypes and shapes are known here."""
