"""Products of matrices by cuBLASLt where there are many rows (`relaxpy.backend.cuda.library`): with their bias, a
residual that is added, and an activation."""

from __future__ import annotations

from collections.abc import Mapping

from relaxpy.analysis.dataflow_match import Match
from relaxpy.backend.arrangement import Arrangement, Rule
from relaxpy.backend.cuda.library import (
    function_of,
    place_of,
    product_of,
    stored,
    with_library,
)
from relaxpy.backend.cuda.target import CUBLAS, CudaTarget
from relaxpy.backend.gpu.schedule.matmul import arrange_matmul
from relaxpy.ir.pattern import Pattern
from relaxpy.tir.prim_func import LIBRARY, PrimFunc, given_workspaces
from relaxpy.tir.recognise.matmul import matmul_of
from relaxpy.tir.tvm import tirx
from relaxpy.transform.fuse_ops_by_pattern import FusionPattern
from relaxpy.transform.outline import PRIMITIVE
from relaxpy.transform.product_patterns import ProductPattern, dims_of, product_patterns

_LEAST_ROWS = {"float16": 2, "bfloat16": 2, "float32": 5}
"""The least number of rows for which a product is the library's, by the dtype of all its tensors.

Measured on an H200, in steps of a Llama of 8B parameters in float16: one row takes our kernels 8.4 ms and four 10.9,
and 16 rows take cuBLASLt 8.1. One row is ours, in one launch with what follows it. In float32 up to 4 rows read each
weight once; above, our tiles take a multiple of the library's time.
"""
_ACTIVATIONS = "gelu_tanh", "relu"
"""The library's GELU is the approximation by tanh."""


def cublas_patterns() -> tuple[FusionPattern, ...]:
    """The patterns that mark products in dataflow blocks, the longest first."""
    products = product_patterns(_ACTIVATIONS, stored, with_residual=True)
    return tuple(_pattern(product) for product in products)


def _pattern(product: ProductPattern) -> FusionPattern:
    name = f"{CUBLAS}.{product.name}"

    def takes(match: Match, _: Mapping[str, Pattern]) -> bool:
        least = _LEAST_ROWS.get(product.dtype(match) or "")
        right = dims_of(match.annotation(product.right))
        out = dims_of(match.annotation(product.product))
        if least is None or right is None or out is None or len(right) != 2:
            return False
        if any(dim.value == 1 for dim in right):
            return False
        if product.bias and dims_of(match.annotation(product.bias)) != out[-1:]:
            return False
        if product.residual and dims_of(match.annotation(product.residual)) != out:
            return False
        rows = product_of(out[:-1]).value
        return rows is None or rows >= least

    return FusionPattern(name, product.pattern, check=takes, attrs={PRIMITIVE: True, LIBRARY: name})


def _arrange(func: tirx.PrimFunc, target: CudaTarget) -> Arrangement | None:
    """The schedule of a product that is marked, with the library call; None for other programs."""
    name = function_of(func, CUBLAS, target)
    own = arrange_matmul(func, target)
    form = matmul_of(func)
    if not name or own is None or form is None:
        return None
    places = {
        "left": place_of(func, form.lhs.buffer),
        "right": place_of(func, form.rhs.buffer),
        "out": max(PrimFunc(func).written - {*given_workspaces(func)}),
    }
    # What is added: a bias has one dimension, a residual those of the result.
    added = [each for each in ("bias", "residual") if f"_{each}" in name]
    others = {*range(len(func.params)), *given_workspaces(func)}
    others -= {*places.values(), *given_workspaces(func)}
    if len(others) != len(added):
        return None
    ranked = sorted(others, key=lambda place: len(func.params[place].shape))
    places |= dict(zip(added, ranked, strict=True))
    dtype, columns = str(form.lhs.buffer.dtype), len(form.out.buffer.shape) - 1
    depth = len(form.lhs.buffer.shape) - 1
    rows = [("out", axis) for axis in range(columns)]
    numbers = (rows, [("out", columns)], [("left", depth)])
    return with_library(func, own, dtype, places, numbers, _LEAST_ROWS[dtype])


CUBLAS_RULE = Rule(CUBLAS, _arrange)
