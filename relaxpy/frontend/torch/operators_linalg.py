"""Norms of vectors."""

from __future__ import annotations

import math
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.operators_reduce import axes_of
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Expr


@operator("linalg_vector_norm.default")
def vector_norm(at: Site, x: Expr, order: float, axes: Any, keep: bool, dtype: Any) -> Any:
    """Sums of narrower floats are those of float32."""
    wide = "float32" if at.dtype.is_narrow else at.dtype
    x = at.emit(op.abs(at.cast(x, wide)))
    options = {"axis": axes_of(axes), "keepdims": keep} if at.ndim(x) else {}
    if order in (math.inf, -math.inf):
        function = op.max if order > 0 else op.min
        return function(x, **options) if at.ndim(x) else x
    if order == 0:
        return op.sum(op.astype(op.not_equal(x, 0.0), wide), **options)
    if order == 1:
        return op.sum(x, **options)
    if order == 2:
        return op.sqrt(op.sum(op.multiply(x, x), **options))
    total = op.sum(op.power(x, float(order)), **options)
    return op.power(total, 1.0 / order)
