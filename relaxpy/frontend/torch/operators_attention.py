"""Attention."""

from __future__ import annotations

import math
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.operators_random import uniform
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Expr
from relaxpy.ir.dim import product


def _drops(node: Any) -> bool:
    """Has the call a dropout?"""
    return bool(node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p"))


@operator("scaled_dot_product_attention.default", random=_drops)
def attention(
    at: Site, query: Expr, key: Expr, value: Expr, mask: Expr | None, dropout: float, causal: bool,
    scale: float | None, grouped: bool,
) -> Any:  # fmt: skip
    if dropout:
        return with_dropout(at, query, key, value, mask, dropout, causal, scale)

    def four(x: Expr) -> Expr:
        """(…, heads, length, width) → (batch, length, heads, width)."""
        sizes = at.shape_of(x)
        if sizes[:-2] != at.shape[:-2] and not grouped:
            sizes = [*at.shape[:-2], *sizes[-2:]]
            x = at.emit(op.broadcast_to(x, sizes))
        if len(sizes) != 4:
            heads = sizes[-3] if len(sizes) > 2 else 1
            x = at.emit(op.reshape(x, (product(tuple(sizes[:-3])), heads, *sizes[-2:])))
        return at.emit(op.permute_dims(x, [0, 2, 1, 3]))

    bias = None
    if mask is not None:
        bias = at.cast(as_bias(at, mask, at.dtype), at.dtype)
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
    return y if at.ndim(query) == 4 else op.reshape(y, at.shape)


def as_bias(at: Site, mask: Expr, dtype: Any) -> Expr:
    """A mask as what is added to scores: minus infinity where it is false."""
    if at.dtype_of(mask) != "bool":
        return mask
    zero, least = (op.full((), v, dtype) for v in (0.0, -math.inf))
    return at.emit(op.where(mask, zero, least))


def with_dropout(
    at: Site, query: Expr, key: Expr, value: Expr, mask: Expr | None, dropout: float, causal: bool,
    scale: float | None,
) -> Any:  # fmt: skip
    """Attention some of whose weights are 0 at random, written out. A row that is masked as a whole gives 0."""
    query, key, value = (at.cast(each, "float32") for each in (query, key, value))
    heads, shared = (at.shape_of(each)[-3:-2] for each in (query, key))
    if heads != shared:
        times = heads[0] // shared[0]
        key, value = (at.emit(op.repeat(e, times.value or 1, axis=-3)) for e in (key, value))
    order = [*range(at.ndim(key) - 2), at.ndim(key) - 1, at.ndim(key) - 2]
    width = at.shape_of(query)[-1]
    factor = op.full((), 1 / math.sqrt(width.value or 1) if scale is None else scale, "float32")
    scores = at.emit(op.matmul(query, at.emit(op.permute_dims(key, order))))
    scores = at.emit(op.multiply(scores, factor))
    if mask is not None:
        scores = at.emit(op.add(scores, at.cast(as_bias(at, mask, "float32"), "float32")))
    if causal:
        before = at.emit(op.tril(at.emit(op.ones(at.shape_of(scores)[-2:], "bool"))))
        scores = at.emit(op.add(scores, as_bias(at, before, "float32")))
    weights = at.emit(op.nn.softmax(scores, axis=-1))
    nothing = at.emit(op.equal(at.emit(op.max(scores, axis=-1, keepdims=True)), -math.inf))
    drawn = at.emit(op.less(uniform(at, at.shape_of(scores)), 1 - dropout))
    kept = at.emit(op.logical_and(drawn, at.emit(op.logical_not(nothing))))
    weights = at.emit(op.where(kept, weights, op.full((), 0.0, "float32")))
    found = at.emit(op.matmul(at.emit(op.divide(weights, float(1 - dropout) or 1.0)), value))
    return at.cast(found, at.dtype)
