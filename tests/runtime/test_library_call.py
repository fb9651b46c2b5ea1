"""Library functions of Python: what they are given stays as it is, and what they should write is not left as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError
from relaxpy.ir import IRModule
from relaxpy.runtime import Tensor
from relaxpy.testing.interpret import interpret
from tests.sweeps import sweep


def binds_a_name(x: Tensor, out: Any) -> None:
    out = x.numpy() * 2  # noqa: F841


def writes_its_input(x: Tensor, out: Tensor) -> None:
    out.numpy()[...] = x.numpy()
    x.numpy()[...] = 0


def clears_by_dlpack(x: Tensor, out: Tensor) -> None:
    out.numpy()[...] = x.numpy()
    np.from_dlpack(x)[...] = 0


def doubles(x: Tensor, out: Tensor) -> None:
    np.multiply(x.numpy(), 2, out=out.numpy())


def minus_one(x: Tensor, out: Tensor) -> None:
    out.numpy()[...] = -1


SHAPES = [(), (1,), (2, 3), (1001,), (0, 5)]
DTYPES = ["float32", "float16", "float64", "int8", "int64", "uint8"]


def module(name: str, shape: tuple[int, ...], dtype: str) -> IRModule:
    tensor = f'R.Tensor({shape}, "{dtype}")'
    return relaxpy.parse(f"""
@R.function
def main(x: {tensor}):
    a = R.add(x, x)
    b = R.call_dps_library("{name}", (x,), out_ty={tensor})
    c = R.call_dps_library("{name}", (a,), out_ty={tensor})
    return x, a, b, c
""")


Run = Callable[[IRModule, np.ndarray], Any]
RUNS: dict[str, Run] = {
    "compiled": lambda mod, x: relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x),
    "checked": lambda mod, x: relaxpy.VirtualMachine(relaxpy.build(mod), check_memory=True)["main"](
        x
    ),
    "interpreted": lambda mod, x: interpret(mod, "main", x),
}


@sweep(3)
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_right_functions(run: str, shape: tuple[int, ...], dtype: str) -> None:
    """Whatever they write: also -1, which is 255 in all bytes."""
    relaxpy.register_library("test.doubles", doubles)
    relaxpy.register_library("test.minus_one", minus_one)
    x = np.full(shape, 3, dtype)
    found = RUNS[run](module("test.doubles", shape, dtype), x)
    for value, expected in zip(found, (3, 6, 6, 12), strict=True):
        np.testing.assert_array_equal(np.asarray(value), np.full(shape, expected, dtype))
    if dtype != "uint8":
        found = RUNS[run](module("test.minus_one", shape, dtype), x)
        np.testing.assert_array_equal(np.asarray(found[2]), np.full(shape, -1, dtype))


@sweep(3)
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("shape", SHAPES[:-1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_output_that_is_not_written(run: str, shape: tuple[int, ...], dtype: str) -> None:
    relaxpy.register_library("test.binds", binds_a_name)
    with pytest.raises(RuntimeCheckError, match=r"test\.binds did not write its output") as caught:
        RUNS[run](module("test.binds", shape, dtype), np.ones(shape, dtype))
    assert caught.value.code == "library-output"
    assert caught.value.span is not None


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_input_that_is_written(run: str, dtype: str) -> None:
    """The caller's array stays as it was: an error, or a copy for those who ask for DLPack."""
    relaxpy.register_library("test.writes", writes_its_input)
    x = np.full((2, 3), 3, dtype)
    with pytest.raises(RuntimeCheckError, match="read-only") as caught:
        RUNS[run](module("test.writes", x.shape, dtype), x)
    assert caught.value.code == "library-failed"
    np.testing.assert_array_equal(x, np.full((2, 3), 3, dtype))
    relaxpy.register_library("test.clears", clears_by_dlpack)
    found = RUNS[run](module("test.clears", x.shape, dtype), x)
    for value, expected in zip(found, (3, 6, 3, 6), strict=True):
        np.testing.assert_array_equal(np.asarray(value), np.full((2, 3), expected, dtype))
    np.testing.assert_array_equal(x, np.full((2, 3), 3, dtype))


def test_memory_to_work_in_need_not_be_written() -> None:
    def works(x: Tensor, out: Tensor, memory: Tensor) -> None:
        doubles(x, out)

    relaxpy.register_library("test.works", works)
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor((3,), "float32")):
    both = R.call_dps_library("test.works", (x,), out_ty=[R.Tensor((3,), "float32"), R.Tensor((64,), "uint8")])
    return both[0]
""")
    for run in RUNS.values():
        np.testing.assert_array_equal(np.asarray(run(mod, np.ones(3, "float32"))), [2, 2, 2])


def test_one_of_two_outputs() -> None:
    def half(x: Tensor, first: Tensor, second: Tensor) -> None:
        doubles(x, first)

    relaxpy.register_library("test.half", half)
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor((3,), "float32")):
    both = R.call_dps_library("test.half", (x,), out_ty=[R.Tensor((3,), "float32"), R.Tensor((3,), "float32")])
    return both[0] + both[1]
""")
    with pytest.raises(RuntimeCheckError, match="did not write output 2"):
        RUNS["compiled"](mod, np.ones(3, "float32"))
