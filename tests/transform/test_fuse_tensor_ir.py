"""FuseTensorIR: functions marked `Primitive` become tensor programs (tests/transform/test_fuse_ops.py has the numbers)."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.errors import PassError
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform.fuse_ops import FuseOps
from relaxpy.transform.fuse_tensor_ir import FuseTensorIR

PROGRAMS = """
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @T.prim_func(private=True)
    def both(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32"), z: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("both"):
                vi = T.axis.spatial(n, i)
                y[vi] = x[vi] + T.float32(1)
                z[vi] = x[vi] * T.float32(2)

    @T.prim_func(private=True)
    def shifted(x: T.Buffer(("n",), "float32"), k: T.int64, y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("shifted"):
                vi = T.axis.spatial(n, i)
                y[vi] = x[(vi + k) % n]
"""


def test_example() -> None:
    check_example(FuseTensorIR())


def test_tuples_inside_a_group() -> None:
    """A program with two outputs, used one by one, both returned."""
    mod = relaxpy.parse(
        PROGRAMS
        + """
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        cls = Module
        with R.dataflow():
            gv = cls.group(x)
            R.output(gv)
        return gv

    @R.function(private=True)
    def group(x: R.Tensor(("n",), "float32")) -> R.Tuple(R.Tensor(("n",), "float32"), R.Tensor(("n",), "float32")):
        R.func_attr({"Primitive": True})
        n = T.int64()
        cls = Module
        with R.dataflow():
            a = R.call_tir(cls.both, (x,), out_ty=[R.Tensor((n,), "float32"), R.Tensor((n,), "float32")])
            b = a[0]
            c = R.call_tir(cls.both, (b,), out_ty=[R.Tensor((n,), "float32"), R.Tensor((n,), "float32")])
            d = c[1]
            e = a[1]
            R.output(d, e)
        return (d, e)
"""
    )
    fused = FuseTensorIR()(mod)
    check_well_formed(fused)
    assert list(fused.prim_funcs) == ["shifted", "group"]
    for x in (np.arange(4, dtype=np.float32), np.zeros(0, np.float32)):
        for got in (interpret(fused, "main", x), interpret(mod, "main", x)):
            np.testing.assert_array_equal(got[0], (x + 1) * 2)
            np.testing.assert_array_equal(got[1], x * 2)


def test_what_is_no_tensor_program_is_refused() -> None:
    mod = relaxpy.parse(
        PROGRAMS
        + """
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        cls = Module
        gv = cls.group(x)
        return gv

    @R.function(private=True)
    def group(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        R.func_attr({"Primitive": True})
        y = R.exp(x)
        return y
"""
    )
    with pytest.raises(PassError, match="group is marked Primitive, but y") as caught:
        FuseTensorIR()(mod)
    assert caught.value.code == "fuse-not-a-program"
    assert caught.value.span is not None


def test_a_division_by_a_size_that_becomes_0() -> None:
    """In a loop that does not run: the program prints, parses and runs all the same."""
    mod = relaxpy.parse("""
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @T.prim_func
    def spread(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n * 2",), "float32")):
        for i in range(n * 2):
            with T.sblock("b"):
                v = T.axis.spatial(n * 2, i)
                y[v] = x[v // 2] + x[v % n]

    @R.function
    def main(x: R.Tensor((0,), "float32")) -> R.Tensor((0,), "float32"):
        with R.dataflow():
            y = R.call_tir(Module.spread, (x,), out_ty=R.Tensor((0,), "float32"))
            z = R.call_tir(Module.spread, (y,), out_ty=R.Tensor((0,), "float32"))
            R.output(z)
        return z
""")
    fused = FuseTensorIR()(FuseOps()(mod))
    assert "fused_spread_spread" in fused.prim_funcs
    assert_structural_equal(fused, relaxpy.parse(fused.script()))
    run = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    assert run(np.zeros(0, "float32")).numpy().shape == (0,)
