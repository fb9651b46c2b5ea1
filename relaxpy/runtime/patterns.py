"""Values at the boundary between Python and a program: converting arguments and results, and explaining mismatches.

`enter` converts a caller's argument to a runtime value, guided by the parameter's pattern. It accepts any value; the
function's own `Match` rejects invalid ones, with a message from `explain`. `leave` converts results for the
caller.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.data import Data
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.packed_tensor import PackedTensor
from relaxpy.runtime.tensor import Shape, Tensor, copied, from_any, sizes
from relaxpy.runtime.terms import (
    CallablePattern,
    DataPattern,
    Heap,
    ObjectPattern,
    Pattern,
    PrimPattern,
    ShapePattern,
    TensorPattern,
    TuplePattern,
)

if TYPE_CHECKING:
    from relaxpy.runtime.devices.queue import Queue

ANYTHING = ObjectPattern()


def enter(
    value: Any,
    pattern: Pattern,
    queues: Sequence[Queue] = (),
    own: Callable[[Any], Any] | None = None,
) -> Any:
    """The runtime value of an argument. Tensors share the caller's memory if possible (`tensor.from_any`). Tensors on
    another device than the pattern requires are copied; `queues` are those of the slots (empty: all on the host). `own`
    converts function values, so that they run on this call's queues.

    Raises: RuntimeCheckError for numbers that do not fit a tensor parameter's type, memory on another device, a shape
    with numbers that are no sizes.
    """
    if isinstance(value, Tensor):
        if isinstance(pattern, PrimPattern) and not value.shape:
            return value.item()
        return _placed(value, pattern, queues)
    match pattern:
        case TensorPattern():
            if not queues:
                tensor = from_any(value, pattern.dtype)
                return value if tensor is None else tensor
            tensor = _borrowed(value, queues)
            if tensor is None:
                tensor = from_any(value, pattern.dtype)
            return value if tensor is None else _placed(tensor, pattern, queues)
        case ShapePattern():
            return _shape(value)
        case PrimPattern(dtype=dtype):
            scalar = value.item() if _is_scalar_array(value) else value
            is_int = isinstance(scalar, int) and not isinstance(scalar, bool)
            return (
                float(scalar)
                if is_int and "float" in dtype and prim_fits(scalar, dtype)
                else scalar
            )
        case TuplePattern(fields):
            is_tuple = isinstance(value, tuple | list) and not isinstance(value, Data)
            if is_tuple and len(value) == len(fields):
                return tuple(
                    enter(item, field, queues, own)
                    for item, field in zip(value, fields, strict=True)
                )
            return value
        case _:
            return to_value(value) if own is None else own(to_value(value))


def _placed(tensor: Tensor, pattern: Pattern, queues: Sequence[Queue]) -> Tensor:
    """Moves an argument to its parameter's device. A copy is marked, since an update of it would be lost."""
    if not isinstance(pattern, TensorPattern):
        return tensor
    queue = queues[pattern.slot] if queues else None
    if queue is None or queue.is_host:
        if not isinstance(tensor, DeviceTensor):
            return tensor
        placed, wanted, advice = tensor.to_host(), "the host", "an array: x.numpy().copy()"
    else:
        placed, wanted = queue.enter(tensor), str(queue.device)
        advice = f"a tensor of {wanted}: vm.upload(x)"
        if tensor.device == queue.device:
            return placed
    return copied(placed, f"is on {tensor.device}, not on {wanted}", advice)


def _borrowed(value: Any, queues: Sequence[Queue]) -> Tensor | None:
    """A tensor over the memory of one of the devices, if the value exports such memory; else None."""
    from relaxpy.runtime.devices.dlpack import borrow  # which knows queues, and they this

    if len(queues) < 2 or isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return None
    kind, index = value.__dlpack_device__()
    for queue in queues:
        runtime = queue.runtime
        types = (runtime.dlpack_type, *runtime.dlpack_also)
        if not queue.is_host and int(kind) in types and index == runtime.index:
            try:
                return borrow(value, queue)
            except BufferError as error:
                name = type(value).__name__
                message = f"the __dlpack__ of a {name} failed: {error}"
                raise RuntimeCheckError("dlpack", message) from error
    return None


def _shape(value: Any) -> Any:
    if isinstance(value, tuple | list):
        try:
            return sizes(operator.index(size) for size in value)
        except TypeError:
            return value
    return value


def _is_scalar_array(value: Any) -> bool:
    return isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)


def to_value(value: Any) -> Any:
    """The runtime value for the result of a Python or registered function, or for any argument."""
    if isinstance(value, Tensor | bool | int | float | str | Data) or value is None:
        return value
    if isinstance(value, Shape):
        return sizes(value)
    if isinstance(value, tuple):
        return tuple(to_value(item) for item in value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) or hasattr(value, "__dlpack__"):
        return from_any(value)
    return value


def leave(value: Any) -> Any:
    """A result for the caller: constants are copied, other values are returned as they are."""
    if value.__class__ is Tensor and not value.constant:
        return value
    return _leave(value, {})


def _leave(value: Any, copies: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        if not value.constant:
            return value
        if id(value) not in copies:  # the same value twice stays the same object
            copies[id(value)] = value.copy()
        return copies[id(value)]
    if isinstance(value, tuple) and not isinstance(value, Shape | Data):
        return tuple(_leave(item, copies) for item in value)
    return value


def describe(value: Any) -> str:
    """Describes a value in the notation of annotations."""
    if isinstance(value, Tensor):
        return f'R.Tensor({_tuple_text(value.shape)}, dtype="{value.dtype}")'
    if isinstance(value, Shape):
        return f"R.Shape({list(value)})"
    if isinstance(value, Data):
        return repr(value)
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}: ({', '.join(describe(item) for item in value[:8])})"
    if isinstance(value, bool | int | float | str):
        return f"the {type(value).__name__} {value!r}"
    if value is None:
        return "None"
    if isinstance(value, PackedTensor):
        return f"a packed weight (of {', '.join(value.sources)})"
    if isinstance(value, type) and issubclass(value, Data):
        name = f"{value.type_name}.{value.case_name}"
        return f"the constructor {name} itself, without fields: write {name}({', '.join(value.__match_args__)})"
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")


