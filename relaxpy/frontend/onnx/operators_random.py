"""Random numbers, and what draws them. They match ONNX Runtime's in distribution; a node with a seed gives the same
numbers at every call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend import random_numbers
from relaxpy.frontend.onnx.arrays import dtype_of
from relaxpy.frontend.onnx.checks import check_is_test
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.table import operator
from relaxpy.ir import Constant, Dim, DType, Expr


def _seed(seed: float | None) -> Constant | None:
    """A node's own seed, which is a float."""
    return None if seed is None else constant(np.float32(seed).view(np.int32), "int64")


def _dtype(at: Site, number: int | None, like: Any = None) -> DType:
    if number:
        return dtype_of(number, at.span)
    return DType("float32") if like is None else at.dtype_of(like)


def _rule(draw: Callable[..., Any], like: bool) -> Callable[..., Any]:
    """The rule of an operator that draws numbers of a shape, or of a tensor's (`like`): from `low` to `high`, or of
    this `mean` and `scale`."""

    def rule(
        at: Site, x: Any = None, shape: Any = None, dtype: int | None = None, low: float = 0.0, high: float = 1.0,
        mean: float = 0.0, scale: float = 1.0, seed: float | None = None, **_: Any,
    ) -> Any:  # fmt: skip
        if (x is None) == like:
            raise TypeError(f"it takes {'a tensor' if like else 'no tensor'}")
        if draw is random_numbers.uniform:
            mean, scale = low, high - low
        sizes = at.shape_of(x) if like else list(map(Dim.of, shape))
        found = draw(at, at.importer, sizes, seed=_seed(seed))
        wide = op.add(op.multiply(found, constant(scale, "float32")), constant(mean, "float32"))
        return at.cast(at.emit(wide), _dtype(at, dtype, x))

    return rule


operator("RandomUniform")(_rule(random_numbers.uniform, like=False))
operator("RandomUniformLike")(_rule(random_numbers.uniform, like=True))
operator("RandomNormal")(_rule(random_numbers.normal, like=False))
operator("RandomNormalLike")(_rule(random_numbers.normal, like=True))


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
    at: Site,
    x: Expr,
    given: Any = None,
    training: Any = None,
    seed: Any = None,
    is_test: int = 0,
    **_: Any,
) -> Any:
    """The ratio is an attribute before version 12, of a model for inference."""
    check_is_test(at, is_test)
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
