"""Random numbers, and what draws them. They match ONNX Runtime's in distribution; a node with a seed gives the same
numbers at every call."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend import random_numbers
from relaxpy.frontend.onnx.arrays import dtype_of
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.table import operator
from relaxpy.ir import Constant, Dim, DType, Expr


def _seed(seed: float | None) -> Constant | None:
    """A node's own seed, which is a float."""
    return None if seed is None else constant(np.float32(seed).view(np.int32), "int64")


def _uniform(
    at: Site, shape: list[Dim], dtype: DType, low: float, high: float, seed: float | None
) -> Any:
    found = random_numbers.uniform(at, at.importer, shape, seed=_seed(seed))
    wide = op.add(op.multiply(found, constant(high - low, "float32")), constant(low, "float32"))
    return at.cast(at.emit(wide), dtype)


def _normal(
    at: Site, shape: list[Dim], dtype: DType, mean: float, scale: float, seed: float | None
) -> Any:
    found = random_numbers.normal(at, at.importer, shape, seed=_seed(seed))
    wide = op.add(op.multiply(found, constant(scale, "float32")), constant(mean, "float32"))
    return at.cast(at.emit(wide), dtype)


def _dtype(at: Site, number: int | None, like: Any = None) -> DType:
    return (
        dtype_of(number, at.span)
        if number
        else DType("float32")
        if like is None
        else at.dtype_of(like)
    )


@operator("RandomUniform")
def random_uniform(
    at: Site,
    shape: Any,
    dtype: int = 1,
    low: float = 0.0,
    high: float = 1.0,
    seed: Any = None,
    **_: Any,
) -> Any:
    return _uniform(at, list(map(Dim.of, shape)), _dtype(at, dtype), low, high, seed)


@operator("RandomUniformLike")
def random_uniform_like(
    at: Site,
    x: Expr,
    dtype: Any = None,
    low: float = 0.0,
    high: float = 1.0,
    seed: Any = None,
    **_: Any,
) -> Any:
    return _uniform(at, at.shape_of(x), _dtype(at, dtype, x), low, high, seed)


@operator("RandomNormal")
def random_normal(
    at: Site,
    shape: Any,
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: Any = None,
    **_: Any,
) -> Any:
    return _normal(at, list(map(Dim.of, shape)), _dtype(at, dtype), mean, scale, seed)


@operator("RandomNormalLike")
def random_normal_like(
    at: Site,
    x: Expr,
    dtype: Any = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: Any = None,
    **_: Any,
) -> Any:
    return _normal(at, at.shape_of(x), _dtype(at, dtype, x), mean, scale, seed)


@operator("Bernoulli")
def bernoulli(at: Site, x: Expr, dtype: Any = None, seed: Any = None, **_: Any) -> Any:
    drawn = random_numbers.uniform(at, at.importer, at.shape_of(x), seed=_seed(seed))
    hit = at.emit(op.less(drawn, at.cast(x, "float32")))
    return at.cast(hit, _dtype(at, dtype, x))


@operator("Multinomial")
def multinomial(
    at: Site, x: Expr, dtype: int = 6, sample_size: int = 1, seed: Any = None, **_: Any
) -> Any:
    """By the largest of the logarithms with Gumbel's noise added."""
    rows, classes = at.shape_of(x)
    drawn = random_numbers.uniform(
        at, at.importer, [rows, Dim.of(sample_size), classes], seed=_seed(seed)
    )
    least = constant(2.0**-33, "float32")
    noise = op.negative(op.log(op.negative(op.log(op.add(drawn, least)))))
    scores = at.emit(op.add(at.cast(at.emit(op.expand_dims(x, [1])), "float32"), at.emit(noise)))
    return at.cast(at.emit(op.argmax(scores, axis=2)), dtype_of(dtype, at.span))


@operator("Dropout")
def dropout(
    at: Site, x: Expr, given: Any = None, training: Any = None, seed: Any = None, **_: Any
) -> Any:
    """The ratio is an attribute before version 12, of a model for inference."""
    is_training = training is not None and bool(at.number_of(training, "training_mode"))
    share = 0.0
    if is_training:
        share = 0.5 if given is None else float(at.number_of(given, "the ratio"))
    if not share:
        kept = at.emit(op.ones(at.shape_of(x), "bool" if at.version >= 10 else at.dtype_of(x)))
        return [x, kept] if at.wants(1) else x
    dtype = at.dtype_of(x)
    drawn = random_numbers.uniform(at, at.importer, at.shape_of(x), seed=_seed(seed))
    kept = at.emit(op.greater_equal(drawn, constant(share, "float32")))
    scaled = op.multiply(x, constant(1 / (1 - share) if share < 1 else math.inf, dtype))
    return [op.where(kept, at.emit(scaled), constant(0, dtype)), kept]
