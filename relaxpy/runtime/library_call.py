"""Calls of library functions in Python: they get inputs that are read-only, and must write their outputs.

A function that writes an input would change the caller's array, or a value that the program computed before. One that
binds the name of an output anew (`out = x * 2`) writes nothing, and old memory would be the result. Functions of
`tvm_ffi`, those that relaxpy brings, and those that take the state of a call are called as they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.tensor import Fixed, Tensor, tensor_at

_MARKS = (b"\xff\xff\xff\xff\xfe\xff\xff\xff", b"\xfd\xff\xff\xff\xff\xff\xff\xff")
"""The first bytes of an output before the call. All bytes after these are 255: with them, NaN in every float type."""

Memory = tuple[int, int]
"""An address, and a number of bytes."""


@dataclass(frozen=True, slots=True)
class LibraryFunction:
    """A registered Python function."""

    name: str
    func: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        return self.func(*args)


def call_library(func: Callable[..., Any], wanted: tuple[bool, ...], args: tuple[Any, ...]) -> None:
    """Calls a library function. Its last arguments are new memory; `wanted` says of each whether anything reads it
    afterwards, else it is memory to work in. Raises: RuntimeCheckError (`library-output`) if the function wrote nothing
    to one that is wanted."""
    if not isinstance(func, LibraryFunction):
        func(*args)
        return
    inputs = tuple(map(lent, args[: -len(wanted)]))
    new = args[-len(wanted) :]
    places = [
        (each.pointer, each.nbytes) if type(each) is Tensor and is_wanted else (0, 0)
        for each, is_wanted in zip(new, wanted, strict=True)
    ]
    write_all(func.name, lambda: func.func(*inputs, *new), places)


def lent(value: Any) -> Any:
    """A tensor over the same memory that may not be written to; other values unchanged."""
    if type(value) is not Tensor or not value.writable:
        return value
    owner = Fixed(value, True, "is the input of a library function", "a copy: x.copy()")
    return tensor_at(value.pointer, value.shape, value.dtype, owner)


def write_all(name: str, call: Callable[[], Any], outputs: Sequence[Memory]) -> None:
    """Makes the call, which must write to each of these pieces of memory. Raises: RuntimeCheckError
    (`library-output`)."""
    unchanged: list[int] = []
    for mark in _MARKS:
        for pointer, nbytes in outputs:
            ctypes.memset(pointer, 0xFF, nbytes)
            ctypes.memmove(pointer, mark, min(nbytes, len(mark)))
        call()
        unchanged = [i for i, place in enumerate(outputs) if _is_marked(place, mark)]
        if not unchanged:
            return
        if outputs[unchanged[0]][1] > len(mark):
            break
        # A number may be what was there before: then it is another one the second time.
    which = "its output" if len(outputs) == 1 else f"output {unchanged[0] + 1}"
    raise RuntimeCheckError(
        "library-output",
        f"the library function {name} did not write {which}",
        help="write to its memory: out.numpy()[...] = value (`out = value` only gives the name to another object)",
    )


def _is_marked(memory: Memory, mark: bytes) -> bool:
    pointer, nbytes = memory
    first = min(nbytes, len(mark))
    return (
        nbytes > 0
        and ctypes.string_at(pointer, first) == mark[:first]
        and not ctypes.string_at(pointer + first, nbytes - first).strip(b"\xff")
    )
