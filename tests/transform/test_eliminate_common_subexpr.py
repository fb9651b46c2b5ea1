"""EliminateCommonSubexpr: what is the same, and what only looks like it."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.expr import Function
from relaxpy.ir.module import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.pass_check import check_pass
from relaxpy.transform.eliminate_common_subexpr import EliminateCommonSubexpr
from relaxpy.transform.normalize import Normalize

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n"
VECTOR = 'x: R.Tensor(("n",), "float32")'


def module(body: str, params: str = VECTOR, pure: bool = True) -> IRModule:
    """A module with a function `main`, tensor programs that copy and that add one in place, and functions with and
    without effects."""
    text = (
        HEADER
        + f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def copy(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("y"):
                vi = T.axis.spatial(n, i)
                y[vi] = x[vi]

    @T.prim_func(private=True)
    def increment(x: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("x"):
                vi = T.axis.spatial(n, i)
                x[vi] = x[vi] + T.float32(1)

    @R.function(private=True)
    def pure(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        y = R.exp(x)
        return y

    @R.function(private=True, pure=False)
    def impure(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        y = R.exp(x)
        z = R.print(y)
        return y

    @R.function(pure={pure})
    def main({params}):
        n = T.int64()
        cls = Module
"""
    )
    return Normalize()(
        relaxpy.parse(text + "".join(f"        {line}\n" for line in body.splitlines()))
    )


def names(mod: IRModule) -> str:
    """The variables that main binds, after the pass."""
    main = EliminateCommonSubexpr()(mod)["main"]
    assert isinstance(main, Function)
    return " ".join(binding.var.name for binding in main.body.bindings)


def test_example() -> None:
    check_example(EliminateCommonSubexpr())


@pytest.mark.parametrize(
    "call",
    [
        "R.sum(x, axis=[0])",
        "R.add(x, R.const(1.5))",
        "R.zeros((n * 2,), 'float32')",
        "R.call_tir(cls.copy, (x,), out_ty=R.Tensor((n,), 'float32'))",
        "R.call_dps_library('library', (x,), out_ty=R.Tensor((n,), 'float32'))",
        "R.call_pure_packed('packed', x, ty_args=R.Tensor((n,), 'float32'))",
        "cls.pure(x)",
        "R.shape([n, 2])",
        "R.match_cast(x, R.Tensor((4,), 'float32'))",
    ],
)
def test_equal_values_are_computed_once(call: str) -> None:
    expected = (
        "a b c" if call.startswith("R.shape") else "a c"
    )  # a name of a leaf is no computation
    assert names(module(f"a = {call}\nb = {call}\nc = (a, b)\nd = c[0]\nreturn x")) in (
        f"{expected} d",
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("R.sum(x, axis=[0])", "R.sum(x, axis=[0], keepdims=True)"),
        ("R.add(x, R.const(1.5))", "R.add(x, R.const(2.5))"),
        ("R.add(x, R.const(0.0))", "R.add(x, R.const(-0.0))"),
        ("R.clip(x, min=0.0, max=1.0)", "R.clip(x, min=-0.0, max=1.0)"),
        ("R.zeros((n,), 'float32')", "R.zeros((n,), 'float16')"),
        ("R.zeros((n,), 'float32')", "R.zeros((n + 1,), 'float32')"),
        (
            "R.call_tir_inplace(cls.increment, (x,), inplace_indices=[0], out_ty=R.Tensor((n,), 'float32'))",
            "R.call_tir_inplace(cls.increment, (x,), inplace_indices=[0], out_ty=R.Tensor((n,), 'float32'))",
        ),
        ("R.call_pure_packed('make')", "R.call_pure_packed('make')"),
    ],
)
def test_different_values_are_not(one: str, other: str) -> None:
    assert names(module(f"a = {one}\nb = {other}\nc = (a, b)\nreturn x")) == "a b c"


def test_arguments_that_became_the_same() -> None:
    assert (
        names(
            module(
                "a = R.exp(x)\nb = R.exp(x)\nc = R.tanh(a)\nd = R.tanh(b)\ne = R.add(c, d)\nreturn e"
            )
        )
        == "a c e"
    )


def test_a_variable_of_another_block_comes_out_of_it() -> None:
    body = "with R.dataflow():\n    a = R.exp(x)\n    b = R.tanh(a)\n    R.output(b)\nwith R.dataflow():\n    c = R.exp(x)\n    d = R.add(b, c)\n    R.output(d)\nreturn d"
    text = EliminateCommonSubexpr()(module(body)).script()
    assert "R.output(a, b)" in text
    assert text.count("R.exp(x)") == 3  # here, and in the functions pure and impure


