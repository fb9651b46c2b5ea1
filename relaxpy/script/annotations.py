"""The annotations of the script: `R.Tensor(…)` and its siblings.

Each is a factory. The parser calls `build` with a function that reads one dimension in its scope. In a call from
ordinary Python (`R.Tensor(("n", 4), "float32")` as a value, or in the body of a class) names become new variables.
"""

from __future__ import annotations

import operator
import typing
from collections.abc import Callable, Sequence
from typing import Any

from relaxpy.errors import ScriptError
from relaxpy.ir.annotation import (
    MOST_DIMENSIONS,
    VOID,
    Annotation,
    CallableType,
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
    TypeParam,
)
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Constant, DataTypeImm, Expr, PrimValue, StringImm, Var
from relaxpy.script.describe import describe
from relaxpy.script.devices import device_name
from relaxpy.script.dialects.older_words import UNKNOWN_DTYPE
from relaxpy.script.dims import parse_dim
from relaxpy.script.tir import ScalarDType

LONGEST_SHAPE = 1 << 16
"""Maximum rank of a shape value of which only the rank is known."""


class Text(str):
    """A string literal with its source location."""

    span: Any = None


class DimReader:
    """Reads a dimension: an integer, a variable, or a text. In this base class every name is a new variable, one per
    name."""

    def __init__(self) -> None:
        self.symbols: dict[str, SymVar] = {}

    def __call__(self, value: Any) -> Dim:
        """The dimension of `value`. Raises `ScriptError`."""
        if isinstance(value, str):
            return parse_dim(value, self.symbol, getattr(value, "span", None))
        dim = as_dim(value)
        if dim is None:
            raise ScriptError(
                "bad-annotation",
                f"{describe(value)} is not a dimension",
                help='write an unknown size as a quoted name: "n"'
                if value is None
                else 'a dimension is an integer, a variable, or an expression of them in quotes: "n * 4"',
            )
        return dim

    def symbol(self, name: str) -> Dim:
        """The variable of a quoted name."""
        return self.symbols.setdefault(name, SymVar(name)).dim


def as_dim(value: Any) -> Dim | None:
    """`value` as a dimension; None if it is none."""
    if isinstance(value, (Dim, SymVar)):
        return Dim.of(value)
    if isinstance(value, typing.TypeVar):
        return Dim.var(value.__name__)
    if isinstance(value, PrimValue) and isinstance(value.value, Dim):
        return value.value
    if isinstance(value, Var) and isinstance(value.annotation, PrimType):
        return value.annotation.value
    if isinstance(value, Constant) and value.data.ndim == 0 and value.data.dtype.kind in "iu":
        return Dim.of(int(value.data))
    if isinstance(value, bool):
        return None
    try:
        number: Any = value
        return Dim.of(operator.index(number))
    except TypeError:
        return None


