"""Specifications of the arguments of an exported method."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.ir import (
    Annotation,
    Dim,
    DType,
    ObjectType,
    PrimType,
    ShapeType,
    SymVar,
    TensorType,
    TupleType,
)
from relaxpy.nn.construction import Construction, mistake

DimSpec = int | str | Dim
"""A dimension: an integer, or a name (symbolic, and the same throughout the method). In the outputs of calls also a
dimension of another tensor."""


@dataclass(frozen=True, slots=True, init=False)
class Tensor:
    """A tensor argument. A dimension is an integer, or a name: symbolic, and the same throughout the method."""

    shape: tuple[DimSpec, ...]
    dtype: DType

    def __init__(self, shape: Sequence[DimSpec], dtype: str = "float32") -> None:
        object.__setattr__(self, "shape", _dims(shape, 'nn.spec.Tensor(("batch", 128), "float32")'))
        try:
            object.__setattr__(self, "dtype", DType(dtype))
        except UsageError as error:
            raise mistake(error.code, error.message, error.help) from None


@dataclass(frozen=True, slots=True, init=False)
class Tuple:
    """A tuple argument, passed to the method as a Python tuple; its fields may be tuples again."""

    fields: tuple[Any, ...]

    def __init__(self, fields: Iterable[Any]) -> None:
        found = tuple(fields)
        for field in found:
            if not isinstance(field, SPECS):
                raise mistake(
                    "bad-spec",
                    f"{field!r} in a tuple is not a spec",
                    help="write nn.spec.Tensor(shape, dtype)",
                )
        object.__setattr__(self, "fields", found)


@dataclass(frozen=True, slots=True, init=False)
class Int:
    """An integer argument (int64). The method gets a dimension, which may be used in shapes, slices and loops' bounds.
    Its name as a dimension is `name`, or that of the argument."""

    name: str | None

    def __init__(self, name: str | None = None) -> None:
        if name is not None:
            _dims((name,), 'nn.spec.Int("start")')
        object.__setattr__(self, "name", name)


@dataclass(frozen=True, slots=True, init=False)
class Shape:
    """A shape argument: several integers. The method gets a tuple of dimensions."""

    dims: tuple[DimSpec, ...]

    def __init__(self, dims: Sequence[DimSpec]) -> None:
        object.__setattr__(self, "dims", _dims(dims, 'nn.spec.Shape(("height", "width"))'))


@dataclass(frozen=True, slots=True)
class Object:
    """An argument of any kind: a value that the method only passes on, to functions of a library."""


SPECS = (Tensor, Tuple, Int, Shape, Object)


def check(arg: str, given: Any, method: str) -> None:
    """Raise UsageError (`bad-spec`) unless `given` is a spec."""
    if isinstance(given, SPECS):
        return
    kinds = {int: "nn.spec.Int()", tuple: "nn.spec.Tuple([…])", object: "nn.spec.Object()"}
    raise mistake(
        "bad-spec",
        f"argument {arg!r} of {method}: {given!r} is not a spec",
        help=f"write {kinds.get(given, 'nn.spec.Tensor(shape, dtype)')}",
    )


def symbols(given: Any) -> Iterator[str]:
    """The names of dimensions in a spec, those of integers included."""
    if isinstance(given, Int) and given.name is not None:
        yield given.name
    yield from sizes(given)


def sizes(given: Any) -> Iterator[str]:
    """The names of the dimensions in a spec that are sizes, not below 0."""
    match given:
        case Tuple(fields=fields):
            for field in fields:
                yield from sizes(field)
        case Tensor(shape=dims) | Shape(dims=dims):
            yield from (dim for dim in dims if isinstance(dim, str))
        case _:
            pass


def annotation(given: Any, named: dict[str, SymVar], arg: str) -> Annotation:
    """The annotation of an argument; `named` has the symbols of its function by name, and is added to."""

    def dim(size: DimSpec) -> Dim:
        if isinstance(size, Dim) and size.value is None:
            raise mistake(
                "bad-spec",
                f"argument {arg!r}: {size} is a dimension of another function",
                help='write dimensions of arguments by name: nn.spec.Tensor(("n", 4), "float32")',
            )
        return named.setdefault(size, SymVar(size)).dim if isinstance(size, str) else Dim.of(size)

    match given:
        case Tuple(fields=fields):
            return TupleType(tuple(annotation(field, named, arg) for field in fields))
        case Int(name=name):
            name = name or arg
            return PrimType("int64", named.setdefault(name, SymVar(name, signed=True)).dim)
        case Shape(dims=dims):
            return ShapeType(map(dim, dims))
        case Tensor(shape=dims, dtype=dtype):
            return TensorType(tuple(map(dim, dims)), dtype)
        case _:
            return ObjectType()


def output(given: Any) -> TensorType:
    """The annotation of an output of a call in `forward`, from a spec, an annotation, or a similar tensor. Raises
    UsageError (`bad-spec`)."""
    if isinstance(given, TensorType):
        return given
    if isinstance(given, Tensor):
        current = Construction.current()
        dims = [current.dim(d) if isinstance(d, str) else Dim.of(d) for d in given.shape]
        return TensorType(dims, given.dtype)
    like = getattr(given, "annotation", None)
    if isinstance(like, TensorType):
        return like
    raise mistake(
        "bad-spec",
        f"{given!r} is not the spec of an output",
        help="write nn.spec.Tensor(x.shape, x.dtype), or several in a list",
    )


def _dims(dims: Any, example: str) -> tuple[DimSpec, ...]:
    """Checked dimensions. Raises UsageError (`bad-spec`)."""
    if isinstance(dims, (str, int)):
        raise mistake(
            "bad-spec", f"a shape must be a tuple, got {dims!r}", help=f"write e.g. {example}"
        )
    for dim in dims:
        number = isinstance(dim, (int, np.integer)) and not isinstance(dim, bool) and dim >= 0
        name = isinstance(dim, str) and dim.isidentifier() and not keyword.iskeyword(dim)
        if not number and not name and not isinstance(dim, Dim):
            raise mistake(
                "bad-spec",
                f"dimension {dim!r} is neither a non-negative integer nor a name",
                help=f"write e.g. {example}",
            )
    return tuple(dim if isinstance(dim, (str, Dim)) else int(dim) for dim in dims)
