"""Our lowering of intrinsics gives the very tree that TVM's does, and leaves to it what it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relaxpy.backend.cpu import lowering as pipeline
from relaxpy.backend.cpu.compile import compile_object
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.script.parser import parse
from relaxpy.target import Target
from relaxpy.testing.interpret import run_program
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.lowering.intrinsics import lower_intrinsics
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import te, tirx, tvm, tvm_ffi
from tests.backend.support import HOST, compute, n, tensor

Value = Callable[[Any, Any], Any]

VALUES: dict[str, Value] = {
    "product and sum": lambda x, i: x[i] * x[i] + x[i],
    "sum and product": lambda x, i: x[i] + x[i] * x[i],
    "two products": lambda x, i: x[i] * x[i] + x[i] * x[i],
    "intrinsics": lambda x, i: tirx.exp(x[i]) + tirx.sqrt(tirx.abs(x[i])) * tirx.sigmoid(x[i]),
    "clamped": lambda x, i: tirx.min(tirx.max(x[i], x[0]), x[1]),
    "a rule's own intrinsics": lambda x, i: tirx.atan(tirx.tan(x[i])) * tirx.popcount(i),
    "divided index": lambda x, i: x[i // 3] * x[i % 3] + x[i],
    "index divided by powers of two": lambda x, i: x[i // 4] * x[i % 8] + x[(i - 5) % 16 // 2],
    "fused index": lambda x, i: x[tirx.floordiv(i * 3 + 1, n)],
}


def both(func: tirx.PrimFunc, target: Target) -> tuple[tvm.IRModule, tvm.IRModule, bool]:
    """A function as our pass leaves it, as TVM's does; and whether it has floor divisions before."""
    module = tvm.IRModule({"k": func.with_attr({"global_symbol": "k", "s_tir": True})})
    tvm_target = target.to_tvm()
    module = tirx.transform.BindTarget(tvm_target.with_host(tvm_target))(module)
    module = tirx.transform.LowerTVMBuiltin()(pipeline._lower(module))
    found: list[object] = []
    tvm_ffi.structural_walk(
        module["k"].body, ((tirx.FloorDiv, tirx.FloorMod), lambda node: found.append(node))
    )
    return lower_intrinsics(module), tirx.transform.LowerIntrin()(module), bool(found)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_the_same_tree_as_tvms(name: str, dtype: str) -> None:
    if dtype == "int32" and "intrinsics" in name:
        pytest.skip("of floats")
    x = tensor(n, dtype=dtype)
    func = te.create_prim_func([x, compute((n,), lambda i: tirx.Cast(dtype, VALUES[name](x, i)))])
    for each in (func, schedule_kernel(func, HOST).parallel):
        ours, theirs, _ = both(each, HOST)
        assert tvm_ffi.structural_equal(ours, theirs)


def test_floor_divisions_are_tvms() -> None:
    x = tensor(n)
    func = te.create_prim_func([x, compute((n,), lambda i: x[i // 3] * x[i % 5])])
    ours, theirs, divides = both(func, HOST)
    assert divides
    assert tvm_ffi.structural_equal(ours, theirs)
    found: list[object] = []
    tvm_ffi.structural_walk(ours["k"].body, (tirx.FloorDiv, found.append))
    assert not found


def test_a_product_and_a_sum_are_one_instruction() -> None:
    x = tensor(n)
    func = te.create_prim_func([x, compute((n,), lambda i: x[i] * x[i] + x[i])])
    ours, _, divides = both(func, HOST)
    assert not divides
    text = ours.script()
    assert text.count("call_llvm_pure_intrin") == 1
    assert compile_object({"k": func}, HOST)


ZEROS = {
    "written": ("float32", 'T.reinterpret("float32", T.uint32(0))'),
    "of a divided index": (
        "int32",
        'T.reinterpret("int32", T.uint32(0)) + T.Cast("int32", i // 3 + i % n)',
    ),
    "64 bits": ("uint64", 'T.reinterpret("uint64", T.int64(0)) + T.Cast("uint64", i)'),
    "a difference": ("int64", 'T.reinterpret("int64", T.reinterpret("uint64", i - i)) + i'),
    "a wrapping index": ("int8", "x[T.Cast('int64', T.Cast('int8', i * 9 - i * 9))]"),
    "a number": ("float32", 'T.reinterpret("float32", T.uint32(1065353216))'),
}


@pytest.mark.parametrize("name", ZEROS)
def test_zeros_of_other_types(name: str) -> None:
    """The bits of a 0, written or found by simplification, are a 0 and no null pointer."""
    dtype, value = ZEROS[name]
    program = parse(f"""@T.prim_func
def main(x: T.Buffer(("n",), "int8"), y: T.Buffer(("n",), "{dtype}")):
    n = T.int64()
    for i in range(n):
        y[i] = {value}
""")["main"]
    assert isinstance(program, PrimFunc)
    x, got, want = np.arange(5, dtype="int8"), *np.ones((2, 5), dtype)
    Kernels({"k": program}, Target.parse("llvm -opt-level=0"), schedule=False).run("k", [x], [got])
    run_program(program, [x, want])
    np.testing.assert_array_equal(got, want)


CONVERTED = {
    "T.Cast('int8', x[i]) % T.int8(5)": lambda x: x.astype("int8") % 5,
    "T.Cast('int8', x[i]) // T.int8(3)": lambda x: x.astype("int8") // 3,
    "T.Cast('int8', T.max(x[i], T.uint16(3))) // T.int8(7)": lambda x: np.maximum(x, 3).astype("int8") // 7,
    "T.Cast('int8', T.Cast('int16', x[i] + x[i]) % T.int16(7))": lambda x: (x + x).astype("int16") % 7,
    "T.Cast('int8', T.Cast('int32', T.Cast('uint32', x[i]) * T.uint32(65536)) // T.int32(16777259))":
        lambda x: (x.astype("uint32") << 16).astype("int32") // 16777259,
    "T.Cast('int8', T.bitwise_and(T.Cast('int32', x[i]), 255)) // T.int8(5)": lambda x: (x & 255).astype("int8") // 5,
}  # fmt: skip


@pytest.mark.parametrize("text", CONVERTED)
def test_converted_integers_are_divided(text: str) -> None:
    """By all numbers of 16 bits: an unsigned number that is converted may be negative."""
    kernel = parse(f"""@T.prim_func
def main(x: T.Buffer(("n",), "uint16"), y: T.Buffer(("n",), "int8")):
    n = T.int64()
    for i in range(n):
        y[i] = {text}
""")["main"]
    assert isinstance(kernel, PrimFunc)
    x, y = np.arange(1 << 16, dtype=np.uint16), np.zeros(1 << 16, np.int8)
    Kernels({"k": kernel}, Target.parse("llvm -opt-level=0")).run("k", [x], [y])
    np.testing.assert_array_equal(y, CONVERTED[text](x).astype("int8"))
