"""The metadata of a tensor at run time, as scalars: `R.inspect.tensor_shape_i(x, 0)`.

These operators read the actual tensor, not its annotation. Tensors here are compact and start at the beginning of their
memory, so strides follow from the shape and offsets are 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from relaxpy.errors import RuntimeCheckError
from relaxpy.ir.annotation import Annotation, PrimType, TensorType
from relaxpy.ir.dim import product
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.rule import INTEGERS

_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
"""Kind of dtype → DLPack's type code."""


class Inspect(Op):
    """Base of operators from a tensor to an integer."""

    no_vjp = INTEGERS

    legalize = None
    result: ClassVar[str] = "int64"
    """Dtype of the scalar."""

    def deduce(self, d: Deduction, x: KnownTensor) -> PrimType:
        return PrimType(self.result)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return PrimType(self.result)


class InspectAxis(Inspect):
    """Base of operators from a tensor and an axis to an integer."""

    def deduce(self, d: Deduction, x: KnownTensor, axis: PrimType) -> PrimType:
        index = None if axis.value is None else axis.value.value
        d.require(axis.dtype.is_int, f"axis must be an integer, got {axis}", arg="axis")
        if index is None or x.dims is None:
            return PrimType(self.result)
        d.require(
            0 <= index < x.ndim,
            f"axis {index} is out of range for {x.ndim} dimensions",
            arg="axis",
            code="op-axis",
        )
        return self.known(x, index)

    def known(self, x: TensorType, axis: int) -> PrimType:
        return PrimType(self.result)

    @staticmethod
    def check(x: Any, axis: int) -> None:
        """Refuse an axis that the tensor does not have."""
        if not 0 <= axis < len(x.shape):
            message = f"axis {axis} is out of range for {len(x.shape)} dimensions"
            raise RuntimeCheckError("check", message)


@define_op
class TensorShape(InspectAxis):
    """The size of an axis."""

    name = "inspect.tensor_shape_i"
    packed: ClassVar[str] = "relaxpy.inspect.shape"

    def known(self, x: KnownTensor, axis: int) -> PrimType:
        return PrimType("int64", x.dims[axis])

    def reference(self, x: np.ndarray, axis: int) -> int:
        self.check(x, axis)
        return x.shape[axis]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 4), 1, dims="n m, ")
        yield wrong(cls(), rand(3, 4), 2, code="op-axis", match="out of range")


@define_op
class TensorStride(InspectAxis):
    """The stride of an axis, in elements."""

    name = "inspect.tensor_stride_i"
    packed: ClassVar[str] = "relaxpy.inspect.stride"

    def known(self, x: KnownTensor, axis: int) -> PrimType:
        return PrimType("int64", product(x.dims[axis + 1 :]))

    def reference(self, x: np.ndarray, axis: int) -> int:
        self.check(x, axis)
        return int(np.prod(x.shape[axis + 1 :], dtype=np.int64))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 4, 5), 0, dims="n m 5, ")
        yield wrong(cls(), rand(3, 4), -1, code="op-axis", match="out of range")


@define_op
class TensorNdim(Inspect):
    """The number of dimensions."""

    name = "inspect.tensor_ndim"
    packed: ClassVar[str] = "relaxpy.inspect.ndim"
    result = "int32"

    def deduce(self, d: Deduction, x: KnownTensor) -> PrimType:
        return PrimType(self.result, None if x.ndim < 0 else x.ndim)

    def reference(self, x: np.ndarray) -> int:
        return x.ndim

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 4), dims="n m")
        yield wrong(cls(), (3, 4), code="op-arguments", match="must be a tensor")


@define_op
class TensorDTypeCode(Inspect):
    """The DLPack type code of the dtype: 0 for signed integers, 1 unsigned, 2 floats, 4 bfloat, 6 bool."""

    name = "inspect.tensor_dtype_code"
    packed: ClassVar[str] = "relaxpy.inspect.dtype_code"
    result = "uint8"

    def reference(self, x: np.ndarray) -> int:
        return _CODES[DType(x.dtype).rstrip("0123456789")]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3), dims="n")
        yield sample(cls(), rand(3, dtype="bool"))
        yield wrong(cls(), (3, 4), code="op-arguments", match="must be a tensor")


@define_op
class TensorDTypeBits(Inspect):
    """Bits per element."""

    name = "inspect.tensor_dtype_bits"
    packed: ClassVar[str] = "relaxpy.inspect.dtype_bits"
    result = "uint8"

    def reference(self, x: np.ndarray) -> int:
        return DType(x.dtype).bits

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, dtype="float16"), dims="n")
        yield wrong(cls(), (3, 4), code="op-arguments", match="must be a tensor")


@define_op
class TensorDTypeLanes(Inspect):
    """Lanes per element: always 1, since elements are scalars."""

    name = "inspect.tensor_dtype_lanes"
    packed: ClassVar[str] = "relaxpy.inspect.dtype_lanes"
    result = "uint16"

    def reference(self, x: np.ndarray) -> int:
        return 1

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3), dims="n")
        yield wrong(cls(), (3, 4), code="op-arguments", match="must be a tensor")


class TensorOffset(Inspect):
    """Base of operators for the offset of the first element in the tensor's memory."""

    def deduce(self, d: Deduction, x: KnownTensor) -> PrimType:
        return PrimType(self.result, 0)

    def reference(self, x: np.ndarray) -> int:
        return 0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3), dims="n")
        yield wrong(cls(), (3, 4), code="op-arguments", match="must be a tensor")


@define_op
class TensorByteOffset(TensorOffset):
    """The offset of the first element in bytes."""

    name = "inspect.tensor_byte_offset"
    packed: ClassVar[str] = "relaxpy.inspect.offset"
    result = "uint64"


@define_op
class TensorElemOffset(TensorOffset):
    """The offset of the first element in elements."""

    name = "inspect.tensor_elem_offset"
    packed: ClassVar[str] = "relaxpy.inspect.offset"
    result = "uint64"
