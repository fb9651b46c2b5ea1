"""Operators whose result size depends on the data. No tensor program can allocate such a result, so they are runtime
functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.dim import product
from relaxpy.ir.known import KnownTensor
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import widened
from relaxpy.op.rule import INTEGERS


@define_op
class Unique(Op):
    """The unique values of x (figure 3 of the paper), or unique slices along `axis`: in ascending order or, without
    `sorted`, in the order of first appearance. With return_index, return_inverse or return_counts the result is a tuple
    that also has int64 vectors: the index in x of each value's first appearance, the index of each element of x among
    the values, and the count of each value. Without `axis`, indices are those of the flattened x."""

    name = "unique"
    no_vjp = "it selects elements"
    sorted: bool = True
    return_index: bool = False
    return_inverse: bool = False
    return_counts: bool = False
    axis: int | None = None
    legalize = None
    packed: ClassVar[str] = "relaxpy.unique"
    """The runtime function."""

    def deduce(self, d: Deduction, x: KnownTensor) -> Annotation:
        if self.axis is None:
            return self._results(
                TensorType(None, x.dtype, 1), TensorType((product(x.dims),), "int64")
            )
        axis = d.axis(self.axis, x.ndim)
        return self._results(
            TensorType(None, x.dtype, x.ndim), TensorType((x.dims[axis],), "int64")
        )

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (x,) = args
        ndim = 1 if self.axis is None else x.ndim if isinstance(x, TensorType) else -1
        dtype = x.dtype if isinstance(x, TensorType) else None
        return self._results(TensorType(None, dtype, ndim), TensorType(None, "int64", 1))

    def _results(self, values: TensorType, inverse: TensorType) -> Annotation:
        vector = TensorType(None, "int64", 1)
        asked = (
            (self.return_index, vector), (self.return_inverse, inverse), (self.return_counts, vector),
        )  # fmt: skip
        more = [kind for wanted, kind in asked if wanted]
        return TupleType([values, *more]) if more else values

    def reference(self, x: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        values, first, inverse, counts = np.unique(
            widened(x), return_index=True, return_inverse=True, return_counts=True, axis=self.axis
        )
        if not self.sorted:
            order = np.argsort(first)
            values = np.take(values, order, 0 if self.axis is None else self.axis)
            place = np.argsort(order)
            first, inverse, counts = first[order], np.take(place, inverse), counts[order]
        asked = (
            (True, values.astype(x.dtype)), (self.return_index, first),
            (self.return_inverse, inverse.reshape(-1)), (self.return_counts, counts),
        )  # fmt: skip
        found = tuple(np.ascontiguousarray(array) for wanted, array in asked if wanted)
        return found[0] if len(found) == 1 else found

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ints = rand(3, 5, dtype="int32")
        yield sample(cls(), ints, dims="n 5")
        yield sample(cls(sorted=False), ints, dims="n m")
        everything = dict.fromkeys(("return_index", "return_inverse", "return_counts"), True)
        yield sample(cls(**everything), ints, dims="n m")
        yield sample(cls(sorted=False, **everything), ints, dims="n 5")
        rows = np.array([[1, 2], [0, 3], [1, 2], [0, 0]], np.int64)
        yield sample(cls(**everything, axis=0), rows, dims="n 2")
        yield sample(cls(sorted=False, return_inverse=True, axis=-1), rows.T, dims="2 n")
        yield sample(cls(return_counts=True), rand(7), dims="n")
        yield sample(cls(), rand(7), dims="n")
        yield sample(cls(), rand(7, dtype="bfloat16"), dims="n")
        yield sample(cls(), rand(0), dims="n")
        yield sample(cls(), np.array(3, np.int64))
        yield wrong(cls(axis=2), ints, code="op-axis", match="2")


@define_op
class Nonzero(Op):
    """The indices of the elements that are not 0 (a NaN is not 0), as ONNX's NonZero: int64, with a column for each
    such element in row-major order, and a row for each axis. A 0-d tensor counts as a vector of one element."""

    name = "nonzero"
    no_vjp = INTEGERS
    legalize = None
    packed: ClassVar[str] = "relaxpy.nonzero"
    """The runtime function."""

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        return TensorType(None, "int64", 2)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType(None, "int64", 2)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.stack(np.nonzero(np.atleast_1d(x))).astype(np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5, dtype="int32"), dims="n m")
        yield sample(cls(), np.array([0.0, -0.0, np.nan, 2], np.float32), dims="n")
        yield sample(cls(), rand(2, 3, 2, dtype="bool"), dims="n 3 m")
        yield sample(cls(), np.array(True))
        yield sample(cls(), rand(0, 3), dims="n 3")
