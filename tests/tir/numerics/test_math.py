"""Elementary functions against float64, over all of float32, in units in the last place."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.backend.cpu.compile import compile_source
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.target import Target
from relaxpy.tir.numerics import math as math_of_tir
from relaxpy.tir.numerics import scalar
from relaxpy.tir.tvm import te
from tests.backend.support import AVX2, HOST, as_tensor, compute, load, n, tensor
from tests.sweeps import FULL, sweep

GENERIC = Target.parse("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64")


def sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1.0 + small)


REFERENCE: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "exp": (np.exp, 1.0),
    "log": (np.log, 1.0),
    "log1p": (np.log1p, 1.5),
    "sigmoid": (sigmoid, 2.5),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), 6.0),
    "sin": (np.sin, 1.6),
    "cos": (np.cos, 1.6),
    "tan": (np.tan, 3.0),
    "asin": (np.arcsin, 3.0),
    "acos": (np.arccos, 1.5),
    "atan": (np.arctan, 3.0),
    "sinh": (np.sinh, 2.0),
    "cosh": (np.cosh, 2.0),
    "tanh": (np.tanh, 2.5),
    "asinh": (np.arcsinh, 3.5),
    "acosh": (np.arccosh, 3.0),
    "atanh": (np.arctanh, 2.0),
}
"""The function in float64, and the largest error of ours in units in the last place."""
REFERENCE2: dict[str, tuple[Callable[..., np.ndarray], float]] = {
    "power": (np.power, 0.51),
    "atan2": (np.arctan2, 3.0),
}
"""The same of two arguments."""


TARGETS = [
    pytest.param(HOST, id="host"),
    pytest.param(AVX2, id="avx2", marks=pytest.mark.slow),
    pytest.param(GENERIC, id="sse2", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=TARGETS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    kernels = {name: kernel(name, request.param) for name in [*REFERENCE, *REFERENCE2]}
    return load(tmp_path_factory.mktemp("math"), kernels, request.param)


def kernel(name: str, target: Target, dtype: str = "float32") -> Any:
    xs = [tensor(n, dtype=dtype, name=f"x{i}") for i in range(2 if name in REFERENCE2 else 1)]
    out = compute((n,), lambda i: getattr(scalar, name)(*(x[i] for x in xs)))
    return schedule_kernel(te.create_prim_func([*xs, out]), target).serial


def apply(function: Any, *xs: np.ndarray) -> np.ndarray:
    out = np.empty_like(xs[0])
    function(*map(as_tensor, xs), as_tensor(out))
    return out


@sweep
@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_error_over_all_float32(library: Any, name: str) -> None:
    step = (7919 if name == "erf" else 3001) * (1 if FULL else 3)  # math.erf is slow
    x = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    check(library[name], REFERENCE[name], x)


@pytest.mark.parametrize("name", sorted(REFERENCE2))
def test_error_of_two_arguments(library: Any, name: str) -> None:
    """Of all magnitudes, of moderate ones, and every pair of special ones."""
    rng = np.random.default_rng(0)
    count = 50_000
    anything = (
        rng.integers(0, 2**32, (2, count), dtype=np.uint64).astype(np.uint32).view(np.float32)
    )
    moderate = rng.uniform(-30, 30, (2, count)).astype(np.float32)
    near_one = rng.uniform(0.5, 2, count).astype(np.float32), 10 * moderate[1]
    for x, y in (anything, moderate, (anything[0], moderate[1]), near_one, pairs(SPECIAL)):
        check(library[name], REFERENCE2[name], x, y)


SPECIAL = [0, 1, 2, 3, 0.5, 1.5, math.inf, 1e-45, 1e-38, 3e38, 2**24 + 2, 2**23 + 1, 88.8]


def pairs(magnitudes: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of these, of their negatives and a NaN."""
    values = np.array([*magnitudes, *(-m for m in magnitudes), np.nan], np.float32)
    x, y = np.meshgrid(values, values)
    return x.ravel(), y.ravel()


