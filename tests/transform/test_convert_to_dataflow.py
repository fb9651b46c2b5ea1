"""ConvertToDataflow: which bindings come into a block, and which variables out of it."""

from __future__ import annotations

import numpy as np

import relaxpy
from relaxpy.ir.expr import DataflowBlock, DataflowVar, Function
from relaxpy.ir.module import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.pass_check import check_pass
from relaxpy.transform.convert_to_dataflow import ConvertToDataflow
from relaxpy.transform.normalize import Normalize

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n"


def module(
    body: str, params: str = 'x: R.Tensor(("n",), "float32")', pure: bool = True
) -> IRModule:
    """A module with one function, and a tensor program that adds one in place."""
    text = (
        HEADER
        + f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def increment(x: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("x"):
                vi = T.axis.spatial(n, i)
                x[vi] = x[vi] + T.float32(1)

    @R.function(pure={pure})
    def main({params}):
        n = T.int64()
        cls = Module
"""
    )
    return Normalize()(
        relaxpy.parse(text + "".join(f"        {line}\n" for line in body.splitlines()))
    )


def blocks(mod: IRModule) -> list[tuple[bool, str, str]]:
    """Of each block of main: is it a dataflow block, what it binds, what comes out of it."""
    main = mod["main"]
    assert isinstance(main, Function)
    return [
        (
            isinstance(block, DataflowBlock),
            " ".join(b.var.name for b in block.bindings),
            " ".join(b.var.name for b in block.bindings if not isinstance(b.var, DataflowVar)),
        )
        for block in main.body.blocks
    ]


def test_example() -> None:
    check_example(ConvertToDataflow())


def test_what_is_used_behind_a_block_comes_out_of_it() -> None:
    """By a branch, by a local function, by the result."""
    mod = module(
        """a = R.exp(x)
b = R.tanh(a)
c = R.negative(b)
if p:
    d = R.add(a, c)
else:
    d = R.multiply(c, c)
e = R.exp(d)
f = R.exp(e)
return f""",
        'x: R.Tensor(("n",), "float32"), p: R.Tensor((), "bool")',
    )
    assert blocks(ConvertToDataflow()(mod)) == [
        (True, "a b c", "a c"),
        (False, "d", "d"),
        (True, "e f", "f"),
    ]


def test_runs_inside_branches_and_local_functions() -> None:
    mod = module(
        """@R.function
def local(y: R.Tensor(("m",), "float32")) -> R.Tensor(("m",), "float32"):
    a = R.exp(y)
    b = R.tanh(a)
    return b
c = local(x)
return c"""
    )
    text = ConvertToDataflow()(mod).script()
    assert text.count("with R.dataflow():") == 1
    assert "R.output(b)" in text


def test_blocks_side_by_side_become_one() -> None:
    mod = module(
        """with R.dataflow():
    a = R.exp(x)
    R.output(a)
with R.dataflow():
    b = R.exp(a)
    R.output(b)
return b"""
    )
    assert blocks(ConvertToDataflow()(mod)) == [(True, "a b", "b")]


def test_a_short_run_stays() -> None:
    mod = module("a = R.exp(x)\nreturn a")
    assert ConvertToDataflow()(mod) is mod
    assert blocks(ConvertToDataflow(min_size=1)(mod)) == [(True, "a", "a")]


def test_an_output_that_nothing_uses_is_none() -> None:
    mod = module(
        "with R.dataflow():\n    a = R.exp(x)\n    b = R.exp(a)\n    R.output(a, b)\nreturn b"
    )
    assert blocks(ConvertToDataflow()(mod)) == [(True, "a b", "b")]


UPDATE = """a = R.exp(x)
b = R.tanh(a)
c = R.call_tir_inplace(cls.increment, (x,), inplace_indices=[0], out_ty=R.Tensor((n,), "float32"))
d = R.exp(b)
e = R.tanh(d)
return e"""


def test_updates_of_the_callers_memory_stay_outside() -> None:
    mod = module(UPDATE, pure=False)
    assert blocks(ConvertToDataflow()(mod)) == [
        (True, "a b", "b"),
        (False, "c", "c"),
        (True, "d e", "e"),
    ]
    assert blocks(ConvertToDataflow()(module(UPDATE))) == [(True, "a b c d e", "e")]


def test_a_shape_that_annotations_name_comes_out() -> None:
    mod = module(
        """s = R.shape_of(x)
a = R.exp(x)
p = R.print(a)
b = R.zeros(s, "float32")
c = R.exp(b)
return c""",
        'x: R.Tensor(ndim=1, dtype="float32")',
        pure=False,
    )
    assert blocks(ConvertToDataflow()(mod))[0] == (True, "s a", "s a")


def test_numbers() -> None:
    mod = module("a = R.exp(x)\nb = R.tanh(a)\nreturn b")
    for size in (0, 1, 3):
        x = np.arange(size, dtype=np.float32)
        want, got = interpret(mod, "main", x), interpret(ConvertToDataflow()(mod), "main", x)
        np.testing.assert_array_equal(want, got)


def test_random_programs() -> None:
    assert check_pass(ConvertToDataflow(), range(12), Normalize()) > 6
