"""Reductions of no elements in programs whose loops the author has scheduled: the initial value, as everywhere; loops
that become parallel."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.script.parser import parse
from relaxpy.testing.interpret import interpret
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.schedule import loops_of, with_outer_loops_parallel
from relaxpy.tir.tvm import tirx

PLACES = {
    "a parallel row": """
        for i in T.parallel(n):
            for k in range(m):
                with T.sblock("sum"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        y[vi] = T.float32(3)
                    y[vi] = y[vi] + x[vi, vk]""",
    "outside of the rows": """
        for k in range(m):
            for i in T.parallel(n):
                with T.sblock("sum"):
                    vk, vi = T.axis.remap("RS", [k, i])
                    with T.init():
                        y[vi] = T.float32(3)
                    y[vi] = y[vi] + x[vi, vk]""",
    "parts of an axis": """
        for i in range(n):
            for k in range(m * 2):
                for q in T.unroll(2):
                    with T.sblock("sum"):
                        vi = T.axis.spatial(n, i)
                        vk = T.axis.reduce(m * 4, k * 2 + q)
                        with T.init():
                            y[vi] = T.float32(3)
                        y[vi] = y[vi] + x[vi, vk // 4]""",
    "behind another nest": """
        for i in T.parallel(n):
            with T.sblock("first"):
                v = T.axis.spatial(n, i)
                z[v] = T.float32(1)
        for i, k in T.grid(n, m):
            with T.sblock("sum"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    y[vi] = T.float32(3)
                y[vi] = y[vi] + x[vi, vk] * z[vi]""",
    "with a checked index": """
        for i, k in T.grid(n, m):
            with T.sblock("sum"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    y[vi] = T.float32(3)
                y[vi] = y[vi] + x[T.Cast("int64", T.Cast("int8", x[vi, vk])), vk]""",
}


@pytest.mark.parametrize("name", PLACES)
def test_reductions_of_no_elements(name: str) -> None:
    mod = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n", "m"), "float32"), z: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n, m = T.int64(), T.int64()
{PLACES[name]}

    @R.function
    def main(x: R.Tensor(("n", "m"), "float32")):
        n, m = T.int64(), T.int64()
        out = R.call_tir(M.f, (x,), out_ty=[R.Tensor((n,), "float32"), R.Tensor((n,), "float32")])
        return out[1]
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, "llvm -opt-level=0"))
    for shape in ((5, 0), (0, 3), (5, 1), (3, 7)):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 3
        wanted = interpret(mod, "main", x)
        for _ in range(2):  # memory of another call
            np.testing.assert_array_equal(vm["main"](x).numpy(), wanted, f"{name} of {shape}")


def test_outermost_loops_of_blocks_become_parallel() -> None:
    """In a program of several nests too, and with `reinterpret`, whose name ends as that of a return."""
    func = parse("""@T.prim_func
def main(x: T.Buffer(("n",), "int32"), y: T.Buffer(("n",), "float32")):
    n = T.int64()
    for i in range(n):
        with T.sblock("a"):
            v = T.axis.spatial(n, i)
            y[v] = T.reinterpret("float32", x[v])
    for i in range(n):
        with T.sblock("b"):
            v = T.axis.spatial(n, i)
            y[v] = y[v] * T.float32(2)
""")["main"]
    assert isinstance(func, PrimFunc)
    kinds = [loop.kind for loop in loops_of(with_outer_loops_parallel(func.func))]
    assert kinds == [tirx.ForKind.PARALLEL] * 2
