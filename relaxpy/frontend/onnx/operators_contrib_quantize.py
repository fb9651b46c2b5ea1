"""Quantised operators of com.microsoft: functions of floats, products of integers, weights of a few bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend.loops import steps
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_contrib import activated, channels_last, embedded
from relaxpy.frontend.onnx.operators_contrib_attention import FILTER, projected, without
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.operators_index import reverse_sequence, wrapped
from relaxpy.frontend.onnx.operators_pool import average_pool
from relaxpy.frontend.onnx.operators_quantize import (
    dequantize_linear,
    dequantized,
    dynamic_quantize_linear,
    qlinear_conv,
    quantize_linear,
    quantized,
    requantized,
    shifted,
    spread,
)
from relaxpy.frontend.onnx.operators_recurrent import sides
from relaxpy.frontend.onnx.operators_reduce import softmax_of
from relaxpy.frontend.onnx.operators_shape import cut
from relaxpy.frontend.onnx.table import CONTRIB, operator
from relaxpy.ir import Dim, Expr


@operator("QuantizeLinear", domain=CONTRIB)
def _quantize_linear(at: Site, x: Expr, scale: Expr, zero: Any = None, *, axis: int = 1) -> Any:
    return quantize_linear(at, x, scale, zero, axis)


@operator("DequantizeLinear", domain=CONTRIB)
def _dequantize_linear(at: Site, x: Expr, scale: Expr, zero: Any = None, *, axis: int = 1) -> Any:
    return dequantize_linear(at, x, scale, zero, axis)


# Functions of floats


def _plain(at: Site, x: Any, scale: Expr, zero: Any) -> Any:
    """The floats that integers with one scale mean."""
    return at.emit(dequantized(at, x, scale, zero, at.dtype_of(scale)))


def _coded(at: Site, x: Any, scale: Expr, zero: Any, like: Expr) -> Any:
    """Floats as integers of the dtype of `like`."""
    return quantized(at, at.emit(x), scale, zero, at.dtype_of(like))


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(
        at: Site, a: Expr, a_scale: Expr, a_zero: Any, b: Expr, b_scale: Expr, b_zero: Any, y_scale: Expr,
        y_zero: Any = None,
    ) -> Any:  # fmt: skip
        found = function(_plain(at, a, a_scale, a_zero), _plain(at, b, b_scale, b_zero))
        return _coded(at, found, y_scale, y_zero, a)

    return rule


operator("QLinearAdd", domain=CONTRIB)(_binary(op.add))
operator("QLinearMul", domain=CONTRIB)(_binary(op.multiply))


@operator("QLinearSigmoid", domain=CONTRIB)
def qlinear_sigmoid(
    at: Site, x: Expr, scale: Expr, zero: Any, y_scale: Expr, y_zero: Any = None
) -> Any:
    return _coded(at, op.sigmoid(_plain(at, x, scale, zero)), y_scale, y_zero, x)


@operator("QLinearLeakyRelu", domain=CONTRIB)
def qlinear_leaky_relu(
    at: Site, x: Expr, scale: Expr, zero: Any, y_scale: Expr, y_zero: Any = None, *, alpha: float = 0.01
) -> Any:  # fmt: skip
    return _coded(at, op.nn.leakyrelu(_plain(at, x, scale, zero), alpha), y_scale, y_zero, x)


@operator("QLinearSoftmax", domain=CONTRIB)
def qlinear_softmax(
    at: Site, x: Expr, scale: Expr, zero: Any, y_scale: Expr, y_zero: Any = None, *, axis: int = -1, opset: int
) -> Any:  # fmt: skip
    found = softmax_of(opset)(at, _plain(at, x, scale, zero), axis)
    return _coded(at, found, y_scale, y_zero, x)


@operator("QLinearConcat", domain=CONTRIB)
def qlinear_concat(at: Site, y_scale: Expr, y_zero: Expr, *given: Any, axis: int) -> Any:
    """Inputs are each with its scale and zero point."""
    count = -(-len(given) // 3)
    triples: list[Any] = [(*given[3 * i : 3 * i + 3], None)[:3] for i in range(count)]
    parts = [_plain(at, *each) for each in triples]
    return _coded(at, op.concat(parts, axis=axis % at.ndim(parts[0])), y_scale, y_zero, y_zero)


@operator("QLinearWhere", domain=CONTRIB)
def qlinear_where(
    at: Site, condition: Expr, a: Expr, a_scale: Expr, a_zero: Any, b: Expr, b_scale: Expr, b_zero: Any,
    y_scale: Expr, y_zero: Any = None,
) -> Any:  # fmt: skip
    found = op.where(condition, _plain(at, a, a_scale, a_zero), _plain(at, b, b_scale, b_zero))
    return _coded(at, found, y_scale, y_zero, a)


def _pooled(at: Site, x: Expr, last: int, function: Callable[[Expr], Any]) -> Any:
    return channels_last(at, x, function) if last else function(x)


@operator("QLinearGlobalAveragePool", domain=CONTRIB)
def qlinear_global_average_pool(
    at: Site, x: Expr, scale: Expr, zero: Any, y_scale: Expr, y_zero: Any = None, *, channels_last: int = 0
) -> Any:  # fmt: skip
    rank = at.ndim(x)
    axes = list(range(1, rank - 1)) if channels_last else list(range(2, rank))
    found = op.mean(_plain(at, x, scale, zero), axis=axes, keepdims=True)
    return _coded(at, found, y_scale, y_zero, x)


@operator("QLinearAveragePool", domain=CONTRIB)
def qlinear_average_pool(
    at: Site, x: Expr, scale: Expr, zero: Any, y_scale: Expr, y_zero: Any = None, *, kernel_shape: Sequence[int],
    strides: Any = None, pads: Any = None, auto_pad: str = "NOTSET", ceil_mode: int = 0,
    count_include_pad: int = 0, channels_last: int = 0,
) -> Any:  # fmt: skip
    def pool(x: Expr) -> Any:
        return average_pool(
            at, x, kernel_shape, strides, pads, None, auto_pad, ceil_mode, count_include_pad
        )

    found = _pooled(at, _plain(at, x, scale, zero), channels_last, pool)
    return _coded(at, found, y_scale, y_zero, x)


# Products


def _scaled(at: Site, total: Expr, a_scale: Expr, b_scale: Expr) -> Any:
    """Sums of products of integers as floats; the second scale may be of columns."""
    dtype = at.dtype_of(a_scale)
    factor = at.emit(op.multiply(spread(at, a_scale, total, -2), spread(at, b_scale, total, -1)))
    found = at.emit(op.multiply(at.cast(total, "float32"), at.cast(factor, "float32")))
    return at.cast(found, dtype)


def _plus(at: Site, x: Expr, bias: Any) -> Any:
    return x if bias is None else op.add(x, bias)


@operator("QLinearConv", domain=CONTRIB)
def _qlinear_conv(
    at: Site, x: Expr, x_scale: Expr, x_zero: Any, w: Expr, w_scale: Expr, w_zero: Any, y_scale: Expr, y_zero: Any,
    bias: Any = None, *, auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1, kernel_shape: Any = None,
    pads: Any = None, strides: Any = None, channels_last: int = 0,
) -> Any:  # fmt: skip
    def conv(x: Expr) -> Any:
        return qlinear_conv(
            at, x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias, auto_pad=auto_pad,
            dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads, strides=strides,
        )  # fmt: skip

    return _pooled(at, x, channels_last, conv)


@operator("QGemm", domain=CONTRIB)
def qgemm(
    at: Site, a: Expr, a_scale: Expr, a_zero: Any, b: Expr, b_scale: Expr, b_zero: Any, c: Any = None,
    y_scale: Any = None, y_zero: Any = None, *, alpha: float = 1.0, transA: int = 0, transB: int = 0,
) -> Any:  # fmt: skip
    """The bias is of the scale of the products. Without a scale of its own the result is of floats."""
    a, b = shifted(at, a, a_zero), shifted(at, b, b_zero, 0 if transB else 1)
    a = at.emit(op.permute_dims(a, [1, 0])) if transA else a
    b = at.emit(op.permute_dims(b, [1, 0])) if transB else b
    total = at.emit(_plus(at, at.emit(op.matmul(a, b)), c))
    a_scale = at.emit(op.multiply(a_scale, constant(alpha, "float32")))
    if y_scale is None:
        return _scaled(at, total, a_scale, b_scale)
    a_scale = at.emit(op.divide(at.emit(op.reshape(a_scale, ())), at.emit(op.reshape(y_scale, ()))))
    factor = at.emit(op.multiply(a_scale, spread(at, b_scale, total, -1)))
    return requantized(at, total, factor, y_zero)


@operator("MatMulIntegerToFloat", domain=CONTRIB)
def matmul_integer_to_float(
    at: Site, a: Expr, b: Expr, a_scale: Expr, b_scale: Expr, a_zero: Any = None, b_zero: Any = None,
    bias: Any = None,
) -> Any:  # fmt: skip
    total = at.emit(op.matmul(shifted(at, a, a_zero), shifted(at, b, b_zero)))
    return _plus(at, _scaled(at, total, a_scale, b_scale), bias)


@operator("DynamicQuantizeMatMul", domain=CONTRIB)
def dynamic_quantize_matmul(
    at: Site, a: Expr, b: Expr, b_scale: Expr, b_zero: Any = None, bias: Any = None
) -> Any:
    return _plus(at, _product(at, a, b, b_scale, b_zero), bias)


def _product(at: Site, a: Expr, b: Expr, b_scale: Expr, b_zero: Any) -> Any:
    """The product of floats, which are quantised by their range, with integers."""
    codes, scale, zero = (at.emit(each) for each in dynamic_quantize_linear(at, a))
    total = at.emit(op.matmul(shifted(at, codes, zero), shifted(at, b, b_zero)))
    return at.emit(_scaled(at, total, scale, b_scale))


@operator("QAttention", domain=CONTRIB)
def qattention(
    at: Site, x: Expr, weight: Expr, bias: Expr, x_scale: Expr, w_scale: Expr, mask: Any = None, x_zero: Any = None,
    w_zero: Any = None, past: Any = None, *, num_heads: int, unidirectional: int = 0, scale: float = 0.0,
    mask_filter_value: float = FILTER, do_rotary: int = 0, past_present_share_buffer: int = 0,
) -> Any:  # fmt: skip
    without(at, do_rotary=do_rotary, past_present_share_buffer=past_present_share_buffer)
    total = at.emit(op.matmul(shifted(at, x, x_zero), shifted(at, weight, w_zero)))
    whole = at.emit(op.add(_scaled(at, total, x_scale, w_scale), bias))
    return projected(
        at, whole, num_heads, mask, past, None, None, unidirectional, scale, mask_filter_value
    )


@operator("QEmbedLayerNormalization", domain=CONTRIB)
def qembed_layer_normalization(
    at: Site, tokens: Expr, segments: Any, words: Expr, positions: Expr, segment_table: Any, gamma: Expr, beta: Expr,
    mask: Any, *numbers: Any, epsilon: float = 1e-12,
) -> Any:  # fmt: skip
    """Scales of the five tables follow, and their zero points."""
    tables = (words, positions, segment_table, gamma, beta)

    def read(i: int, rows: Callable[[Any], Any]) -> Any:
        return _plain(at, rows(tables[i]), numbers[i], numbers[5 + i])

    gamma, beta = (read(i, lambda table: table) for i in (3, 4))
    return embedded(at, tokens, segments, None, read, gamma, beta, mask, epsilon)


# LSTM


@operator("DynamicQuantizeLSTM", domain=CONTRIB)
def dynamic_quantize_lstm(
    at: Site, x: Expr, w: Expr, r: Expr, bias: Any = None, lengths: Any = None, h: Any = None, c: Any = None,
    peepholes: Any = None, w_scale: Any = None, w_zero: Any = None, r_scale: Any = None, r_zero: Any = None, *,
    hidden_size: int | None = None, direction: str = "forward", activations: Any = None, activation_alpha: Any = None,
    activation_beta: Any = None, clip: float | None = None, input_forget: int = 0,
) -> Any:  # fmt: skip
    """Inputs are quantised by the range of all of them, hidden units by that of a step's."""
    without(
        at, input_forget=input_forget, activation_alpha=activation_alpha, activation_beta=activation_beta
    )  # fmt: skip
    count = sides(direction)
    names = list(activations or ["Sigmoid", "Tanh", "Tanh"] * count)
    length, batch = at.shape_of(x)[:2]
    hidden = at.shape_of(r)[1]
    numbers = at.emit(op.arange(0, length, 1, dtype="int64"))
    if lengths is not None:
        lengths = at.cast(lengths, "int64")
        rows = at.emit(op.reshape(numbers, [length, 1, 1]))
        most = at.emit(op.max(lengths))
        x = at.emit(op.where(op.less(rows, most), x, constant(0, "float32")))

    def of(value: Any, side: int) -> Any:
        if value is None:
            return None
        return at.emit(op.squeeze(at.emit(op.strided_slice(value, [0], [side], [side + 1])), [0]))

    def flipped(x: Expr) -> Any:
        return at.emit(op.flip(x, axis=0) if lengths is None else reverse_sequence(at, x, lengths))

    results: list[tuple[Any, Any, Any]] = []
    for side in range(count):
        turns = direction == "reverse" or side == 1
        own = [of(each, side) for each in (w, w_scale, w_zero, r, r_scale, r_zero, bias, peepholes)]
        first = [
            at.emit(op.zeros([batch, hidden], "float32")) if s is None else of(s, side)
            for s in (h, c)
        ]
        cell = _Cell(at, hidden, names[3 * side : 3 * side + 3], clip, own[3:6], own[7])
        gates = _product(at, flipped(x) if turns else x, *own[:3])
        if own[6] is not None:
            total = at.emit(op.add(*cut(at, own[6], 0, [hidden * 4] * 2)))
            gates = at.emit(op.add(gates, total))
        whole, *last = cell.run(gates, numbers, lengths, first, [length, batch, hidden])
        results.append((flipped(whole) if turns else whole, *last))
    return [op.stack([each[i] for each in results], axis=1 if i == 0 else 0) for i in range(3)][
        : max(at.count, 1)
    ]


