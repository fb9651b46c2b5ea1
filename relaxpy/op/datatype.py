"""Conversion between dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dtype import DType
from relaxpy.op import te
from relaxpy.op.base import Deduction, Op, Sample, define_op, rand, sample
from relaxpy.op.precision import converted


@define_op
class Astype(Op):
    """The values as another dtype. From float to integer: towards zero, what is out of range
    becomes the nearest integer there is, NaN becomes 0. Between integers: modulo 2**bits. To
    bool: is it not 0."""

    name = "astype"
    dtype: DType

    def deduce(self, d: Deduction, x: TensorType) -> TensorType:
        return TensorType(x.shape, self.dtype, vdevice=x.vdevice)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType(None, self.dtype)

    def legalize(self, out: TensorType, x: te.Tensor) -> te.Tensor:
        return te.compute(out.dims, lambda *i: te.cast(x(*i), out.dtype))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return converted(x, self.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        edges = np.array([0.5, -1.7, 300, 3e9, -3e9, np.inf, -np.inf, np.nan, -0.0], np.float32)
        for dtype in ("int32", "int8", "uint8", "int64", "bool", "float16", "float64"):
            yield sample(cls(DType(dtype)), edges, dims="n")
        yield sample(cls(DType("float32")), rand(3, 0, dtype="int64"), dims="n m")
        yield sample(cls(DType("float32")), rand(2, 3, dtype="bool"), dims="n 3")
        yield sample(cls(DType("bfloat16")), rand(2, 3), dims="n 3")
        yield sample(cls(DType("float32")), rand(2, 3, dtype="bfloat16"), dims="n 3")
        yield sample(cls(DType("int8")), np.array([1, 200, -129], np.int32), dims="n")
