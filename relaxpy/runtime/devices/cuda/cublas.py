"""Products of matrices by cuBLASLt (`pip install 'relaxpy[cublas]'`), in the place of a kernel's own code.

An image may describe a library call (`relaxpy.runtime.devices.image.LibraryCall`): `out = activation(left @ right +
bias)` in row-major order. cuBLASLt's matrices are column-major, in which the same memory is the transposed matrix, so
it is asked for `out.T = right.T @ left.T`. Launches with few rows run the image's own code.

cuBLASLt chooses an algorithm for each number of rows, on the host; the choice is kept. A call allocates nothing: it
uses the workspace that the memory plan has for it, so that it may be recorded in a graph. It is loaded with ctypes when
an executable that calls it is loaded, and not before.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from relaxpy.errors import ExecutableError
from relaxpy.runtime.devices.base import DeviceError, Launcher
from relaxpy.runtime.devices.cuda.driver import Context
from relaxpy.runtime.devices.cuda.stream import Stream
from relaxpy.runtime.devices.image import LibraryCall

PREFIX = "cublas."
"""Names of library calls begin with it. `cublas.matmul`, then `_nt` if the right-hand factor is stored as (columns,
depth), `_bias`, and `_relu` or `_gelu_tanh`."""
ALIGNMENT = 16
"""Tensors begin at multiples of so many bytes (`CudaRuntime.offset_alignment`)."""
_WORKSPACE_ALIGNMENT = 256
_MOST_PLANS = 64
"""Numbers of rows whose algorithm a kernel keeps. The one that was used longest ago goes."""
_INSTALL = "pip install 'relaxpy[cublas]', or build without it: target=\"cuda\""
_FILES = (
    ("cublasLt64_13.dll", "cublasLt64_12.dll")
    if sys.platform == "win32"
    else ("libcublasLt.so.13", "libcublasLt.so.12")
)
_FOLDERS = "cu13/lib", "cublas/lib", "cu13/bin/x86_64", "cublas/bin"
"""Where NVIDIA's packages have the library, below the folder `nvidia`."""

# Constants of cublasLt.h, cublas_api.h and library_types.h.
_DTYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
_COMPUTE_FLOAT32 = 68
"""float32 as such, without TF32; narrower factors are multiplied exactly, and summed in float32."""
_TRANSPOSED_A, _EPILOGUE, _BIAS = 3, 7, 8
_WITH_BIAS, _PLAIN = 4, 1
_ACTIVATIONS = {"": 0, "relu": 2, "gelu_tanh": 32}
_PREFERENCES = {1: ctypes.c_uint64, 3: ctypes.c_uint32} | dict.fromkeys(
    (5, 6, 7, 8), ctypes.c_uint32
)
"""The bytes of workspace, the ways in which partial sums are added, the alignments of the matrices."""
_SUMS_IN_FLOAT32 = 2
_NOT_SUPPORTED = 15


class _Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("status", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ATTRIBUTE = (_POINTER, _INT, _POINTER, _SIZE)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_POINTER,),
    "cublasLtDestroy": (_POINTER,),
    "cublasLtMatrixLayoutCreate": (
        _POINTER,
        _INT,
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_int64,
    ),
    "cublasLtMatrixLayoutDestroy": (_POINTER,),
    "cublasLtMatmulDescCreate": (_POINTER, _INT, _INT),
    "cublasLtMatmulDescDestroy": (_POINTER,),
    "cublasLtMatmulDescSetAttribute": _ATTRIBUTE,
    "cublasLtMatmulPreferenceCreate": (_POINTER,),
    "cublasLtMatmulPreferenceDestroy": (_POINTER,),
    "cublasLtMatmulPreferenceSetAttribute": _ATTRIBUTE,
    "cublasLtMatmulAlgoGetHeuristic": (*[_POINTER] * 7, _INT, _POINTER, _POINTER),
    "cublasLtMatmul": (*[_POINTER] * 14, _SIZE, _POINTER),
}


