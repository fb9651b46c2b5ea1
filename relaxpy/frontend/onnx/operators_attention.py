"""Attention and rotary positions: ONNX's own, and what the attention of com.microsoft has in common with it."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.operators_shape import padded
from relaxpy.frontend.onnx.table import operator
from relaxpy.ir import Dim, Expr, TensorType

NOTHING = -np.inf
"""What is added to the score of a key that a query does not attend to."""


def apart(at: Site, x: Expr, heads: int, width: Any = None) -> Any:
    """(batch, length, heads · width) → (batch, length, heads, width)."""
    batch, length, whole = at.shape_of(x)
    return at.emit(
        op.reshape(x, [batch, length, heads, whole // heads if width is None else width])
    )


def together(at: Site, x: Expr) -> Any:
    """(batch, length, heads, width) → (batch, length, heads · width)."""
    batch, length, heads, width = at.shape_of(x)
    return at.emit(op.reshape(x, [batch, length, heads * width]))


def turned(at: Site, x: Expr) -> Any:
    """(batch, heads, length, width) ↔ (batch, length, heads, width)."""
    return at.emit(op.permute_dims(x, [0, 2, 1, 3]))


def after(at: Site, past: Any, new: Expr) -> Any:
    """Keys or values (batch, heads, length, width): those of before, and new ones."""
    return new if past is None else at.emit(op.concat([past, new], axis=2))


def diagonal(queries: Dim, keys: Dim, past: Any) -> str | None:
    """The causal mask of so many queries and new keys as that of `nn.attention`; None: that has none."""
    if past is None:
        return "TopLeft"
    return "BottomRight" if queries == keys else None


def hidden(at: Site, seen: Any, dtype: Any, amount: float = NOTHING) -> Any:
    """A mask as what is added to scores: 0 where it is true, `amount` elsewhere."""
    return at.emit(op.where(seen, constant(0, dtype), constant(amount, dtype)))


def places(at: Site, count: Dim, rank: int, axis: int) -> Any:
    """0, 1, 2… along an axis of a tensor of this rank."""
    row = at.emit(op.arange(0, count, 1, dtype="int64"))
    return at.emit(op.reshape(row, [count if a == axis else 1 for a in range(rank)]))


def offsets(at: Site, queries: Dim, keys: Dim, first: Any) -> Any:
    """For each query and key (…, queries, keys): how far the key is before the query, whose first one is at `first`: a
    size, or a number for each batch."""
    if isinstance(first, Dim):
        rank, start = 2, at.number(first, "int64")
    else:
        rank = 4
        start = at.emit(op.reshape(at.cast(first, "int64"), [at.shape_of(first)[0], 1, 1, 1]))
    query = at.emit(op.add(places(at, queries, rank, rank - 2), start))
    return at.emit(op.subtract(query, places(at, keys, rank, rank - 1)))


def in_window(at: Site, distance: Any, left: int, right: int) -> Any:
    """Which keys are no further before or after the query; None: all are. A negative bound is none."""
    seen: Any = None
    if left >= 0:
        seen = at.emit(op.less_equal(distance, constant(left, "int64")))
    if right >= 0:
        ahead = at.emit(op.greater_equal(distance, constant(-right, "int64")))
        seen = ahead if seen is None else at.emit(op.logical_and(seen, ahead))
    return seen


def plus(at: Site, bias: Any, more: Any) -> Any:
    """The sum of two biases, each of which may be None."""
    if bias is None or more is None:
        return more if bias is None else bias
    return at.emit(op.add(bias, more))


def shared(at: Site, x: Expr, heads: Dim) -> Any:
    """Keys or values (batch, heads of keys, length, width) for each of so many heads."""
    batch, own, length, width = at.shape_of(x)
    if own == heads:
        return x
    times = heads // own
    if times.value is not None:
        return at.emit(op.repeat(x, times.value, axis=1))
    wide = at.emit(
        op.broadcast_to(at.emit(op.expand_dims(x, 2)), [batch, own, times, length, width])
    )
    found = at.emit(op.reshape(wide, [batch, own * times, length, width]))
    return at.match(found, TensorType([batch, heads, length, width], at.dtype_of(x)))


def attended(
    at: Site, q: Expr, k: Expr, v: Expr, bias: Any, scale: float | None, *, causal: str | None = None,
    softcap: float = 0.0, sink: Any = None, scores_of: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Attention of tensors (batch, length, heads, width), and the scores: without the bias (`scores_of` 0), after
    `softcap` (1), with the bias (2), or after the softmax (3). `causal` is that of `nn.attention`; `sink` (heads) are
    scores of a key without a value."""
    dtype = at.dtype_of(q)
    if bias is not None:
        while at.ndim(bias) < 4:
            bias = at.emit(op.expand_dims(bias, 0))
    if not softcap and sink is None and scores_of is None:
        bias = None if bias is None else at.cast(bias, dtype)
        return at.emit(op.nn.attention(q, k, v, bias, scale=scale, causal_mask=causal)), None
    assert causal is None, "a causal mask is a bias here"
    kind = "float32" if dtype.is_narrow else dtype
    q, k, v = (turned(at, at.cast(each, kind)) for each in (q, k, v))
    heads, width = at.shape_of(q)[1], at.shape_of(q)[3]
    k, v = (shared(at, each, heads) for each in (k, v))
    factor: Any = (
        at.emit(op.rsqrt(at.number(width, kind))) if scale is None else constant(scale, kind)
    )
    scores = at.emit(op.matmul(q, at.emit(op.permute_dims(k, [0, 1, 3, 2]))))
    scores = at.emit(op.multiply(scores, factor))
    shown = [scores]
    if softcap:
        most = constant(softcap, kind)
        scores = at.emit(op.multiply(op.tanh(op.divide(scores, most)), most))
    shown.append(scores)
    if bias is not None:
        scores = at.emit(op.add(scores, at.cast(bias, kind)))
    shown.append(scores)
    keys = at.shape_of(scores)[3]
    if sink is not None:
        batch, heads, queries, _ = at.shape_of(scores)
        column = at.emit(op.reshape(at.cast(sink, kind), [1, heads, 1, 1]))
        column = at.emit(op.broadcast_to(column, [batch, heads, queries, 1]))
        scores = at.emit(op.concat([scores, column], axis=3))
    weights = at.emit(op.nn.softmax(scores, axis=-1))
    if sink is not None:
        weights = at.emit(op.strided_slice(weights, [3], [0], [keys]))
    elif bias is not None:
        most = at.emit(op.max(scores, axis=[3], keepdims=True))
        some = at.emit(op.greater(most, constant(NOTHING, kind)))
        weights = at.emit(op.where(some, weights, constant(0, kind)))
    shown.append(weights)
    found = turned(at, at.cast(at.emit(op.matmul(weights, v)), dtype))
    return found, None if scores_of is None else at.cast(shown[scores_of], dtype)


