"""Functions that are passed, returned, chosen and kept in tuples become known at their calls: programs compute what they
did, and have derivatives, beside jax's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.called_operators import calls_operator
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.errors import PassError
from relaxpy.ir.module import IRModule
from relaxpy.op.memory import MakeClosure
from relaxpy.testing import check_grads
from relaxpy.testing.interpret import interpret
from relaxpy.transform import Gradient, LambdaLift, Normalize, Sequential, SpecializeFunctions

F = 'R.Callable((R.Tensor((2,), "float64"),), R.Tensor((2,), "float64"))'
V, S, N = 'R.Tensor((2,), "float64")', 'R.Tensor((), "float64")', 'R.Tensor((), "int64")'
SCALED = f"""
        @R.function
        def f(y: {V}) -> {V}:
            return R.multiply(R.sin(y), w)
"""
OTHER = f"""
        @R.function
        def g(y: {V}) -> {V}:
            return R.multiply(R.exp(y), x)
"""
HEAD = f'    def main(x: {V}, w: {S}, c: R.Tensor((), "bool"), n: {N}) -> {S}:\n        cls = M\n'
PRIVATE = "    @R.function(private=True)\n"
TWICE = PRIVATE + f"    def twice(f: {F}, y: {V}) -> {V}:\n        return f(f(y))\n"
COMPOSE = f"""{PRIVATE}    def compose(f: {F}, g: {F}) -> {F}:
        @R.function
        def both(y: {V}) -> {V}:
            return g(f(y))
        return both
"""
REPEAT = f"""{PRIVATE}    def repeat(f: {F}, y: {V}, n: {N}) -> {V}:
        cls = M
        if R.greater(n, R.const(0, "int64")):
            r = cls.repeat(f, f(y), R.subtract(n, R.const(1, "int64")))
        else:
            r = y
        return r
"""
TURNS = f"""{PRIVATE}    def turns(f: {F}, g: {F}, y: {V}, n: {N}) -> {V}:
        cls = M
        if R.greater(n, R.const(0, "int64")):
            r = g(cls.turns(g, f, f(y), R.subtract(n, R.const(1, "int64"))))
        else:
            r = y
        return r
"""
PROGRAMS = {
    "passed": HEAD + SCALED + "        return R.sum(cls.twice(f, x))\n" + TWICE,
    "chosen": HEAD + SCALED + OTHER + """
        if c:
            h = f
        else:
            h = g
        y = h(x)
        if R.greater(R.sum(y), R.const(0.5, "float64")):
            k = h
        else:
            k = f
        return R.sum(k(y))
""",
    "captures of a branch": HEAD + f"""
        if c:
            v = R.cos(x)
            @R.function
            def f(y: {V}) -> {V}:
                return R.multiply(R.sin(y), v)
            h = f
        else:
            u = R.exp(w)
            @R.function
            def g(y: {V}) -> {V}:
                return R.multiply(R.cos(y), u)
            h = g
        return R.sum(h(h(x)))
""",
    "returned": HEAD + SCALED + OTHER + """
        p = cls.compose(f, g)
        q = cls.compose(p, p)
        return R.sum(q(x))
""" + COMPOSE,
    "in a tuple": HEAD + SCALED + OTHER + """
        both = (f, (g, x))
        rest = both[1]
        h = rest[0]
        k = both[0]
        return R.sum(h(k(x)))
""",
    "through a recursion": HEAD + SCALED + "        return R.sum(cls.repeat(f, x, n))\n" + REPEAT,
    "taking turns": HEAD + SCALED + OTHER + "        return R.sum(cls.turns(f, g, x, n))\n" + TURNS,
    "composed through a recursion": HEAD + SCALED + OTHER + """
        return R.sum(cls.twice(cls.compose(f, g), cls.repeat(cls.compose(g, f), x, R.const(1, "int64"))))
""" + COMPOSE + TWICE + REPEAT,
}  # fmt: skip


def module(text: str) -> IRModule:
    return relaxpy.parse("@I.ir_module\nclass M:\n    @R.function\n" + text)


def given(chosen: bool) -> list[Any]:
    return [np.array([0.3, 0.5]), np.array(1.3), np.array(chosen), np.array(3)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_known_functions_compute_the_same(name: str) -> None:
    mod = module(PROGRAMS[name])
    new = Sequential((Normalize(), LambdaLift(), SpecializeFunctions()))(mod)
    check_well_formed(new)
    reached = Gradient(kind="vjp")(mod)
    assert not any(
        calls_operator(f, MakeClosure) for n, f in reached.graph_functions.items() if n not in mod
    )
    for chosen in (False, True):
        want, got = (interpret(m, "main", *given(chosen)) for m in (mod, new))
        np.testing.assert_array_equal(got, want)
        check_grads(mod, *given(chosen), order=1)


def test_derivatives_are_those_of_jax() -> None:
    """Of what the program says in jax."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def turns(f: Any, g: Any, y: Any, n: int) -> Any:
        return g(turns(g, f, f(y), n - 1)) if n else y

    def theirs(x: Any, w: Any) -> Any:
        def f(y: Any) -> Any:
            return jnp.sin(y) * w

        def g(y: Any) -> Any:
            return jnp.exp(y) * x

        return jnp.sum(turns(f, g, x, 3))

    x, w, c, n = given(True)
    with jax.enable_x64(True):
        want = jax.grad(theirs, (0, 1))(x, w)
    mod = Gradient(kind="grad", argnums=(0, 1))(module(PROGRAMS["taking turns"]))
    for mine, other in zip(interpret(mod, "main_grad", x, w, c, n), want, strict=True):  # type: ignore[arg-type]
        np.testing.assert_allclose(mine, other, rtol=1e-12)


def test_functions_that_grow_without_end_are_refused() -> None:
    """Each step would call another function: there is no last copy."""
    mod = module(HEAD + SCALED + "        return R.sum(cls.grown(f, x, n))\n" + f"""{PRIVATE}    def grown(f: {F}, y: {V}, n: {N}) -> {V}:
        cls = M
        @R.function
        def more(z: {V}) -> {V}:
            return R.sin(f(z))
        if R.greater(n, R.const(0, "int64")):
            r = cls.grown(more, y, R.subtract(n, R.const(1, "int64")))
        else:
            r = f(y)
        return r
""")  # fmt: skip
    with pytest.raises(PassError, match="grown is given ever other functions") as caught:
        Gradient()(mod)
    assert caught.value.code == "gradient-rule"
    assert caught.value.span is not None


def test_a_function_that_only_the_caller_knows_is_refused() -> None:
    mod = module(f"    def main(x: {V}, f: {F}) -> {S}:\n        return R.sum(f(x))\n")
    with pytest.raises(PassError, match="known only at run time is not differentiable") as caught:
        Gradient()(mod)
    assert caught.value.span is not None
