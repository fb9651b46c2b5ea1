"""Evaluate integer tensors whose elements are dimensions: the tensors with which programs compute shapes.

`shape_to_tensor(R.shape([n, m]))` holds n and m. A slice of it holds n; concatenated with a constant 4 it is (n, 4),
which `tensor_to_shape` turns back into a shape. The elements are `Dim`s in arrays of objects. Operators that only move
elements are evaluated by their own `reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.dim import Dim, dim_op, product
from relaxpy.ir.op import Operator
from relaxpy.narrow import is_ndarray, is_sequence, is_tuple
from relaxpy.op.base import Op
from relaxpy.op.binary import Add, FloorDivide, FloorMod, Maximum, Minimum, Multiply, Subtract
from relaxpy.op.datatype import Astype
from relaxpy.op.gather import GatherElements, Take
from relaxpy.op.join import Concat, Split, Stack
from relaxpy.op.manipulate import BroadcastTo, ExpandDims, PermuteDims, Squeeze
from relaxpy.op.reduce import Prod
from relaxpy.op.repetition import Repeat, Tile
from relaxpy.op.reverse import Flip
from relaxpy.op.row_major import Flatten, Reshape
from relaxpy.op.slice import StridedSlice
from relaxpy.op.unary import Negative

LARGEST = 64
"""Larger tensors are not treated as shapes."""

MOVING: tuple[type[Operator], ...] = (
    Reshape,
    Flatten,
    ExpandDims,
    Squeeze,
    PermuteDims,
    BroadcastTo,
    Concat,
    Stack,
    Split,
    StridedSlice,
    Take,
    GatherElements,
    Repeat,
    Tile,
    Flip,
)
"""Operators whose result contains only elements of their first argument."""


class NotKnownError(Exception):
    """A value that is known only at run time."""


def _by_number(op: str) -> Callable[[Any, Any], Any]:
    """Division by a positive number. A division by a possible 0 is left to the running program."""

    def element(a: Dim, b: Dim) -> Dim:
        if b.value is None or b.value <= 0:
            raise NotKnownError
        return dim_op(op, a, b)

    return np.frompyfunc(element, 2, 1)


def _product(op: Op, values: np.ndarray) -> np.ndarray:
    if not isinstance(op, Prod) or (op.axis is not None and values.ndim != 1):
        raise NotKnownError
    whole = _array([product(tuple(values.flat))], ())
    return whole.reshape((1,) * values.ndim) if op.keepdims else whole


_ARITHMETIC: dict[type[Operator], Callable[..., Any]] = {
    Add: np.add,
    Subtract: np.subtract,
    Multiply: np.multiply,
    Negative: np.negative,
    FloorDivide: _by_number("floordiv"),
    FloorMod: _by_number("floormod"),
    Maximum: np.frompyfunc(lambda a, b: dim_op("max", a, b), 2, 1),
    Minimum: np.frompyfunc(lambda a, b: dim_op("min", a, b), 2, 1),
}


def evaluate(op: Op, args: Sequence[Any]) -> Any:
    """The value of a call: an array of `Dim`s, or a tuple of such arrays. `args` are arrays (of `Dim`s or integers),
    tuples of arrays, and shapes. Raises `NotKnownError`."""
    if isinstance(op, Astype) and op.dtype == "int64":
        return _checked(args[0])
    if isinstance(op, Prod):
        return _checked(_product(op, symbolic(args[0])))
    if type(op) in _ARITHMETIC:
        if not any(isinstance(arg, np.ndarray) for arg in args):
            raise NotKnownError  # scalars give a scalar, and no tensor
        return _checked(_ARITHMETIC[type(op)](*map(symbolic, args)))
    if not isinstance(op, MOVING):
        raise NotKnownError
    first: Any = args[0]
    moved: Any = tuple(map(symbolic, first)) if is_tuple(first) else symbolic(first)
    try:
        result: Any = op.reference(moved, *args[1:])
    except (TypeError, ValueError):
        raise NotKnownError from None
    return tuple(map(_checked, result)) if is_sequence(result) else _checked(result)


def symbolic(values: np.ndarray | Sequence[Dim] | Dim | float | str) -> np.ndarray:
    """Convert an array of integers, a sequence of dimensions, or a scalar to an array of `Dim`s. Raises `NotKnownError`
    for other values."""
    if isinstance(values, (bool, float, str)):
        raise NotKnownError
    if isinstance(values, (int, Dim)):
        return _array([Dim.of(values)], ())
    if not isinstance(values, np.ndarray):
        return _array(list(values), (len(values),))
    if values.dtype == object:
        return values
    if values.dtype != np.int64 or values.size > LARGEST:
        raise NotKnownError
    return _array([Dim.of(int(v)) for v in values.flat], values.shape)


def _array(dims: Sequence[Dim], shape: tuple[int, ...]) -> np.ndarray:
    found = np.empty(len(dims), object)
    for i, dim in enumerate(dims):
        found[i] = dim
    return found.reshape(shape)


def _checked(result: Any) -> np.ndarray:
    array = result if is_ndarray(result) else _array([result], ())
    if array.size > LARGEST or not all(isinstance(item, Dim) for item in array.flat):
        raise NotKnownError
    return array
