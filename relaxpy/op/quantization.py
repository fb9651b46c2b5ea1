"""Quantisation between floats and scaled integers, and one-hot encoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import dim_op
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, FloatOf, PrimValue
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import converted
from relaxpy.op.row_major import ravel
from relaxpy.op.rule import INTEGERS, Cotangent, Rule
from relaxpy.op.threefry import Threefry
from relaxpy.shape.lattice import Verdict
from relaxpy.shape.prove import equal

NARROW = ("int8", "uint8", "int16", "uint16", "int4", "uint4")
"""Dtypes to quantise to: all values, with a zero point added, are exact in float32."""
ROUNDINGS = ("half_to_even", "half_away", "floor", "ceil", "stochastic")
"""How `quantize` makes an integer of a quotient."""
_CHANCES = 24
"""Random bits of a stochastic rounding: as many as float32 has, so that a chance is exact."""


class Quantization(Op):
    """The common part of `quantize` and `dequantize`: one scale and zero point for all of `data` (0-d, or one element),
    or one for each index of `axis`."""

    storage = True
    axis: int = -1
    out_dtype: DType

    def result(
        self, d: Deduction, data: KnownTensor, scale: KnownTensor, zero_point: KnownTensor
    ) -> TensorType:
        """The annotation of the result, after the dtypes were checked."""
        d.need_float(scale, "scale")
        d.need_int(zero_point, "zero_point")
        for name, x in (("scale", scale), ("zero_point", zero_point)):
            d.require(
                x.ndim <= 1,
                f"{name} must have one dimension or none, got {x.ndim}",
                arg=name,
                code="op-rank",
            )
            if x.ndim == 1 and x.dims[0] != 1:
                count, size = x.dims[0], data.dims[d.axis(self.axis, data.ndim)]
                message = f"{name} does not fit axis {self.axis} of data"
                if count.value is None and equal(count, size) is Verdict.MAYBE:
                    fits = dim_op("or", dim_op("eq", count, size), dim_op("eq", count, 1))
                    d.ensure(fits, f"{message}: {count} and {size}", arg=name)
                else:
                    d.same_dim(count, size, message, arg=name)
        return TensorType(data.shape, self.out_dtype, vdevice=data.vdevice)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        data = args[0] if isinstance(args[0], TensorType) else TensorType()
        return TensorType(data.shape, self.out_dtype, data.ndim)

    def parameter(self, x: te.Tensor, out: KnownTensor, index: Sequence[Any]) -> Any:
        """The scale or zero point for element `index` of the result."""
        shape = te.dims(x)
        if not shape or shape[0] == 1:
            return x(*(0 for _ in shape))
        return x(*te.broadcast_index(shape, [out.dims[self.axis]], [index[self.axis]]))

    def along(self, x: np.ndarray, data: np.ndarray) -> np.ndarray:
        """The scale or zero point array, reshaped for broadcasting with data."""
        if x.ndim == 0 or data.ndim == 0:
            return x.reshape(())
        return x.reshape([-1 if a == self.axis % data.ndim else 1 for a in range(data.ndim)])


@define_op
class Quantize(Quantization):
    """Quantise: round(data / scale) + zero_point as `out_dtype`, saturated to the range of the dtype; NaN gives 0. One
    scale and zero point, or one for each index of `axis`.

    `rounding` is half_to_even, half_away (from zero), floor, ceil, or stochastic: up with the chance that the fraction
    says, by the random bits that `threefry` makes of `seed` and the number of the element in row-major order, so that
    the same call gives the same codes on every machine. With `narrow_range` the lowest code is not used: int8 goes from
    -127 to 127, uint8 from 1."""

    name = "quantize"
    no_vjp = "its result is of integers"
    axis: int = -1
    out_dtype: DType = DType("int8")
    rounding: str = "half_to_even"
    seed: int = 0
    narrow_range: bool = False

    def deduce(
        self, d: Deduction, data: KnownTensor, scale: KnownTensor, zero_point: KnownTensor
    ) -> TensorType:
        d.need_float(data, "data")
        d.require(
            self.out_dtype in NARROW,
            f"out_dtype must be one of {', '.join(NARROW)}, got {self.out_dtype}",
            arg="out_dtype",
            code="op-dtype",
        )
        d.require(
            self.rounding in ROUNDINGS,
            f"rounding {self.rounding!r} is none of {', '.join(ROUNDINGS)}",
            arg="rounding",
            code="op-arguments",
        )
        d.require(
            0 <= self.seed < 2**63,
            f"seed must be from 0 to 2**63 - 1, got {self.seed}",
            arg="seed",
            code="op-arguments",
        )
        d.require(
            self.seed == 0 or self.rounding == "stochastic",
            f"a seed is for stochastic rounding, and rounding is {self.rounding}",
            arg="seed",
            code="op-arguments",
        )
        return self.result(d, data, scale, zero_point)

    def legalize(
        self, out: KnownTensor, data: te.Tensor, scale: te.Tensor, zero_point: te.Tensor
    ) -> te.Tensor:
        def element(*i: Any) -> Any:
            step = te.cast(self.parameter(scale, out, i), "float32")
            zero = te.cast(self.parameter(zero_point, out, i), "float32")
            value = self._rounded(te.cast(data(*i), "float32") / step, out, i) + zero
            code = te.cast(value, out.dtype)
            if self.out_dtype.is_packed:
                return te.clip(code, self.lowest, self.out_dtype.limits[1])
            if not self.narrow_range:
                return code
            return te.maximum(code, te.const(self.lowest, str(out.dtype)))

        return te.compute(out.dims, element)

    def _rounded(self, value: Any, out: KnownTensor, index: Sequence[Any]) -> Any:
        match self.rounding:
            case "half_away":

                def away(value: Any) -> Any:
                    size = te.select(value < 0, -value, value)
                    whole = te.floor(size)
                    nearest = te.select(size - whole >= 0.5, whole + 1.0, whole)
                    return te.select(value < 0, -nearest, nearest)

                return te.let("quotient", value, away)
            case "floor":
                return te.floor(value)
            case "ceil":
                return te.ceil(value)
            case "stochastic":
                count = te.cast(ravel(index, out.dims), "uint64")
                bits = Threefry().scalar(te.const(self.seed, "uint64"), count)
                bits = te.right_shift(bits, te.const(64 - _CHANCES, "uint64"))
                chance = te.cast(te.cast(bits, "int32"), "float32") * te.const(
                    2.0**-_CHANCES, "float32"
                )

                def up_or_down(value: Any) -> Any:
                    whole = te.floor(value)
                    return te.select(chance < value - whole, whole + 1.0, whole)

                return te.let("quotient", value, up_or_down)
            case _:
                return te.round(value)

    @property
    def lowest(self) -> int:
        """The lowest code."""
        return int(self.out_dtype.limits[0]) + self.narrow_range

    def reference(self, data: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
        step, zero = (self.along(x, data).astype(np.float32) for x in (scale, zero_point))
        value = data.astype(np.float32) / step
        match self.rounding:
            case "half_away":
                size = np.abs(value)
                whole = np.floor(size)
                value = np.copysign(np.where(size - whole >= 0.5, whole + 1, whole), value)
            case "floor":
                value = np.floor(value)
            case "ceil":
                value = np.ceil(value)
            case "stochastic":
                counts = np.arange(value.size, dtype=np.uint64).reshape(value.shape)
                bits = Threefry().numpy(np.array(self.seed, np.uint64), counts)
                chance = (bits >> np.uint64(64 - _CHANCES)).astype(np.float32) * 2.0**-_CHANCES
                whole = np.floor(value)
                value = np.where(chance.astype(np.float32) < value - whole, whole + 1, whole)
            case _:
                value = np.rint(value)
        codes = converted(value.astype(np.float32) + zero, self.out_dtype)
        if not self.narrow_range:
            return codes
        lowest = np.array(self.lowest, self.out_dtype.numpy)
        return np.maximum(codes, lowest).astype(lowest.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        one, zero = np.array(0.02, np.float32), np.array(3, np.int8)
        yield sample(cls(), rand(3, 5), one, zero, dims="n m,,")
        steps, zeros = rand(5, low=0.01, high=0.1), rand(5, dtype="int8", low=-5, high=5)
        yield sample(cls(), rand(3, 5), steps, zeros, dims="n m, m, m")
        yield sample(cls(0, DType("uint8")), rand(5, 3), steps, zeros[:1], dims="n m, n, 1")
        yield sample(cls(), rand(3, 5), steps[:1], zeros, dims="n 5, k, l")
        half = rand(2, 3, dtype="float16"), np.array(0.01, np.float16)
        yield sample(cls(1, DType("int16")), *half, zero, dims="n 3,,")
        edges = np.array([np.nan, np.inf, -np.inf, 0.5, 1.5, -0.5, 1e30], np.float32)
        yield sample(cls(), edges, np.array(1, np.float32), zero, dims="n,,")
        halves = np.array([-2.5, -1.5, -0.5, 0.49999997, 0.5, 8388609, np.nan, np.inf, 130, -130])
        for rounding in ROUNDINGS:
            op = cls(rounding=rounding, narrow_range=True)
            yield sample(op, halves.astype(np.float32), np.array(1, np.float32), zero, dims="n,,")
        chances = cls(0, DType("uint8"), "stochastic", 7, True)
        yield sample(chances, rand(5, 3), steps, zeros, dims="n m, n, n")
        yield sample(cls(rounding="stochastic"), rand(), one, zero)
        yield sample(cls(), rand(), one, zero)
        for dtype in ("int4", "uint4"):
            op = cls(0, DType(dtype), narrow_range=dtype == "int4")
            yield sample(op, rand(5, 3), steps, zeros[:1], dims="n m, n, 1")
            yield sample(op, rand(5, 4), steps, zeros.astype(DType(dtype).numpy), dims="n 4, n, n")
        yield wrong(cls(), rand(3, dtype="int32"), one, zero, code="op-dtype", match="float")
        yield wrong(
            cls(out_dtype=DType("float32")), rand(3), one, zero, code="op-dtype", match="int8"
        )
        yield wrong(cls(), rand(3, 4), steps, zeros, code="shape-mismatch", match="scale")
        yield wrong(cls(2), rand(3, 5), steps, zeros, code="op-axis", match="2")
        yield wrong(cls(), rand(3, 4), rand(3, 4), zero, code="op-rank", match="one dimension")
        yield wrong(cls(), rand(3), one, one, code="op-dtype", match="zero_point")
        yield wrong(cls(rounding="up"), rand(3), one, zero, code="op-arguments", match="half_away")
        yield wrong(cls(seed=-1), rand(3), one, zero, code="op-arguments", match="seed must")
        yield wrong(cls(seed=1), rand(3), one, zero, code="op-arguments", match="stochastic")


@define_op
class Dequantize(Quantization):
    """Dequantise: scale * (data - zero_point) as `out_dtype`, computed in float32; float16 saturates at its largest
    number. One scale and zero point, or one for each index of `axis`."""

    name = "dequantize"
    axis: int = -1
    out_dtype: DType = DType("float32")

    def deduce(
        self, d: Deduction, data: KnownTensor, scale: KnownTensor, zero_point: KnownTensor
    ) -> TensorType:
        d.need_int(data, "data")
        d.require(
            self.out_dtype.is_float,
            f"out_dtype must be a float dtype, got {self.out_dtype}",
            arg="out_dtype",
            code="op-dtype",
        )
        return self.result(d, data, scale, zero_point)

    def legalize(
        self, out: KnownTensor, data: te.Tensor, scale: te.Tensor, zero_point: te.Tensor
    ) -> te.Tensor:
        wide = self.wide(data.dtype, zero_point.dtype)

        def element(*i: Any) -> Any:
            step = te.cast(self.parameter(scale, out, i), "float32")
            zero = te.cast(self.parameter(zero_point, out, i), wide)
            value = step * te.cast(te.cast(data(*i), wide) - zero, "float32")
            return te.cast(self.limited(value), out.dtype)

        return te.compute(out.dims, element)

    def wide(self, *dtypes: str) -> str:
        """The dtype of the integer difference: exact for 32 bits, without overflow."""
        return "int32" if max(DType(str(dtype)).bits for dtype in dtypes) <= 16 else "float64"

    def limited(self, value: Any) -> Any:
        return te.clip(value, -65504.0, 65504.0) if self.out_dtype == "float16" else value

    def reference(self, data: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
        wide = np.dtype(self.wide(data.dtype.name, zero_point.dtype.name))
        difference = data.astype(wide) - self.along(zero_point, data).astype(wide)
        value = self.along(scale, data).astype(np.float32) * difference.astype(np.float32)
        if self.out_dtype == "float16":
            value = np.minimum(np.maximum(value, np.float32(-65504)), np.float32(65504))
        return value.astype(self.out_dtype.numpy)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, scale, zero_point = args
        axis, rank = self.axis % max(b.rank(data), 1), b.rank(data)

        def along(x: Any) -> Any:
            """One number for each index of the axis, or one for all."""
            if b.rank(x) == 0 or rank == 0:
                return b.reshape(x, (1,) * rank)
            return b.reshape(x, [b.dims(x)[0] if a == axis else 1 for a in range(rank)])

        wide = self.wide(b.dtype(data), b.dtype(zero_point))
        steps = b.subtract(b.astype(data, wide), along(b.astype(zero_point, wide)))
        kind = b.dtype(scale)
        if self.out_dtype == "float16":  # which saturates
            ct = b.where(b.less(b.abs(out), 65504.0), ct, 0.0)
        each = b.multiply(b.astype(ct, kind), b.astype(steps, kind))
        found = b.summed(each, b.dims(along(scale)))
        return [None, b.reshape(found, b.dims(scale)), None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        one, zero = np.array(0.02, np.float32), np.array(3, np.int8)
        data = rand(3, 5, dtype="int8", low=-128, high=128)
        yield sample(cls(), data, one, zero, dims="n m,,")
        steps, zeros = rand(5, low=0.01, high=0.1), rand(5, dtype="int8", low=-5, high=5)
        yield sample(cls(), data, steps, zeros, dims="n m, m, m")
        yield sample(cls(0), data.T.astype("uint8"), steps[:1], zeros, dims="m n, 1, m")
        yield sample(cls(), data, steps, zeros[:1], dims="n m, k, l")
        for dtype in ("int4", "uint4"):
            codes = rand(3, 5, dtype="int8", low=0, high=16).astype(DType(dtype).numpy)
            yield sample(cls(), codes, steps, zeros, dims="n m, m, m")
            yield sample(cls(0), codes[:, :4], steps[:3], codes[:, 0], dims="n 4, n, n")
        large = np.array([-(2**31), 2**31 - 1, 5], np.int32)
        yield sample(cls(), large, one, np.array(-(2**31), np.int32), dims="n,,")
        half = cls(1, DType("float16"))
        yield sample(half, large[None], np.array(0.5, np.float16), zero, dims="1 n,,", rtol=2e-3)
        yield wrong(cls(), rand(3), one, zero, code="op-dtype", match="integers")
        yield wrong(cls(out_dtype=DType("int8")), data, one, zero, code="op-dtype", match="float")
        yield wrong(cls(0), data, steps, zeros, code="shape-mismatch", match="scale")


@define_op
class OneHot(Op):
    """One-hot encoding: a new axis of size `depth` at `axis`, with `on_value` at the index and `off_value` elsewhere.
    An index out of range gives `off_value` everywhere."""

    name = "one_hot"
    no_vjp = INTEGERS
    on_value: bool | int | float
    off_value: bool | int | float
    depth: int
    axis: int = -1
    dtype: DType | None = None
    """Dtype of the result; None: bool, int64 or float32, by the kind of the values."""

    @classmethod
    def make(cls, *args: Any, **kwargs: Any) -> Call:
        """Make the call. The result has the dtype of the values, if they are given with one: `T.float64(1.5)`."""
        given = [*args[1:3], kwargs.get("on_value"), kwargs.get("off_value")]
        dtypes = {x.dtype for x in given if isinstance(x, (FloatOf, PrimValue))}
        if kwargs.get("dtype") is None and len(args) < 6 and len(dtypes) == 1:
            dtype = dtypes.pop()
            kwargs["dtype"] = None if dtype in ("float32", "int64", "bool") else dtype
        return super().make(*args, **kwargs)

    def dtype_of_values(self) -> DType:
        """The dtype of the result: the given one, else that of the wider kind of the two values."""
        kinds = {type(self.on_value), type(self.off_value)}
        return self.dtype or DType(
            "float32" if float in kinds else "int64" if int in kinds else "bool"
        )

    def deduce(self, d: Deduction, indices: KnownTensor) -> TensorType:
        d.need_int(indices, "indices")
        d.require(self.depth >= 0, f"depth cannot be {self.depth}", arg="depth")
        axis = d.axis(self.axis, indices.ndim + 1)
        return TensorType(
            (*indices.dims[:axis], self.depth, *indices.dims[axis:]), self.dtype_of_values()
        )

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType(None, self.dtype_of_values())

    def legalize(self, out: KnownTensor, indices: te.Tensor) -> te.Tensor:
        axis = self.axis % out.ndim
        on, off = (te.const(value, str(out.dtype)) for value in (self.on_value, self.off_value))

        def element(*i: Any) -> Any:
            index = te.cast(indices(*i[:axis], *i[axis + 1 :]), "int64")
            return te.select(te.equal(index, te.cast(i[axis], "int64")), on, off)

        return te.compute(out.dims, element)

    def reference(self, indices: np.ndarray) -> np.ndarray:
        axis = self.axis % (indices.ndim + 1)
        places = np.arange(self.depth).reshape([-1] + [1] * (indices.ndim - axis))
        hit = np.expand_dims(indices.astype(np.int64), axis) == places
        return np.where(hit, self.on_value, self.off_value).astype(self.dtype_of_values().numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1, 0, 4), np.array([0, 3, 1, -1, 4, 2**40]), dims="n")
        yield sample(cls(1.5, -0.5, 3, 0), rand(2, 4, dtype="int32", low=0, high=3), dims="n m")
        codes = rand(4, dtype="int32", low=0, high=3)
        yield sample(cls(1.5, 0.1, 3, dtype=DType("float64")), codes, dims="n")
        yield sample(cls(True, False, 3, 1), rand(2, 4, dtype="uint8", low=0, high=3), dims="n m")
        yield sample(cls(1.0, 0.0, 0), rand(3, dtype="int64"), dims="n")
        yield sample(cls(1, 0, 3), np.array(2))
        yield wrong(cls(1, 0, 4), rand(3), code="op-dtype", match="integers")
        yield wrong(cls(1, 0, 4, 3), np.array([1]), code="op-axis", match="3")
        yield wrong(cls(1, 0, -2), np.array([1]), code="op-arguments", match="depth")
