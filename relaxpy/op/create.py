"""New tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.annotation import PrimType, ShapeType, TensorType
from relaxpy.ir.dim import Dim, dim_op, maximum
from relaxpy.ir.dtype import DType
from relaxpy.op import te
from relaxpy.op.base import Deduction, Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.precision import converted
from relaxpy.shape.prove import prove


def check_sizes(d: Deduction, shape: ShapeType) -> None:
    """Refuse dimensions that are negative."""
    for size in shape.dims or ():
        d.require(
            size.value is None or size.value >= 0,
            f"a dimension cannot be {size}", arg="shape", code="shape-mismatch",
        )  # fmt: skip


@define_op
class Zeros(Op):
    """A tensor of zeros."""

    name = "zeros"
    dtype: DType
    value: ClassVar[int] = 0

    def deduce(self, d: Deduction, shape: ShapeType) -> TensorType:
        check_sizes(d, shape)
        return TensorType(shape.dims, self.dtype, shape.ndim)

    def deduce_unranked(self, d: Deduction, args: Any) -> TensorType:
        return TensorType(None, self.dtype)

    def legalize(self, out: TensorType, shape: Any) -> te.Tensor:
        return te.compute(out.dims, lambda *_: te.const(self.value, str(self.dtype)), self.name)

    def reference(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, self.value, self.dtype.numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(DType("float32")), (3, 4), dims="n 4")
        yield sample(cls(DType("int64")), (0,), dims="n")
        yield sample(cls(DType("bool")), ())
        yield sample(cls(DType("float16")), (2,), dims="n")
        yield wrong(cls(DType("float32")), (-2,), code="shape-mismatch", match="-2")


@define_op
class Ones(Zeros):
    """A tensor of ones."""

    name = "ones"
    value = 1


@define_op
class Full(Op):
    """A tensor with every element `fill_value`, a 0-d tensor; of its dtype unless `dtype` says
    another."""

    name = "full"
    scalar_args = True
    dtype: DType | None = None

    def deduce(self, d: Deduction, shape: ShapeType, fill_value: TensorType) -> TensorType:
        check_sizes(d, shape)
        d.require(
            fill_value.ndim == 0,
            f"fill_value must have no dimensions, got {fill_value.ndim}",
            arg="fill_value",
            code="op-rank",
        )
        return TensorType(shape.dims, self.dtype or fill_value.dtype, shape.ndim)

    def deduce_unranked(self, d: Deduction, args: Any) -> TensorType:
        shape, fill_value = args
        return TensorType(shape.dims, self.dtype or fill_value.dtype, shape.ndim)

    def legalize(self, out: TensorType, shape: Any, fill_value: te.Tensor) -> te.Tensor:
        return te.compute(out.dims, lambda *_: te.cast(fill_value(), out.dtype), "full")

    def reference(self, shape: tuple[int, ...], fill_value: np.ndarray) -> np.ndarray:
        value = np.asarray(fill_value)
        return np.full(shape, converted(value, self.dtype or DType(value.dtype)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), (3, 4), rand(), dims="n 4,")
        yield sample(cls(DType("int32")), (2,), rand(), dims="n,")
        yield sample(cls(), (0,), np.array(True), dims="n,")
        yield wrong(cls(), (3,), rand(2), code="op-rank", match="no dimensions")


@define_op
class Arange(Op):
    """start, start + step, … up to `end`, which is left out; integers."""

    name = "arange"
    dtype: DType = DType("int64")

    def deduce(
        self,
        d: Deduction,
        start: PrimType,
        end: PrimType | None = None,
        step: PrimType | None = None,
    ) -> TensorType:
        first, last, stride = _range(start, end, step)
        if first is None or last is None or stride is None:
            return TensorType(None, self.dtype, 1)
        d.require(
            stride.value is not None and stride.value > 0,
            f"step must be a positive constant, got {stride}",
            arg="step",
        )
        d.require(not self.dtype.is_bool, "the dtype cannot be bool", arg="dtype", code="op-dtype")
        by = stride.value or 1
        span = last - first
        count = span if by == 1 else (span + by - 1) // by
        if not prove(dim_op("le", 0, count)):
            count = maximum(count, 0)
        return TensorType((count,), self.dtype)

    def legalize(self, out: TensorType, start: Any, end: Any = None, step: Any = None) -> te.Tensor:
        first = te.scalar_dim(start) if end is not None else te.dim(0)
        by = te.scalar_dim(step) if step is not None else te.dim(1)
        return te.compute(out.dims, lambda i: te.cast(first + i * by, self.dtype), "arange")

    def reference(self, start: int, end: int | None = None, step: int | None = None) -> np.ndarray:
        first, last = (0, start) if end is None else (start, end)
        return np.arange(first, last, 1 if step is None else step).astype(self.dtype.numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), 5, dims="n")
        yield sample(cls(DType("float32")), 2, 7, dims="2, n")
        yield sample(cls(DType("int32")), 1, 8, 3, dims="1, n, 3")
        yield sample(cls(), 4, 2, dims="n, 2")
        yield sample(cls(), 0, 0, dims="0, n")
        yield wrong(cls(), 0, 5, 0, code="op-arguments", match="step")
        yield wrong(cls(DType("bool")), 5, code="op-dtype", match="bool")


def _range(
    start: PrimType, end: PrimType | None, step: PrimType | None
) -> tuple[Dim | None, Dim | None, Dim | None]:
    stride = Dim.of(1) if step is None else step.value
    return (Dim.of(0), start.value, stride) if end is None else (start.value, end.value, stride)
