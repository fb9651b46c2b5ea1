"""Elementary functions against float64, over all of float32, in units in the last place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relaxpy.schedule import schedule_kernel
from relaxpy.tir import math as tir_math
from relaxpy.tir._tvm import te
from relaxpy.tir.compile import compile_source
from relaxpy.tir.target import Target
from tests.schedule.support import AVX2, HOST, as_tensor, compute, load, n, tensor

GENERIC = Target.parse("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64")


def sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1.0 + small)


REFERENCE: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "exp": (np.exp, 1.0),
    "log": (np.log, 1.0),
    "tanh": (np.tanh, 1.5),
    "sigmoid": (sigmoid, 2.5),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), 6.0),
}


@pytest.fixture(scope="module", params=[HOST, AVX2, GENERIC], ids=["host", "avx2", "sse2"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    kernels = {name: kernel(name, request.param) for name in REFERENCE}
    return load(tmp_path_factory.mktemp("math"), kernels, request.param)


def kernel(name: str, target: Target, dtype: str = "float32") -> Any:
    x = tensor(n, dtype=dtype)
    out = compute((n,), lambda i: getattr(tir_math, name)(x[i]))
    return schedule_kernel(te.create_prim_func([x, out]), target).serial


def apply(function: Any, x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    function(as_tensor(x), as_tensor(out))
    return out


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_error_over_all_float32(library: Any, name: str) -> None:
    step = 7919 if name == "erf" else 3001  # math.erf is slow
    x = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    reference, limit = REFERENCE[name]
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
        expected = exact.astype(np.float32)
    result = apply(library[name], x)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(result[~finite], expected[~finite])
    unit = np.spacing(np.abs(expected[finite])).astype(np.float64)
    error = np.abs(result[finite].astype(np.float64) - exact[finite]) / unit
    assert error.max() <= limit, f"{name}({x[finite][error.argmax()]})"


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_edges(library: Any, name: str) -> None:
    """Zeros with their sign, infinities, NaN, what overflows and what underflows: as numpy."""
    x = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-45, 88.72, 88.73, -87.4, -103.9,
         -104.0, 3e38, -3e38, 9.1, -9.1, 4.0, -4.0], np.float32,
    )  # fmt: skip
    reference, limit = REFERENCE[name]
    with np.errstate(all="ignore"):
        expected = reference(x.astype(np.float64)).astype(np.float32)
    result = apply(library[name], x)
    np.testing.assert_allclose(result, expected, rtol=limit * 2**-23, atol=1e-45)
    exact = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(result[exact]), np.signbit(expected[exact]))


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_no_call_in_the_loop(name: str) -> None:
    text = compile_source({"k": kernel(name, HOST)}, HOST)
    assert f"{name}f" not in text


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_other_floats(tmp_path: Any, name: str, dtype: str) -> None:
    x = np.linspace(-9, 9, 1001).astype(dtype)
    if name == "log":
        x = np.abs(x) + x.dtype.type(0.01)
    result = apply(load(tmp_path, {"k": kernel(name, HOST, dtype)})["k"], x)
    expected = REFERENCE[name][0](x.astype(np.float64))
    tolerance = 1e-3 if dtype == "float16" else 1e-15
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance / 1e3)
