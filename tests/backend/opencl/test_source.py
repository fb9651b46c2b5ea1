"""OpenCL C: what TVM writes wrongly is put in other terms."""

from __future__ import annotations

import re

import pytest

from relaxpy.backend.gpu.device_kernel import device_kernel
from relaxpy.backend.gpu.threads import bind_threads
from relaxpy.backend.opencl.source import opencl_source
from tests.backend.gpu.support import MATMUL, program
from tests.backend.gpu.test_device_kernel import TARGET


def source(value: str, dtype: str = "float32", result: str = "", first: str = "") -> str:
    """OpenCL C of a program that computes this of each `x[vi]`, and another line first."""
    text = f"""
        def main(x: T.Buffer((8,), "{dtype}"), y: T.Buffer((8,), "{result or dtype}")):
            for i in T.serial(8):
                with T.sblock("y"):
                    vi = T.axis.spatial(8, i)
                    {first}
                    y[vi] = {value}
    """
    kernel = device_kernel(bind_threads(program(text).func, 8), "k", TARGET)
    return opencl_source(kernel.func, TARGET)


def test_a_matrix_product() -> None:
    """Loops keep their names; a total is a register."""
    kernel = device_kernel(bind_threads(program(MATMUL).func, 64), "k", TARGET)
    text = opencl_source(kernel.func, TARGET)
    assert "for (long l = (long)0; l < k; ++l) {" in text
    assert (
        "y_total_ptr[0] = (y_total_ptr[0] + (x_ptr[(l + (i * k))] * w_ptr[((l * (long)3) + j)]));"
        in text
    )
    assert "#pragma OPENCL FP_CONTRACT OFF" in text


def test_memory_may_be_the_same() -> None:
    """In-place updates and planned storage give a kernel one memory twice."""
    assert "restrict" not in source("x[vi] + T.float32(1)")


def test_numbers_are_exact() -> None:
    """TVM prints 7 digits."""
    assert "as_float((uint)1069066811)" in source("x[vi] * T.float32(1.44269502162933349609375)")
    assert "5.000000e-01f" in source("x[vi] * T.float32(0.5)")


@pytest.mark.parametrize("value", ["float('inf')", "float('nan')", "-0.0"])
def test_numbers_without_digits(value: str) -> None:
    assert "as_float((uint)" in source(f"T.max(x[vi], T.float32({value}))")


def test_bits() -> None:
    """Not through the address of a value, which may have none."""
    text = source('T.reinterpret("int32", x[vi] * T.float32(2))', result="int32")
    assert "as_int(" in text
    assert "*(int" not in text


def test_choices_compute_one_side() -> None:
    """`select` computes both, and takes the overload for long."""
    text = source("T.Select(x[vi] > T.float32(0), x[vi], T.float32(0))")
    assert "select(" not in text
    assert "if (x_ptr[i] > 0.000000e+00f)" in text


def test_extremes_of_nan() -> None:
    """As everywhere, the second where one is no number; OpenCL's own are undefined there."""
    assert "fmax" not in source("T.max(x[vi], T.float32(0))")
    assert "max(" not in source("T.max(x[vi], T.float32(0))")


def test_smallest_integers() -> None:
    """They are no literals in C."""
    assert "as_int((uint)2147483648" in source("T.max(x[vi], T.int32(-2147483648))", "int32")


def test_integers_wrap() -> None:
    """Sums of signed values are those of unsigned ones: signed overflow is undefined in C."""
    assert "convert_uint(" in source("x[vi] + T.int32(1)", "int32")


@pytest.mark.parametrize("name", ["exp", "tanh", "erf", "atan2", "log1p", "fmod", "nextafter"])
def test_elementary_functions(name: str) -> None:
    """Those of OpenCL, by their own names."""
    args = "x[vi], x[vi]" if name in ("atan2", "fmod", "nextafter") else "x[vi]"
    operand = "a" if name == "tanh" else "x_ptr[i]"  # it is used twice
    assert f" {name}({operand}" in source(f"T.{name}({args})").replace("= ", " ")


def test_a_value_that_a_formula_uses_several_times() -> None:
    """It is computed once, by its name; copies of a division would bind names to different values."""
    text = source("T.tanh(T.max(x[vi // 2], x[vi % T.max(T.Cast('int64', x[0]), 1)]))")
    assert text.count("tanh(") == 1
    assert text.count(" % ") == 1


@pytest.mark.parametrize(
    "name", ["half", "uchar4", "kernel", "constant", "__local", "register", "exp"]
)
def test_names_that_the_language_has(name: str) -> None:
    """A variable of a program may have any."""
    named = f"{name}: T.let[T.float32] = x[vi] + T.float32(1)"
    text = source(f"{name} * {name} + T.exp({name})", first=named)
    assert f"float {name}_" in text
    assert re.search(rf"\b{re.escape(name)}\b(?!\()", text.partition("{")[2]) is None