@cache
def library() -> ctypes.CDLL:
    """cuBLASLt: of NVIDIA's package, else of the system. Raises: OSError where there is none."""
    failed: OSError | None = None
    for path in _paths():
        try:
            found = ctypes.CDLL(path)
        except OSError as error:
            failed = failed or error
            continue
        for name, types in _SIGNATURES.items():
            getattr(found, name).argtypes = types
        found.cublasLtGetStatusString.restype = ctypes.c_char_p
        return found
    assert failed is not None
    raise failed


def _paths() -> Iterator[str]:
    spec = find_spec("nvidia")
    for place in (spec and spec.submodule_search_locations) or ():
        for folder in _FOLDERS:
            yield from (
                str(path) for name in _FILES if (path := Path(place, folder, name)).is_file()
            )
    yield from _FILES


class CublasLt:
    """cuBLASLt with a handle for a context, which any number of threads use."""

    def __init__(self, context: Context) -> None:
        """The context is current. Raises: OSError where the library is missing, DeviceError."""
        self.library = library()
        self.handle = self.made("cublasLtCreate", self)
        self.context = context

    def made(self, create: str, owner: object, *args: Any) -> ctypes.c_void_p:
        """An object of the library, which is destroyed when `owner` is gone. Raises: DeviceError."""
        found = _POINTER()
        self.check(getattr(self.library, create)(ctypes.byref(found), *args))
        destroy = getattr(self.library, create.removesuffix("Create") + "Destroy")
        weakref.finalize(owner, destroy, found).atexit = False
        return found

    def check(self, status: int) -> None:
        """Raises: DeviceError for a status other than success."""
        if status:
            text: bytes = self.library.cublasLtGetStatusString(status) or b"unknown"
            raise DeviceError(f"cuBLASLt: {text.decode()} ({status})")


def cublas_of(context: Context, kernel: str, call: LibraryCall) -> CublasLt:
    """The library for a kernel, with the context current. Raises: ExecutableError (`library-missing`)."""
    if not call.name.startswith(PREFIX) or call.dtype not in _DTYPES:
        raise ExecutableError(
            "library-missing",
            f"the kernel {kernel!r} calls {call.name!r} of {call.dtype}, which no library has",
        )
    try:
        return CublasLt(context)
    except (OSError, DeviceError) as error:
        raise ExecutableError(
            "library-missing",
            f"the kernel {kernel!r} calls {call.name!r} of cuBLASLt, which cannot be used: {error}",
            help=_INSTALL,
        ) from error


class Products:
    """The library call of a kernel, in any stream."""

    def __init__(self, cublas: CublasLt, call: LibraryCall) -> None:
        self._cublas = cublas
        self._call = call
        self._plans: dict[tuple[int, ...], _Plan | None] = {}
        self._lock = Lock()

    def launcher(self, stream: Stream, own: Launcher) -> Launcher:
        """Launches the library for many rows, and the kernel's `own` code for others and where the library has no
        algorithm."""
        call, context, lock = self._call, self._cublas.context, self._lock
        first, least, places = call.first, call.least, call.places
        workspace, biased = places["workspace"], places.get("bias", -1)

        def launch(numbers: Sequence[int], sizes: Sequence[int], *given: Any) -> None:
            rows, columns, depth = numbers[first : first + 3]
            if rows < least or not columns or not depth:
                own(numbers, sizes, *given)
                return
            left, right, out = (_address(given[places[name]]) for name in ("left", "right", "out"))
            with context.current(), lock:
                plan = self._plan(rows, columns, depth)
                if plan is not None:
                    bias = _address(given[biased]) if biased >= 0 else 0
                    plan.run(left, right, bias, out, _address(given[workspace]), stream)
                    return
            own(numbers, sizes, *given)

        return launch

    def _plan(self, rows: int, columns: int, depth: int) -> _Plan | None:
        """The plan for these sizes; None if there is no algorithm."""
        key = rows, columns, depth
        if key in self._plans:
            plan = self._plans[key] = self._plans.pop(key)  # the newest now
            return plan
        if len(self._plans) >= _MOST_PLANS:
            del self._plans[next(iter(self._plans))]
        plan = _Plan(self._cublas, self._call, rows, columns, depth)
        self._plans[key] = plan if plan.is_supported else None
        return self._plans[key]