class _Cell:
    """A cell of an LSTM of quantised weights, whose gates are in the order: input, output, forget, cell."""

    def __init__(
        self, at: Site, hidden: Dim, names: Sequence[str], clip: float | None, recurrent: Sequence[Any], peepholes: Any
    ) -> None:  # fmt: skip
        self.at = at
        self.hidden = hidden
        self.names = names
        self.clip = clip
        self.recurrent = recurrent
        self.peepholes = [None] * 3 if peepholes is None else cut(at, peepholes, 0, [hidden] * 3)

    def run(
        self, gates: Expr, numbers: Expr, lengths: Any, first: Sequence[Any], shape: Sequence[Dim]
    ) -> list[Any]:
        """Hidden units of all steps, and the last ones and cells. `gates` are what the inputs add to the gates."""
        at = self.at
        none = constant(0, "float32")

        def step(rows: list[Expr], state: list[Expr]) -> tuple[list[Expr], list[Expr]]:
            shown, h, c = state
            new, cell = self.step(rows[0], shown, c)
            if lengths is None:
                return [new, new, cell], [new]
            left = at.emit(op.expand_dims(at.emit(op.less(rows[1], lengths)), [1]))
            shown = at.emit(op.where(left, new, none))
            return [
                shown,
                at.emit(op.where(left, new, h)),
                at.emit(op.where(left, cell, c)),
            ], [shown]

        made = [(shape, at.dtype_of(gates))]
        h, c = first
        (_, *last), (whole,) = steps(at, shape[0], [gates, numbers], [h, h, c], made, step)
        return [whole, *last]

    def step(self, gates: Expr, h: Expr, c: Expr) -> tuple[Any, Any]:
        at = self.at
        total = at.emit(op.add(gates, _product(at, h, *self.recurrent)))
        i, o, f, g = cut(at, total, 1, [self.hidden] * 4)
        of_i, of_o, of_f = self.peepholes
        i, f, g = (
            self.active(self.clipped(self.seen(gate, peephole, c)), name)
            for gate, peephole, name in ((i, of_i, 0), (f, of_f, 0), (g, None, 1))
        )
        cell = at.emit(op.add(op.multiply(f, c), op.multiply(i, g)))
        o = self.active(self.clipped(self.seen(o, of_o, cell)), 0)
        return at.emit(op.multiply(o, self.active(cell, 2))), cell

    def seen(self, gate: Expr, peephole: Any, cell: Expr) -> Any:
        """A gate that sees the cell."""
        if peephole is None:
            return gate
        return self.at.emit(op.add(gate, self.at.emit(op.multiply(cell, peephole))))

    def clipped(self, gate: Expr) -> Any:
        return self.at.emit(op.clip(gate, -self.clip, self.clip)) if self.clip else gate

    def active(self, x: Any, name: int) -> Any:
        return self.at.emit(activated(self.at, x, self.names[name].capitalize(), ()))


