"""Operators of the domain com.microsoft, as ONNX Runtime's optimiser and exporters write them."""

from __future__ import annotations

from typing import Any

from relaxpy import op
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.operators_norm import layer_normalization, rms_normalization
from relaxpy.frontend.onnx.operators_quantize import dequantized, quantized
from relaxpy.frontend.onnx.table import operator
from relaxpy.ir import Expr
from relaxpy.narrow import is_list

DOMAIN = "com.microsoft"


@operator("Gelu", domain=DOMAIN)
def gelu(at: Site, x: Expr, **_: Any) -> Any:
    return op.nn.gelu(x)


@operator("FastGelu", domain=DOMAIN)
def fast_gelu(at: Site, x: Expr, bias: Any = None, **_: Any) -> Any:
    return op.nn.gelu_tanh(x if bias is None else at.emit(op.add(x, bias)))


@operator("BiasGelu", domain=DOMAIN)
def bias_gelu(at: Site, x: Expr, bias: Expr, **_: Any) -> Any:
    return op.nn.gelu(at.emit(op.add(x, bias)))


@operator("QuickGelu", domain=DOMAIN)
def quick_gelu(at: Site, x: Expr, alpha: float = 1.702, **_: Any) -> Any:
    return op.multiply(x, op.sigmoid(op.multiply(x, constant(alpha, at.dtype_of(x)))))


@operator("FusedMatMul", domain=DOMAIN)
def fused_matmul(
    at: Site, a: Expr, b: Expr, alpha: float = 1.0, transA: int = 0, transB: int = 0,
    transBatchA: int = 0, transBatchB: int = 0, **_: Any,
) -> Any:  # fmt: skip
    if transBatchA or transBatchB:
        raise at.fail("onnx-operator", "FusedMatMul with transposed batches is not supported")

    def turned(x: Expr, is_turned: int) -> Any:
        rank = at.ndim(x)
        if not is_turned or rank < 2:
            return x
        return at.emit(op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2]))

    found = op.matmul(turned(a, transA), turned(b, transB))
    return found if alpha == 1.0 else op.multiply(found, constant(alpha, at.dtype_of(a)))


def _skip_sum(at: Site, x: Expr, skip: Expr, bias: Any) -> Any:
    total = at.emit(op.add(x, skip))
    return total if bias is None else at.emit(op.add(total, bias))


def _first(found: Any) -> Any:
    """The result of a rule that may give others, too."""
    return found[0] if is_list(found) else found


def _results(at: Site, found: Any, total: Any) -> list[Any]:
    """The normalised sum, and the sum as the fourth result."""
    return [found, None, None, total][: max(at.count, 1)]


@operator("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_normalization(
    at: Site, x: Expr, skip: Expr, gamma: Expr, beta: Any = None, bias: Any = None, epsilon: float = 1e-12, **_: Any
) -> Any:  # fmt: skip
    total = _skip_sum(at, x, skip, bias)
    if at.wants(1) or at.wants(2):
        raise at.fail(
            "onnx-operator", "SkipLayerNormalization that gives the mean is not supported"
        )
    return _results(at, _first(layer_normalization(at, total, gamma, beta, -1, epsilon)), total)


@operator("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_simplified_layer_normalization(
    at: Site, x: Expr, skip: Expr, gamma: Expr, bias: Any = None, epsilon: float = 1e-12, **_: Any
) -> Any:  # fmt: skip
    total = _skip_sum(at, x, skip, bias)
    return _results(at, rms_normalization(at, total, gamma, -1, epsilon), total)


@operator("SimplifiedLayerNormalization")
def simplified_layer_normalization(
    at: Site, x: Expr, scale: Expr, axis: int = -1, epsilon: float = 1e-5, **_: Any
) -> Any:  # fmt: skip
    """ONNX Runtime's, in ONNX's own domain."""
    return rms_normalization(at, x, scale, axis, epsilon)


@operator("QuantizeLinear", domain=DOMAIN)
def quantize_linear(at: Site, x: Expr, scale: Expr, zero: Expr, axis: int = 1, **_: Any) -> Any:
    return quantized(at, x, scale, zero, at.dtype_of(zero), axis)


@operator("DequantizeLinear", domain=DOMAIN)
def dequantize_linear(
    at: Site, x: Expr, scale: Expr, zero: Any = None, axis: int = 1, **_: Any
) -> Any:
    return dequantized(at, x, scale, zero, at.dtype_of(scale), axis)
