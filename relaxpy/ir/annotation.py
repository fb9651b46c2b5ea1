"""Annotations: the compile-time knowledge about a value (paper §3.1, table 1; `Type` in TVM 0.27, `StructInfo` before).

Annotations are immutable and compared by value. None always means "unknown", so each kind has coarser forms:
`TensorType(None, "float32", ndim=2)` is a matrix of unknown shape, `TensorType()` any tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from relaxpy import services
from relaxpy.errors import UsageError
from relaxpy.ir.dim import Dim, DimLike
from relaxpy.ir.dtype import DType
from relaxpy.ir.vdevice import complete_name

if TYPE_CHECKING:
    from relaxpy.ir.expr import Var

UNKNOWN_NDIM = -1
MOST_DIMENSIONS = 64
"""Maximum rank of a tensor, which is that of numpy's arrays."""
MOST_VALUES = 1 << 14
"""The number of annotations in one, each counted as often as it is contained: a tuple `(t, t)` doubles it."""
MOST_LEVELS = 220
"""The deepest nesting of tuples and functions in an annotation. The virtual machine has a bound, too, which is higher
(`relaxpy.runtime.verifier.state`)."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """Base class of annotations."""

    def __str__(self) -> str:
        return services.print_annotation(self)


@dataclass(frozen=True, slots=True)
class ObjectType(Annotation):
    """Any value at run time (`R.Object`)."""


@dataclass(frozen=True, slots=True)
class DataType(ObjectType):
    """A value of a type that the module declares (`List[R.Tensor((4,), "float32")]`, `relaxpy.ir.data`). To passes that
    ask for no more it is an object: its fields are read by calls."""

    name: str
    args: tuple[Annotation, ...] = ()
    """The arguments for the type's parameters."""


@dataclass(frozen=True, slots=True)
class TypeParam(ObjectType):
    """A parameter of a declared type, in the fields of its constructors."""

    name: str


@dataclass(frozen=True, slots=True, init=False)
class PrimType(Annotation):
    """A scalar (`R.Prim`); the value of an integer may be known as a dimension."""

    dtype: DType
    value: Dim | None

    def __init__(self, dtype: str, value: DimLike | None = None) -> None:
        object.__setattr__(self, "dtype", DType(dtype))
        object.__setattr__(self, "value", None if value is None else Dim.of(value))


@dataclass(frozen=True, slots=True, init=False)
class ShapeType(Annotation):
    """A shape value (`R.Shape`). `dims` None: only its rank is known (-1: not even that)."""

    dims: tuple[Dim, ...] | None
    ndim: int

    def __init__(self, dims: Iterable[DimLike] | None = None, ndim: int = UNKNOWN_NDIM) -> None:
        known = None if dims is None else tuple(Dim.of(dim) for dim in dims)
        object.__setattr__(self, "dims", known)
        object.__setattr__(self, "ndim", ndim if known is None else len(known))


