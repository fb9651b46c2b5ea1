"""Products of matrices by cuBLASLt (`pip install 'relaxpy[cublas]'`; `relaxpy.runtime.devices.cuda.library`).

A call is `out = activation(left @ right + bias + residual)` in row-major order. cuBLASLt's matrices are column-major,
in which the same memory is the transposed matrix, so it is asked for `out.T = right.T @ left.T`.
"""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, ClassVar

from relaxpy.runtime.devices.cuda.driver import Context
from relaxpy.runtime.devices.cuda.library import (
    ALIGNMENT,
    Library,
    Plan,
    Tensors,
    check_workspace,
    opened,
    paths,
)
from relaxpy.runtime.devices.cuda.stream import Stream
from relaxpy.runtime.devices.image import LibraryCall

_FILES = "libcublasLt.so.13", "libcublasLt.so.12"
_WINDOWS_FILES = "cublasLt64_13.dll", "cublasLt64_12.dll"
_FOLDERS = "cu13/lib", "cublas/lib", "cu13/bin/x86_64", "cublas/bin"
"""Where NVIDIA's packages have the library, below the folder `nvidia`."""

# Constants of cublasLt.h, cublas_api.h and library_types.h.
_DTYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
_COMPUTE_FLOAT32 = 68
"""float32 as such, without TF32; narrower factors are multiplied exactly, and summed in float32."""
_TRANSPOSED_A, _EPILOGUE, _BIAS = 3, 7, 8
_WITH_BIAS, _PLAIN = 4, 1
_ACTIVATIONS = {"relu": 2, "gelu_tanh": 32, "": 0}
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
    found = opened(_paths(), _SIGNATURES)
    found.cublasLtGetStatusString.restype = ctypes.c_char_p
    return found


def _paths() -> Iterator[str]:
    return paths(_FILES, _WINDOWS_FILES, _FOLDERS)


class CublasLt(Library):
    """cuBLASLt, and the products that it has."""

    title: ClassVar[str] = "cuBLASLt"
    extra: ClassVar[str] = "cublas"
    functions: ClassVar[re.Pattern[str]] = re.compile(
        r"matmul(_nt)?(_bias)?(_residual)?(_relu|_gelu_tanh)?"
    )
    tensors: ClassVar[frozenset[str]] = frozenset({"left", "right", "out", "workspace"})
    dtypes: ClassVar[dict[str, int]] = _DTYPES
    count: ClassVar[int] = 3

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.library = library()
        self.handle = self.made("cublasLtCreate", self)

    def made(self, create: str, owner: object, *args: Any) -> ctypes.c_void_p:
        """An object of the library, which is destroyed when `owner` is gone. Raises: DeviceError."""
        found = _POINTER()
        self.check(getattr(self.library, create)(ctypes.byref(found), *args))
        destroy = getattr(self.library, create.removesuffix("Create") + "Destroy")
        weakref.finalize(owner, destroy, found).atexit = False
        return found

    def text_of(self, status: int) -> bytes | None:
        return self.library.cublasLtGetStatusString(status)

    def plan(self, call: LibraryCall, numbers: Sequence[int]) -> Plan | None:
        plan = _Product(self, call, *numbers)
        return plan if plan.is_supported else None


class _Product(Plan):
    """A product of one size: descriptions and an algorithm."""

    def __init__(
        self, cublas: CublasLt, call: LibraryCall, rows: int, columns: int, depth: int
    ) -> None:
        """Raises: DeviceError."""
        self._cublas = cublas
        self._most = call.workspace
        is_transposed = "_nt" in call.name
        self._has_bias = "bias" in call.places
        activation = next(each for each in _ACTIVATIONS if call.name.endswith(each))
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

    def run(self, tensors: Tensors, stream: Stream) -> None:
        if self._has_bias:
            self._set(_BIAS, _POINTER(tensors["bias"]))
        workspace, out = check_workspace("cuBLASLt", tensors), tensors["out"]
        added = tensors.get("residual", 0)
        cublas = self._cublas
        cublas.check(
            cublas.library.cublasLtMatmul(
                cublas.handle, self._product,
                ctypes.byref(self._one), tensors["right"], self._right, tensors["left"], self._left,
                ctypes.byref(self._one if added else self._zero), added or out, self._out, out, self._out,
                ctypes.byref(self._choice), workspace, self._choice.workspace, stream.address,
            )
        )  # fmt: skip
