"""Random numbers: each a function of the program's seed, its operator and its place. They match torch's in
distribution; torch's own generator gives others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.operators_elementwise import number
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import product


def uniform(at: Site, shape: Sequence[Dim], dtype: str = "float32") -> Any:
    """Numbers in [0, 1), of a stream of their own."""
    seed = at.importer.seed
    assert seed is not None
    stream = at.importer.streams = at.importer.streams + 1
    count = (product(tuple(shape)),)
    seeds, streams = (
        at.emit(op.broadcast_to(each, count)) for each in (seed, op.full((), stream, "int64"))
    )
    positions = at.emit(op.arange(0, count[0], 1, dtype="int64"))
    found = at.emit(op.random_uniform(seeds, streams, positions, dtype=dtype))
    return at.emit(op.reshape(found, shape))


def normal(at: Site, shape: Sequence[Dim]) -> Any:
    """Standard normal numbers, by the transform of Box and Muller."""
    first, second = uniform(at, shape), uniform(at, shape)
    one, turn = (op.full((), v, "float32") for v in (1.0, 2 * math.pi))
    radius = op.sqrt(op.multiply(op.log(op.subtract(one, first)), -2.0))
    return at.emit(op.multiply(radius, op.cos(op.multiply(second, turn))))


@operator("rand.default", "rand_like.default", random=True)
def rand(at: Site, *rest: Any) -> Any:
    return uniform(at, at.shape)


@operator("randn.default", "randn_like.default", random=True)
def randn(at: Site, *rest: Any) -> Any:
    return normal(at, at.shape)


def integers(at: Site, low: Any, high: Any) -> Any:
    span = float(high - low)
    found = op.floor(op.multiply(uniform(at, at.shape, "float64"), span))
    found = op.add(op.astype(at.emit(found), "int64"), op.full((), int(low), "int64"))
    return at.cast(at.emit(found), at.dtype)


@operator("randint.default", random=True)
def randint(at: Site, high: Any, *rest: Any) -> Any:
    return integers(at, 0, high)


@operator("randint.low", random=True)
def randint_low(at: Site, low: Any, high: Any, *rest: Any) -> Any:
    return integers(at, low, high)


@operator("randint_like.default", random=True)
def randint_like(at: Site, x: Expr, high: Any, *rest: Any) -> Any:
    return integers(at, 0, high)


@operator("randint_like.low_dtype", random=True)
def randint_like_low(at: Site, x: Expr, low: Any, high: Any, *rest: Any) -> Any:
    return integers(at, low, high)


@operator("randperm.default", random=True)
def randperm(at: Site, *rest: Any) -> Any:
    return op.argsort(uniform(at, at.shape, "float64"), dtype="int64")


@operator("bernoulli.default", random=True)
def bernoulli(at: Site, x: Expr, *rest: Any) -> Any:
    drawn = op.less(uniform(at, at.shape), at.cast(x, "float32"))
    return op.astype(at.emit(drawn), at.dtype)


@operator("bernoulli.p", random=True)
def bernoulli_p(at: Site, x: Expr, p: float, *rest: Any) -> Any:
    return op.astype(kept(at, p), at.dtype)


def kept(at: Site, p: float) -> Any:
    """True with probability `p`."""
    return at.emit(op.less(uniform(at, at.shape), float(p)))


@operator("native_dropout.default", random=True)
def native_dropout(at: Site, x: Expr, p: float, train: bool | None) -> Any:
    if train is False:
        return x, op.ones(at.shape, "bool")
    mask = kept(at, 1 - p)
    scaled = op.multiply(x, 1 / (1 - p)) if p < 1 else op.broadcast_to(number(at, 0.0), at.shape)
    return op.where(mask, at.emit(scaled), number(at, 0.0)), mask
