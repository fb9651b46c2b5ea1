"""Tensor programs run by themselves."""

from __future__ import annotations

import numpy as np

import relaxpy
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc

MODULE = relaxpy.parse("""
from relaxpy.script import ir as I, relax as R, tir as T
@I.ir_module
class Module:
    @T.prim_func
    def scale(x: T.Buffer(("n",), "float32"), o: T.Buffer(("n",), "float32"), k: T.int64):
        n = T.int64()
        for i in range(n):
            with T.sblock("b"):
                vi = T.axis.spatial(n, i)
                o[vi] = x[vi] * T.Cast("float32", k)
""")


def test_inputs_outputs_scalars() -> None:
    """Strided and empty arrays too, scheduled or not."""
    program = MODULE["scale"]
    assert isinstance(program, PrimFunc)
    for schedule in (False, True):
        kernels = Kernels({"scale": program}, schedule=schedule)
        for x in (np.arange(6, dtype=np.float32)[::2], np.zeros(0, np.float32)):
            out = np.full(x.shape, 77, np.float32)
            kernels.run("scale", [x], [out], [3])
            np.testing.assert_array_equal(out, 3 * x)
