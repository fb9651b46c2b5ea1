"""Operators of the domain com.microsoft, as ONNX Runtime's optimiser and exporters write them: activations, norms, and
products and convolutions with what follows them. Attention and quantised ones are in files of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant, hard_sigmoid
from relaxpy.frontend.onnx.operators_linear import conv, gemm
from relaxpy.frontend.onnx.operators_norm import layer_normalization, rms_normalization
from relaxpy.frontend.onnx.operators_pool import max_pool
from relaxpy.frontend.onnx.table import CONTRIB, operator
from relaxpy.ir import Expr
from relaxpy.narrow import is_list


@operator("Gelu", domain=CONTRIB)
def gelu(at: Site, x: Expr) -> Any:
    return op.nn.gelu(x)


@operator("FastGelu", domain=CONTRIB)
def fast_gelu(at: Site, x: Expr, bias: Any = None) -> Any:
    return op.nn.gelu_tanh(x if bias is None else at.emit(op.add(x, bias)))


@operator("BiasGelu", domain=CONTRIB)
def bias_gelu(at: Site, x: Expr, bias: Expr) -> Any:
    return op.nn.gelu(at.emit(op.add(x, bias)))


@operator("QuickGelu", domain=CONTRIB)
def quick_gelu(at: Site, x: Expr, *, alpha: float = 1.702) -> Any:
    return op.multiply(x, op.sigmoid(op.multiply(x, constant(alpha, at.dtype_of(x)))))


# Products and convolutions with what follows them


def activated(at: Site, x: Any, name: str, numbers: Sequence[float]) -> Any:
    """An activation with its numbers, all or none of them."""
    numbers = list(numbers)

    def number(place: int, default: float) -> float:
        return numbers[place] if place < len(numbers) else default

    match name:
        case "":
            return x
        case "Relu":
            return op.nn.relu(x)
        case "Sigmoid":
            return op.sigmoid(x)
        case "Tanh":
            return op.tanh(x)
        case "LeakyRelu":
            return op.nn.leakyrelu(x, number(0, 0.01))
        case "HardSigmoid":
            return hard_sigmoid(at, x, number(0, 0.2), number(1, 0.5))
        case "Clip" if len(numbers) == 2:
            return op.clip(x, float(numbers[0]), float(numbers[1]))
        case _:
            raise at.fail(
                "onnx-operator", f"{at.node.title} with the activation {name!r} is not supported"
            )


@operator("FusedMatMul", "TransposeMatMul", domain=CONTRIB)
def fused_matmul(
    at: Site, a: Expr, b: Expr, *, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0,
    transBatchB: int = 0,
) -> Any:  # fmt: skip
    def turned(x: Expr, is_turned: int, is_moved: int) -> Any:
        """With the first axis behind the other batches, and the last two changed."""
        order = list(range(at.ndim(x)))
        if is_moved and len(order) > 2:
            order = [*order[1:-1], order[0], order[-1]]
        if is_turned and len(order) > 1:
            order[-2:] = order[:-3:-1]
        return x if order == sorted(order) else at.emit(op.permute_dims(x, order))

    found = op.matmul(turned(a, transA, transBatchA), turned(b, transB, transBatchB))
    return found if alpha == 1.0 else op.multiply(found, constant(alpha, at.dtype_of(a)))


@operator("FusedGemm", domain=CONTRIB)
def fused_gemm(
    at: Site, a: Expr, b: Expr, c: Any = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
    transB: int = 0, activation: str = "", activation_alpha: float | None = None,
    activation_beta: float | None = None, activation_gamma: float | None = None,
) -> Any:  # fmt: skip
    given = (activation_alpha, activation_beta, activation_gamma)
    found = at.emit(gemm(at, a, b, c, alpha, beta, transA, transB))
    return activated(at, found, activation, [each for each in given if each is not None])


@operator("FusedConv", domain=CONTRIB)
def fused_conv(
    at: Site, x: Expr, weight: Expr, bias: Any = None, more: Any = None, *, activation: str = "",
    activation_params: Sequence[float] = (), auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1,
    kernel_shape: Any = None, pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    found = at.emit(
        conv(at, x, weight, bias, auto_pad, dilations, group, kernel_shape, pads, strides)
    )
    found = found if more is None else at.emit(op.add(found, more))
    return activated(at, found, activation, activation_params)


def channels_last(at: Site, x: Expr, function: Callable[[Expr], Any]) -> Any:
    """A function of (batch, channels, …) of a tensor (batch, …, channels)."""
    last = at.ndim(x) - 1
    found = at.emit(function(at.emit(op.permute_dims(x, [0, last, *range(1, last)]))))
    return op.permute_dims(found, [0, *range(2, last + 1), 1])


@operator("NhwcFusedConv", domain=CONTRIB)
def nhwc_fused_conv(
    at: Site, x: Expr, weight: Expr, bias: Any = None, more: Any = None, *, activation: str = "",
    activation_params: Sequence[float] = (), auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1,
    kernel_shape: Any = None, pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    def function(x: Expr) -> Any:
        return conv(at, x, weight, bias, auto_pad, dilations, group, kernel_shape, pads, strides)

    found = at.emit(channels_last(at, x, function))
    found = found if more is None else at.emit(op.add(found, more))
    return activated(at, found, activation, activation_params)


@operator("NhwcMaxPool", domain=CONTRIB)
def nhwc_max_pool(
    at: Site, x: Expr, *, kernel_shape: Sequence[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: Any = None, pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    return channels_last(
        at,
        x,
        lambda x: max_pool(at, x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode),
    )


# Norms


def _skip_sum(at: Site, x: Expr, skip: Expr, bias: Any) -> Any:
    total = at.emit(op.add(x, skip))
    return total if bias is None else at.emit(op.add(total, bias))


def _first(found: Any) -> Any:
    """The result of a rule that may give others, too."""
    return found[0] if is_list(found) else found


def _results(at: Site, found: Any, total: Any) -> list[Any]:
    """The normalised sum, and the sum as the fourth result."""
    if at.wants(1) or at.wants(2):
        raise at.fail("onnx-operator", f"{at.node.title} that gives the mean is not supported")
    return [found, None, None, total][: max(at.count, 1)]


@operator("SkipLayerNormalization", domain=CONTRIB)
def skip_layer_normalization(
    at: Site, x: Expr, skip: Expr, gamma: Expr, beta: Any = None, bias: Any = None, *, epsilon: float = 1e-12
) -> Any:  # fmt: skip
    total = _skip_sum(at, x, skip, bias)
    return _results(at, _first(layer_normalization(at, total, gamma, beta, -1, epsilon)), total)


@operator("SkipSimplifiedLayerNormalization", domain=CONTRIB)
def skip_simplified_layer_normalization(
    at: Site, x: Expr, skip: Expr, gamma: Expr, bias: Any = None, *, epsilon: float = 1e-12
) -> Any:  # fmt: skip
    total = _skip_sum(at, x, skip, bias)
    return _results(at, rms_normalization(at, total, gamma, -1, epsilon), total)


@operator("SimplifiedLayerNormalization")
def simplified_layer_normalization(
    at: Site, x: Expr, scale: Expr, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:  # fmt: skip
    """ONNX Runtime's, in ONNX's own domain."""
    if at.wants(1):
        raise at.fail("onnx-operator", f"{at.node.title} that gives the root is not supported")
    return rms_normalization(at, x, scale, axis, epsilon)


@operator("EmbedLayerNormalization", domain=CONTRIB)
def embed_layer_normalization(
    at: Site, tokens: Expr, segments: Any, words: Expr, positions: Expr, segment_table: Any, gamma: Expr, beta: Expr,
    mask: Any = None, places: Any = None, *, epsilon: float = 1e-12, mask_index_type: int = 0,
) -> Any:  # fmt: skip
    tables = (words, positions, segment_table)
    return embedded(
        at, tokens, segments, places, lambda i, rows: rows(tables[i]), gamma, beta, mask, epsilon
    )


def embedded(
    at: Site, tokens: Expr, segments: Any, places: Any, read: Callable[[int, Callable[[Any], Any]], Any], gamma: Expr,
    beta: Expr, mask: Any, epsilon: float,
) -> Any:  # fmt: skip
    """The sum of the rows of tokens, positions and segments, normalised; how many tokens the mask keeps; the sum.
    `read` gives the floats of rows of these tables by number, which its second argument takes of a table."""
    batch, length = at.shape_of(tokens)

    def at_index(index: Expr) -> Callable[[Any], Any]:
        return lambda table: at.emit(op.take(table, at.cast(index, "int64"), axis=0))

    def first(table: Expr) -> Any:
        return at.emit(op.strided_slice(table, [0], [0], [length]))

    total = read(0, at_index(tokens))
    total = at.emit(op.add(total, read(1, first if places is None else at_index(places))))
    if segments is not None:
        total = at.emit(op.add(total, read(2, at_index(segments))))
    found = _first(layer_normalization(at, total, gamma, beta, -1, epsilon))
    if not at.wants(1):
        kept: Any = None
    elif mask is None:
        kept = op.zeros([batch], "int32")
    else:
        ones = at.emit(op.equal(mask, constant(1, at.dtype_of(mask))))
        kept = op.sum(at.cast(ones, "int32"), axis=[1])
    return [found, kept, total][: max(at.count, 1)]
