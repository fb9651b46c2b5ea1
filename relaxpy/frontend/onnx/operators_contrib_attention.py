"""Attention of com.microsoft: with projections, with heads that share keys, with what was before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_attention import (
    after,
    apart,
    attended,
    bias_of,
    diagonal,
    hidden,
    in_window,
    offsets,
    places,
    plus,
    rotated,
    rotated_like,
    rows_at,
    together,
    turned,
)
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.operators_index import tensor_scatter
from relaxpy.frontend.onnx.operators_shape import cut, padded
from relaxpy.frontend.onnx.table import CONTRIB, operator
from relaxpy.frontend.site import check as guard
from relaxpy.ir import Dim, Expr, TensorType
from relaxpy.ir.dim import dim_op

FILTER = -10000.0
"""What ONNX Runtime adds to the scores of padding."""


def without(at: Site, **inputs: Any) -> None:
    """Refuse inputs and attributes that are given, and change the result."""
    for name, value in inputs.items():
        if value is not None and (isinstance(value, Expr) or value):
            raise at.fail("onnx-operator", f"{at.node.title} with {name} is not supported")


def _padding(at: Site, mask: Any, batch: Dim, keys: Dim, dtype: Any, amount: float) -> Any:
    """The bias of a mask of padding: (batch, keys), (batch, queries, keys), or where keys end (and begin)."""
    if mask is None:
        return None
    rank = at.ndim(mask)
    if rank == 1:
        seen = _between(at, mask, batch, keys)
    elif rank in (2, 3):
        if rank == 2:
            mask = at.match(mask, TensorType([batch, keys], at.dtype_of(mask)))
        seen = at.emit(op.greater(mask, constant(0, at.dtype_of(mask))))
        seen = at.emit(op.expand_dims(seen, [1, 2] if rank == 2 else [1]))
    else:
        raise at.fail(
            "onnx-operator", f"{at.node.title} with a mask of {rank} dimensions is not supported"
        )
    return hidden(at, seen, dtype, amount)


def _between(at: Site, mask: Expr, batch: Dim, keys: Dim) -> Any:
    """Which keys are before their batch's end, and not before its begin if the mask has those, too. One of three parts
    has sums of lengths after the ends."""
    mask = at.cast(mask, "int64")
    (count,) = at.shape_of(mask)
    forms = (dim_op("eq", count, each) for each in (batch, batch * 2, batch * 3 + 2))
    one, two, three = forms
    is_known = dim_op("or", dim_op("or", one, two), three)
    text = f"that the mask has {batch}, {batch * 2} or {batch * 3 + 2} numbers"
    guard(at.builder, is_known, text, None, "onnx-shape", at.span)
    row = places(at, keys, 4, 3)
    ends = at.emit(op.strided_slice(mask, [0], [0], [batch], assume_inbound=True))
    seen = at.emit(op.less(row, at.emit(op.reshape(ends, [batch, 1, 1, 1]))))
    if one.value == 1 or three.value == 1:
        return seen
    zeros = at.emit(op.zeros([batch], "int64"))
    starts = at.emit(op.concat([mask, zeros], axis=0))
    starts = at.emit(op.strided_slice(starts, [0], [batch], [batch * 2], assume_inbound=True))
    starts = at.emit(op.where(at.number(two, "bool"), starts, zeros))
    inside = op.greater_equal(row, at.emit(op.reshape(starts, [batch, 1, 1, 1])))
    return at.emit(op.logical_and(seen, at.emit(inside)))


def _heads(
    at: Site, q: Expr, k: Expr, v: Expr, past: Sequence[Any], *, mask: Any, bias: Any, causal: int, scale: Any,
    amount: float,
) -> list[Any]:  # fmt: skip
    """The result (batch, length, heads · width) for heads (batch, length, heads, width), and all keys and values as
    (batch, heads, length, width). `past` are those of before."""
    queries, new = at.shape_of(q)[1], at.shape_of(k)[1]
    kind = diagonal(queries, new, past[0]) if queries == new else None
    k, v = (after(at, p, turned(at, x)) for p, x in zip(past, (k, v), strict=True))
    keys, dtype = at.shape_of(k)[2], at.dtype_of(q)
    total = plus(at, bias, _padding(at, mask, at.shape_of(q)[0], keys, dtype, amount))
    if causal and kind is None:
        first = Dim.of(0) if past[0] is None else at.shape_of(past[0])[2]
        seen = in_window(at, offsets(at, queries, keys, first), -1, 0)
        # ONNX Runtime lets the last query see all keys, which matters where queries and new keys are not as many.
        last = op.equal(places(at, queries, 2, 0), at.number(queries - 1, "int64"))
        seen = at.emit(op.logical_or(seen, at.emit(last)))
        total = plus(at, total, hidden(at, seen, dtype))
    found, _ = attended(
        at, q, turned(at, k), turned(at, v), total, scale or None, causal=kind if causal else None
    )
    return [together(at, found), k, v]


def projected(
    at: Site, x: Any, num_heads: int, mask: Any, past: Any, bias: Any, sizes: Any, causal: int, scale: Any,
    amount: float,
) -> list[Any]:  # fmt: skip
    """Attention of a tensor whose last axis has queries, keys and values side by side."""
    whole = at.shape_of(x)[2]
    parts: list[Any] = cut(at, x, 2, sizes or [whole // 3] * 3)
    q, k, v = (apart(at, each, num_heads) for each in parts)
    before: list[Any] = [None, None]
    if past is not None:
        before = [at.emit(op.squeeze(each, [0])) for each in cut(at, past, 0, [1, 1])]
    found, *kept = _heads(
        at, q, k, v, before, mask=mask, bias=bias, causal=causal, scale=scale, amount=amount
    )
    if not at.wants(1):
        return [found]
    return [found, op.concat([at.emit(op.expand_dims(each, 0)) for each in kept], axis=0)]


@operator("Attention", domain=CONTRIB)
def attention(
    at: Site, x: Expr, weight: Expr, bias: Any = None, mask: Any = None, past: Any = None,
    attention_bias: Any = None, past_length: Any = None, *, num_heads: int, unidirectional: int = 0,
    qkv_hidden_sizes: Any = None, scale: float = 0.0, mask_filter_value: float = FILTER, do_rotary: int = 0,
    rotary_embedding_dim: int = 0, past_present_share_buffer: int = 0,
) -> Any:  # fmt: skip
    without(
        at, do_rotary=do_rotary, past_present_share_buffer=past_present_share_buffer,
        past_sequence_length=past_length,
    )  # fmt: skip
    whole = at.emit(op.matmul(x, weight))
    whole = whole if bias is None else at.emit(op.add(whole, bias))
    return projected(
        at, whole, num_heads, mask, past, attention_bias, qkv_hidden_sizes, unidirectional, scale,
        mask_filter_value,
    )  # fmt: skip


@operator("MultiHeadAttention", domain=CONTRIB)
def multi_head_attention(
    at: Site, q: Expr, k: Any = None, v: Any = None, bias: Any = None, mask: Any = None, attention_bias: Any = None,
    past_key: Any = None, past_value: Any = None, past_length: Any = None, indirection: Any = None, *,
    num_heads: int, unidirectional: int = 0, scale: float = 0.0, mask_filter_value: float = FILTER,
) -> Any:  # fmt: skip
    """Queries, keys and values are apart, or two or all three side by side for each head."""
    without(at, past_sequence_length=past_length, cache_indirection=indirection)
    if at.wants(3):
        raise at.fail("onnx-operator", f"{at.node.title} that gives its scores is not supported")

    def packed(x: Expr, count: int) -> list[Any]:
        return [at.emit(op.squeeze(each, [3])) for each in cut(at, x, 3, [1] * count)]

    if at.ndim(q) == 5:
        without(at, bias=bias)
        q, k, v = packed(q, 3)
    elif k is not None and at.ndim(k) == 5:
        without(at, bias=bias)
        k, v = packed(k, 2)
        q = apart(at, q, num_heads)
    else:
        if k is None or v is None:
            raise at.fail("onnx-operator", f"{at.node.title} needs keys and values")
        if bias is not None:
            widths = [at.shape_of(q)[2], at.shape_of(q)[2]]
            parts = cut(at, bias, 0, [*widths, at.shape_of(bias)[0] - widths[0] * 2])
            before = at.ndim(k) == 4
            q, k, v = (
                x if before and i else at.emit(op.add(x, part))
                for i, (x, part) in enumerate(zip((q, k, v), parts, strict=True))
            )
        q = apart(at, q, num_heads)
        k, v = (turned(at, x) if at.ndim(x) == 4 else apart(at, x, num_heads) for x in (k, v))
    found = _heads(
        at, q, k, v, (past_key, past_value), mask=mask, bias=attention_bias, causal=unidirectional, scale=scale,
        amount=mask_filter_value,
    )  # fmt: skip
    return found[: max(at.count, 1)]


@operator("GroupQueryAttention", domain=CONTRIB)
def group_query_attention(
    at: Site, q: Expr, k: Any, v: Any, past_key: Any, past_value: Any, seqlens: Expr, total: Expr, cos: Any = None,
    sin: Any = None, positions: Any = None, attention_bias: Any = None, sink: Any = None, k_scale: Any = None,
    v_scale: Any = None, q_norm: Any = None, k_norm: Any = None, query_lengths: Any = None, *, num_heads: int,
    kv_num_heads: int, scale: float = 0.0, do_rotary: int = 0, rotary_interleaved: int = 0,
    local_window_size: int = -1, softcap: float = 0.0, smooth_softmax: int = -1, causal: int = 1,
    qk_norm_epsilon: float = 1e-6, q_norm_epsilon: float = 0.0, k_norm_epsilon: float = 0.0, qk_output: int = 0,
    kv_cache_bit_width: int = 0, k_quant_type: str = "NONE", v_quant_type: str = "NONE",
    sliding_window_cache: int = 0,
) -> Any:  # fmt: skip
    """Each batch has its own number of tokens: `seqlens` + 1, the new ones among them; `total` is the largest. New keys
    are written behind those of before, in a buffer that may be longer."""
    without(
        at, k_scale=k_scale, v_scale=v_scale, query_seqlens=query_lengths, qk_output=qk_output,
        kv_cache_bit_width=kv_cache_bit_width, sliding_window_cache=sliding_window_cache,
        quantized_keys=k_quant_type != "NONE", quantized_values=v_quant_type != "NONE",
    )  # fmt: skip
    if k is None:
        whole, count = at.shape_of(q)[2], num_heads + 2 * kv_num_heads
        width = whole // count
        q, k, v = cut(at, q, 2, [width * num_heads, width * kv_num_heads, width * kv_num_heads])
    batch, queries, dtype = at.shape_of(q)[0], at.shape_of(q)[1], at.dtype_of(q)
    k, v = (
        at.match(each, TensorType([batch, queries, at.shape_of(each)[2]], dtype)) for each in (k, v)
    )
    q = apart(at, q, num_heads)
    k, v = (apart(at, each, kv_num_heads) for each in (k, v))
    q = _normal(at, q, q_norm, q_norm_epsilon or qk_norm_epsilon)
    k = _normal(at, k, k_norm, k_norm_epsilon or qk_norm_epsilon)
    lengths = at.emit(op.add(at.cast(seqlens, "int64"), constant(1, "int64")))
    lengths = at.match(at.emit(op.reshape(lengths, [-1])), TensorType([batch], "int64"))
    past_size = Dim.of(0) if past_key is None else at.shape_of(past_key)[2]
    first: Any = at.emit(op.zeros([batch], "int64"))
    if past_size == 0:
        keys = queries
    else:
        (most,) = at.ints(at.emit(op.reshape(total, [1])), "the total length")
        keys = dim_op("max", most, past_size)
        whole = at.number(queries, "int64")
        is_first = at.emit(op.equal(at.emit(op.reshape(at.cast(total, "int64"), ())), whole))
        first = at.emit(op.where(is_first, first, at.emit(op.subtract(lengths, whole))))
    if do_rotary:
        if cos is None or sin is None:
            raise at.fail(
                "onnx-operator", f"{at.node.title} with do_rotary needs cos_cache and sin_cache"
            )
        if positions is None:
            start = at.emit(op.reshape(first, [batch, 1]))
            positions = at.emit(op.add(start, places(at, queries, 2, 1)))
        positions = at.match(positions, TensorType([batch, queries], at.dtype_of(positions)))
        angles: list[Any] = [rows_at(at, table, positions) for table in (cos, sin)]
        width = at.shape_of(cos)[1] * 2
        number = 0 if width == at.shape_of(q)[3] else width.value
        if number is None:
            raise at.fail("onnx-operator", "the width of cos_cache is known only when it runs")
        cos, sin = angles
        q, k = (rotated(at, each, cos, sin, rotary_interleaved, number) for each in (q, k))
    stored: list[Any] = []
    for past, new in ((past_key, turned(at, k)), (past_value, turned(at, v))):
        if past_size == 0:
            stored.append(new)
            continue
        assert past is not None  # it has a size
        width = at.shape_of(new)[3]
        past = at.match(past, TensorType([batch, kv_num_heads, past_size, width], dtype))
        buffer = padded(at, past, [0] * 6 + [keys - past_size, 0], "constant", constant(0, dtype))
        shape = TensorType([batch, kv_num_heads, keys, width], dtype)
        buffer = at.match(at.emit(buffer), shape)
        stored.append(at.emit(tensor_scatter(at, buffer, new, first, 2)))
    distance = offsets(at, queries, keys, first)
    left = local_window_size - 1 if local_window_size > 0 else -1
    ends = at.emit(op.reshape(lengths, [batch, 1, 1, 1]))
    seen = at.emit(op.less(places(at, keys, 4, 3), ends))
    inside = in_window(at, distance, left, 0) if causal else None
    # Queries beyond a batch's end are padding: they see the keys up to themselves, so that their rows are numbers.
    seen = seen if inside is None else inside
    bias = hidden(at, seen, dtype)
    if attention_bias is not None:
        bias = plus(at, bias_of(at, attention_bias, keys, dtype), bias)
    if sink is None and smooth_softmax == 1:
        sink = at.emit(op.zeros([num_heads], dtype))
    keys_of, values_of = (turned(at, each) for each in stored)
    found: Any = attended(
        at, q, keys_of, values_of, bias, scale or None, softcap=softcap, sink=sink
    )[0]
    return [together(at, found), *stored][: max(at.count, 1)]


def _normal(at: Site, x: Any, weight: Any, epsilon: float) -> Any:
    return x if weight is None else at.emit(op.nn.rms_norm(x, weight, axes=[-1], epsilon=epsilon))


@operator("RotaryEmbedding", domain=CONTRIB)
def rotary_embedding(
    at: Site, x: Expr, positions: Expr, cos: Expr, sin: Expr, *, interleaved: int = 0, num_heads: int = 0,
    rotary_embedding_dim: int = 0, scale: float = 1.0, is_packed_batching: int = 0,
) -> Any:  # fmt: skip
    """Positions are (batch, length), or that of the first token."""
    without(at, scale=scale != 1.0, is_packed_batching=is_packed_batching)
    if at.ndim(positions) == 1:
        length = at.shape_of(x)[2 if at.ndim(x) == 4 else 1]
        start = at.emit(op.reshape(at.cast(positions, "int64"), [1, 1]))
        positions = at.emit(op.add(start, places(at, length, 2, 1)))
    cos, sin = (rows_at(at, each, positions) for each in (cos, sin))
    heads = num_heads
    if at.ndim(x) == 3 and not heads:
        width = at.shape_of(cos)[-1] * 2
        heads = (at.shape_of(x)[2] // width).value or 0
        if not heads:
            raise at.fail("onnx-operator", f"{at.node.title} needs num_heads")
    return rotated_like(at, x, cos, sin, heads, interleaved, rotary_embedding_dim)
