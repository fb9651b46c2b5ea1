"""Languages like C: what TVM writes wrongly comes out in the language's own terms."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.gpu.c_like import CLike
from relaxpy.backend.gpu.device_kernel import device_kernel
from relaxpy.backend.gpu.threads import bind_threads
from relaxpy.runtime.devices.registry import runtime_class
from relaxpy.testing.interpret import interpret
from tests.backend.gpu.support import program
from tests.backend.gpu.test_device_kernel import TARGET
from tests.sweeps import sweep


class Own(CLike):
    """A language with names that TVM does not know."""

    types: ClassVar[Mapping[str, str]] = {
        "float32": "real", "int32": "integer", "uint32": "natural", "int64": "wide", "uint64": "wide_natural",
        "int16": "short_integer", "uint16": "short_natural", "uint8": "octet",
    }  # fmt: skip
    bits: ClassVar[str] = "bits<{}>"
    functions: ClassVar[Mapping[str, str]] = {"exp": "own::exp", "atan2": "own::angle"}


def text(value: str, dtype: str = "float32", result: str = "") -> str:
    """The text of a program that computes this of each `x[vi]`."""
    func = program(f"""
        def main(x: T.Buffer((8,), "{dtype}"), y: T.Buffer((8,), "{result or dtype}")):
            for i in T.serial(8):
                with T.sblock("y"):
                    vi = T.axis.spatial(8, i)
                    y[vi] = {value}
    """)
    return Own().text(device_kernel(bind_threads(func.func, 8), "k", TARGET).func, TARGET)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("T.exp(x[vi])", "own::exp(x_ptr[i])"),
        ("T.atan2(x[vi], x[vi])", "own::angle(x_ptr[i], x_ptr[i])"),
        ("T.sigmoid(x[vi])", "own::exp("),
        ("x[vi] * T.float32(1.44269502162933349609375)", "bits<real>((uint)1069066811)"),
        ("x[vi] * T.float32(float('nan'))", "bits<real>((uint)"),
        ("T.max(x[vi], T.float32(-0.0))", "bits<real>((uint)2147483648"),
    ],
)
def test_names(value: str, written: str) -> None:
    assert written in text(value)


@pytest.mark.parametrize(
    ("dtype", "written"), [("int16", "(short_integer)("), ("uint8", "(octet)(")]
)
def test_narrow_arithmetic(dtype: str, written: str) -> None:
    """C computes it in 32 bits."""
    found = text(
        "T.Cast('int32', x[vi] * x[vi]) + T.Cast('int32', T.bitwise_not(x[vi]))", dtype, "int32"
    )
    assert found.count(written) >= 2


def test_short_numbers_are_digits() -> None:
    assert "5.000000e-01f" in text("x[vi] * T.float32(0.5)")


def test_bits_are_those_of_the_type() -> None:
    """An expression of C may be wider than its value, so it is cast first."""
    found = text('T.reinterpret("int32", x[vi] * T.float32(2))', result="int32")
    assert "bits<integer>((real)((x_ptr[i] * 2.000000e+00f)))" in found


@pytest.mark.parametrize(
    ("dtype", "written"),
    [
        ("int32", "bits<integer>((uint)2147483648"),
        ("int64", "bits<wide>((ulong)9223372036854775808"),
    ],
)
def test_smallest_integers(dtype: str, written: str) -> None:
    """Not as the negative of a number that the type does not have."""
    least: Any = -(1 << (int(dtype[3:]) - 1))
    assert written in text(f"T.max(x[vi], T.{dtype}({least}))", dtype)


def test_choices_and_extremes_are_branches() -> None:
    """One side is computed; an extreme is the second value where one is NaN."""
    found = text("T.max(x[vi], T.Select(x[vi] > T.float32(0), x[vi], T.float32(1)))")
    assert "select" not in found
    assert "max" not in found.replace("max_", "")
    assert found.count("if (") >= 2


CHAIN = "\n".join(
    f"                a{i}: T.let[T.int64] = (a{i - 1} + a{i - 1} // 2) % n" for i in range(1, 41)
)


@sweep(2)
@pytest.mark.parametrize("target", ["opencl", "cuda", "metal", "vulkan", "webgpu"])
def test_chains_of_names(target: str) -> None:
    """Each name is used twice in the next value: TVM's lowering wrote them out, which took time without end. A program
    that is fused with the next has a buffer of its own, too."""
    mod = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("y"):
                v = T.axis.spatial(n, i)
                a0: T.let[T.int64] = v
{CHAIN}
                y[v] = x[T.max(T.min(a40, n - 1), 0)]

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        with R.dataflow():
            y = R.call_tir(M.f, (x,), out_ty=R.Tensor((n,), "float32"))
            z = R.exp(y) + x
            R.output(z)
        return z
""")
    began = time.process_time()
    exe = relaxpy.build(mod, target, cache=False, jobs=1)
    assert time.process_time() - began < 30
    if target == "opencl" and runtime_class(target).devices():
        x = np.arange(7, dtype=np.float32)
        got = relaxpy.VirtualMachine(exe)["main"](x).numpy()
        np.testing.assert_allclose(got, interpret(mod, "main", x), rtol=1e-5)