def _address(tensor: Any) -> int:
    place: int = tensor.buffer.handle + tensor.offset
    return place


class _Plan:
    """A product of one size: descriptions and an algorithm."""

    def __init__(
        self, cublas: CublasLt, call: LibraryCall, rows: int, columns: int, depth: int
    ) -> None:
        """Raises: DeviceError."""
        self._cublas = cublas
        self._most = call.workspace
        _, _, suffix = call.name.partition("matmul")
        is_transposed = suffix.startswith("_nt")
        self._has_bias = "bias" in call.places
        activation = suffix.removeprefix("_nt").removeprefix("_bias").removeprefix("_")
        dtype = _DTYPES[call.dtype]

        def matrix(down: int, across: int) -> Any:
            """A column-major matrix without gaps."""
            return cublas.made("cublasLtMatrixLayoutCreate", self, dtype, down, across, down)

        self._right = matrix(depth, columns) if is_transposed else matrix(columns, depth)
        self._left, self._out = matrix(depth, rows), matrix(columns, rows)
        self._product = cublas.made(
            "cublasLtMatmulDescCreate", self, _COMPUTE_FLOAT32, _DTYPES["float32"]
        )
        if is_transposed:
            self._set(_TRANSPOSED_A, ctypes.c_int32(1))
        epilogue = _ACTIVATIONS[activation] | _WITH_BIAS * self._has_bias
        self._set(_EPILOGUE, ctypes.c_uint32(epilogue or _PLAIN))
        if self._has_bias:  # the choice depends on the alignment of this address
            self._set(_BIAS, _POINTER(ALIGNMENT))
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)
        self._choice = _Heuristic()
        self.is_supported = self._choose()

    def _set(self, attribute: int, value: Any) -> None:
        place = ctypes.byref(value)
        size = ctypes.sizeof(value)
        self._cublas.check(
            self._cublas.library.cublasLtMatmulDescSetAttribute(
                self._product, attribute, place, size
            )
        )

    def _choose(self) -> bool:
        """Whether there is an algorithm."""
        cublas, found = self._cublas, ctypes.c_int()
        wanted = cublas.made("cublasLtMatmulPreferenceCreate", self._choice)
        values = (self._most, _SUMS_IN_FLOAT32, *[ALIGNMENT] * 4)
        for (key, kind), number in zip(_PREFERENCES.items(), values, strict=True):
            value = kind(number)
            cublas.check(
                cublas.library.cublasLtMatmulPreferenceSetAttribute(
                    wanted, key, ctypes.byref(value), ctypes.sizeof(value)
                )
            )
        status = cublas.library.cublasLtMatmulAlgoGetHeuristic(
            cublas.handle, self._product, self._right, self._left, self._out, self._out,
            wanted, 1, ctypes.byref(self._choice), ctypes.byref(found),
        )  # fmt: skip
        if status != _NOT_SUPPORTED:
            cublas.check(status)
        return status == 0 and found.value > 0 and self._choice.status == 0

    def run(
        self, left: int, right: int, bias: int, out: int, workspace: int, stream: Stream
    ) -> None:
        """Puts the product into a stream. One thread at a time calls it. Raises: DeviceError."""
        if self._has_bias:
            self._set(_BIAS, _POINTER(bias))
        if workspace % _WORKSPACE_ALIGNMENT:
            raise DeviceError(
                f"cuBLASLt: a workspace begins at a multiple of {_WORKSPACE_ALIGNMENT}"
            )
        cublas = self._cublas
        cublas.check(
            cublas.library.cublasLtMatmul(
                cublas.handle, self._product, ctypes.byref(self._one), right, self._right, left, self._left,
                ctypes.byref(self._zero), out, self._out, out, self._out,
                ctypes.byref(self._choice), workspace, self._choice.workspace, stream.address,
            )
        )  # fmt: skip
