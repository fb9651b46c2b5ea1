"""Launches of CUDA kernels: a Python function for each kernel and queue, written for the kernel's arguments.

It packs the arguments as C lays out a structure, and gives the driver the packed bytes: a tensor is its address. For a
kernel of two tensors and a size it is, in essence:

    def launch(numbers, sizes, a0, a1):
        gx, gy, gz, tx, ty, tz, n6 = numbers
        if not (gx and gy and gz): return
        with lock:
            pack(packed, 0, a0.buffer.handle + a0.offset, a1.buffer.handle + a1.offset, n6)
            (status,) = cuLaunchKernel(function, gx, gy, gz, tx, ty, tz, shared, stream, 0, extra)
            if status: failed(status, numbers)

The host's time of a launch is that of these lines, so nothing is looked up and checked that the driver checks itself.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import Lock
from types import CodeType
from typing import TYPE_CHECKING, Any

from relaxpy.runtime.devices.base import DeviceError, Launcher
from relaxpy.runtime.devices.cuda.driver import STICKY, Context, error_of
from relaxpy.runtime.devices.cuda.stream import Stream
from relaxpy.runtime.devices.image import GRID, Argument

if TYPE_CHECKING:
    from relaxpy.runtime.devices.cuda.kernels import LoadedKernel

_FORMATS = {
    "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q",
    "bool": "?", "float16": "H", "bfloat16": "H", "float32": "f", "float64": "d",
}  # fmt: skip
"""How numbers of each dtype are packed: at multiples of their size, as on the device."""
MOST_BYTES = 4096
"""The most bytes of arguments that every driver takes."""
_PACKED, _SIZE, _END = 1, 2, 0
"""`CU_LAUNCH_PARAM_BUFFER_POINTER`, `_BUFFER_SIZE` and `_END`."""
_LARGEST_GRID = (1 << 31) - 1, 65535, 65535


def layout(args: Sequence[Argument]) -> struct.Struct:
    """How the arguments of a kernel are packed. Raises: ValueError for one that cannot be, or too many."""
    formats: list[str] = []
    for arg in args:
        place = arg.get("memory", arg.get("scalar", 0))
        if place >= MOST_BYTES:
            raise ValueError(f"it takes argument number {place} of its program")
        if "memory" in arg:
            formats.append("Q")
        elif "first" in arg or arg["dtype"] not in _FORMATS:
            raise ValueError(f"{dict(arg)} is no argument of a CUDA kernel")
        else:
            formats.append(_FORMATS[arg["dtype"]])
    packed = struct.Struct("@" + "".join(formats))
    if packed.size > MOST_BYTES:
        raise ValueError(f"its arguments have {packed.size} bytes, and {MOST_BYTES} are the most")
    return packed


def offsets(args: Sequence[Argument]) -> list[tuple[int, int]]:
    """The offset and size in bytes of each packed argument."""
    formats = [layout([arg]).format[1:] for arg in args]
    ends = [struct.calcsize("@" + "".join(formats[: i + 1])) for i in range(len(formats))]
    sizes = [struct.calcsize(each) for each in formats]
    return [(end - size, size) for end, size in zip(ends, sizes, strict=True)]


def write_launcher(kernel: LoadedKernel, context: Context, stream: Stream) -> Launcher:
    """The function that launches a kernel in a stream (`DeviceRuntime.launcher`)."""
    args = kernel.image.args
    packed = layout(args)
    buffer = ctypes.create_string_buffer(max(packed.size, 1))
    size = ctypes.c_size_t(packed.size)
    words = (ctypes.c_void_p * 5)(_PACKED, ctypes.addressof(buffer), _SIZE, ctypes.addressof(size), _END)  # fmt: skip
    scope: dict[str, Any] = {
        "lock": Lock(),  # threads share the buffer
        "pack": packed.pack_into,
        "packed": buffer,
        "cuLaunchKernel": context.cu.cuLaunchKernel,
        "function": kernel.function,
        "shared": kernel.image.limits.get("dynamic-shared", 0),
        "stream": stream.handle,
        "extra": ctypes.addressof(words) if packed.size else 0,
        "single": _single,
        "bits16": _bits16,
        "brain": _brain,
        "errors": (struct.error, OverflowError),
        "outside": _outside,
        "_kept": (size, words, kernel, stream),  # the driver has their addresses
    }
    scope["failed"] = _Failed(kernel, context, scope)
    exec(_compiled(_source(kernel), kernel.name), scope)
    launch: Launcher = scope["launch"]
    return launch


@lru_cache(1024)
def _compiled(source: str, name: str) -> CodeType:
    """A launcher's code. Each recording of a graph has launchers of its own, with the same code."""
    return compile(source, f"<launch of {name}>", "exec")


