"""Functions with type parameters: the executable and the interpreter agree, they print and come back, and wrong uses
are located."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.runtime.data import Data
from relaxpy.shape.polymorphic import type_params
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import Monomorphise

LIST = """
    @R.type
    class List:
        A = R.type_param(R.Type)

        def Nil(): ...
        def Cons(head: A, tail: "List[A]"): ...
"""
GENERIC = """
    @R.function(private=True)
    def reverse(xs: List[A], onto: List[A]) -> List[A]:
        cls = Module
        match xs:
            case Nil():
                r = onto
            case Cons(h, t):
                r = cls.reverse(t, List.Cons(h, onto))
        return r

    @R.function(private=True)
    def map_onto(f: R.Callable((A,), B), xs: List[A], onto: List[B]) -> List[B]:
        cls = Module
        match xs:
            case Nil():
                r = onto
            case Cons(h, t):
                r = cls.map_onto(f, t, List.Cons(f(h), onto))
        return r

    @R.function
    def map(f: R.Callable((A,), B), xs: List[A]) -> List[B]:
        cls = Module
        return cls.reverse(cls.map_onto(f, xs, List[B].Nil()), List[B].Nil())

    @R.function(private=True)
    def identity(x: A) -> A:
        return x
"""
MAIN = """
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tuple(R.Tensor(("n",), "float32"), R.Prim("int64", value=None)):
        n = T.int64()
        cls = Module

        @R.function
        def f(y: R.Tensor((n,), "float32")) -> R.Tensor((n,), "float32"):
            return y * R.const(3.0)

        @R.function
        def rank(y: R.Tensor(("k",), "float32")) -> R.Prim("int64", value=None):
            return R.prim_value(k + 1)

        xs = List.Cons(x, List.Cons(x + x, List[R.Tensor((n,), "float32")].Nil()))
        ys = cls.map[R.Tensor((n,), "float32"), R.Tensor((n,), "float32")](cls.identity, cls.map(f, xs))
        match cls.map(rank, xs):
            case Cons(k, _):
                size = cls.identity(k)
            case _:
                size = R.prim_value(0)
        match ys:
            case Cons(a, Cons(b, _)):
                r = cls.identity(a) - b * b
            case _:
                r = x
        return r, size
"""
PARAMETERS = "    A = R.type_param(R.Type)\n    B = R.type_param()\n"


def module(*parts: str) -> Any:
    return relaxpy.parse("\n@I.ir_module\nclass Module:\n" + "\n".join(parts))


def in_brackets(text: str) -> str:
    """The same functions with their parameters in brackets."""
    lines: list[str] = []
    for line in text.splitlines():
        names = [
            name
            for name in "AB"
            if f"[{name}]" in line or f" {name}" in line or f"({name}," in line
        ]
        head, paren, rest = line.partition("(")
        known = f"[{', '.join(f'{name}: Type' for name in names)}]" if names else ""
        lines.append(head + known + paren + rest if head.strip().startswith("def ") else line)
    return "\n".join(lines)


def test_example() -> None:
    check_example(Monomorphise())


def test_both_spellings_print_and_come_back() -> None:
    mod = module(LIST, PARAMETERS, GENERIC, MAIN)
    assert_structural_equal(module(LIST, in_brackets(GENERIC), MAIN), mod)
    again = relaxpy.parse(mod.script())
    assert_structural_equal(again, mod)
    assert again.script() == mod.script()
    assert "def map_onto[A: Type, B: Type](f: R.Callable((A,), B, True)" in mod.script()


def test_they_run() -> None:
    mod = module(LIST, PARAMETERS, GENERIC, MAIN)
    x = np.array([1, 2, 5], np.float32)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    for y, size in (vm["main"](x), interpret(mod, "main", x)):
        assert np.array_equal(np.asarray(y), 3 * x - 36 * x * x)
        assert int(size) == 4
    again = interpret(Monomorphise()(mod), "main", x)
    assert np.array_equal(np.asarray(again[0]), 3 * x - 36 * x * x)


def test_a_public_function_takes_any_values() -> None:
    mod = module(LIST, PARAMETERS, GENERIC)
    made = Monomorphise()(mod)
    assert not any(type_params([f.annotation]) for f in made.graph_functions.values())
    assert str(made["map"].annotation.params[1]) == "List[R.Object]"
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    cons, nil = mod.types.List.Cons, mod.types.List.Nil()
    found = vm["map"](lambda each: each, cons(np.zeros(3, np.float32), cons((1, True), nil)))
    assert isinstance(found, Data)
    assert found.tail.head == (1, True)


def test_sizes_share_a_copy() -> None:
    """Copies are made for ranks and dtypes, and no more."""
    uses = """
    @R.function
    def main(
        x: R.Tensor(("n",), "float32"), y: R.Tensor((3,), "float32"), z: R.Tensor(("n", 2), "float32"),
        w: R.Tensor(("n",), "int32"),
    ) -> R.Tuple(R.Tensor(("n",), "float32"), R.Tensor((3,), "float32"), R.Tensor(("n", 2), "float32"), R.Tensor(("n",), "int32")):
        cls = Module
        return cls.identity(x), cls.identity(y), cls.identity(z), cls.identity(w)
