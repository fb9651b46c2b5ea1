"""Functions that the generated code of linked functions calls (`relaxpy.runtime.link`)."""

from __future__ import annotations

from collections.abc import Generator
from ctypes import c_bool
from typing import Any

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.devices.queue import Queue
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.frame import record_of
from relaxpy.runtime.patterns import describe, to_value
from relaxpy.runtime.tensor import Tensor, tensor_at


def argument(value: Any) -> Any:
    """Converts a value to a kernel argument."""
    return record_of(value) if value.__class__ is Tensor else value


def read(value: Any) -> Any:
    """The element of a 0-d tensor of any device. Raises: RuntimeCheckError (`check`) for another value."""
    if not isinstance(value, Tensor) or value.shape:
        raise RuntimeCheckError("check", f"expected a 0-d tensor, got {describe(value)}")
    item = value.numpy().item()
    return item if isinstance(item, bool | int) else float(item)


def truth(value: Any) -> bool:
    """The condition of an `If`: a bool or the element of a 0-d bool tensor."""
    if value.__class__ is Tensor:
        if value.dtype == "bool" and not value.shape:
            return c_bool.from_address(value.pointer).value
        return bool(value.numpy().item())
    if isinstance(value, bool):
        return value
    raise RuntimeCheckError("condition", f"a condition must be a bool, got {describe(value)}")


def view_of(tensor: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
    """A view of a tensor with another shape and type."""
    return tensor_at(tensor.pointer, shape, dtype, tensor.owner, tensor.constant)


def require_room(shape: tuple[int, ...], dtype: str, offset: int, have: int | None) -> None:
    """Checks that a tensor fits its storage of `have` bytes at byte `offset` before it is allocated (None: the tensor
    owns its memory).

    Raises: RuntimeCheckError (`check`).
    """
    if min(shape, default=0) < 0:
        raise RuntimeCheckError("check", f"a dimension is negative: {shape}")
    need = offset + dtypes.nbytes(dtype, shape)
    if have is not None and have < need:
        raise RuntimeCheckError("check", f"a tensor of {need} bytes in a storage of {have}")


def require_seen(
    source: Any, shape: tuple[int, ...], dtype: str, queue: Queue | None = None
) -> None:
    """Checks that a view fits its source, a tensor of `queue` (None: of the host).

    Raises: RuntimeCheckError (`check`).
    """
    if not isinstance(source, Tensor):
        raise RuntimeCheckError("check", f"expected a tensor, got {describe(source)}")
    require_room(shape, dtype, 0, source.nbytes)
    if source.owner is not None and getattr(source, "queue", None) is not queue:
        raise RuntimeCheckError(
            "check", f"the tensor is on {source.device}, not on the device of its view"
        )
    begin = source.offset if isinstance(source, DeviceTensor) else source.pointer
    if begin % dtypes.info(dtype).itemsize:
        raise RuntimeCheckError("check", f"its memory is not aligned for elements of {dtype}")


def shown(shape: tuple[int, ...], dtype: str) -> Tensor:
    """A tensor without memory, to be described in an error message."""
    return tensor_at(0, shape, dtype, None)


def is_generator(func: Any) -> bool:
    """Whether a function value must be run by the trampoline."""
    linked = getattr(func, "linked", None)
    return linked is not None and linked.generator


def begin(func: Any, args: tuple[Any, ...]) -> Generator[Any, Any, Any]:
    """Starts a call of such a function value, for the trampoline."""
    func.check_arity(len(args))
    return func.linked.run(*args, *func.captured)


def invoke(func: Any, args: tuple[Any, ...]) -> Any:
    """Calls any other function value: a function of the program, or a Python function."""
    linked = getattr(func, "linked", None)
    if linked is not None:
        func.check_arity(len(args))
        return linked.run(*args, *func.captured)
    if not callable(func):
        raise RuntimeCheckError("not-callable", f"expected a function, got {describe(func)}")
    return to_value(func(*args))
