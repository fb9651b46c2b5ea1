"""Operators that create tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.annotation import PrimType, TensorType
from relaxpy.ir.dim import Dim, dim_op, maximum
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, PrimValue
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import converted
from relaxpy.op.rule import SIZES, Cotangent, Rule
from relaxpy.shape.prove import prove


def check_sizes(d: Deduction, shape: KnownShape, arg: str = "shape") -> None:
    """Refuse negative dimensions."""
    for size in shape.dims:
        d.require(
            size.value is None or size.value >= 0,
            f"a dimension cannot be {size}", arg=arg, code="shape-mismatch",
        )  # fmt: skip


@define_op
class Zeros(Op):
    """A tensor of zeros."""

    name = "zeros"
    no_vjp = SIZES
    dtype: DType
    value: ClassVar[int] = 0

    def deduce(self, d: Deduction, shape: KnownShape) -> TensorType:
        check_sizes(d, shape)
        return TensorType(shape.dims, self.dtype, shape.ndim)

    def deduce_unranked(self, d: Deduction, args: Any) -> TensorType:
        return TensorType(None, self.dtype)

    def legalize(self, out: KnownTensor, shape: Any) -> te.Tensor:
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
    no_vjp = SIZES
    value = 1


@define_op
class Full(Op):
    """A tensor whose elements are all `fill_value`, a 0-d tensor. The dtype is `dtype`, or that of `fill_value`."""

    name = "full"
    scalar_args = True
    dtype: DType | None = None

    def _number_dtype(self, args: Sequence[Any]) -> DType | None:
        """A Python float is one of float64 where the result is."""
        wide = self.dtype == "float64" and any(isinstance(arg, float) for arg in args)
        return self.dtype if wide else super()._number_dtype(args)

    def deduce(self, d: Deduction, shape: KnownShape, fill_value: KnownTensor) -> TensorType:
        check_sizes(d, shape)
        check_fill_value(d, fill_value)
        return TensorType(shape.dims, self.dtype or fill_value.dtype, shape.ndim)

    def deduce_unranked(self, d: Deduction, args: Any) -> TensorType:
        shape, fill_value = args
        return TensorType(shape.dims, self.dtype or fill_value.dtype, shape.ndim)

    def legalize(self, out: KnownTensor, shape: Any, fill_value: te.Tensor) -> te.Tensor:
        return te.compute(out.dims, lambda *_: te.cast(fill_value(), out.dtype), "full")

    def reference(self, shape: tuple[int, ...], fill_value: np.ndarray) -> np.ndarray:
        value = np.asarray(fill_value)
        return np.full(shape, converted(value, self.dtype or DType(value.dtype)))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [None, b.sum_to(ct, args[1])]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), (3, 4), rand(), dims="n 4,")
        yield sample(cls(DType("int32")), (2,), rand(), dims="n,")
        yield sample(cls(), (0,), np.array(True), dims="n,")
        yield wrong(cls(), (3,), rand(2), code="op-rank", match="no dimensions")


@define_op
class Arange(Op):
    """The integers start, start + step, … up to `end`, which is excluded. For floats it is `float_arange`."""

    name = "arange"
    no_vjp = SIZES
    dtype: DType = DType("int64")

    @classmethod
    def make(cls, *args: Any, **kwargs: Any) -> Call:
        names = [*(spec.name for spec in cls.args), "dtype"]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        numbers = {name: _number(given.get(name)) for name in names[:3]}
        if not any(isinstance(number, float) for number in numbers.values()):
            return super().make(*args, **kwargs)
        if numbers["end"] is None:
            given["start"], given["end"] = 0.0, given["start"]
        return FloatArange.make(**given)

    def deduce(
        self,
        d: Deduction,
        start: PrimType,
        end: PrimType | None = None,
        step: PrimType | None = None,
    ) -> TensorType:
        d.require(not self.dtype.is_bool, "the dtype cannot be bool", arg="dtype", code="op-dtype")
        first, last, stride = _range(start, end, step)
        if first is None or last is None or stride is None:
            return TensorType(None, self.dtype, 1)
        by = stride.value or 0
        d.require(by != 0, f"step must be a constant that is not 0, got {stride}", arg="step")
        span, by = (last - first, by) if by > 0 else (first - last, -by)
        count = span if by == 1 else (span + by - 1) // by
        if not prove(dim_op("le", 0, count)):
            count = maximum(count, 0)
        return TensorType((count,), self.dtype)

    def legalize(
        self, out: KnownTensor, start: Any, end: Any = None, step: Any = None
    ) -> te.Tensor:
        first = te.scalar_dim(start) if end is not None else te.dim(0)
        by = te.scalar_dim(step) if step is not None else te.dim(1)
        return te.compute(out.dims, lambda i: te.cast(first + i * by, self.dtype), "arange")

    def reference(self, start: int, end: int | None = None, step: int | None = None) -> np.ndarray:
        first, last = (0, start) if end is None else (start, end)
        by = 1 if step is None else step
        if not range(first, last, by):
            return np.zeros(0, self.dtype.numpy)  # numpy refuses ends that are far apart
        return np.arange(first, last, by).astype(self.dtype.numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), 5, dims="n")
        yield sample(cls(DType("float32")), 2, 7, dims="2, n")
        yield sample(cls(DType("int32")), 1, 8, 3, dims="1, n, 3")
        yield sample(cls(), 4, 2, dims="n, 2")
        yield sample(cls(), 0, 0, dims="0, n")
        yield sample(cls(), 7, -2, -2, dims="n, -2, -2")
        yield wrong(cls(), 0, 5, 0, code="op-arguments", match="step")
        yield wrong(cls(DType("bool")), 5, code="op-dtype", match="bool")


@define_op
class FloatArange(Op):
    """The numbers start + i * step before `end`, for i = 0, 1, …, computed in float64. `R.arange` becomes this operator
    if one of its numbers is a float."""

    name = "float_arange"
    no_vjp = SIZES
    start: float
    end: float
    step: float = 1.0
    dtype: DType = DType("float32")

    @property
    def count(self) -> int:
        """The number of elements."""
        return max(math.ceil((self.end - self.start) / self.step), 0)

    def deduce(self, d: Deduction) -> TensorType:
        d.require(self.step != 0, "step cannot be 0", arg="step")
        numbers = {"start": self.start, "end": self.end, "step": self.step}
        for name, number in numbers.items():
            d.require(math.isfinite(number), f"{name} must be finite, got {number}", arg=name)
        d.require(
            self.dtype.is_float,
            f"the dtype must be a float dtype, got {self.dtype}",
            arg="dtype",
            code="op-dtype",
        )
        return TensorType((self.count,), self.dtype)

    def legalize(self, out: KnownTensor) -> te.Tensor:
        start, step = te.const(self.start, "float64"), te.const(self.step, "float64")
        return te.compute(
            out.dims, lambda i: te.cast(start + te.cast(i, "float64") * step, out.dtype), "arange"
        )

    def reference(self) -> np.ndarray:
        return (self.start + np.arange(self.count) * self.step).astype(self.dtype.numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0.0, 1.0, 0.25))
        yield sample(cls(2.0, -1.5, -0.5, DType("float64")))
        yield sample(cls(0.1, 0.75, 0.1, DType("float16")), rtol=2e-3)
        yield sample(cls(1.0, 0.0))
        yield wrong(cls(0.0, 1.0, 0.0), code="op-arguments", match="step")
        yield wrong(cls(0.0, math.inf), code="op-arguments", match="finite")
        yield wrong(cls(0.0, 1.0, 0.5, DType("int32")), code="op-dtype", match="float")


def _number(value: Any) -> Any:
    """A scalar argument as a Python number, if it is a literal."""
    return value.value if isinstance(value, PrimValue) else value


def _range(
    start: PrimType, end: PrimType | None, step: PrimType | None
) -> tuple[Dim | None, Dim | None, Dim | None]:
    stride = Dim.of(1) if step is None else step.value
    return (Dim.of(0), start.value, stride) if end is None else (start.value, end.value, stride)


class Like(Op):
    """Base of operators that create a tensor of the shape of x."""

    dtype: DType | None = None
    value: ClassVar[int] = 0

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        return TensorType(x.shape, self.dtype or x.dtype, vdevice=x.vdevice)

    def deduce_unranked(self, d: Deduction, args: Any) -> TensorType:
        return TensorType(None, self.dtype or args[0].dtype)

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        return te.compute(out.dims, lambda *_: te.const(self.value, str(out.dtype)), self.name)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.full(x.shape, self.value, self.dtype.numpy if self.dtype else x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 4), dims="n 4")
        yield sample(cls(), rand(0, dtype="int32"), dims="n")
        yield sample(cls(), rand(2, dtype="bool"), dims="n")
        yield sample(cls(**{"dtype": DType("int8")}), rand(2, 3), dims="n m")
        yield wrong(cls(), (2, 3), code="op-arguments", match="tensor")


@define_op
class ZerosLike(Like):
    """Zeros of the shape of x; the dtype is `dtype`, or that of x."""

    name = "zeros_like"
    dtype: DType | None = None

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [None]


@define_op
class OnesLike(Like):
    """Ones of the shape of x; the dtype is `dtype`, or that of x."""

    name = "ones_like"
    dtype: DType | None = None
    value = 1

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [None]


@define_op
class FullLike(Op):
    """A tensor of the shape of x whose elements are all `fill_value`, a 0-d tensor; the dtype is `dtype`, or that of
    x."""

    name = "full_like"
    scalar_args = True
    dtype: DType | None = None

    def deduce(self, d: Deduction, x: KnownTensor, fill_value: KnownTensor) -> TensorType:
        check_fill_value(d, fill_value)
        return TensorType(x.shape, self.dtype or x.dtype, vdevice=x.vdevice)

    def deduce_unranked(self, d: Deduction, args: Any) -> TensorType:
        return TensorType(None, self.dtype or args[0].dtype)

    def legalize(self, out: KnownTensor, x: te.Tensor, fill_value: te.Tensor) -> te.Tensor:
        return te.compute(out.dims, lambda *_: te.cast(fill_value(), out.dtype), "full")

    def reference(self, x: np.ndarray, fill_value: np.ndarray) -> np.ndarray:
        value = converted(np.asarray(fill_value), self.dtype or DType(x.dtype))
        return np.full(x.shape, value)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [None, b.sum_to(ct, args[1])]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 4), rand(), dims="n 4,")
        yield sample(cls(DType("int32")), rand(2), rand(), dims="n,")
        yield sample(cls(), rand(2, dtype="int8"), np.array(300.0, np.float32), dims="n,")
        yield wrong(cls(), rand(3), rand(2), code="op-rank", match="no dimensions")


@define_op
class HammingWindow(Op):
    """The Hamming window: alpha - beta * cos(2 * pi * i / N) for i below `window_size`. N is `window_size` if
    `periodic`, else one less. A window of one element is 1."""

    name = "hamming_window"
    no_vjp = SIZES
    periodic: bool | int
    alpha: float
    beta: float
    dtype: DType

    def deduce(self, d: Deduction, window_size: PrimType) -> TensorType:
        d.require(
            self.dtype.is_float,
            f"the dtype must be a float dtype, got {self.dtype}",
            arg="dtype",
            code="op-dtype",
        )
        if window_size.value is None:
            return TensorType(None, self.dtype, 1)
        check_sizes(d, KnownShape((window_size.value,)), "window_size")
        return TensorType((window_size.value,), self.dtype)

    def legalize(self, out: KnownTensor, window_size: Any) -> te.Tensor:
        size = te.scalar_dim(window_size)
        wide = "float64" if self.dtype == "float64" else "float32"
        turn = te.const(2 * math.pi, wide) / te.cast(
            te.maximum(size if self.periodic else size - 1, te.dim(1)), wide
        )

        def element(i: Any) -> Any:
            wave = te.const(self.beta, wide) * te.cos(te.cast(i, wide) * turn)
            value = te.select(size > 1, te.const(self.alpha, wide) - wave, te.const(1, wide))
            return te.cast(value, out.dtype)

        return te.compute(out.dims, element, self.name)

    def reference(self, window_size: int) -> np.ndarray:
        if window_size == 1:
            return np.ones(1, self.dtype.numpy)
        turn = 2 * math.pi / max(window_size if self.periodic else window_size - 1, 1)
        wave = self.beta * np.cos(np.arange(window_size) * turn)
        return (self.alpha - wave).astype(self.dtype.numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype, rtol in (("float32", 1e-5), ("float64", 1e-9), ("float16", 2e-3)):
            yield sample(cls(True, 0.54, 0.46, DType(dtype)), 9, dims="n", rtol=rtol)
        yield sample(cls(False, 0.5, 0.5, DType("float32")), 6, dims="n")
        yield sample(cls(False, 0.5, 0.5, DType("float32")), 1, dims="n")
        yield sample(cls(True, 0.5, 0.5, DType("float32")), 0, dims="n")
        yield wrong(cls(True, 0.5, 0.5, DType("int32")), 5, code="op-dtype", match="float")
        yield wrong(cls(True, 0.5, 0.5, DType("float32")), -5, code="shape-mismatch", match="-5")


def check_fill_value(d: Deduction, fill_value: KnownTensor) -> None:
    """Require a fill value of one element."""
    d.require(
        fill_value.ndim == 0,
        f"fill_value must have no dimensions, got {fill_value.ndim}",
        arg="fill_value",
        code="op-rank",
    )
