"""Programs of the Relax paper, interpreted and run: figure 3 (a size that depends on the data) and figure 9
(a quantised weight, decoded by a tensor program of the user's own)."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.testing.differential import Call, Ways, check
from relaxpy.testing.interpret import interpret
from tests.sweeps import optimised

pytestmark = optimised

FIGURE_3 = """
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 2, 2), "float32")) -> R.Tensor("float32", ndim=1):
        n, m = T.int64(), T.int64()
        with R.dataflow():
            lv0: R.Tensor((n, 4), "float32") = R.reshape(x, R.shape([n, 4]))
            lv1: R.Tensor((n * 4,), "float32") = R.flatten(lv0)
            lv2: R.Tensor("float32", ndim=1) = R.unique(lv1)
            lv3 = R.match_cast(lv2, R.Tensor((m,), "float32"))
            gv0: R.Tensor((m,), "float32") = R.exp(lv3)
            R.output(gv0)
        return gv0
"""


@pytest.mark.parametrize("n", [0, 1, 3, 10])
def test_figure_3(n: int) -> None:
    """Interpreted and run in every way (§3.2): the values occur several times, so that m is less than n * 4."""
    x = np.random.default_rng(n).integers(0, 5, (n, 2, 2)).astype(np.float32)
    mod = relaxpy.parse(FIGURE_3)
    want = np.exp(np.unique(x))
    np.testing.assert_allclose(interpret(mod, "main", x), want, rtol=1e-6)
    got = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
    assert check([Call(mod, "main", [x])], Ways(fresh_process=False)) == []


FIGURE_9 = """
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @T.prim_func
    def decode_q4(
        data: T.Buffer((128, 8), "uint32"), scale: T.Buffer((128, 2), "float32"), w: T.Buffer((128, 64), "float32")
    ):
        for k, j in T.grid(128, 64):
            with T.sblock("decode"):
                vk, vj = T.axis.remap("SS", [k, j])
                w[vk, vj] = (
                    T.Cast("float32", T.bitwise_and(
                        T.shift_right(data[vk, vj // 8], T.Cast("uint32", vj % 8 * 4)), T.uint32(15)
                    )) - T.float32(7)
                ) * scale[vk, vj // 32]

    @T.prim_func
    def mm(x: T.Buffer(("n", 128), "float32"), w: T.Buffer((128, 64), "float32"), o: T.Buffer(("n", 64), "float32")):
        n = T.int64()
        for i, j, k in T.grid(n, 64, 128):
            with T.sblock("mm"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    o[vi, vj] = T.float32(0)
                o[vi, vj] = o[vi, vj] + x[vi, vk] * w[vk, vj]

    @R.function
    def main(
        x: R.Tensor(("n", 128), "float32"), data: R.Tensor((128, 8), "uint32"), scale: R.Tensor((128, 2), "float32")
    ) -> R.Tensor(("n", 64), "float32"):
        n = T.int64()
        cls = Module
        with R.dataflow():
            w = R.call_tir(cls.decode_q4, (data, scale), out_ty=R.Tensor((128, 64), "float32"))
            y = R.call_tir(cls.mm, (x, w), out_ty=R.Tensor((n, 64), "float32"))
            R.output(y)
        return y
"""


def decoded(data: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """What `decode_q4` is for: eight numbers of four bits in a word, a scale for each 32."""
    shifts = np.arange(8, dtype=np.uint32) * 4
    numbers = (data[:, :, None] >> shifts & 15).reshape(128, 64).astype(np.float32) - 7
    return numbers * np.repeat(scale, 32, axis=1)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_figure_9(n: int) -> None:
    """A weight of four bits times a batch of any size."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 128)).astype(np.float32)
    data = rng.integers(0, 2**32, (128, 8), dtype=np.uint32)
    scale = rng.uniform(0.1, 1, (128, 2)).astype(np.float32)
    mod = relaxpy.parse(FIGURE_9)
    want = x @ decoded(data, scale)
    np.testing.assert_allclose(interpret(mod, "main", x, data, scale), want, rtol=1e-4, atol=1e-3)
    got = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x, data, scale)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-3)
