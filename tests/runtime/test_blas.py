"""Matrix products by OpenBLAS, called by name."""

from __future__ import annotations

import numpy as np
import pytest

from relaxpy.errors import ExecutableError, RuntimeCheckError
from relaxpy.runtime import blas, library
from relaxpy.runtime.host import threads
from relaxpy.runtime.library import find_library
from relaxpy.runtime.tensor import empty, from_numpy

RNG = np.random.default_rng(0)
SHAPES = [
    ((3, 5), (5, 4)),
    ((2, 3, 5), (5, 4)),
    ((2, 1, 3, 5), (3, 5, 4)),
    ((3, 5), (2, 5, 4)),
    ((1, 5), (5, 1)),
    ((0, 5), (5, 4)),
    ((3, 0), (0, 4)),
    ((0, 3, 5), (0, 5, 4)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_products(
    left: tuple[int, ...], right: tuple[int, ...], transposed: bool, dtype: str
) -> None:
    a = RNG.uniform(-1, 1, left).astype(dtype)
    b = RNG.uniform(-1, 1, right).astype(dtype)
    bias = RNG.uniform(-1, 1, right[-1]).astype(dtype)
    stored = np.ascontiguousarray(b.swapaxes(-1, -2)) if transposed else b
    for epilogue, want in {
        "": a @ b,
        "_bias": a @ b + bias,
        "_relu": np.maximum(a @ b, 0),
        "_bias_relu": np.maximum(a @ b + bias, 0),
    }.items():
        out = empty(want.shape, dtype)
        out.numpy()[...] = np.nan
        given = [a, stored, *([bias] if "bias" in epilogue else [])]
        func = find_library("blas.matmul" + "_nt" * transposed + epilogue)
        func(*map(from_numpy, given), out)
        np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        (np.ones((2, 3), "float32"), np.ones((4, 5), "float32"), np.ones((2, 5), "float32")),
        (np.ones((2, 3), "float32"), np.ones((3, 5), "float32"), np.ones((7, 5), "float32")),
        (np.ones((4, 2, 3), "float32"), np.ones((3, 5), "float32"), np.ones((2, 2, 5), "float32")),
        (
            np.ones((4, 2, 3), "float32"),
            np.ones((3, 3, 5), "float32"),
            np.ones((4, 2, 5), "float32"),
        ),
        (
            np.ones((1, 2, 3), "float32"),
            np.ones((3, 3, 5), "float32"),
            np.ones((4, 2, 5), "float32"),
        ),
        (np.ones(3, "float32"), np.ones((3, 5), "float32"), np.ones(5, "float32")),
        (np.ones((2, 3), "float16"), np.ones((3, 5), "float16"), np.ones((2, 5), "float16")),
        (np.ones((2, 3), "float32"), np.ones((3, 5), "float64"), np.ones((2, 5), "float32")),
    ],
)
def test_what_does_not_fit_is_refused(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    with pytest.raises(RuntimeCheckError, match="matrices cannot be multiplied:"):
        find_library("blas.matmul")(*map(from_numpy, (a, b, out)))


def test_threads_follow_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_requested", None)  # put back afterwards
    loaded = blas._library()
    assert loaded is not None
    for count in (1, 2):
        threads.set_num_threads(count)
        out = empty((2, 2), "float32")
        find_library("blas.matmul")(from_numpy(np.eye(2, dtype="float32")), out, out)
        assert loaded.scipy_openblas_get_num_threads() == count


def test_where_it_is_not_installed_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_library", lambda: None)
    monkeypatch.setattr(library, "_libraries", {})
    with pytest.raises(ExecutableError, match=r"relaxpy\[blas\]"):
        find_library("blas.matmul")
