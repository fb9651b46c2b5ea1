"""Products of matrices, attention, and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy.ir import Dim, DType
from relaxpy.onnx.write_table import writes
from relaxpy.onnx.write_values import Tensor
from relaxpy.onnx.writer import Place
from relaxpy.op import attention, einstein, linear_algebra, loss


def product(at: Place, a: Any, b: Any, own: DType, other: DType, out: DType) -> str:
    """A product of matrices of these dtypes, summed in that of the result."""
    if own.is_float:
        wide = out if out.bits > own.bits else own
        return at.cast(at.node("MatMul", at.cast(a, wide, own), at.cast(b, wide, other)), out, wide)
    if own == "int8" and other == "int8" and out == "int32":
        return at.node("MatMulInteger", a, b)
    if out in ("int32", "int64", "uint32", "uint64"):
        return at.node("MatMul", at.cast(a, out, own), at.cast(b, out, other))
    # A sum modulo a power of 2 is that of the wider sum.
    return at.cast(
        at.node("MatMul", at.cast(a, "int64", own), at.cast(b, "int64", other)), out, "int64"
    )


@writes(linear_algebra.Matmul)
def matmul(at: Place, op: linear_algebra.Matmul, a: Tensor, b: Tensor) -> Any:
    return product(at, a, b, a.dtype, b.dtype, op.out_dtype or a.dtype)


@writes(linear_algebra.Linear)
def linear(
    at: Place, op: linear_algebra.Linear, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Any:
    out = op.out_dtype or x.dtype
    if (
        x.ndim == 2
        and weight.ndim == 2
        and x.dtype.is_float
        and out == x.dtype
        and (bias is None or bias.ndim == 1)
    ):
        return at.node("Gemm", x, weight, bias, transB=1)
    turned: Any = weight
    if weight.ndim == 2:
        turned = at.transpose(weight, [1, 0])
        if weight.constant is not None:
            turned = at.writer.constant(
                np.ascontiguousarray(weight.constant.T), f"{weight.name}_transposed"
            )
    found = product(at, x, turned, x.dtype, weight.dtype, out)
    return found if bias is None else at.node("Add", found, at.cast(bias, out))


@writes(linear_algebra.Outer)
def outer(at: Place, op: Any, a: Tensor, b: Tensor) -> Any:
    return at.node("Mul", at.unsqueeze(a, [1]), at.unsqueeze(b, [0]))


@writes(einstein.Einsum)
def einsum(at: Place, op: einstein.Einsum, operands: Sequence[Tensor]) -> Any:
    found = op.subscripts.replace(" ", "")
    dims: dict[str, Dim] = {}
    for term, x in zip(found.partition("->")[0].split(","), operands, strict=True):
        if "..." in term:
            continue
        for letter, dim in zip(term, at.dims(x), strict=True):
            if dims.setdefault(letter, dim) != dim and 1 in (dims[letter], dim):
                raise at.fail(
                    f"with the axis {letter!r} of sizes {dims[letter]} and {dim}: ONNX broadcasts only ..."
                )
    return at.node("Einsum", *operands, equation=found)


@writes(attention.Attention, attention.AttentionBias)
def attend(
    at: Place,
    op: attention.DenseAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
) -> Any:
    """MatMul, Softmax, MatMul; a row that sees no key is 0. bfloat16 is computed in float32."""
    dtype = DType("float32") if query.dtype == "bfloat16" else query.dtype
    (_, length, heads, width), (batch, keys, own, _) = at.dims(query), at.dims(key)
    scale = op.scale
    if scale is None:
        if width.value is None:
            raise at.fail("with a width that is known only when it runs: pass scale")
        scale = 1 / math.sqrt(width.value)

    def spread(x: Tensor, order: Sequence[int]) -> Any:
        """Keys or values for all heads of the query."""
        wide = at.cast(x, dtype)
        if own == heads:
            return at.transpose(wide, order)
        share = heads // own
        last = at.dims(x)[3]
        apart = at.node("Expand", at.unsqueeze(wide, [3]), at.shape([1, 1, 1, share, 1]))
        return at.transpose(at.reshape(apart, [batch, keys, heads, last]), order)

    scaled = at.node("Mul", at.cast(query, dtype), at.number(scale, dtype))
    scores = at.node("MatMul", at.transpose(scaled, [0, 2, 1, 3]), spread(key, [0, 2, 3, 1]))
    if bias is not None:
        scores = at.node("Add", scores, at.cast(bias, dtype))
    seen = _seen(at, op, length, keys)
    hidden = at.number(-math.inf, dtype)
    if seen is not None:
        scores = at.node("Where", seen, scores, hidden)
    shares = at.node("Softmax", scores, axis=-1)
    if bias is not None or seen is not None:
        # A row of minus infinity gives NaN. A NaN of the inputs stays.
        most = at.node("ReduceMax", scores, at.ints([-1]), keepdims=1)
        nothing = at.node("Equal", most, hidden)
        shares = at.node("Where", nothing, at.number(0, dtype), shares)
    found = at.transpose(at.node("MatMul", shares, spread(value, [0, 2, 1, 3])), [0, 2, 1, 3])
    return at.cast(found, query.dtype, dtype)


def _seen(at: Place, op: attention.DenseAttention, length: Dim, keys: Dim) -> str | None:
    """Which keys a query sees; None: all."""
    if op.causal_mask is None:
        return None
    rows = at.unsqueeze(_upto(at, length), [1])
    columns = _upto(at, keys)
    diagonal: Any = rows
    if op.causal_mask == "BottomRight":
        diagonal = at.node("Add", rows, at.scalar(keys - length))
    found = at.node("LessOrEqual", columns, diagonal)
    if op.window_size is not None:
        first = at.node("Sub", diagonal, at.number(op.window_size, "int64"))
        found = at.node("And", found, at.node("Greater", columns, first))
    return found


def _upto(at: Place, size: Dim) -> str:
    if size.value is not None:
        return at.array(np.arange(size.value))
    return at.node("Range", at.number(0, "int64"), at.scalar(size), at.number(1, "int64"))


@writes(loss.CrossEntropyWithLogits)
def cross_entropy(at: Place, op: Any, predictions: Tensor, labels: Tensor) -> Any:
    if not predictions.dtype.is_float:
        raise at.fail(f"of {predictions.dtype}")
    products = at.node("Mul", at.node("Neg", predictions), labels)
    total = at.node("ReduceSum", products, keepdims=0)
    if predictions.ndim < 2:
        return total
    return at.node("Div", total, at.scalar(at.dims(predictions)[0], predictions.dtype))


@writes(loss.NllLoss)
def nll_loss(
    at: Place, op: loss.NllLoss, predictions: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Any:
    """What is no class has weight 0: it becomes the index that is ignored."""
    axis = 1 if predictions.ndim > 1 else 0
    size = at.dims(predictions)[axis]
    given = at.cast(targets, "int64")
    valid = at.node(
        "And", at.node("GreaterOrEqual", given, at.number(0, "int64")), at.node("Less", given, at.scalar(size))
    )  # fmt: skip
    ignored = at.number(op.ignore_index, "int64")
    target = at.node("Where", valid, given, ignored)
    scores: Any = predictions
    if predictions.ndim == 1:
        scores, target = at.unsqueeze(predictions, [0]), at.unsqueeze(target, [0])
    found = at.node(
        "NegativeLogLikelihoodLoss", scores, target, weights, ignore_index=op.ignore_index, reduction=op.reduction
    )  # fmt: skip
    return at.squeeze(found, [0]) if predictions.ndim == 1 and op.reduction == "none" else found
