"""What narrow floats have in common, whatever their format: what only moves numbers rounds none."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.dtype import DType

NAMES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
MOVED = {
    "a choice of values": "T.Select(c[v], x[v], y[v])",
    "a branch": "T.if_then_else(c[v], x[v], y[v])",
    "branches in each other": "T.if_then_else(c[v], T.if_then_else(c[v], x[v], y[v]), y[v])",
}


def module(value: str, name: str) -> str:
    return f"""
@I.ir_module
class Module:
    @T.prim_func
    def moved(c: T.Buffer(("n",), "bool"), x: T.Buffer(("n",), "{name}"), y: T.Buffer(("n",), "{name}"), out: T.Buffer(("n",), "{name}")):
        n = T.int64()
        for i in range(n):
            with T.sblock("out"):
                v = T.axis.spatial(n, i)
                out[v] = {value}

    @R.function
    def main(c: R.Tensor(("n",), "bool"), x: R.Tensor(("n",), "{name}"), y: R.Tensor(("n",), "{name}")):
        n = T.int64()
        return R.call_tir(Module.moved, (c, x, y), out_ty=R.Tensor((n,), "{name}"))
"""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", MOVED)
def test_numbers_that_are_moved_stay_as_they_are(value: str, name: str) -> None:
    """Every number there is; of the formats of eight bits the bits of NaNs, too."""
    kind = DType(name).numpy
    word = np.dtype(f"uint{8 * kind.itemsize}")
    codes = np.arange(1 << (8 * kind.itemsize), dtype=np.uint64).astype(word)
    chosen = np.random.default_rng(0).random(len(codes)) < 0.5
    exe = relaxpy.build(relaxpy.parse(module(MOVED[value], name)), target="llvm")
    main = relaxpy.VirtualMachine(exe)["main"]
    found = np.asarray(main(chosen, codes.view(kind), codes[::-1].copy().view(kind)).numpy())
    expected = np.where(chosen, codes, codes[::-1])
    if name == "bfloat16":  # is float32 on its way, and of a NaN that only says that it is one
        is_number = ~np.isnan(expected.view(kind).astype(np.float32))
        assert np.isnan(found.astype(np.float32)[~is_number]).all()
        found, expected = found[is_number], expected[is_number]
    np.testing.assert_array_equal(found.view(word), expected)