def test_branches_see_what_was_computed_before_them_and_not_each_other() -> None:
    mod = module(
        """a = R.exp(x)
if p:
    b = R.exp(x)
    c = R.tanh(x)
    r = R.add(b, c)
else:
    d = R.tanh(x)
    r = R.add(d, a)
e = R.tanh(x)
f = R.add(r, e)
return f""",
        VECTOR + ', p: R.Tensor((), "bool")',
    )
    text = EliminateCommonSubexpr()(mod).script().split("def main")[1]
    assert text.count("R.exp") == 1
    assert text.count("R.tanh") == 3
    for p in (True, False):
        args = np.arange(3, dtype=np.float32), np.array(p)
        want, got = (
            interpret(mod, "main", *args),
            interpret(EliminateCommonSubexpr()(mod), "main", *args),
        )
        np.testing.assert_array_equal(want, got)


LOCAL = """a = R.exp(x)
{effect}@R.function
def local(y: R.Tensor(("m",), "float32")) -> R.Tensor(("m",), "float32"):
    b = R.exp(x)
    c = R.sum(b)
    d = R.add(y, c)
    return d
e = local(a)
return e"""


def test_pure_local_functions_see_what_was_computed_around_them() -> None:
    inside = EliminateCommonSubexpr()(module(LOCAL.format(effect="")))
    assert inside.script().split("def main")[1].count("R.exp") == 1
    impure = EliminateCommonSubexpr()(module(LOCAL.format(effect=""), pure=False))
    assert impure.script().split("def main")[1].count("R.exp") == 2


def test_nothing_is_merged_across_an_effect() -> None:
    """The effect may be in a branch, or in a function that is called."""
    params = VECTOR + ', p: R.Tensor((), "bool")'
    for effect in (
        "e = R.print(x)",
        "e = cls.impure(x)",
        "e = R.call_packed('change', x)",
        "if p:\n    q = R.print(x)\n    e = R.exp(q[0])\nelse:\n    e = x".replace(
            "R.exp(q[0])", "x"
        ),
    ):
        mod = module(
            f"a = R.exp(x)\n{effect}\nb = R.exp(x)\nc = R.exp(x)\nd = (a, b, c)\nreturn x",
            params,
            pure=False,
        )
        assert names(mod).replace("e ", "") == "a b d"


def test_tensors_that_leave_the_function_stay_two() -> None:
    """Whoever called it may update one of two caches."""
    assert (
        names(module("a = R.zeros((n,), 'float32')\nb = R.zeros((n,), 'float32')\nreturn (a, b)"))
        == "a b"
    )
    assert names(module("a = R.exp(x)\nb = R.tanh(a)\nc = R.exp(x)\nreturn (b, c)")) == "a b"


def test_tensors_that_are_updated_stay_two() -> None:
    update = "R.call_tir_inplace(cls.increment, ({0},), inplace_indices=[0], out_ty=R.Tensor((n,), 'float32'))"
    body = f"a = R.exp(x)\nb = R.exp(x)\nc = b\nd = {update.format('c')}\ne = R.add(a, d)\nreturn e"
    assert names(module(body)) == "a b c d e"
    packed = "a = R.exp(x)\nb = R.exp(x)\nd = R.call_inplace_packed('f', b, inplace_indices=[0], ty_args=R.Tensor((n,), 'float32'))\nreturn a"
    assert names(module(packed)) == "a b d"


def test_uses_of_the_callers_memory_stay() -> None:
    """Because b reads x after the call, the call changes a copy."""
    update = "R.call_tir_inplace(cls.increment, (x,), inplace_indices=[0], out_ty=R.Tensor((n,), 'float32'))"
    mod = module(f"a = R.exp(x)\nu = {update}\nb = R.exp(x)\nc = R.add(a, b)\nreturn c", pure=False)
    assert names(mod) == "a u b c"


def test_recursion() -> None:
    mod = module(
        """@R.function
def local(y: R.Tensor(("m",), "float32"), k: R.Tensor((), "int64")) -> R.Tensor(("m",), "float32"):
    p = R.less(k, R.const(1, "int64"))
    if p:
        r = y
    else:
        j = R.subtract(k, R.const(1, "int64"))
        i = R.subtract(k, R.const(1, "int64"))
        a = local(y, j)
        b = local(y, i)
        r = R.add(a, b)
    return r
e = local(x, R.const(3, "int64"))
return e"""
    )
    after = EliminateCommonSubexpr()(mod)
    assert after.script().count("local(y, ") == 1
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(interpret(mod, "main", x), interpret(after, "main", x))


def test_nothing_to_do() -> None:
    mod = module("a = R.exp(x)\nb = R.tanh(a)\nreturn b")
    assert EliminateCommonSubexpr()(mod) is mod


def test_random_programs() -> None:
    assert check_pass(EliminateCommonSubexpr(), range(16), Normalize()) > 4
