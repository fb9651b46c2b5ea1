"""Blocks whose indices are variables: they parse in a time that grows with their text, and compute what they say."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.testing.interpret import interpret
from tests.sweeps import full

FORMS = {
    "in the block": """
        for i in range(n):
            with T.sblock("b"):
                v = T.axis.spatial(n, i)
                a0: T.let[T.int64] = v
{lets}
                y[v] = x[{last}]
""",
    "around the block": """
        for i in range(n):
            a0: T.let[T.int64] = i
{lets}
            with T.sblock("b"):
                v = T.axis.spatial(n, i)
                y[v] = x[{last}]
""",
    "an element that is updated": """
        for i in range(n):
            with T.sblock("zero"):
                v = T.axis.spatial(n, i)
                y[v] = T.float32(0)
        for i in range(n):
            with T.sblock("b"):
                v = T.axis.opaque(n, i)
                a0: T.let[T.int64] = v
{lets}
                y[{last}] += x[v]
""",
    "in a block inside": """
        for i in range(n):
            with T.sblock("outer"):
                v = T.axis.spatial(n, i)
                a0: T.let[T.int64] = v
{lets}
                for j in range(1):
                    with T.sblock("b"):
                        w = T.axis.spatial(1, j)
                        z = T.sblock_alloc_buffer((1,), "float32")
                        z[0] = x[{last} + w]
                        y[v] = z[0]
""",
    "no block": """
        for i in range(n):
            a0: T.let[T.int64] = i
{lets}
            y[i] = x[{last}]
""",
}
LETS = {
    "let": "a{i}: T.let[T.int64] = (a{p} + a{p}) % n",
    "an assignment": "a{i} = (a{p} + a{p}) % n",
    "least": "a{i}: T.let[T.int64] = T.min(a{p} * a{p} % n, a{p})",
    "elements": "a{i}: T.let[T.int64] = (at[a{p}] + a{p}) % n",
}


def program(form: str, let: str, count: int) -> str:
    before, _, _ = FORMS[form].partition("{lets}")
    indent = before.rsplit("\n", 2)[-2]
    indent = indent[: len(indent) - len(indent.lstrip())]
    lets = "\n".join(indent + LETS[let].format(i=i, p=i - 1) for i in range(1, count))
    return f"""
@I.ir_module
class Module:
    @T.prim_func
    def f(x: T.Buffer(("n",), "float32"), at: T.Buffer(("n",), "int64"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
{FORMS[form].format(lets=lets, last=f"a{count - 1}")}
    @R.function
    def main(x: R.Tensor(("n",), "float32"), at: R.Tensor(("n",), "int64")):
        n = T.int64()
        return R.call_tir(Module.f, (x, at), out_ty=R.Tensor((n,), "float32"))
"""


@full
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("let", LETS)
def test_chains_of_variables(form: str, let: str) -> None:
    """Written out, the index of the longest has 2 to the power of 69 names."""
    x, at = np.arange(7, dtype="float32") ** 2, np.array([3, 1, 4, 1, 5, 2, 6])
    for count in (2, 3, 70):
        mod = relaxpy.parse(program(form, let, count))
        relaxpy.assert_structural_equal(mod, relaxpy.parse(mod.script()))
        vm = relaxpy.VirtualMachine(relaxpy.build(mod, target="llvm -opt-level=0"))
        np.testing.assert_array_equal(vm["main"](x, at).numpy(), interpret(mod, "main", x, at))


def test_short_indices_stay_exact() -> None:
    """What TVM finds out is not replaced by whole buffers."""
    text = relaxpy.parse(program("in the block", "let", 3)).script()
    assert "T.reads(x[((v + v) % n + (v + v) % n) % n])" in text
    assert "T.writes(y[v])" in text
