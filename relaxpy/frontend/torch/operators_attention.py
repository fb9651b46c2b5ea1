"""Attention."""

from __future__ import annotations

import math
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Expr
from relaxpy.ir.dim import product


@operator("scaled_dot_product_attention.default")
def attention(
    at: Site, query: Expr, key: Expr, value: Expr, mask: Expr | None, dropout: float, causal: bool,
    scale: float | None, grouped: bool,
) -> Any:  # fmt: skip
    if dropout:
        raise at.fail(
            "torch-operator",
            "attention with dropout draws random numbers",
            "call module.eval() before the import",
        )
    outer = at.shape[:-3] if at.ndim(query) >= 3 else []

    def four(x: Expr) -> Expr:
        """(…, heads, length, width) → (batch, length, heads, width)."""
        sizes = at.shape_of(x)
        if len(sizes) != 4:
            heads = sizes[-3] if len(sizes) > 2 else 1
            x = at.emit(op.reshape(x, (product(tuple(sizes[:-3])), heads, *sizes[-2:])))
        return at.emit(op.permute_dims(x, [0, 2, 1, 3]))

    bias = None
    if mask is not None:
        bias = mask
        if at.dtype_of(mask) == "bool":
            zero, least = (op.full((), v, at.dtype) for v in (0.0, -math.inf))
            bias = at.emit(op.where(mask, zero, least))
        bias = at.cast(bias, at.dtype)
        if at.ndim(bias) > 4 or (at.ndim(bias) == 3 and at.ndim(query) != 4):
            sizes = at.shape_of(bias)
            heads = sizes[-3] if len(sizes) > 2 else 1
            bias = at.emit(op.reshape(bias, (product(tuple(sizes[:-3])), heads, *sizes[-2:])))
        while at.ndim(bias) < 4:
            bias = at.emit(op.expand_dims(bias, 0))
    y = op.nn.attention(
        four(query), four(key), four(value), bias, scale=scale,
        causal_mask="TopLeft" if causal else None,
    )  # fmt: skip
    y = op.permute_dims(y, [0, 2, 1, 3])
    del outer
    return y if at.ndim(query) == 4 else op.reshape(y, at.shape)