# Weights of a few bits


def unpacked(at: Site, x: Expr, bits: int, size: Any) -> Any:
    """Bytes along the last axis as so many integers of these bits, the first one in the lowest."""
    if bits != 8:
        shifts = constant(np.arange(0, 8, bits), "uint8")
        parts = op.right_shift(at.emit(op.expand_dims(x, at.ndim(x))), shifts)
        parts = at.emit(op.bitwise_and(parts, constant((1 << bits) - 1, "uint8")))
        *outer, count = at.shape_of(x)
        x = at.emit(op.reshape(parts, [*outer, count * (8 // bits)]))
    whole = at.shape_of(x)[-1]
    return x if whole == size else at.emit(op.strided_slice(x, [at.ndim(x) - 1], [0], [size]))


@operator("MatMulNBits", domain=CONTRIB)
def matmul_nbits(
    at: Site, x: Expr, codes: Expr, scales: Expr, zeros: Any = None, order: Any = None, bias: Any = None, *, K: int,
    N: int, block_size: int, bits: int = 4, accuracy_level: int = 0, weight_prepacked: int = 0,
) -> Any:  # fmt: skip
    """Rows of the weight are blocks of integers, each with a scale and a zero point. `accuracy_level` is the least
    precision: products are of floats here."""
    without(at, weight_prepacked=weight_prepacked)
    if bits not in (2, 4, 8):
        raise at.fail("onnx-operator", f"{at.node.title} of {bits} bits is not supported")
    count = -(-K // block_size)
    if order is not None:
        found = at.known(order)
        plain = np.arange(count * block_size) // block_size
        if found is None or not np.array_equal(found, plain[: found.size]) or found.size < K:
            raise at.fail(
                "onnx-operator", f"{at.node.title} with a g_idx of another order is not supported"
            )
    whole = unpacked(at, at.emit(op.reshape(codes, [N, count, -1])), bits, block_size)
    if zeros is None:
        zeros = constant(1 << bits - 1, "float32")
    elif at.dtype_of(zeros).is_float:
        zeros = at.emit(op.reshape(at.cast(zeros, "float32"), [N, count, 1]))
    else:
        zeros = unpacked(at, at.emit(op.reshape(zeros, [N, -1])), bits, count)
        zeros = at.emit(op.reshape(at.cast(zeros, "float32"), [N, count, 1]))
    scale = at.cast(at.emit(op.reshape(scales, [N, count, 1])), "float32")
    weight = at.emit(op.multiply(op.subtract(at.cast(whole, "float32"), zeros), scale))
    weight = at.emit(op.reshape(weight, [N, count * block_size]))
    if count * block_size != K:
        weight = at.emit(op.strided_slice(weight, [1], [0], [K]))
    found = op.matmul(at.cast(x, "float32"), at.emit(op.permute_dims(weight, [1, 0])))
    if bias is not None:
        found = op.add(found, at.cast(bias, "float32"))
    return at.cast(at.emit(found), at.dtype_of(x))


@operator("GatherBlockQuantized", domain=CONTRIB)
def gather_block_quantized(
    at: Site, data: Expr, indices: Expr, scales: Expr, zeros: Any = None, *, bits: int = 4, block_size: int = 128,
    gather_axis: int = 0, quantize_axis: int = 1,
) -> Any:  # fmt: skip
    """Rows of integers, which are made floats; those of uint8 are of `bits`."""
    rank, packed = at.ndim(data), at.importer.packed.get(data)
    along, blocks = gather_axis % rank, quantize_axis % rank
    if packed is None and at.dtype_of(data) != "uint8":
        raise at.fail("onnx-operator", f"{at.node.title} of {at.dtype_of(data)} is not supported")
    if along == blocks or (packed is None and bits not in (2, 4, 8)):
        raise at.fail(
            "onnx-operator",
            f"{at.node.title} with {bits} bits, gather_axis {along} and quantize_axis {blocks} is not supported",
        )
    index = wrapped(at, indices, at.shape_of(data)[along])

    def rows(x: Expr) -> Any:
        return at.emit(op.take(x, index, axis=along))

    codes, own = rows(data), rows(scales)
    points = None if zeros is None else rows(zeros)
    blocks += at.ndim(indices) - 1 if blocks > along else 0
    if packed is None:
        codes = unpacked(at, codes, bits, at.shape_of(codes)[-1] * (8 // bits))
        if points is None:
            points = at.emit(op.full(at.shape_of(own), constant(1 << bits - 1, "uint8")))
        else:
            points = unpacked(at, points, bits, at.shape_of(own)[-1])
    return dequantized(at, codes, own, points, at.dtype_of(scales), blocks, block_size)