class AnnotationFactory:
    """One kind of annotation; `build` is `__call__` with an explicit reader of dimensions."""

    def __init__(self, name: str, build: Callable[..., Annotation]) -> None:
        self.name = name
        self._build = build
        self.__doc__ = build.__doc__

    def build(self, dims: DimReader, *args: Any, **kwargs: Any) -> Annotation:
        """Make the annotation. Raises `ScriptError` for invalid arguments."""
        try:
            return self._build(dims, *args, **kwargs)
        except TypeError as error:
            problem = str(error).removeprefix(f"{self._build.__name__}() ")
        raise ScriptError(
            "bad-annotation", f"R.{self.name}: {problem}", help=f"write {_EXAMPLES[self.name]}"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Annotation:
        return self.build(DimReader(), *args, **kwargs)

    def __getitem__(self, items: Any) -> Annotation:
        """`R.Tuple[A, B]`, the notation of the paper."""
        return self(*(items if isinstance(items, tuple) else (items,)))

    def __or__(self, other: object) -> AnnotationFactory:
        return self

    def __repr__(self) -> str:
        return f"R.{self.name}"


_EXAMPLES = {
    "Tensor": 'R.Tensor(("n", 4), dtype="float32"), or R.Tensor(dtype="float32", ndim=2)',
    "Shape": 'R.Shape(["n", 4]) or R.Shape(ndim=2)',
    "Tuple": "R.Tuple(R.Tensor, R.Object)",
    "Callable": "R.Callable((R.Tensor,), R.Tensor)",
    "Prim": 'R.Prim("int64") or R.Prim(value="n")',
    "Object": "R.Object",
}


def as_annotation(value: Any, dims: DimReader) -> Annotation:
    """Convert a value used as an annotation. Raises `ScriptError`."""
    if isinstance(value, AnnotationFactory):
        return value.build(dims)
    if isinstance(value, Annotation):
        return value
    if isinstance(value, ScalarDType):
        return PrimType(value.name)
    if isinstance(value, typing.TypeVar):  # while Python runs def f[A: Type](x: A)
        return TypeParam(value.__name__)
    if value is None or (isinstance(value, tuple) and not value):
        return VOID
    if isinstance(value, (tuple, list)):
        return TupleType(as_annotation(item, dims) for item in value)
    shown = value.__name__ if isinstance(value, type) else describe(value)
    raise ScriptError(
        "bad-annotation",
        f"{shown} is not an annotation",
        help="write R.Tensor(…), R.Shape(…), R.Tuple(…), R.Callable(…), R.Prim(…) or R.Object",
    )


def _dtype(value: Any) -> DType | None:
    if isinstance(value, str) and value == UNKNOWN_DTYPE:
        return None
    if isinstance(value, DataTypeImm):
        return value.dtype
    if isinstance(value, StringImm):
        return DType(value.value)
    if isinstance(value, str):
        return DType(str(value))
    return None if value is None else DType(value)


def _tensor(
    dims: DimReader,
    shape: Any = None,
    dtype: Any = None,
    vdevice: Any = None,
    ndim: Any = None,
) -> Annotation:
    """`R.Tensor(shape, dtype, vdevice, ndim)`: a tensor; omitted arguments are unknown."""
    ndim = _rank(ndim)
    if isinstance(shape, (str, DType, DataTypeImm)) and dtype is None:
        shape, dtype = None, shape
    device = None if vdevice is None else device_name(vdevice)
    if shape is None:
        return TensorType(None, _dtype(dtype), ndim, device)
    if isinstance(shape, Var):
        if not isinstance(shape.annotation, (ShapeType, ObjectType)):
            raise ScriptError(
                "bad-annotation",
                f"{shape.name} is {shape.annotation}, not a shape",
                help="a tensor's shape is a tuple of dimensions, or a variable that holds a shape",
            )
        _same_rank(getattr(shape.annotation, "ndim", -1), ndim)
        return TensorType(shape, _dtype(dtype), ndim, device)
    known = _dims(dims, shape)
    _same_rank(len(known), ndim)
    return TensorType(known, _dtype(dtype), len(known), device)


def _rank(ndim: Any, most: int = MOST_DIMENSIONS) -> int:
    """The argument `ndim`; None, or -1 as in TVM, means unknown."""
    found = -1 if ndim is None or isinstance(ndim, bool) else as_dim(ndim)
    value = found.value if isinstance(found, Dim) else found
    if value is None or isinstance(ndim, bool) or not -1 <= value <= most:
        raise ScriptError(
            "bad-annotation",
            f"ndim must be an integer from 0 to {most}, got {describe(ndim)}",
            help="omit it if the number of dimensions is unknown",
        ).about("ndim")
    return value


def _same_rank(known: int, ndim: int) -> None:
    """Require `ndim` to agree with the rank of the shape."""
    if -1 not in (known, ndim) and known != ndim:
        raise ScriptError("bad-annotation", f"a shape of {known} dimensions with ndim={ndim}")


def _dims(dims: DimReader, values: Any) -> tuple[Dim, ...]:
    if isinstance(values, Expr) and hasattr(values, "dims"):
        return values.dims  # type: ignore[attr-defined]
    if not isinstance(values, (tuple, list)):
        raise ScriptError(
            "bad-annotation",
            f"{describe(values)} is not a shape",
            help='a shape is a tuple: ("n", 4); one dimension is ("n",), with a comma',
        )
    return tuple(_size(dims(value), value) for value in values)


def _size(dim: Dim, written: Any) -> Dim:
    """A dimension of a shape. A number must be a valid tensor size; symbols must be int64."""
    for symbol in dim.vars:
        if symbol.dtype != "int64":
            raise ScriptError(
                "bad-annotation",
                f"dimensions must be int64, but {symbol.name} is {symbol.dtype}",
                span=getattr(written, "span", None),
                help=f"declare it {symbol.name} = T.int64()",
            )
    if dim.value is not None and not 0 <= dim.value < 1 << 63:
        problem = "cannot be negative" if dim.value < 0 else "must fit into 64 bits"
        raise ScriptError(
            "bad-annotation",
            f"a dimension {problem}: {dim}",
            span=getattr(written, "span", None),
            help='write an unknown size as a quoted name: "n"' if dim.value < 0 else None,
        )
    return dim


def _shape(dims: DimReader, values: Any = None, ndim: Any = None) -> Annotation:
    """`R.Shape(values, ndim)`: a shape value."""
    rank = _rank(ndim, LONGEST_SHAPE)
    if values is None:
        return ShapeType(None, rank)
    known = _dims(dims, values)
    _same_rank(len(known), rank)
    return ShapeType(known)


def _tuple(dims: DimReader, *fields: Any) -> Annotation:
    """`R.Tuple(A, B)`: a tuple of values."""
    if len(fields) == 1 and isinstance(fields[0], (tuple, list)):
        fields = tuple(fields[0])
    return TupleType(as_annotation(item, dims) for item in fields)


def _callable(
    dims: DimReader,
    params: Any = None,
    ret: Any = ObjectType(),  # noqa: B008
    purity: bool | None = None,
    pure: bool | None = None,
) -> Annotation:
    """`R.Callable((A, B), R, purity)`: a function, pure by default; `R.Callable`: any function, pure or not."""
    purity = purity if pure is None else pure
    if not (purity is None or isinstance(purity, (bool, int))):
        raise ScriptError(
            "bad-annotation", f"purity must be True or False, got {describe(purity)}"
        ).about("purity")
    pure = params is not None if purity is None else bool(purity)
    if params is None:
        return CallableType(None, as_annotation(ret, dims), pure)
    items: Sequence[Any] = params if isinstance(params, (tuple, list)) else (params,)
    known = [as_annotation(item, dims) for item in items]
    return CallableType(known, as_annotation(ret, dims), pure)


def _prim(dims: DimReader, dtype: Any = None, value: Any = None) -> Annotation:
    """`R.Prim(dtype)` or `R.Prim(value=n)`: a scalar."""
    found = _dtype(dtype) or DType("int64")
    known = None if value is None else dims(value)
    # A symbol may be a truth value defined here.
    is_truth = known is not None and (
        known.is_truth or known.symbol is not None or known.value in (0, 1)
    )
    if known is not None and not found.is_int and not (found.is_bool and is_truth):
        raise ScriptError(
            "bad-annotation",
            f"the value of a scalar is known while compiling if it is an integer, and this is {found}",
            help=f'write R.Prim("{found}")',
        )
    return PrimType(found, known)


def _object(dims: DimReader) -> Annotation:
    """`R.Object`: any value."""
    del dims
    return ObjectType()


Tensor = AnnotationFactory("Tensor", _tensor)
Shape = AnnotationFactory("Shape", _shape)
Tuple = AnnotationFactory("Tuple", _tuple)
Callable_ = AnnotationFactory("Callable", _callable)
Prim = AnnotationFactory("Prim", _prim)
Object = AnnotationFactory("Object", _object)
