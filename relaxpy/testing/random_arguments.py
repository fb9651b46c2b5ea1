"""Random values of annotations, as arguments of random programs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.ir.annotation import Annotation, PrimType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import SymVar
from relaxpy.runtime.tensor import Shape
from relaxpy.testing.values import Value

UNKNOWN = (2, 3, 1, 4)
"""Sizes for dimensions that an annotation does not specify."""


def argument_of(
    annotation: Annotation,
    sizes: Mapping[SymVar, int],
    seed: tuple[int, ...],
    limits: tuple[float, float] | None = None,
) -> Value:
    """A random value of `annotation` at these sizes: floats between -1 and 1 and integers between -4 and 8, or within
    `limits` (both inclusive for integers). The same arguments give the same value. Raises UsageError for a function
    type."""
    rng = np.random.default_rng([*seed, *(size % (1 << 64) for size in sizes.values())])
    match annotation:
        case TensorType(dtype=dtype):
            dims = annotation.dims
            known = UNKNOWN[: annotation.ndim if annotation.ndim >= 0 else 2]
            shape = known if dims is None else tuple(d.evaluate(sizes) for d in dims)
            kind = dtype or "float32"
            numpy = np.dtype(np.float32) if dtype is None else dtype.numpy
            if str(kind) == "bool":
                return rng.integers(0, 2, shape).astype(bool)
            if dtype is not None and dtype.is_int:
                low, high = limits or (-4 if dtype.is_signed else 0, 8)
                return rng.integers(int(low), int(high) + 1, shape).astype(numpy)
            low, high = limits or (-1.0, 1.0)
            return rng.uniform(low, high, shape).astype(numpy)
        case ShapeType(dims=dims, ndim=ndim):
            if dims is None:
                return Shape(UNKNOWN[: max(ndim, 0)])
            return Shape(d.evaluate(sizes) for d in dims)
        case PrimType(dtype=dtype, value=value):
            if value is not None:
                return value.evaluate(sizes)
            if dtype.is_bool:
                return bool(rng.integers(0, 2))
            return (
                int(rng.integers(-3 if dtype.is_signed else 0, 5))
                if dtype.is_int
                else float(np.float32(rng.uniform(-1, 1)))
            )
        case TupleType(fields=fields):
            return tuple(argument_of(f, sizes, (*seed, i)) for i, f in enumerate(fields))
        case _:
            raise UsageError("random-argument", f"there is no random value of {annotation}")
