"""Fully known annotations: the input of operators' deduction and legalization. Unknown parts are substituted first
(`relaxpy.op.unknown`), or refused (`LegalizeOps`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.ir.annotation import Annotation, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim, DimLike
from relaxpy.ir.dtype import DType


@dataclass(frozen=True, slots=True, init=False, eq=False)
class KnownTensor(TensorType):
    """A tensor whose dimensions and dtype are known. It equals the `TensorType` with the same fields.

    Raises: TypeError if one of them is unknown.
    """

    shape: tuple[Dim, ...]
    dtype: DType

    def __init__(
        self,
        shape: Sequence[DimLike],
        dtype: str,
        ndim: int | None = None,
        vdevice: str | None = None,
    ) -> None:
        if not isinstance(shape, (tuple, list)) or dtype is None:
            raise TypeError(f"a tensor of shape {shape} and dtype {dtype} is not known")
        del ndim  # the rank is that of the shape
        TensorType.__init__(self, shape, dtype, vdevice=vdevice)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions."""
        return self.shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorType) and _said(self) == _said(other)

    __hash__ = TensorType.__hash__


@dataclass(frozen=True, slots=True, init=False, eq=False)
class KnownShape(ShapeType):
    """A shape whose dimensions are known. It equals the `ShapeType` with the same fields.

    Raises: TypeError if they are unknown.
    """

    dims: tuple[Dim, ...]

    def __init__(self, dims: Sequence[DimLike], ndim: int | None = None) -> None:
        if dims is None:
            raise TypeError("the dimensions of a known shape are missing")
        del ndim  # the rank is that of the dimensions
        ShapeType.__init__(self, dims)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeType) and self.dims == other.dims

    __hash__ = ShapeType.__hash__


def _said(tensor: TensorType) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.ndim, tensor.vdevice


def as_known(annotation: Annotation) -> Any:
    """The annotation with tensors and shapes converted to known ones. Raises TypeError if something is unknown."""
    match annotation:
        case KnownTensor() | KnownShape():
            return annotation
        case TensorType(shape=tuple(), dtype=DType()):
            return _recast(annotation, KnownTensor)
        case TensorType(shape=shape, dtype=dtype):
            raise TypeError(f"a tensor of shape {shape} and dtype {dtype} is not known")
        case ShapeType(dims=dims):
            return KnownShape(dims)  # type: ignore[arg-type]
        case TupleType(fields=fields):
            return TupleType(map(as_known, fields))
        case _:
            return annotation


def as_plain(annotation: Annotation) -> Annotation:
    """The annotation with known tensors and shapes converted back to the plain classes, which programs use."""
    match annotation:
        case KnownTensor():
            return _recast(annotation, TensorType)
        case KnownShape(dims=dims):
            return ShapeType(dims)
        case TupleType(fields=fields):
            plain = tuple(map(as_plain, fields))
            same = all(a is b for a, b in zip(plain, fields, strict=True))
            return annotation if same else TupleType(plain)
        case _:
            return annotation


_set = object.__setattr__


def _recast(tensor: TensorType, kind: type[TensorType]) -> TensorType:
    """The tensor as an instance of `kind`. Its fields are valid already: every deduction converts all its arguments, so
    they are not checked again."""
    new = object.__new__(kind)
    _set(new, "shape", tensor.shape)
    _set(new, "dtype", tensor.dtype)
    _set(new, "ndim", tensor.ndim)
    _set(new, "vdevice", tensor.vdevice)
    return new
