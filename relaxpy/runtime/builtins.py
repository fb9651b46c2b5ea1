"""Builtin functions that programs call by name: conversions between shapes and tensors, and operators on numpy whose
result size depends on the data.

`FUNCTIONS` is the table; `relaxpy.runtime.library` looks names up in it after what users have registered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.boxes import all_class_non_max_suppression
from relaxpy.runtime.data import FUNCTIONS as DATA
from relaxpy.runtime.data import Data
from relaxpy.runtime.dtype import info, to_numpy
from relaxpy.runtime.pages import check_pages
from relaxpy.runtime.tensor import Shape, Tensor, empty, from_numpy, sizes, tensor_at
from relaxpy.runtime.updates import require_updatable


def shape_of(tensor: Tensor) -> Shape:
    """The shape of a tensor."""
    return Shape(tensor.shape)


def tensor_to_shape(tensor: Tensor) -> Shape:
    """A 1-d integer tensor as a shape.

    Raises: RuntimeCheckError (`shape-value`) for another rank or type, or a negative size.
    """
    array = tensor.numpy()
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 0).any():
        message = f"a shape must be a 1-d tensor of integers of at least 0, got {array.dtype} {array.tolist()}"
        raise RuntimeCheckError("shape-value", message)
    return sizes(array.tolist())


def shape_to_tensor(shape: Shape) -> Tensor:
    """A shape as a 1-d int64 tensor."""
    return from_numpy(np.array(shape, dtype=np.int64))


def scalar_to_tensor(value: Any, dtype: str) -> Tensor:
    """A scalar as a 0-d tensor of `dtype`; integers modulo 2**bits."""
    kind = to_numpy(dtype)
    if kind.kind in "iu":
        return from_numpy(np.asarray(int(value) % (1 << 64), np.uint64).astype(kind))
    return from_numpy(np.asarray(value).astype(kind))


def tensor_to_scalar(tensor: Tensor) -> Any:
    """The element of a 0-d tensor as a scalar.

    Raises: RuntimeCheckError (`check`) for a tensor with dimensions.
    """
    if tensor.shape:
        raise RuntimeCheckError("check", f"a tensor of shape {list(tensor.shape)} is not a scalar")
    value = tensor.numpy().item()
    return value if isinstance(value, bool | int) else float(value)


def copy(tensor: Tensor) -> Tensor:
    """A copy of a tensor in its own memory."""
    return tensor.copy()


def writable(value: object) -> object:
    """Copies the constants in a value, so that a function may update it in place.

    Raises: RuntimeCheckError (`read-only`, `update-lost`) for a read-only array of the user's, or a copied argument.
    """
    if isinstance(value, Tensor):
        if value.constant:
            return value.copy()
        require_updatable(value)
        return value
    if isinstance(value, tuple) and not isinstance(value, Shape | Data):
        return tuple(map(writable, value))
    return value


def reshape(tensor: Tensor, shape: Shape) -> Tensor:
    """A copy of a tensor with another shape.

    Raises: RuntimeCheckError (`shape-value`) if the number of items differs.
    """
    out = tensor.copy()
    if (size := math.prod(shape)) != tensor.size:
        raise RuntimeCheckError(
            "shape-value",
            f"a tensor of shape {list(tensor.shape)} has {tensor.size} elements, "
            f"and the new shape {list(shape)} has {size}",
        )
    return tensor_at(out.pointer, tuple(shape), out.dtype, out.owner)


def unique(
    tensor: Tensor,
    in_order: bool = True,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | tuple[()] = (),
) -> Tensor | tuple[Tensor, ...]:
    """The distinct elements of a tensor as a 1-d tensor, or its distinct slices along an axis, sorted or in order of
    first appearance. The optional outputs follow in the order of the parameters (`R.unique`)."""
    array = tensor.numpy()
    along = None if isinstance(axis, tuple) else int(axis)
    narrow = array.dtype.isbuiltin != 1  # of ml_dtypes: numpy cannot sort them
    values, first, inverse, counts = np.unique(
        array.astype(np.float32) if narrow else array,
        return_index=True, return_inverse=True, return_counts=True, axis=along,
    )  # fmt: skip
    if not in_order:
        order = np.argsort(first)
        values = np.take(values, order, 0 if along is None else along)
        place = np.argsort(order)
        first, inverse, counts = first[order], np.take(place, inverse), counts[order]
    asked = (
        (True, values.astype(array.dtype)), (return_index, first),
        (return_inverse, inverse.reshape(-1)), (return_counts, counts),
    )  # fmt: skip
    found = tuple(from_numpy(np.ascontiguousarray(a)) for wanted, a in asked if wanted)
    return found[0] if len(found) == 1 else found


def nonzero(tensor: Tensor) -> Tensor:
    """Indices of the nonzero elements as an int64 tensor of shape (rank, number of such elements). A 0-d tensor is
    treated as a vector of one element."""
    found = np.nonzero(np.atleast_1d(tensor.numpy()))
    return from_numpy(np.stack(found).astype(np.int64))


def squeeze(tensor: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    """A copy without the named axes of size 1, or without all axes of size 1.

    Raises: RuntimeCheckError (`shape-value`) where a named axis is none, or has another size.
    """
    array = tensor.numpy()
    named = tuple(axis) if isinstance(axis, Sequence) else () if axis is None else (axis,)
    if any(not -array.ndim <= a < array.ndim or array.shape[a] != 1 for a in named):
        raise RuntimeCheckError(
            "shape-value", f"a tensor of shape {list(array.shape)} has no axis {axis} of size 1"
        )
    # an omitted argument arrives as an empty tuple
    return from_numpy(np.array(np.squeeze(array, named or None), order="C"))


def dynamic_strided_slice(tensor: Tensor, begin: Tensor, end: Tensor, strides: Tensor) -> Tensor:
    """The slice begin:end:stride along every axis, with the index rules of numpy.

    Raises: RuntimeCheckError (`shape-value`) for a stride of 0.
    """
    steps = strides.numpy().tolist()
    if not all(steps):
        raise RuntimeCheckError("shape-value", f"a stride of {steps} is 0")
    ends = zip(begin.numpy().tolist(), end.numpy().tolist(), steps, strict=True)
    return from_numpy(np.array(tensor.numpy()[tuple(slice(*place) for place in ends)], order="C"))


def null_value() -> None:
    """Returns None, for a program without a result."""


def print_value(*values: object) -> None:
    """Write values to standard output, one a line."""
    for value in values:
        print(value, flush=True)  # noqa: T201  (the program prints)


def print_formatted(values: tuple[object, ...], text: str) -> None:
    """Write values, one a line, or in the places `{}` of `text` (`R.print`)."""
    shown = [value.numpy() if isinstance(value, Tensor) else value for value in values]
    for line in [text.format(*shown)] if text else map(str, shown):
        print(line, flush=True)  # noqa: T201


def assert_true(condition: object, values: tuple[object, ...], text: str) -> None:
    """Stop the program unless the condition is true (`R.assert_op`).

    Raises: RuntimeCheckError (`assertion-failed`) with the values in the places `{}` of `text`.
    """
    if not bool(condition):
        shown = [value.numpy() if isinstance(value, Tensor) else value for value in values]
        raise RuntimeCheckError("assertion-failed", text.format(*shown))


def check_range(tensor: Tensor, count: int, what: str, lowest: int = 0) -> Tensor:
    """Returns the tensor if all its integers are at least `lowest` and below `count`.

    Raises: RuntimeCheckError (`index-range`) that names the first which is not, and its place.
    """
    array = tensor.numpy()
    if array.size and (array.min() < lowest or array.max() >= count):
        place = np.argwhere((array < lowest) | (array >= count))[0].tolist()
        raise RuntimeCheckError(
            "index-range",
            f"{what} must be from {lowest} to {count - 1}, got {array[tuple(place)]} at {place}",
        )
    return tensor


def check_finite(tensor: Tensor, what: str) -> Tensor:
    """Returns the tensor if all its elements are finite.

    Raises: RuntimeCheckError (`not-a-number`) that names the first which is not, and its place.
    """
    array = tensor.numpy()
    wrong = ~np.isfinite(array)
    if wrong.any():
        place = np.argwhere(wrong)[0].tolist()
        raise RuntimeCheckError(
            "not-a-number",
            f"{what}: {int(wrong.sum())} of {array.size} elements are NaN or infinite, the first is "
            f"{array[tuple(place)]} at {place}",
        )
    return tensor


def check_made_finite(tensor: Tensor, what: str, *given: Tensor) -> Tensor:
    """Returns the tensor if it is finite, or if one of the `given` tensors, which it was computed of, is not.

    Raises: RuntimeCheckError (`not-a-number`), as `check_finite`.
    """
    if all(np.isfinite(each.numpy()).all() for each in given):
        return check_finite(tensor, what)
    return tensor


def zeros(shape: Shape, dtype: str) -> Tensor:
    """A tensor of zeros."""
    out = empty(tuple(shape), dtype)
    out.numpy()[...] = 0
    return out


def same(value: object, *marks: object) -> object:
    """Returns the value. `marks` matter to the compiler only."""
    del marks
    return value


def tensor_shape(tensor: Tensor, axis: int) -> int:
    """Size along an axis."""
    return tensor.shape[_axis(tensor, axis)]


def tensor_stride(tensor: Tensor, axis: int) -> int:
    """The stride of an axis in elements, for a compact tensor."""
    return math.prod(tensor.shape[_axis(tensor, axis) + 1 :])


def _axis(tensor: Tensor, axis: int) -> int:
    count = len(tensor.shape)
    if not 0 <= axis < count:
        raise RuntimeCheckError("check", f"axis {axis} is out of range for {count} dimensions")
    return axis


INSPECT: dict[str, Callable[..., Any]] = {
    "relaxpy.inspect.shape": tensor_shape,
    "relaxpy.inspect.stride": tensor_stride,
    "relaxpy.inspect.ndim": lambda tensor: len(tensor.shape),
    "relaxpy.inspect.dtype_code": lambda tensor: info(tensor.dtype).code,
    "relaxpy.inspect.dtype_bits": lambda tensor: info(tensor.dtype).bits,
    "relaxpy.inspect.dtype_lanes": lambda _: 1,
    "relaxpy.inspect.offset": lambda _: 0,
}
"""Reads a field of a tensor's DLTensor record (`R.inspect`)."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "vm.builtin.shape_of": shape_of,
    "vm.builtin.tensor_to_shape": tensor_to_shape,
    "vm.builtin.shape_to_tensor": shape_to_tensor,
    "vm.builtin.scalar_to_tensor": scalar_to_tensor,
    "vm.builtin.tensor_to_scalar": tensor_to_scalar,
    "vm.builtin.copy": copy,
    "vm.builtin.writable": writable,
    "vm.builtin.reshape": reshape,
    "vm.builtin.null_value": null_value,
    "vm.builtin.print": print_value,
    "vm.builtin.zeros": zeros,
    **INSPECT,
    **DATA,
    "relaxpy.same": same,
    "relaxpy.unique": unique,
    "relaxpy.check_range": check_range,
    "relaxpy.check_finite": check_finite,
    "relaxpy.check_made_finite": check_made_finite,
    "relaxpy.check_pages": check_pages,
    "relaxpy.all_class_non_max_suppression": all_class_non_max_suppression,
    "relaxpy.print": print_formatted,
    "relaxpy.assert": assert_true,
    "relaxpy.nonzero": nonzero,
    "relaxpy.dynamic_strided_slice": dynamic_strided_slice,
    "relaxpy.squeeze": squeeze,
}

ANYWHERE = frozenset(
    {
        *INSPECT,
        *("relaxpy.same", "vm.builtin.copy", "vm.builtin.null_value", "vm.builtin.shape_of"),
        "vm.builtin.writable",
    }
)
"""Functions that accept tensors of any device and return tensors on the same device. The other functions take host
tensors; tensors of other devices are copied to the host first."""
