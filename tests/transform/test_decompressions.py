"""Decompressed values are computed for each product with another decompressed factor, and shared otherwise."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.ir.expr import Call, Function
from relaxpy.ir.module import IRModule
from relaxpy.op.call import CallTIR
from relaxpy.testing.interpret import interpret
from relaxpy.transform import FuseOps
from relaxpy.transform.decompressions import repeat_decompressions


def module(body: str) -> IRModule:
    """A tensor program that makes bytes floats, one that multiplies matrices, and one that adds."""
    return relaxpy.parse(f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def decode(codes: T.Buffer(("n", 8), "int8"), y: T.Buffer(("n", 8), "float32")):
        n = T.int64()
        for i, j in T.grid(n, 8):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = T.Cast("float32", codes[vi, vj])

    @T.prim_func(private=True)
    def product(x: T.Buffer(("n", 8), "float32"), w: T.Buffer((8, 8), "float32"), y: T.Buffer(("n", 8), "float32")):
        n = T.int64()
        for i, j, k in T.grid(n, 8, 8):
            with T.sblock("y"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    y[vi, vj] = T.float32(0)
                y[vi, vj] = y[vi, vj] + x[vi, vk] * w[vk, vj]

    @T.prim_func(private=True)
    def negative(x: T.Buffer(("n", 8), "float32"), y: T.Buffer(("n", 8), "float32")):
        n = T.int64()
        for i, j in T.grid(n, 8):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = -x[vi, vj]

    @R.function
    def main(
        x: R.Tensor(("n", 8), "int8"), v: R.Tensor((8, 8), "int8"), w: R.Tensor((8, 8), "int8"),
        f: R.Tensor((8, 8), "float32"),
    ):
        n = T.int64()
        cls = Module
        with R.dataflow():
            d = R.call_tir(cls.decode, (x,), out_ty=R.Tensor((n, 8), "float32"))
            p = R.call_tir(cls.decode, (v,), out_ty=R.Tensor((8, 8), "float32"))
            q = R.call_tir(cls.decode, (w,), out_ty=R.Tensor((8, 8), "float32"))
            {body}
            R.output(a, b)
        return (a, b)
""")


def product(right: str) -> str:
    return f'R.call_tir(cls.product, (d, {right}), out_ty=R.Tensor((n, 8), "float32"))'


CASES = {
    "two products": (f"a = {product('p')}\n            b = {product('q')}", 4),
    "codes of a parameter": (f"a = {product('p')}\n            b = {product('f')}", 4),
    "another reader": (
        f"a = {product('p')}\n            "
        'b = R.call_tir(cls.negative, (d,), out_ty=R.Tensor((n, 8), "float32"))',
        3,
    ),
}
"""By name: the products, and how many values are decoded afterwards."""


@pytest.mark.parametrize("name", CASES)
def test_what_is_repeated(name: str) -> None:
    body, count = CASES[name]
    mod = module(body)
    after = repeat_decompressions(mod)
    check_well_formed(after)
    assert decoded(after) == count
    if count == 3:
        assert after["main"] is mod["main"]
    rng = np.random.default_rng(0)
    given = [rng.integers(-9, 9, size).astype("int8") for size in ((3, 8), (8, 8), (8, 8))]
    floats = rng.standard_normal((8, 8), dtype="float32")
    before = interpret(mod, "main", *given, floats)
    for one, other in zip(before, interpret(after, "main", *given, floats), strict=True):
        np.testing.assert_array_equal(one, other)


def test_each_product_is_one_program() -> None:
    fused = FuseOps()(module(CASES["two products"][0]))
    main = fused["main"]
    assert isinstance(main, Function)
    values = [binding.value for block in main.body.blocks for binding in block.bindings]
    assert len(values) == 2
    assert not any(isinstance(each, Call) and type(each.op) is CallTIR for each in values)


def decoded(mod: IRModule) -> int:
    """The calls of `decode`."""
    return mod.script().count("call_tir(cls.decode,")
