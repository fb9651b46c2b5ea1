"""Extents as the parser has them: programs made here are read back the same."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.ir.dim import SymVar
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.tir import te
from relaxpy.tir.analyzer import int64, to_tvm
from relaxpy.tir.extents import parsed_extent
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.loops import Buffer
from relaxpy.tir.programs.serial import Serial, serial
from relaxpy.tir.tvm import tvm_ffi
from relaxpy.transform.fuse_ops import FuseOps
from relaxpy.transform.fuse_tensor_ir import FuseTensorIR

n, m, k = (SymVar(name, "int64").dim for name in "nmk")


@pytest.mark.parametrize(
    "extent",
    [m * (n // 64) + m, n * (k // 2) * (m // 2) * 2, n * 2 // 2 + n % 4 * k],
    ids=str,
)  # fmt: skip
def test_loops_read_back(extent: relaxpy.ir.dim.Dim) -> None:
    """What the parser would simplify is in that form in the program."""

    def fill(p: Serial, out: Buffer, *_: Buffer) -> None:
        with p.loop("i", te.dim(extent), parallel=True) as i:
            p.write(out, i, value=i)

    x = te.placeholder((n, m, k), "float32", "x")
    program = PrimFunc.from_te([x], [serial(((extent,), "int64"), [x], fill, "count")])
    mod = relaxpy.ir.IRModule({"f": program})
    assert_structural_equal(mod, relaxpy.parse(mod.script()))


def test_what_the_parser_leaves_is_kept() -> None:
    """A second time changes nothing; constants and variables stay the objects that they are."""
    extent = parsed_extent(int64(0), to_tvm(m * (n // 64) + m))
    assert parsed_extent(int64(0), extent) is extent
    size = to_tvm(n)
    assert parsed_extent(to_tvm(m), size) is size
    assert not tvm_ffi.structural_equal(extent, to_tvm(m * (n // 64) + m))


PROGRAM = """
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @T.prim_func
    def ends(x: T.Buffer(("n", "m"), "int64"), y: T.Buffer(("n", "m"), "int64")):
        for i, j in T.grid(n, m):
            with T.sblock("b"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.reads(x[vi, T.min(vj, vj * 2 % m) : T.max(vj, vj * 2 % m) + 1])
                T.writes(y[vi, vj])
                y[vi, vj] = x[vi, vj] + x[vi, vj * 2 % m]

    @R.function
    def main(x: R.Tensor(("m", "m * 2"), "int64")) -> R.Tensor(("m", "m * 2"), "int64"):
        m = T.int64()
        with R.dataflow():
            y = R.call_tir(Module.ends, (x,), out_ty=R.Tensor((m, m * 2), "int64"))
            z = R.call_tir(Module.ends, (y,), out_ty=R.Tensor((m, m * 2), "int64"))
            R.output(z)
        return z
"""


def test_regions_of_fused_programs_read_back() -> None:
    """`vj * 2 % m` of a matrix with `m * 2` columns: the extent of the region has another form there."""
    mod = relaxpy.parse(PROGRAM)
    fused = FuseTensorIR()(FuseOps()(mod))
    assert "fused_ends_ends" in fused.prim_funcs
    assert_structural_equal(fused, relaxpy.parse(fused.script()))