def _tuple_text(shape: tuple[int, ...]) -> str:
    inner = ", ".join(map(str, shape))
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def explain(value: Any, pattern: Pattern, place: str = "") -> str:
    """The reason why a value does not match: the first mismatch.

    `place` is the position in a nested value, e.g. ` of field 1`.
    """
    match pattern:
        case TensorPattern(shape, ndim, dtype):
            if not isinstance(value, Tensor):
                return f"expected a tensor{place}, got {describe(value)}"
            if dtype and value.dtype != dtype:
                return f"the dtype{place} is {value.dtype}, not {dtype}"
            return _explain_sizes(value.shape, shape, ndim, place)
        case ShapePattern(dims, ndim):
            if not isinstance(value, Shape):
                advice = ": write relaxpy.Shape(…)" if isinstance(value, tuple) and place else ""
                return f"expected a shape{place}, got {describe(value)}{advice}"
            return _explain_sizes(value, dims, ndim, place)
        case PrimPattern(dtype, wanted):
            if not prim_fits(value, dtype):
                return f"expected a scalar of type {dtype or 'any'}{place}, got {describe(value)}"
            return f"the value{place} is {value}, not {wanted}"
        case DataPattern(name):
            return f"expected a value of {name}{place}, got {describe(value)}"
        case TuplePattern(fields):
            if not isinstance(value, tuple) or isinstance(value, Shape | Data):
                return f"expected a tuple of {len(fields)}{place}, got {describe(value)}"
            if len(value) != len(fields):
                return f"expected {len(fields)} fields{place}, got {len(value)}"
            for index, (item, field) in enumerate(zip(value, fields, strict=True)):
                if not fits(item, field):
                    return explain(item, field, f" of field {index}{place}")
            return f"the tuple{place} does not match"
        case CallablePattern(arity):
            if not callable(value):
                return f"expected a function{place}, got {describe(value)}"
            return f"expected a function of {arity} parameters{place}, got one of {getattr(value, 'arity', '?')}"
        case _:
            return f"{describe(value)} does not match{place}"


def _explain_sizes(
    sizes: tuple[int, ...],
    wanted: tuple[None | int | Heap, ...] | None,
    ndim: int,
    place: str,
) -> str:
    if wanted is not None:
        ndim = len(wanted)
    if ndim >= 0 and len(sizes) != ndim:
        plural = "" if len(sizes) == 1 else "s"
        what = place.removeprefix(" of ") or "it"
        return f"{what} has {len(sizes)} dimension{plural}, not {ndim}"
    for axis, (size, want) in enumerate(zip(sizes, wanted or (), strict=False)):
        if not _size_fits(size, want):
            return f"dimension {axis}{place} is {size}, not {want}"
    return f"the shape{place} does not match"


def _size_fits(size: int, want: None | int | Heap) -> bool:
    return not isinstance(want, int) or want == size


def prim_fits(value: Any, dtype: str) -> bool:
    """Whether a Python scalar is a valid value of `dtype` ("": of any type)."""
    if not dtype:
        return isinstance(value, bool | int | float | str)
    if dtype == "bool":
        return isinstance(value, bool)
    if dtype.startswith(("int", "uint")):
        return isinstance(value, int) and not isinstance(value, bool) and _in_range(value, dtype)
    if dtype in ("string", "str"):
        return isinstance(value, str)
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, float) or (is_int and abs(value) <= sys.float_info.max)


def _in_range(value: int, dtype: str) -> bool:
    bits = int(dtype.lstrip("uint") or 64)
    low, high = (0, 1 << bits) if dtype.startswith("u") else (-(1 << (bits - 1)), 1 << (bits - 1))
    return low <= value < high


def fits(value: Any, pattern: Pattern) -> bool:
    """Whether a value matches, apart from the conditions of `Assert`s."""
    match pattern:
        case TensorPattern(shape, ndim, dtype):
            return (
                isinstance(value, Tensor)
                and dtype in ("", value.dtype)
                and _sizes_fit(value.shape, shape, ndim)
            )
        case ShapePattern(dims, ndim):
            return isinstance(value, Shape) and _sizes_fit(value, dims, ndim)
        case PrimPattern(dtype, wanted):
            return prim_fits(value, dtype) and _size_fits(value, wanted)
        case TuplePattern(fields):
            return (
                isinstance(value, tuple)
                and not isinstance(value, Shape | Data)
                and len(value) == len(fields)
                and all(fits(item, field) for item, field in zip(value, fields, strict=True))
            )
        case CallablePattern(arity):
            return callable(value) and (arity == -1 or getattr(value, "arity", arity) == arity)
        case DataPattern(name):
            return isinstance(value, Data) and value.type_name == name
        case _:
            return True


def _sizes_fit(
    sizes: tuple[int, ...], wanted: tuple[None | int | Heap, ...] | None, ndim: int
) -> bool:
    if wanted is not None:
        ndim = len(wanted)
    if ndim >= 0 and len(sizes) != ndim:
        return False
    return all(_size_fits(size, want) for size, want in zip(sizes, wanted or (), strict=False))
