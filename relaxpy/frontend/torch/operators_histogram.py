"""Counts of elements by value, as routers of experts count their tokens."""

from __future__ import annotations

from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Expr


@operator("histc.default")
def histc(at: Site, x: Expr, bins: int, low: Any, high: Any) -> Any:
    """Bins of equal width from `low` to `high`, or from the least to the largest element where these are equal. Elements
    outside count nowhere."""
    values = at.cast(
        at.emit(op.flatten(x)), "float64" if at.dtype_of(x) == "float64" else "float32"
    )
    dtype = at.dtype_of(values)
    if low == high:
        least, most = at.emit(op.min(values)), at.emit(op.max(values))
        flat = at.emit(op.equal(least, most))
        first = at.emit(op.where(flat, op.subtract(least, 1.0), least))
        last = at.emit(op.where(flat, op.add(most, 1.0), most))
    else:
        first, last = (op.full((), float(v), dtype=dtype) for v in (low, high))
    place = op.multiply(
        op.divide(op.subtract(values, first), op.subtract(last, first)), float(bins)
    )
    inside = op.logical_and(op.greater_equal(values, first), op.less_equal(values, last))
    # The largest element is in the last bin, and one outside in none.
    index = at.emit(op.minimum(op.floor(place), float(bins - 1)))
    index = at.emit(op.where(inside, index, op.full((), -1.0, dtype=dtype)))
    columns = op.expand_dims(op.astype(op.arange(bins, dtype="int64"), dtype), 0)
    found = op.equal(op.expand_dims(index, 1), columns)
    return op.sum(op.astype(found, at.dtype), axis=0)