@operator("Attention")
def attention(
    at: Site, q: Expr, k: Expr, v: Expr, mask: Any = None, past_key: Any = None, past_value: Any = None,
    lengths: Any = None, is_causal: int = 0, kv_num_heads: int | None = None, q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0, scale: float | None = None, softcap: float = 0.0, left_window_size: int = -1,
    right_window_size: int = -1, **_: Any,
) -> Any:  # fmt: skip
    flat = at.ndim(q) == 3
    if flat and not (q_num_heads and kv_num_heads):
        raise at.fail("onnx-operator", "Attention of three dimensions needs its numbers of heads")
    if flat:
        q = apart(at, q, q_num_heads or 1)
        k, v = (turned(at, apart(at, each, kv_num_heads or 1)) for each in (k, v))
    else:
        q = turned(at, q)
    queries, dtype = at.shape_of(q)[1], at.dtype_of(q)
    causal = diagonal(queries, at.shape_of(k)[2], past_key)
    k, v = after(at, past_key, k), after(at, past_value, v)
    keys = at.shape_of(k)[2]
    first: Any = Dim.of(0) if past_key is None else at.shape_of(past_key)[2]
    if lengths is not None and past_key is None:
        first = at.cast(lengths, "int64")
        first = at.emit(op.subtract(first, at.number(queries, "int64")))
    shown = qk_matmul_output_mode if at.wants(3) else None
    plain = not softcap and shown is None and lengths is None and causal is not None
    bias = bias_of(at, mask, keys, dtype)
    is_explicit = is_causal and not plain
    if is_explicit or left_window_size >= 0 or right_window_size >= 0:
        right = 0 if is_explicit else right_window_size
        seen = in_window(at, offsets(at, queries, keys, first), left_window_size, right)
        bias = plus(at, bias, hidden(at, seen, dtype))
    if lengths is not None:
        rows = at.emit(op.reshape(at.cast(lengths, "int64"), [at.shape_of(lengths)[0], 1, 1, 1]))
        bias = plus(at, bias, hidden(at, at.emit(op.less(places(at, keys, 4, 3), rows)), dtype))
    found, scores = attended(
        at, q, turned(at, k), turned(at, v), bias, scale, softcap=softcap, scores_of=shown,
        causal=causal if is_causal and plain else None,
    )  # fmt: skip
    found = together(at, found) if flat else turned(at, found)
    return [found, k, v, scores][: max(at.count, 1)]


