"""Conversion between dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import converted

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32",
    "uint16", "uint8", "bool", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip


@define_op
class Astype(Op):
    """Convert to another dtype. Float to integer: truncates toward zero and saturates; NaN becomes 0. Integer to
    integer: modulo 2**bits. To bool: whether it is not 0."""

    name = "astype"
    dtype: DType

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        return TensorType(x.shape, self.dtype, vdevice=x.vdevice)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType(None, self.dtype)

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        return te.compute(out.dims, lambda *i: te.cast(x(*i), out.dtype))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return converted(x, self.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        edges = np.array([0.5, -1.7, 300, 3e9, -3e9, np.inf, -np.inf, np.nan, -0.0], np.float32)
        # The generated tests cast the inputs to every float and every integer dtype in turn, so this is all pairs.
        for dtype in DTYPES:
            tolerance = {"float16": 1e-3, "bfloat16": 1e-2}.get(dtype, 1e-6)  # of 8 bits, exact
            yield sample(cls(DType(dtype)), edges, dims="n", rtol=tolerance)
            integers = np.array([1, 200, -129, 2**31 - 1, -(2**31)], np.int32)
            yield sample(cls(DType(dtype)), integers, dims="n", rtol=tolerance)
            yield sample(cls(DType(dtype)), rand(2, 3, dtype="bool"), dims="n 3")
        yield sample(cls(DType("float32")), rand(3, 0, dtype="int64"), dims="n m")
        yield sample(cls(DType("float32")), rand(2, 3, dtype="bfloat16"), dims="n 3")


@define_op
class WrapParam(Astype):
    """Convert a model parameter to `dtype`, by the rules of `astype`."""

    name = "wrap_param"
    dtype: DType = DType("float32")

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        return super().deduce(d, data)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(2, 3, dtype="float16"), dims="n 3")
        yield sample(cls(DType("int8")), rand(4), dims="n")
