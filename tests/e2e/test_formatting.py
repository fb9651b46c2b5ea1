"""How a program is laid out says nothing: what `ast.unparse` or `astor` makes of it is the same module."""

from __future__ import annotations

import ast

import astor
import pytest

import relaxpy

SOURCE = """
@I.ir_module
class Module:
    @T.prim_func
    def twice(x: T.Buffer(("n", 4), "float32"), y: T.Buffer(("n", 4), "float32")):
        n = T.int64()
        for i, j in T.grid(n, 4):
            with T.sblock("twice"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] * T.float32(2)

    @R.function
    def main(
        x: R.Tensor(("n", 4), "float32"), s: R.Shape(["n * 2", "m"])
    ) -> R.Tuple(R.Tensor(("n", 4), "float32"), R.Shape(["m"])):
        n = T.int64()
        m = T.int64()
        cls = Module
        with R.dataflow():
            a = R.call_tir(cls.twice, (x,), out_ty=R.Tensor((n, 4), dtype="float32"))
            b = R.nn.relu(a + 1.0) * R.const([1.0, 2.0, float("inf"), -0.0], "float32")
            R.output(b)
        return (b, R.shape([m]))
"""


@pytest.mark.parametrize("unparse", [ast.unparse, astor.to_source])
def test_layout_says_nothing(unparse: object) -> None:
    text = unparse(ast.parse(SOURCE))  # pyright: ignore[reportCallIssue]
    assert text != SOURCE
    relaxpy.assert_structural_equal(relaxpy.parse(text), relaxpy.parse(SOURCE))


@pytest.mark.parametrize("unparse", [ast.unparse, astor.to_source])
def test_printed_text_too(unparse: object) -> None:
    mod = relaxpy.parse(SOURCE)
    text = unparse(ast.parse(mod.script()))  # pyright: ignore[reportCallIssue]
    relaxpy.assert_structural_equal(relaxpy.parse(text), mod)
