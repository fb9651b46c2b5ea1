"""Operators that only graphs of torch.compile have."""

from __future__ import annotations

import math
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.operators_attention import attention
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Expr


@operator("convert_element_type.default", namespace="prims")
def convert_element_type(at: Site, x: Expr, dtype: Any) -> Any:
    return at.cast(x, at.dtype)


@operator("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    at: Site, query: Expr, key: Expr, value: Expr, dropout: float, causal: bool, mask: Expr | None,
    scale: float | None,
) -> Any:  # fmt: skip
    """Attention, and the logarithms of the sums of exponentials that its gradient needs."""
    heads, own = (at.shape_of(x)[1].value for x in (query, key))
    shared = heads // own if heads and own else 1
    found = attention(at, query, key, value, mask, dropout, causal, scale, shared > 1)
    if shared > 1:
        key = at.emit(op.repeat(key, shared, axis=1))
    wide = "float32" if at.dtype.is_narrow else at.dtype
    rows, columns = at.shape_of(query)[-2], at.shape_of(key)[-2]
    factor = 1 / math.sqrt(int(at.shape_of(query)[-1])) if scale is None else scale
    turned = at.emit(op.permute_dims(key, [0, 1, 3, 2]))
    scores = at.emit(op.matmul(query, turned, out_dtype=wide))
    scores = at.emit(op.multiply(scores, float(factor)))
    if mask is not None:
        scores = at.emit(op.add(scores, at.cast(mask, wide)))
    if causal:
        allowed = at.emit(op.tril(at.emit(op.ones((rows, columns), "bool"))))
        scores = at.emit(op.where(allowed, scores, op.full((), -math.inf, wide)))
    largest = at.emit(op.max(scores, axis=-1, keepdims=True))
    least = op.full((), float("-3.4028235e38"), wide)
    largest = at.emit(op.maximum(largest, least))  # a row that is masked as a whole
    total = op.sum(at.emit(op.exp(at.emit(op.subtract(scores, largest)))), axis=-1)
    sums = op.add(at.emit(op.log(at.emit(total))), at.emit(op.squeeze(largest, [-1])))
    return found, sums


@operator("_transformer_encoder_layer_fwd.default")
def encoder_layer(
    at: Site, x: Expr, width: int, heads: int, qkv: Expr, qkv_bias: Expr, out: Expr, out_bias: Expr,
    gelu: bool, norm_first: bool, epsilon: float, gamma1: Expr, beta1: Expr, gamma2: Expr,
    beta2: Expr, up: Expr, up_bias: Expr, down: Expr, down_bias: Expr, mask: Expr | None,
    mask_type: int | None,
) -> Any:  # fmt: skip
    """A layer of nn.TransformerEncoder without gradients."""

    def norm(y: Expr, gamma: Expr, beta: Expr) -> Expr:
        return at.emit(op.nn.layer_norm(y, gamma, beta, axes=[-1], epsilon=epsilon))

    def attended(y: Expr) -> Expr:
        return native_attention(
            at, y, heads, at.emit(op.linear(y, qkv, qkv_bias)), out, out_bias, mask, mask_type
        )

    def fed(y: Expr) -> Expr:
        y = at.emit(op.linear(y, up, up_bias))
        y = at.emit(op.nn.gelu(y) if gelu else op.nn.relu(y))
        return at.emit(op.linear(y, down, down_bias))

    if norm_first:
        x = at.emit(op.add(x, attended(norm(x, gamma1, beta1))))
        return op.add(x, fed(norm(x, gamma2, beta2)))
    x = norm(at.emit(op.add(x, attended(x))), gamma1, beta1)
    return norm(at.emit(op.add(x, fed(x))), gamma2, beta2)


def native_attention(
    at: Site, x: Expr, heads: int, qkv: Expr, weight: Expr, bias: Expr, mask: Expr | None,
    mask_type: int | None,
) -> Expr:  # fmt: skip
    """Attention of a batch to itself, of its queries, keys and values side by side. Where a mask is True nothing is
    attended: (length, length) is of type 0, (batch, length) of type 1, (batch, heads, length, length) of type 2."""
    batch, length, width = at.shape_of(x)
    parts = at.emit(op.reshape(qkv, (batch, length, 3, heads, width // heads)))
    query, key, value = (
        at.emit(op.reshape(part, (batch, length, heads, width // heads)))
        for part in (at.emit(op.strided_slice(parts, [2], [k], [k + 1])) for k in range(3))
    )
    bias4 = None
    if mask is not None:
        dtype = at.dtype_of(x)
        zero, least = (op.full((), v, dtype) for v in (0.0, -math.inf))
        bias4 = at.cast(mask, dtype)
        if at.dtype_of(mask) == "bool":
            bias4 = at.emit(op.where(mask, least, zero))
        axes = {0: [0, 1], 1: [1, 2]}.get(2 if mask_type is None else mask_type)
        if axes is not None:
            bias4 = at.emit(op.expand_dims(bias4, axes))
    found = at.emit(op.nn.attention(query, key, value, bias4))
    found = at.emit(op.reshape(found, (batch, length, width)))
    return at.emit(op.linear(found, weight, bias))