def bias_of(at: Site, mask: Any, keys: Dim, dtype: Any) -> Any:
    """A mask as what is added to scores; one of fewer keys hides the others."""
    if mask is None:
        return None
    bias = hidden(at, mask, dtype) if at.dtype_of(mask).is_bool else mask
    rank, size = at.ndim(bias), at.shape_of(bias)[-1]
    if size == keys:
        return bias
    borders = [0] * (2 * rank - 1) + [keys - size]
    return at.emit(padded(at, bias, borders, "constant", constant(NOTHING, dtype)))


def rotated(at: Site, x: Expr, cos: Expr, sin: Expr, interleaved: int, width: int) -> Any:
    """Heads (batch, length, heads, width), whose first `width` elements (0: all) are rotated by angles (batch or 1,
    length, width / 2)."""
    dims, dtype = at.shape_of(x), at.dtype_of(x)
    whole = dims[3]
    part = Dim.of(width) if width else whole
    half = part // 2
    front = x if part == whole else at.emit(op.strided_slice(x, [3], [0], [part]))
    cos, sin = (at.emit(op.expand_dims(at.cast(each, dtype), 2)) for each in (cos, sin))
    if interleaved:
        pairs = at.emit(op.reshape(front, [*dims[:3], half, 2]))
        a, b = (
            at.emit(op.squeeze(at.emit(op.strided_slice(pairs, [4], [i], [i + 1])), [4]))
            for i in range(2)
        )
    else:
        a = at.emit(op.strided_slice(front, [3], [0], [half]))
        b = at.emit(op.strided_slice(front, [3], [half], [part]))
    real = at.emit(op.subtract(op.multiply(cos, a), op.multiply(sin, b)))
    imaginary = at.emit(op.add(op.multiply(sin, a), op.multiply(cos, b)))
    if interleaved:
        both = [at.emit(op.expand_dims(each, 4)) for each in (real, imaginary)]
        found = at.emit(op.reshape(at.emit(op.concat(both, axis=4)), [*dims[:3], part]))
        rest = [found]
    else:
        rest = [real, imaginary]
    if part != whole:
        rest.append(at.emit(op.strided_slice(x, [3], [part], [whole])))
    return rest[0] if len(rest) == 1 else at.emit(op.concat(rest, axis=3))


def rotated_like(
    at: Site, x: Expr, cos: Expr, sin: Expr, heads: int, interleaved: int, width: int
) -> Any:
    """`rotated` of (batch, length, heads · width) or (batch, heads, length, width), in the same layout."""
    if at.ndim(x) == 4:
        return turned(at, rotated(at, turned(at, x), cos, sin, interleaved, width))
    return together(at, rotated(at, apart(at, x, heads), cos, sin, interleaved, width))


def rows_at(at: Site, table: Expr, positions: Expr) -> Any:
    """The rows of a table of angles at positions (batch, length)."""
    return at.emit(op.take(table, at.cast(positions, "int64"), axis=0))


@operator("RotaryEmbedding")
def rotary_embedding(
    at: Site, x: Expr, cos: Expr, sin: Expr, positions: Any = None, interleaved: int = 0,
    num_heads: int | None = None, rotary_embedding_dim: int = 0, **_: Any,
) -> Any:  # fmt: skip
    if positions is not None:
        cos, sin = (rows_at(at, each, positions) for each in (cos, sin))
    if at.ndim(x) == 3 and not num_heads:
        raise at.fail("onnx-operator", "RotaryEmbedding of three dimensions needs num_heads")
    return rotated_like(at, x, cos, sin, num_heads or 1, interleaved, rotary_embedding_dim)
