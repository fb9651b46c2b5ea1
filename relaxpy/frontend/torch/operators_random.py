"""Random numbers: each a function of the program's seed, its operator and its place. They match torch's in
distribution; torch's own generator gives others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend import random_numbers
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.operators_elementwise import number
from relaxpy.frontend.torch.table import always, operator
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import dim_op


def uniform(at: Site, shape: Sequence[Dim], dtype: str = "float32") -> Any:
    """Numbers in [0, 1), of a stream of their own."""
    assert at.importer.seed is not None
    return random_numbers.uniform(at, at.importer, shape, dtype)


def normal(at: Site, shape: Sequence[Dim]) -> Any:
    """Standard normal numbers."""
    assert at.importer.seed is not None
    return random_numbers.normal(at, at.importer, shape)


@operator("rand.default", "rand_like.default", random=always)
def rand(at: Site, *rest: Any) -> Any:
    return uniform(at, at.shape)


@operator("randn.default", "randn_like.default", random=always)
def randn(at: Site, *rest: Any) -> Any:
    return normal(at, at.shape)


@operator("uniform.default", random=always)
def uniform_between(at: Site, x: Expr, low: float = 0.0, high: float = 1.0, *rest: Any) -> Any:
    found = op.multiply(uniform(at, at.shape), float(high - low))
    return at.cast(at.emit(op.add(at.emit(found), float(low))), at.dtype)


@operator(
    "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", "normal.float_float",
    random=always,
)  # fmt: skip
def normal_around(at: Site, mean: Any, deviation: Any, *rest: Any) -> Any:
    mean, deviation = (
        at.cast(each, "float32") if isinstance(each, Expr) else float(each)
        for each in (mean, deviation)
    )
    found = op.add(at.emit(op.multiply(normal(at, at.shape), deviation)), mean)
    return at.cast(at.emit(found), at.dtype)


@operator("normal_functional.default", random=always)
def normal_like(at: Site, x: Expr, mean: float = 0.0, deviation: float = 1.0, *rest: Any) -> Any:
    return normal_around(at, mean, deviation)


def exponential(at: Site, shape: Sequence[Dim]) -> Any:
    """Numbers of the exponential distribution of mean 1."""
    one = op.full((), 1.0, "float32")
    return at.emit(op.negative(op.log(op.subtract(one, uniform(at, shape)))))


@operator("exponential.default", random=always)
def exponential_like(at: Site, x: Expr, rate: float = 1.0, *rest: Any) -> Any:
    return at.cast(at.emit(op.divide(exponential(at, at.shape), float(rate))), at.dtype)


@operator("multinomial.default", random=always)
def multinomial(at: Site, weights: Expr, count: Any, replace: bool = False, *rest: Any) -> Any:
    """With replacement by inverse transform; without it the classes of the largest weights over exponential numbers."""
    rows = at.cast(weights, "float32")
    if at.ndim(rows) == 1:
        rows = at.emit(op.expand_dims(rows, 0))
    batch, classes = at.shape_of(rows)
    if not replace:
        at.check(dim_op("le", count, classes), "no more samples than classes, without replacement")
        ranks = at.emit(op.divide(rows, exponential(at, (batch, classes))))
        order = at.emit(op.argsort(ranks, axis=1, descending=True, dtype="int64"))
        found = op.strided_slice(order, [1], [0], [count])
    else:
        sums = at.emit(op.sum(rows, axis=1, keepdims=True))
        drawn = uniform(at, (batch * count, Dim.of(1)))
        places = at.emit(op.arange(0, batch * count, 1, dtype="int64"))
        which = at.emit(op.floor_divide(places, op.full((), count, "int64")))
        which = at.emit(op.reshape(which, (batch * count, 1)))
        found = op.multinomial_from_uniform(at.emit(op.divide(rows, sums)), drawn, which)
    return op.reshape(at.emit(found), at.shape)


def integers(at: Site, low: Any, high: Any) -> Any:
    span = float(high - low)
    found = op.floor(op.multiply(uniform(at, at.shape, "float64"), span))
    found = op.add(op.astype(at.emit(found), "int64"), op.full((), int(low), "int64"))
    return at.cast(at.emit(found), at.dtype)


@operator("randint.default", random=always)
def randint(at: Site, high: Any, *rest: Any) -> Any:
    return integers(at, 0, high)


@operator("randint.low", random=always)
def randint_low(at: Site, low: Any, high: Any, *rest: Any) -> Any:
    return integers(at, low, high)


@operator("randint_like.default", random=always)
def randint_like(at: Site, x: Expr, high: Any, *rest: Any) -> Any:
    return integers(at, 0, high)


@operator("randint_like.low_dtype", random=always)
def randint_like_low(at: Site, x: Expr, low: Any, high: Any, *rest: Any) -> Any:
    return integers(at, low, high)


@operator("randperm.default", random=always)
def randperm(at: Site, *rest: Any) -> Any:
    return op.argsort(uniform(at, at.shape, "float64"), dtype="int64")


@operator("bernoulli.default", random=always)
def bernoulli(at: Site, x: Expr, *rest: Any) -> Any:
    drawn = op.less(uniform(at, at.shape), at.cast(x, "float32"))
    return op.astype(at.emit(drawn), at.dtype)


@operator("bernoulli.p", random=always)
def bernoulli_p(at: Site, x: Expr, p: float, *rest: Any) -> Any:
    return op.astype(kept(at, p), at.dtype)


def kept(at: Site, p: float) -> Any:
    """True with probability `p`."""
    return at.emit(op.less(uniform(at, at.shape), float(p)))


@operator("native_dropout.default", random=always)
def native_dropout(at: Site, x: Expr, p: float, train: bool | None) -> Any:
    if train is False:
        return x, op.ones(at.shape, "bool")
    mask = kept(at, 1 - p)
    scaled = op.multiply(x, 1 / (1 - p)) if p < 1 else op.broadcast_to(number(at, 0.0), at.shape)
    return op.where(mask, at.emit(scaled), number(at, 0.0)), mask