def _source(kernel: LoadedKernel) -> str:
    """The function's source. It consists of numbers and names that are written here."""
    image = kernel.image
    values: list[str] = []
    guards: list[str] = []
    for arg in image.args:
        match arg:
            case {"memory": place}:
                values.append(f"a{place}.buffer.handle + a{place}.offset")
            case {"scalar": place, "dtype": dtype}:
                values.append(_SCALARS.get(dtype, "{}").format(f"a{place}"))
            case _:
                values.append(f"n{arg['size']}")
                if "most" in arg:
                    guards.append(f"-{arg['most']} <= n{arg['size']} <= {arg['most']}")
    used = [int(arg["size"]) for arg in image.args if "size" in arg]
    sizes = [f"n{number}" for number in range(GRID, max([GRID - 1, *used]) + 1)]
    places = [int(arg[key]) for arg in image.args for key in ("memory", "scalar") if key in arg]
    given = [f"a{place}" for place in range(max([-1, *places]) + 1)]
    grid = "gx, gy, gz, tx, ty, tz"
    guarded = [f" if not ({' and '.join(guards)}): raise outside(numbers)"] if guards else []
    packing = [f"   pack(packed, 0, {', '.join(values)})"] if values else []
    lines = [
        f"def launch({', '.join(['numbers', 'sizes', *given, '*rest'])}):",
        f" {', '.join([grid, *sizes, '*more'])} = numbers",
        " if not (gx and gy and gz): return",
        *guarded,
        " try:",
        "  with lock:",
        *packing,
        f"   (status,) = cuLaunchKernel(function, {grid}, shared, stream, 0, extra)",
        "   if status: failed(status, numbers)",
        " except errors: raise outside(numbers) from None",
    ]
    return "\n".join(lines)


_SCALARS = {"float32": "single({})", "float16": "bits16({})", "bfloat16": "brain({})"}
"""Scalars whose values need not fit the dtype: they are rounded to it."""


def _single(value: float) -> float:
    return ctypes.c_float(value).value


def _bits16(value: float) -> int:
    try:
        return int.from_bytes(struct.pack("<e", value), "little")
    except OverflowError:
        return 0x7C00 | (0x8000 if value < 0 else 0)  # an infinity


def _brain(value: float) -> int:
    """The bits of a bfloat16: the upper half of a float32, rounded to the nearest even."""
    bits = ctypes.c_uint32.from_buffer(ctypes.c_float(value)).value
    if value != value:
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _outside(numbers: Sequence[int]) -> DeviceError:
    return DeviceError(
        f"a launch with the numbers {', '.join(map(str, numbers))} has one that is beyond the integers of its kernel"
    )


class _Failed:
    """Called when the driver refuses a launch, with the arguments still packed."""

    def __init__(self, kernel: LoadedKernel, context: Context, scope: dict[str, Any]) -> None:
        self._kernel = kernel
        self._context = context
        self._scope = scope

    def __call__(self, status: Any, numbers: Sequence[int]) -> None:
        """Launches again in the device's context, if another one was current or none: to ask before each launch would
        cost more than the launch. Raises: DeviceError."""
        if not self._context.is_current():
            scope = self._scope
            launch: Callable[..., tuple[Any]] = scope["cuLaunchKernel"]
            grid, shared, stream = numbers[:GRID], scope["shared"], scope["stream"]
            with self._context.current():
                (status,) = launch(scope["function"], *grid, shared, stream, 0, scope["extra"])
            if not status:
                return
        error = error_of(status)
        if error.code in STICKY:
            raise DeviceError(f"earlier work failed: {error}") from error
        raise DeviceError(self._kernel.misfit(numbers) or str(error)) from error