def check(
    function: Any, expected_of: tuple[Callable[..., np.ndarray], float], *xs: np.ndarray
) -> None:
    """The error is within the limit; what is not finite, and the sign of every zero, is right."""
    reference, limit = expected_of
    result = apply(function, *map(np.ascontiguousarray, xs))
    with np.errstate(all="ignore"):
        exact = reference(*(x.astype(np.float64) for x in xs))
        expected = exact.astype(np.float32)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(result[~finite], expected[~finite])
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(result[zero]), np.signbit(expected[zero]))
    unit = np.spacing(np.abs(expected[finite])).astype(np.float64)
    error = np.abs(result[finite].astype(np.float64) - exact[finite]) / unit
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    assert error[worst] <= limit, [x[finite][worst] for x in xs]


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


@pytest.mark.parametrize("name", sorted([*REFERENCE, *REFERENCE2]))
def test_no_call_in_the_loop(name: str) -> None:
    text = compile_source({"k": kernel(name, HOST)}, HOST)
    assert f"{ {'power': 'pow'}.get(name, name) }f" not in text


@pytest.fixture(scope="module", params=["float16", "float64"])
def other_library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Any]:
    kernels = {name: kernel(name, HOST, request.param) for name in REFERENCE}
    return request.param, load(tmp_path_factory.mktemp("math"), kernels)


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_other_floats(other_library: tuple[str, Any], name: str) -> None:
    dtype, library = other_library
    low, high = {"log": (0.01, 9.0), "acosh": (1.0, 9.0)}.get(name, (-9.0, 9.0))
    low, high = (-0.999, 0.999) if name in ("asin", "acos", "atanh", "log1p") else (low, high)
    x = np.linspace(low, high, 1001).astype(dtype)
    result = apply(library[name], x)
    expected = REFERENCE[name][0](x.astype(np.float64))
    tolerance = 1e-3 if dtype == "float16" else 1e-15
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance / 1e3)


def test_exp_of_what_is_at_most_0(tmp_path: Path) -> None:
    """Close to exp near 0, 1 at 0, 0 from where weights are no longer normal, NaN kept."""
    x = tensor(n)
    y = compute((n,), lambda i: math_of_tir.exp_of_negative(x(i)))
    library = load(tmp_path, {"k": schedule_kernel(te.create_prim_func([x, y]), HOST).parallel})
    ends = [0.0, -0.0, -87.6, -87.7, -88.5, -1e30, -np.inf, np.nan]
    values = np.concatenate([np.linspace(-80, 0, 100_001), ends]).astype(np.float32)
    found = np.empty_like(values)
    library["k"](as_tensor(values), as_tensor(found))
    regular, odd = values[:-8].astype(np.float64), found[-8:]
    error = np.abs(found[:-8] / np.exp(regular) - 1)
    assert (error <= 2e-7 + 4e-8 * np.abs(regular)).all()
    assert odd[0] == odd[1] == 1
    assert odd[2] > 0
    assert (odd[3:7] == 0).all()
    assert np.isnan(odd[7])


def test_exp2_of_what_is_at_most_0(tmp_path: Path) -> None:
    """Close to 2**x, 1 at 0, 0 from where weights are no longer normal, NaN kept."""
    x = tensor(n)
    y = compute((n,), lambda i: math_of_tir.exp2_of_negative(x(i)))
    library = load(tmp_path, {"k": schedule_kernel(te.create_prim_func([x, y]), HOST).parallel})
    ends = [0.0, -0.0, -126.0, -126.6, -127.5, -1e30, -np.inf, np.nan]
    values = np.concatenate([np.linspace(-120, 0, 100_001), ends]).astype(np.float32)
    found = np.empty_like(values)
    library["k"](as_tensor(values), as_tensor(found))
    regular, odd = values[:-8].astype(np.float64), found[-8:]
    assert np.abs(found[:-8] / np.exp2(regular) - 1).max() <= 1.5e-7
    assert odd[0] == odd[1] == 1
    assert odd[2] > 0
    assert (odd[3:7] == 0).all()
    assert np.isnan(odd[7])
