"""Conversion between dtypes, of values and of bits."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import dim_op
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import converted
from relaxpy.op.rule import Cotangent, Rule

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32",
    "uint16", "uint8", "bool", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip


@define_op
class Astype(Op):
    """Convert to another dtype. Float to integer: truncates toward zero and saturates; NaN becomes 0. Integer to
    integer: modulo 2**bits. To bool: whether it is not 0."""

    name = "astype"
    storage = True
    dtype: DType

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        return TensorType(x.shape, self.dtype, vdevice=x.vdevice)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType(None, self.dtype)

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        saturates = self.dtype.is_packed and "float" in str(x.dtype)

        def element(*i: Any) -> Any:
            value = te.cast(x(*i), out.dtype)
            return te.clip(value, *self.dtype.limits) if saturates else value

        return te.compute(out.dims, element)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return converted(x, self.dtype)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.astype(ct, b.dtype(args[0]))]

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
        for dtype in ("int4", "uint4"):
            yield sample(cls(DType(dtype)), edges, dims="n")
            yield sample(cls(DType(dtype)), rand(5, dtype="int32", low=-300, high=300), dims="n")
            for shape, dims in (((3, 5), "n m"), ((3, 4), "n 4"), ((), ""), ((3, 0), "n m")):
                codes = rand(*shape, dtype="int8", low=0, high=16).astype(DType(dtype).numpy)
                yield sample(cls(DType("float32")), codes, dims=dims)
                yield sample(cls(DType("int4")), codes, dims=dims)


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


@define_op
class Bitcast(Op):
    """The bits of x as elements of another dtype. A wider element becomes several along a new last axis, the lowest
    bits first; narrower ones are joined along the last axis, whose size is then the ratio of the widths. The bits of a
    bool are those of a uint8 that is 0 or 1."""

    name = "bitcast"
    no_vjp = "it reads bits"
    dtype: DType

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        d.require(
            not self.dtype.is_bool, "not all bits are a bool", arg="dtype", code="op-dtype",
            help="compare with 0: R.not_equal(R.bitcast(x, \"uint8\"), …)",
        )  # fmt: skip
        many, few = self._ratios(x.dtype)
        if many > 1:
            return TensorType((*x.dims, many), self.dtype)
        if few > 1:
            joined = f"one {self.dtype} is {few} {x.dtype} along the last axis of x, which has"
            d.require(x.ndim > 0, f"{joined} no axis", arg="x", code="op-dtype")
            fits = dim_op("eq", x.dims[-1], few)
            d.ensure(fits, f"{joined} {x.dims[-1]} there", arg="x", code="op-dtype")
            return TensorType(x.dims[:-1], self.dtype)
        return TensorType(x.dims, self.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType(None, self.dtype)

    def _ratios(self, source: DType) -> tuple[int, int]:
        """How many elements one of `source` gives, and how many of them one element is made of."""
        ours, theirs = max(self.dtype.bits, 8), max(source.bits, 8)
        return max(theirs // ours, 1), max(ours // theirs, 1)

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        source = DType(str(x.dtype))
        many, few = self._ratios(source)
        word, part = f"uint{max(source.bits, 8)}", f"uint{max(self.dtype.bits, 8)}"

        def bits(*i: Any) -> Any:
            return te.reinterpret(x(*i), word)

        def element(*i: Any) -> Any:
            if many > 1:
                shift = te.cast(i[-1] * (8 * out.dtype.itemsize), word)
                return te.reinterpret(te.cast(bits(*i[:-1]) >> shift, part), out.dtype)
            if few > 1:
                step = 8 * source.itemsize
                each = [
                    te.cast(bits(*i, te.dim(k)), part) << te.const(k * step, part)
                    for k in range(few)
                ]
                return te.reinterpret(functools.reduce(operator.or_, each), out.dtype)
            return te.reinterpret(x(*i), out.dtype)

        return te.compute(out.dims, element, "bitcast")

    def reference(self, x: np.ndarray) -> np.ndarray:
        many, few = self._ratios(DType(x.dtype))
        flat = np.ascontiguousarray(x).reshape(-1).view(self.dtype.numpy)
        shape = (*x.shape, many) if many > 1 else x.shape[:-1] if few > 1 else x.shape
        return flat.reshape(shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in DTYPES:
            few = DType(dtype).itemsize // 4
            last, names = ((few,), f" {few}") if few > 1 else ((3,), " m")
            if dtype != "bool":
                yield sample(cls(DType(dtype)), rand(2, *last), dims="n" + names)
        yield sample(cls(DType("float32")), rand(2, 3, 4, dtype="int8"), dims="n m 4")
        yield sample(cls(DType("int64")), rand(3, 8, dtype="uint8", low=0, high=255), dims="n 8")
        yield sample(cls(DType("uint16")), rand())
        yield sample(cls(DType("int32")), np.array([np.inf, np.nan, -0.0], np.float32), dims="n")
        yield sample(cls(DType("uint8")), rand(3, 2, dtype="bool"), dims="n 2")
        yield sample(cls(DType("float64")), rand(3, 8, dtype="bool"), dims="n 8")
        yield sample(cls(DType("int16")), rand(0, 3, dtype="bfloat16"), dims="n 3")
        yield wrong(cls(DType("bool")), rand(3), code="op-dtype", match="bool")
        yield wrong(cls(DType("int64")), rand(3), code="op-dtype", match="which has 3")
        yield wrong(cls(DType("int64")), rand(), code="op-dtype", match="no axis")
