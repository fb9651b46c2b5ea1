"""Metal's language: what TVM writes wrongly, what the language lacks, and what must not be optimised."""

from __future__ import annotations

import pytest

from relaxpy.backend.gpu.device_kernel import device_kernel
from relaxpy.backend.gpu.threads import bind_threads
from relaxpy.backend.metal.source import metal_source
from relaxpy.backend.metal.target import MetalTarget
from tests.backend.gpu.support import program
from tests.device_emulation.runner import check_syntax, needs_compiler
from tests.sweeps import sweep

TARGET = MetalTarget().to_tvm()
HOSTILE = (
    "half kernel thread device constant threadgroup max min precise select new arg blockIdx threadIdx float uint metal "
    "int abs floor float4 NULL register bool array struct this INFINITY as_type simdgroup_t operator"
).split()
"""Names that a program may have, and that mean something in the language."""


def source(value: str, dtype: str = "float32", result: str = "", loop: str = "i") -> str:
    """The source of a program that computes this of each `x[vi]`, under a name that its variables may have, too."""
    text = f"""
        def main(x: T.Buffer((8,), "{dtype}"), y: T.Buffer((8,), "{result or dtype}")):
            for {loop} in T.serial(8):
                with T.sblock("y"):
                    vi = T.axis.spatial(8, {loop})
                    y[vi] = {value}
    """
    kernel = device_kernel(bind_threads(program(text).func, 8), "k", TARGET)
    return metal_source(kernel.func, TARGET)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("T.exp(x[vi])", "precise::exp("),
        ("T.tanh(x[vi])", "precise::tanh("),
        ("T.pow(x[vi], x[vi])", "precise::pow("),
        ("T.hypot(x[vi], x[vi])", "relaxpy_hypot("),
        ("T.nextafter(x[vi], x[vi])", "relaxpy_nextafter("),
        ("x[vi] * T.float32(1.44269502162933349609375)", "as_type<float>((uint)1069066811)"),
        ("T.max(x[vi], T.float32(float('nan')))", "as_type<float>((uint)"),
    ],
)
def test_names(value: str, written: str) -> None:
    assert written in source(value)


@needs_compiler
@pytest.mark.parametrize(
    "value",
    [
        *(f"T.{name}(x[vi])" for name in ("erf", "log1p", "tanh", "sigmoid", "rsqrt", "round", "nearbyint", "isinf")),
        *(f"T.{name}(x[vi], x[vi])" for name in ("hypot", "nextafter", "fmod", "atan2", "copysign", "ldexp")[:5]),
    ],
)  # fmt: skip
def test_functions_that_the_language_has(value: str) -> None:
    """C's are not all there."""
    result = "bool" if "isinf" in value else ""
    check_syntax("metal_shim.h", source(value, result=result))


@sweep(3)
@needs_compiler
@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_the_language(name: str) -> None:
    """Variables get another name where theirs means something."""
    text = f"""
        def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
            for i in T.serial(8):
                with T.sblock("y"):
                    vi = T.axis.spatial(8, i)
                    y[vi] = T.float32(0)
                    for {name} in range(3):
                        y[vi] = T.max(T.floor(x[vi]), y[vi]) + T.Cast("float32", T.max(T.min({name}, 2), vi))
    """
    kernel = device_kernel(bind_threads(program(text).func, 8), "k", TARGET)
    check_syntax("metal_shim.h", metal_source(kernel.func, TARGET))


def test_nothing_is_reassociated_or_contracted() -> None:
    """Sums that are exact by design stay exact, and NaN is a value."""
    text = source("x[vi] * x[vi] + x[vi]")
    assert "#pragma METAL fp math_mode(safe)\n#pragma METAL fp contract(off)" in text
    assert "#pragma STDC FP_CONTRACT OFF" in text


def test_barriers_order_all_memory() -> None:
    text = """
        def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
            for j in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("y"):
                    s = T.alloc_buffer((64,), "float32", scope="shared")
                    s[j] = x[j]
                    T.tvm_storage_sync("shared")
                    y[j] = s[63 - j]
    """
    kernel = device_kernel(bind_threads(program(text).func, 64), "k", TARGET)
    found = metal_source(kernel.func, TARGET)
    assert "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup)" in found
    assert "threadgroup float s[64]" in found


def test_no_suffix_for_longer_integers() -> None:
    """The language has no long long."""
    text = source("T.max(x[vi], T.int64(-9223372036854775808))", "int64")
    assert "LL" not in text
    assert "as_type<long>(" in text


@needs_compiler
def test_sources_are_one_source_together() -> None:
    """Helpers and declarations are there once."""
    texts = [source(value).replace("k_kernel", name) for name, value in [
        ("a", "T.hypot(x[vi], x[vi])"), ("b", "T.hypot(x[vi], T.float32(1))")
    ]]  # fmt: skip
    check_syntax("metal_shim.h", "\n".join(texts))