"""
    mod = module(LIST, PARAMETERS, GENERIC, uses)
    names = [name for name in Monomorphise()(mod) if name.startswith("identity")]
    assert len(names) == 4  # R.Tensor((3,)) says more than a rank: its size is no symbol
    n = 5
    args = [
        np.ones(n, np.float32),
        np.ones(3, np.float32),
        np.ones((n, 2), np.float32),
        np.ones(n, np.int32),
    ]
    found = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](*args)
    assert [np.asarray(each).shape for each in found] == [each.shape for each in args]


def test_a_function_that_knows_sizes_calls_itself() -> None:
    """Its own symbols are not those of its type arguments."""
    mod = module(
        """
    @R.function(private=True)
    def last[A: Type](x: R.Tensor(("n",), "float32"), y: A, k: R.Prim("int64")) -> A:
        n = T.int64()
        cls = Module
        if k > 0:
            r = cls.last(R.concat([x, x]), y, k - 1)
        else:
            r = y
        return r

    @R.function
    def main(x: R.Tensor(("n",), "float32"), k: R.Prim("int64")) -> R.Tensor(("n", 2), "float32"):
        n = T.int64()
        cls = Module
        return cls.last(x, R.stack([x, x], axis=1), k)
"""
    )
    x = np.arange(3, dtype=np.float32)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    assert np.array_equal(vm["main"](x, 3).numpy(), np.stack([x, x], 1))
    assert np.array_equal(interpret(mod, "main", x, 3), np.stack([x, x], 1))


WRONG = {
    "ambiguous": (
        "def f() -> List[A]:\n        return List[A].Nil()",
        "def main() -> R.Object:\n        cls = Module\n        return cls.f()",
        "the type parameter A of f does not follow from the arguments",
    ),
    "arguments": (
        "def f(x: A) -> A:\n        return x",
        "def main(x: R.Object) -> R.Object:\n        cls = Module\n        return cls.f[R.Object, R.Object](x)",
        r"f takes 1 type argument \(A\), got 2",
    ),
    "rigid": (
        "def f(x: A) -> A:\n        return R.const(1.0)",
        "def main(x: R.Object) -> R.Object:\n        return x",
        r"f returns R.Tensor\(\(\), dtype=\"float32\"\), but is declared to return A",
    ),
    "an operator": (
        "def f(x: A) -> A:\n        return R.exp(x)",
        "def main(x: R.Object) -> R.Object:\n        return x",
        "x.* must be a tensor, got A",
    ),
    "another": (
        "def f(x: A, y: B) -> A:\n        return y",
        "def main(x: R.Object) -> R.Object:\n        return x",
        "f returns B, but is declared to return A",
    ),
    "mismatch": (
        "def f(x: List[A], y: List[A]) -> List[A]:\n        return y",
        'def main(x: R.Tensor((2,), "float32")) -> R.Object:\n        cls = Module\n        return cls.f(List[R.Tensor((2,), "float32")].Nil(), x)',
        "argument 2 of f must be",
    ),
    "no parameter": (
        "def f(x: A) -> A:\n        y = List[B].Nil()\n        return x",
        "def main(x: R.Object) -> R.Object:\n        return x",
        "mentions B, which is no type parameter of f",
    ),
    "local": (
        "def f(x: A) -> A:\n        @R.function\n        def g[C: Type](y: C) -> C:\n            return y\n        return g(x)",
        "def main(x: R.Object) -> R.Object:\n        return x",
        "the local function g has a type parameter C",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_uses_are_located(case: str) -> None:
    first, main, message = WRONG[case]
    with pytest.raises(relaxpy.RelaxError, match=message) as error:
        module(
            LIST,
            PARAMETERS,
            f"    @R.function(private=True)\n    {first}\n",
            f"    @R.function\n    {main}",
        )
    assert "-->" in str(error.value)


def test_a_parameter_hides_no_namespace() -> None:
    with pytest.raises(relaxpy.RelaxError, match="a type parameter T hides the namespace T"):
        module(
            "    T = R.type_param(R.Type)\n",
            "    @R.function\n    def f(x: R.Object) -> R.Object:\n        return x",
        )
    with pytest.raises(relaxpy.RelaxError, match="a type parameter T hides the namespace T"):
        module("    @R.function\n    def f[T: Type](x: R.Object) -> R.Object:\n        return x")
    with pytest.raises(relaxpy.RelaxError, match=r"the kind of a type parameter is R\.Type, not 3"):
        module(
            "    A = R.type_param(3)\n",
            "    @R.function\n    def f(x: R.Object) -> R.Object:\n        return x",
        )


def test_types_that_grow_are_an_error() -> None:
    mod = module(
        LIST,
        """
    @R.function(private=True)
    def grow[A: Type](x: A, k: R.Prim("int64")) -> R.Prim("int64", value=None):
        cls = Module
        if k > 0:
            r = cls.grow(List.Cons(x, List[A].Nil()), k - 1)
        else:
            r = R.prim_value(k)
        return r

    @R.function
    def main(x: R.Tensor((2,), "float32"), k: R.Prim("int64")) -> R.Prim("int64", value=None):
        cls = Module
        return cls.grow(x, k)
""",
    )
    with pytest.raises(relaxpy.RelaxError, match="grow is used at more than 64 types") as error:
        relaxpy.build(mod)
    assert "cls.grow(List.Cons" in str(error.value)
