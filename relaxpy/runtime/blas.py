"""Matrix products by OpenBLAS as library functions: `blas.matmul`, with the suffix `_nt` if the right factor is stored
transposed, and `_bias` and `_relu` for an epilogue that is applied to the result in place.

The library is that of the package scipy-openblas32 (the extra `blas`), loaded with ctypes when a program first asks for
one of the functions. It has threads of its own, as many as kernels may use.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import numpy as np

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.host.threads import num_threads
from relaxpy.runtime.tensor import Tensor

ROW_MAJOR, NO_TRANS, TRANS = 101, 111, 112
"""Constants of `cblas.h`."""
SPIN = "8"
"""OpenBLAS's threads spin for 2^SPIN cycles after a call. Its default (26: 20 ms) would take a core from the next
kernel."""


def functions() -> Mapping[str, Callable[..., None]]:
    """The library functions by name; empty if OpenBLAS is not installed."""
    if _library() is None:
        return {}
    return {
        "blas.matmul" + "_nt" * nt + "_bias" * bias + "_relu" * relu: partial(
            matmul, transposed=nt, bias=bias, relu=relu
        )
        for nt in (False, True)
        for bias in (False, True)
        for relu in (False, True)
    }


def matmul(a: Tensor, b: Tensor, *rest: Tensor, transposed: bool, bias: bool, relu: bool) -> None:
    """Writes `relu(a @ b + bias)` to the last tensor. `a` has shape (…, m, k); `b` has shape (…, k, n), or (…, n, k) if
    `transposed`. Batch dimensions are broadcast, and so is the bias. float32 or float64.

    Raises: RuntimeCheckError (`blas-argument`) for another type or shape.
    """
    out = rest[-1] if rest else a
    if min(len(a.shape), len(b.shape)) < 2:
        raise _wrong(f"shapes {[t.shape for t in (a, b, *rest)]}")
    depth, columns = b.shape[-2:][::-1] if transposed else b.shape[-2:]
    if a.dtype not in ("float32", "float64") or {b.dtype, out.dtype} != {a.dtype}:
        raise _wrong(f"types {a.dtype}, {b.dtype} and {out.dtype}")
    if len(rest) != 1 + bias or a.shape[-1] != depth or not _fits(a, b, out, columns):
        raise _wrong(f"shapes {[t.shape for t in (a, b, *rest)]}")
    result = out.numpy()
    if bias:
        result[...] = rest[0].numpy()
    if result.size:
        _multiply(a, b, out, transposed, beta=float(bias))
    if relu:
        np.maximum(result, 0, out=result)


def _multiply(a: Tensor, b: Tensor, out: Tensor, transposed: bool, beta: float) -> None:
    """`out = a @ b + beta * out`."""
    library = _library()
    assert library is not None
    _set_threads(library)
    rows, columns, depth = out.shape[-2], out.shape[-1], a.shape[-1]
    batch = out.shape[:-2]
    if len(b.shape) == 2 and a.shape[:-2] == batch:  # one product of all rows
        rows, batch = rows * math.prod(batch), ()
    scalar, size, prefix = (
        (ctypes.c_float, 4, "s") if out.dtype == "float32" else (ctypes.c_double, 8, "d")
    )
    gemm = getattr(library, f"scipy_cblas_{prefix}gemm")
    flags = (ROW_MAJOR, NO_TRANS, TRANS if transposed else NO_TRANS)
    row = max(1, depth if transposed else columns)
    lefts = _offsets(a.shape, batch) if batch else [0]
    rights = _offsets(b.shape, batch) if batch else [0]
    for i, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        gemm(
            *flags, rows, columns, depth,
            scalar(1.0), ctypes.c_void_p(a.pointer + left * rows * depth * size), max(1, depth),
            ctypes.c_void_p(b.pointer + right * depth * columns * size), row,
            scalar(beta), ctypes.c_void_p(out.pointer + i * rows * columns * size), columns,
        )  # fmt: skip


def _fits(a: Tensor, b: Tensor, out: Tensor, columns: int) -> bool:
    """Whether the output has the shape of the matrix product. OpenBLAS does not check it."""
    if len(b.shape) == 2 or a.shape[:-2] == b.shape[:-2]:
        return out.shape == (*a.shape[:-1], columns)
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        return False
    return out.shape == (*batch, a.shape[-2], columns)


def _offsets(shape: tuple[int, ...], batch: tuple[int, ...]) -> list[int]:
    """For each matrix of the broadcast batch, in order, the index of the tensor's matrix that it reads."""
    own = shape[:-2]
    numbers = np.arange(math.prod(own)).reshape(own)
    return np.broadcast_to(numbers, batch).reshape(-1).tolist()


@cache
def _library() -> ctypes.CDLL | None:
    """OpenBLAS, or None where the package is not installed."""
    spec = importlib.util.find_spec("scipy_openblas32")
    for place in (spec and spec.submodule_search_locations) or ():
        for path in sorted((Path(place) / "lib").glob("libscipy_openblas.*")):
            with _environment("OPENBLAS_THREAD_TIMEOUT", SPIN):
                return ctypes.CDLL(str(path))
    return None


_threads: int | None = None
"""The number of threads that OpenBLAS was last set to."""


def _set_threads(library: ctypes.CDLL) -> None:
    global _threads  # a setting of the process, as the library's pool is
    count = num_threads()
    if count != _threads:
        library.scipy_openblas_set_num_threads(count)
        _threads = count


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Sets an environment variable while a library is loaded, unless the user has set it."""
    before = os.environ.get(name)
    os.environ.setdefault(name, value)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def _wrong(what: str) -> RuntimeCheckError:
    return RuntimeCheckError("blas-argument", f"matrices cannot be multiplied: {what}")