@dataclass(frozen=True, slots=True, init=False)
class TensorType(Annotation):
    """A tensor (`R.Tensor`). `shape` is a tuple of dimensions, a *variable* that holds a shape, or None (unknown;
    `ndim` may still be known, else -1). `dtype` None is unknown. `vdevice` is the complete name of a virtual device
    (`relaxpy.ir.vdevice`), or None."""

    shape: tuple[Dim, ...] | Var | None
    dtype: DType | None
    ndim: int
    vdevice: str | None

    def __init__(
        self,
        shape: Sequence[DimLike] | Var | None = None,
        dtype: str | None = None,
        ndim: int = UNKNOWN_NDIM,
        vdevice: str | None = None,
    ) -> None:
        if shape is not None and isinstance(shape, (tuple, list)):
            shape = tuple(map(Dim.of, shape))
            ndim = len(shape)
        elif shape is not None and isinstance(shape, (int, str, Dim)):
            raise TypeError(f"a shape is a tuple of dimensions, got {shape!r}: write ({shape!r},)")
        elif shape is not None and ndim < 0:
            annotation = getattr(shape, "annotation", None)
            ndim = annotation.ndim if isinstance(annotation, ShapeType) else ndim
        if ndim > MOST_DIMENSIONS:
            raise UsageError(
                "bad-annotation", f"a tensor has at most {MOST_DIMENSIONS} dimensions, not {ndim}"
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", None if dtype is None else DType(dtype))
        object.__setattr__(self, "ndim", ndim)
        if vdevice is not None:
            vdevice = complete_name(vdevice)
        object.__setattr__(self, "vdevice", vdevice)

    @property
    def dims(self) -> tuple[Dim, ...] | None:
        """The dimensions, if all are known, else None."""
        return self.shape if isinstance(self.shape, tuple) else None


@dataclass(frozen=True, slots=True, init=False)
class TupleType(Annotation):
    """A tuple of values (`R.Tuple`)."""

    fields: tuple[Annotation, ...]
    extent: int = field(compare=False, repr=False)
    levels: int = field(compare=False, repr=False)
    _leaf_types: tuple[Annotation, ...] | None = field(compare=False, repr=False)

    def __init__(self, fields: Iterable[Annotation] = ()) -> None:
        parts = tuple(fields)
        object.__setattr__(self, "fields", parts)
        object.__setattr__(self, "extent", _extent(parts))
        object.__setattr__(self, "levels", _levels(parts))
        object.__setattr__(self, "_leaf_types", None)

    @property
    def leaf_types(self) -> tuple[Annotation, ...]:
        """What it contains, in order, however deeply: annotations that are no tuples, each once. Tuples in tuples often
        contain the same."""
        if self._leaf_types is None:
            found = dict.fromkeys(leaf for part in self.fields for leaf in leaf_types(part))
            object.__setattr__(self, "_leaf_types", tuple(found))
        assert self._leaf_types is not None
        return self._leaf_types


@dataclass(frozen=True, slots=True, init=False)
class CallableType(Annotation):
    """A function value (`R.Callable`); `params` None: any parameters.

    A function type is self-contained: of a tensor whose shape is a variable (of the function, or around it), only the
    rank is kept.
    """

    params: tuple[Annotation, ...] | None
    ret: Annotation
    pure: bool
    extent: int = field(compare=False, repr=False)
    levels: int = field(compare=False, repr=False)

    def __init__(
        self,
        params: Iterable[Annotation] | None = None,
        ret: Annotation | None = None,
        pure: bool = True,
    ) -> None:
        known = None if params is None else tuple(map(_without_variables, params))
        object.__setattr__(self, "params", known)
        object.__setattr__(self, "ret", ObjectType() if ret is None else _without_variables(ret))
        object.__setattr__(self, "pure", pure)
        object.__setattr__(self, "extent", _extent((*(known or ()), self.ret)))
        object.__setattr__(self, "levels", _levels((*(known or ()), self.ret)))


def leaf_types(annotation: Annotation) -> tuple[Annotation, ...]:
    """What a tuple contains (`TupleType.leaf_types`); any other annotation by itself."""
    return annotation.leaf_types if isinstance(annotation, TupleType) else (annotation,)


def _extent(parts: Iterable[Annotation]) -> int:
    """The number of annotations in one with these parts. Raises `UsageError` beyond the limit."""
    values = 1 + sum(
        part.extent if isinstance(part, (TupleType, CallableType)) else 1 for part in parts
    )
    if values > MOST_VALUES:
        raise UsageError(
            "bad-annotation",
            f"a value can contain at most {MOST_VALUES} values in tuples, not {values}",
            help="pass the parts on their own, in one flat tuple",
        )
    return values


def _levels(parts: Iterable[Annotation]) -> int:
    """The nesting of one with these parts. Raises `UsageError` beyond the limit."""
    levels = 1 + max(
        (part.levels for part in parts if isinstance(part, (TupleType, CallableType))), default=0
    )
    if levels > MOST_LEVELS:
        raise UsageError(
            "bad-annotation",
            f"tuples and functions can be nested at most {MOST_LEVELS} deep",
            help="pass the parts on their own, in one flat tuple",
        )
    return levels


def _without_variables(annotation: Annotation) -> Annotation:
    match annotation:
        case TensorType(shape=shape, dtype=dtype, ndim=ndim, vdevice=vdevice):
            if shape is None or isinstance(shape, tuple):
                return annotation
            return TensorType(None, dtype, ndim, vdevice)
        case TupleType(fields=fields):
            new = tuple(map(_without_variables, fields))
            same = all(a is b for a, b in zip(new, fields, strict=True))
            return annotation if same else TupleType(new)
        case _:
            return annotation


AnyAnnotation: TypeAlias = ObjectType | PrimType | ShapeType | TensorType | TupleType | CallableType
VOID = TupleType(())
"""The annotation of a call made only for its side effect: the empty tuple."""
