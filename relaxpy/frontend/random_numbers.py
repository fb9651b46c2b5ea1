"""Random numbers: each a function of the program's seed, its operator and its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from relaxpy import op
from relaxpy.frontend.site import Site
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import product


class Source(Protocol):
    """An importer: what the numbers of a program come from."""

    seed: Any
    """The seed, a 0-d int64 tensor."""
    streams: int
    """How many streams have been taken."""


def uniform(
    at: Site, source: Source, shape: Sequence[Dim], dtype: str = "float32", seed: Expr | None = None
) -> Any:
    """Numbers in [0, 1), of a stream of their own; of another `seed`, if that is given."""
    source.streams += 1
    count = (product(tuple(shape)),)
    first = source.seed if seed is None else seed
    stream = op.full((), source.streams, "int64")
    seeds, streams = (at.emit(op.broadcast_to(each, count)) for each in (first, stream))
    positions = at.emit(op.arange(0, count[0], 1, dtype="int64"))
    found = at.emit(op.random_uniform(seeds, streams, positions, dtype=dtype))
    return at.emit(op.reshape(found, shape))


def normal(at: Site, source: Source, shape: Sequence[Dim], seed: Expr | None = None) -> Any:
    """Standard normal numbers, by the transform of Box and Muller."""
    first, second = (uniform(at, source, shape, seed=seed) for _ in range(2))
    one, turn = (op.full((), v, "float32") for v in (1.0, 2 * math.pi))
    radius = op.sqrt(op.multiply(op.log(op.subtract(one, first)), -2.0))
    return at.emit(op.multiply(radius, op.cos(op.multiply(second, turn))))
