"""Contents of tensors that are known when the model is read: constants, and integers that are sizes.

ONNX computes shapes with tensors: `Shape → Gather → Add → Concat → Reshape`. Here the elements of such tensors are
dimensions, so the shape that comes out is one of symbols, and nothing of it is left to the running program. Calls whose
arguments are constants become constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relaxpy.analysis.shape_values import NotKnownError, evaluate, symbolic
from relaxpy.errors import RelaxError
from relaxpy.ir import (
    Call,
    Constant,
    Dim,
    DType,
    Expr,
    PrimValue,
    ShapeExpr,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
)
from relaxpy.ir.dim import dim_op, product
from relaxpy.narrow import is_ndarray, is_tuple
from relaxpy.op.base import Op
from relaxpy.op.binary import Divide, LogicalAnd, LogicalOr
from relaxpy.op.compare import Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual
from relaxpy.op.create import Full
from relaxpy.op.datatype import Astype
from relaxpy.op.intrinsic import ShapeToTensor
from relaxpy.op.quantization import Dequantize
from relaxpy.op.row_major import Size
from relaxpy.op.search import Where
from relaxpy.op.unary import Ceil, Floor, LogicalNot, Round, Trunc
from relaxpy.shape.prove import prove

LARGEST = 1 << 16
"""Constants that are computed here have no more elements, unless they are no larger than what they are made of."""


def decided(condition: Dim) -> Dim:
    """A condition on sizes as 1 or 0 where it is proved or refuted."""
    if prove(condition):
        return Dim.of(1)
    return Dim.of(0) if prove(dim_op("not", condition)) else condition


def _compare(name: str, swap: bool = False) -> Callable[..., Any]:
    def element(a: Dim, b: Dim) -> Dim:
        return decided(dim_op(name, b, a) if swap else dim_op(name, a, b))

    return np.frompyfunc(element, 2, 1)


def _select(condition: Dim, then: Dim, otherwise: Dim) -> Dim:
    return dim_op("select", condition, then, otherwise)


_TABLE: dict[type[Any], Callable[..., Any]] = {
    Equal: _compare("eq"),
    NotEqual: _compare("ne"),
    Less: _compare("lt"),
    LessEqual: _compare("le"),
    Greater: _compare("lt", swap=True),
    GreaterEqual: _compare("le", swap=True),
    LogicalAnd: np.frompyfunc(lambda a, b: dim_op("and", a, b), 2, 1),
    LogicalOr: np.frompyfunc(lambda a, b: dim_op("or", a, b), 2, 1),
    LogicalNot: np.frompyfunc(lambda a: dim_op("not", a), 1, 1),
    Where: np.frompyfunc(_select, 3, 1),
}
"""Operators on elements that are sizes, beside those of `relaxpy.analysis.shape_values`."""

_WHOLE = (Floor, Ceil, Trunc, Round)


class Contents:
    """The elements of integer tensors, by variable."""

    def __init__(self) -> None:
        self.known: dict[Var, Any] = {}
        """Variable → an array of `Dim`s, or a tuple of such arrays."""
        self.constants: dict[Var, np.ndarray] = {}
        """Weight → its value."""
        self.tuples: dict[Var, Tuple] = {}

    def of(self, value: Any) -> np.ndarray | None:
        """The elements of a tensor: numbers, or `Dim`s; None: they are not known."""
        match value:
            case Constant():
                return value.data
            case Var():
                found = self.known.get(value)
                return self.constants.get(value) if found is None else found
            case _:
                return None

    def folded(self, value: Expr, out: Callable[[], Any]) -> Expr | None:
        """The constant that a value is, or a tuple of constants; `out` gives its annotation."""
        if isinstance(value, TupleGetItem) and isinstance(value.tuple, Var):
            found = self.tuples.get(value.tuple)
            return None if found is None else found.fields[value.index]
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return None
        operator = value.op
        if not operator.pure or operator.legalize is None or isinstance(operator, Size):
            return None
        given = [_constant(arg) for arg in value.args]
        if any(each is None for each in given):
            return None
        if isinstance(operator, Dequantize) and np.ndim(given[0]) > 1:
            return None  # `Realize` computes on the codes of a weight
        annotation = out()
        size = _elements(annotation)
        if size is None or size > max(LARGEST, *(_size(each) for each in given), 0):
            return None
        args: list[Any] = [
            None if isinstance(arg, Tuple) and not arg.fields and operator.args[i].optional
            else operator.as_array(i, each, getattr(arg, "dtype", None))
            for i, (each, arg) in enumerate(zip(given, value.args, strict=True))
        ]  # fmt: skip
        try:
            with np.errstate(all="ignore"):
                return _as_constant(operator.reference(*args), annotation)
        except RelaxError:
            return None  # the running program reports the error

    def learn(self, var: Var, value: Expr) -> None:
        """Remember the elements of what is bound, if they are sizes."""
        try:
            found = self._elements(value)
        except (NotKnownError, RelaxError):
            return
        if found is not None:
            self.known[var] = found

    def _elements(self, value: Expr) -> Any:
        if isinstance(value, TupleGetItem) and isinstance(value.tuple, Var):
            whole = self.known.get(value.tuple)
            return None if whole is None else whole[value.index]
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return None
        operator, args = value.op, value.args
        if isinstance(operator, ShapeToTensor):
            return symbolic(args[0].dims) if isinstance(args[0], ShapeExpr) else None
        if isinstance(operator, Size):
            dims = getattr(args[0], "annotation", TensorType()).dims
            return None if dims is None else symbolic([product(dims)]).reshape(())
        if isinstance(operator, Full) and isinstance(args[0], ShapeExpr):
            return self._full(args)
        given = [self._argument(arg) for arg in args]
        if not given or any(each is None for each in given):
            return None
        if isinstance(operator, (Divide, *_WHOLE)):
            return None
        if type(operator) in _TABLE:
            return np.asarray(_TABLE[type(operator)](*(_dims(each) for each in given)), object)
        if isinstance(operator, Astype):
            return _cast(given[0], operator.dtype)
        first, *others = given
        return evaluate(operator, [first, *map(_numbers, others)])

    def _full(self, args: Sequence[Expr]) -> Any:
        sizes: list[Any] = [dim.value for dim in getattr(args[0], "dims", ())]
        value = self._argument(args[1]) if len(args) > 1 else None
        if None in sizes or value is None:
            return None
        return np.broadcast_to(_dims(value), sizes)

    def _argument(self, arg: Expr) -> Any:
        """An argument as elements; None: they are not known."""
        match arg:
            case Var() | Constant():
                found = self.of(arg)
                if found is None or found.size > 64:
                    return None
                return found
            case Tuple(fields=fields):
                found = tuple(map(self._argument, fields))
                if any(each is None for each in found):
                    return None
                return tuple(_dims(each) for each in found)
            case ShapeExpr(dims=dims):
                values = tuple(dim.value for dim in dims)
                return None if None in values else values
            case PrimValue(value=value):
                return value
            case _:
                return None


def _dims(values: Any) -> np.ndarray:
    """Elements as dimensions. Raises NotKnownError for floats."""
    if is_ndarray(values) and values.dtype != object:
        if values.dtype.kind not in "biu":
            raise NotKnownError
        values = values.astype(np.int64)
    return symbolic(values)


def _numbers(value: Any) -> Any:
    """Elements as integers, where all are known."""
    if is_ndarray(value) and value.dtype == object:
        found = [dim.value for dim in value.flat]
        if None not in found:
            return np.array(found, np.int64).reshape(value.shape)
    return value


def _cast(values: Any, dtype: DType) -> Any:
    """Sizes in another dtype; a condition stays one."""
    if dtype.is_bool:
        return np.asarray(np.frompyfunc(_truth, 1, 1)(_dims(values)), object)
    return _dims(values) if dtype in ("int32", "int64") else None


def _truth(value: Dim) -> Dim:
    return value if value.is_truth else decided(dim_op("ne", value, 0))


def _constant(arg: Expr) -> Any:
    match arg:
        case Constant():
            return arg.data
        case Tuple(fields=fields):
            found = tuple(map(_constant, fields))
            return None if any(each is None for each in found) else found
        case ShapeExpr(dims=dims):
            values = tuple(dim.value for dim in dims)
            return None if None in values else values
        case PrimValue(value=value):
            return value.value if isinstance(value, Dim) else value
        case _:
            return None


def _size(value: Any) -> int:
    if is_tuple(value):  # one that is joined to itself grows
        return sum(_size(each) for each in {id(each): each for each in value}.values())
    return value.size if isinstance(value, np.ndarray) else 0


def _elements(annotation: Any) -> int | None:
    fields = getattr(annotation, "fields", (annotation,))
    total = 0
    for each in fields:
        dims = each.dims if isinstance(each, TensorType) else None
        size = None if dims is None else product(dims).value
        if size is None:
            return None
        total += size
    return total


def _as_constant(result: Any, annotation: Any) -> Expr | None:
    if hasattr(annotation, "fields"):
        parts = [_as_constant(r, t) for r, t in zip(result, annotation.fields, strict=True)]
        return Tuple(tuple(parts)) if all(part is not None for part in parts) else None  # type: ignore[arg-type]
    array = np.asarray(result)
    shape = tuple(dim.value for dim in annotation.dims)
    if array.shape != shape:
        return None
    return Constant(array.astype(DType(annotation.dtype).numpy, copy=False))
