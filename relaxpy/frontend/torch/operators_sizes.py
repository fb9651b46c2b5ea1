"""Sizes as values: integers read from tensors, assertions on sizes."""

from __future__ import annotations

import re
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Dim, Expr, PrimType, SymVar
from relaxpy.ir.dim import dim_op


@operator("_local_scalar_dense.default", "item.default")
def item(at: Site, x: Expr) -> Any:
    dtype = at.dtype_of(x)
    value = at.val
    if not dtype.is_int and not dtype.is_bool:
        return op.reshape(x, ())
    (symbol,) = value.node.expr.free_symbols  # a bool is `symbol == 1`
    var = SymVar(at.importer.fresh(symbol.name), signed=True)
    scalar = at.emit(op.tensor_to_scalar(op.reshape(op.astype(x, "int64"), ())))
    at.match(scalar, PrimType("int64", var.dim))
    at.importer.sizes.define(symbol.name, var.dim)
    return at.importer.sizes.of(value)


@operator("sym_size.int")
def sym_size(at: Site, x: Expr, axis: int) -> Dim:
    return at.shape_of(x)[axis]


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
