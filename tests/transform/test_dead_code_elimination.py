"""DeadCodeElimination: what goes, and what must stay."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError
from relaxpy.ir.expr import Function
from relaxpy.ir.module import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.pass_check import check_pass
from relaxpy.transform.base import Sequential
from relaxpy.transform.bind_unknown_shapes import BindUnknownShapes
from relaxpy.transform.dead_code_elimination import DeadCodeElimination
from relaxpy.transform.legalize_ops import LegalizeOps
from relaxpy.transform.normalize import Normalize

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n"
VECTOR = 'x: R.Tensor(("n",), "float32")'


def module(body: str, params: str = VECTOR, others: str = "", pure: bool = True) -> IRModule:
    """A module with a function `main`, and others."""
    text = HEADER + "@I.ir_module\nclass Module:\n"
    text += "".join(f"    {line}\n" for line in others.splitlines())
    text += f"    @R.function(pure={pure})\n    def main({params}):\n"
    text += "        n = T.int64()\n        cls = Module\n"
    text += "".join(f"        {line}\n" for line in body.splitlines())
    return Normalize()(relaxpy.parse(text))


def names(mod: IRModule, function: str = "main") -> list[str]:
    """The variables that a function binds."""
    found = mod[function]
    assert isinstance(found, Function)
    return [binding.var.name for binding in found.body.bindings]


def test_example() -> None:
    check_example(DeadCodeElimination())


def test_unused_bindings_go_with_what_they_used() -> None:
    mod = DeadCodeElimination()(
        module("a = R.exp(x)\nb = R.exp(a)\nc = R.tanh(x)\nd = (b, c)\ne = d[0]\nreturn c")
    )
    assert names(mod) == ["c"]


def test_effects_stay() -> None:
    mod = module("a = R.exp(x)\nb = R.print(a)\nc = R.tanh(x)\nreturn x", pure=False)
    assert names(DeadCodeElimination()(mod)) == ["a", "b"]


def test_what_is_checked_when_the_program_runs_stays() -> None:
    """A sum of n and m elements, a match_cast that is not proved, a shape with n - 4."""
    params = 'x: R.Tensor(("n",), "float32"), y: R.Tensor(("m",), "float32"), z: R.Tensor(ndim=1, dtype="float32")'
    mod = module(
        'a = R.add(x, y)\nb = R.match_cast(z, R.Tensor((n,), "float32"))\nc = R.shape([n - 4])\nd = R.exp(z)\nreturn x',
        params,
    )
    after = DeadCodeElimination()(mod)
    assert names(after) == ["a", "b", "c"]
    four, five = np.ones(4, np.float32), np.ones(5, np.float32)
    interpret(after, "main", four, four, four)
    for wrong in ((four, five, four), (four, four, five), (four[:3], four[:3], four[:3])):
        with pytest.raises(RuntimeCheckError) as before:
            interpret(mod, "main", *wrong)
        with pytest.raises(RuntimeCheckError) as then:
            interpret(after, "main", *wrong)
        assert str(before.value) == str(then.value)


@pytest.mark.parametrize("other", ['R.Prim("int64")', 'R.Prim(value="q")'])
def test_arithmetic_that_may_leave_64_bits_stays(other: str) -> None:
    """Numbers without a value are computed like sizes: beyond 64 bits is an error."""
    params = f'x: R.Tensor(("n",), "float32"), p: R.Prim("int64"), q: {other}, r: R.Prim("float32")'
    body = "a = R.multiply(p, q)\nb = R.floor_divide(p, q)\nc = R.multiply(r, r)\nreturn x"
    after = DeadCodeElimination()(module(body, params))
    assert names(after) == ["a", "b"]
    x = np.ones(2, np.float32)
    with pytest.raises(RuntimeCheckError, match="64 bits"):
        interpret(after, "main", x, 3, -(1 << 63), 1.0)
    interpret(after, "main", x, 3, 2, 1.0)


def test_the_name_of_a_library_function_goes() -> None:
    """The calls know the function; a name alone is looked up by nobody."""
    relaxpy.register_function("test.dce.halved", lambda x: np.asarray(x) / np.float32(2))
    relaxpy.register_library("test.dce.doubled", lambda x, out: np.multiply(x, 2, out=out))
    of = 'R.Tensor((7,), "float32")'
    mod = module(
        'half = R.ExternFunc("test.dce.halved")\ndouble = R.ExternFunc("test.dce.doubled")\n'
        f"a = R.call_dps_library(double, (x,), {of})\nb = R.call_dps_library(double, (a,), {of})\n"
        f"c = R.call_pure_packed(half, b, ty_args={of})\nreturn c",
        f"x: {of}",
    )
    assert names(DeadCodeElimination()(mod)) == ["a", "b", "c"]
    x = np.arange(7, dtype=np.float32)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, target="llvm"))
    np.testing.assert_array_equal(vm["main"](x), 2 * x)
    np.testing.assert_array_equal(interpret(mod, "main", x), 2 * x)


def test_a_proved_match_cast_goes() -> None:
    mod = module('a = R.match_cast(x, R.Tensor((n,), "float32"))\nreturn x')
    assert names(DeadCodeElimination()(mod)) == []


def test_branches() -> None:
    """Of a branch that is used, what its result does not need goes; a branch that nobody uses goes whole."""
    mod = module(
        """if p:
    a = R.exp(x)
    b = R.tanh(x)
    r = R.negative(b)
else:
    r = R.negative(x)
if p:
    s = R.exp(x)
else:
    s = R.tanh(x)
return r""",
        VECTOR + ', p: R.Tensor((), "bool")',
    )
    text = DeadCodeElimination()(mod).script()
    assert "R.exp" not in text
    assert text.count("if p") == 1


def test_what_a_local_function_captures_stays() -> None:
    mod = module(
        """a = R.exp(x)
@R.function
def local(y: R.Tensor(("m",), "float32")) -> R.Tensor(("m",), "float32"):
    unused = R.exp(y)
    b = R.sum(a)
    c = R.add(y, b)
    return c
d = local(x)
return d"""
    )
    after = DeadCodeElimination()(mod)
    assert names(after) == ["a", "local", "d"]
    assert "unused" not in after.script()


INCREMENT = """@T.prim_func(private=True)
def increment(x: T.Buffer(("n",), "float32")):
    n = T.int64()
    for i in range(n):
        with T.sblock("x"):
            vi = T.axis.spatial(n, i)
            x[vi] = x[vi] + T.float32(1)
"""
UPDATE = """a = R.call_tir_inplace(cls.increment, (x,), inplace_indices=[0], out_ty=R.Tensor((n,), "float32"))
return R.tuple()"""


def test_the_callers_memory_is_updated_as_before() -> None:
    """An impure function keeps state in its parameter; a pure one changes a copy, which nobody sees."""
    mod = module(UPDATE, others=INCREMENT, pure=False)
    x = np.zeros(3, np.float32)
    interpret(DeadCodeElimination()(mod), "main", x)
    assert x.tolist() == [1, 1, 1]
    assert names(DeadCodeElimination()(module(UPDATE, others=INCREMENT))) == []


def test_a_use_that_keeps_the_callers_memory_as_it_is_stays() -> None:
    """b is not used; but because it reads x afterwards, the call changes a copy of x."""
    mod = module(UPDATE.replace("return", "b = R.exp(x)\nreturn"), others=INCREMENT, pure=False)
    x = np.zeros(3, np.float32)
    interpret(mod, "main", x)
    interpret(DeadCodeElimination()(mod), "main", x)
    assert x.tolist() == [0, 0, 0]


OTHERS = """@R.function(private=True)
def used(a: R.Tensor(("m",), "float32"), b: R.Tensor(("k", 2), "float32"), c: R.Shape(["k"])) -> R.Tensor(("m",), "float32"):
    d = R.exp(a)
    return d
@R.function(private=True)
def unused(a: R.Tensor(("m",), "float32")) -> R.Tensor(("m",), "float32"):
    cls = Module
    d = cls.unused(a)
    return d
@T.prim_func(private=True)
def program(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.sblock("y"):
            vi = T.axis.spatial(4, i)
            y[vi] = x[vi]
"""


def test_functions_and_parameters_that_nothing_uses_go() -> None:
    mod = module(
        "a = R.zeros((n, 2), 'float32')\nb = cls.used(x, a, R.shape([n]))\nreturn b", others=OTHERS
    )
    after = DeadCodeElimination()(mod)
    assert list(after.functions) == ["used", "main"]
    assert names(after) == ["b"]
    assert "cls.used(x)" in after.script()
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(interpret(mod, "main", x), interpret(after, "main", x))
    assert "unused" in DeadCodeElimination(entry_functions=("unused",))(mod)


def test_a_parameter_that_determines_a_symbol_stays() -> None:
    others = """@R.function(private=True)
def used(a: R.Tensor(("m",), "float32"), b: R.Shape(["k"]), c: R.Shape(["k"])) -> R.Tensor(("k",), "float32"):
    k = T.int64()
    d = R.zeros((k,), "float32")
    return d
"""
    after = DeadCodeElimination()(
        module("b = cls.used(x, R.shape([n * 2]), R.shape([n * 2]))\nreturn b", others=others)
    )
    assert "cls.used(R.shape([n * 2]))" in after.script()


def test_parameters_of_function_values_and_of_checked_calls_stay() -> None:
    others = OTHERS.split("@R.function(private=True)\ndef unused", maxsplit=1)[0]
    value = module(
        "f = cls.used\nb = f(x, R.zeros((n, 2), 'float32'), R.shape([n]))\nreturn b", others=others
    )
    assert 'b: R.Tensor(("k", 2)' in DeadCodeElimination()(value).script()
    checked = module(
        "b = cls.used(x, y, R.shape([n]))\nreturn b",
        VECTOR + ', y: R.Tensor(("l", "m"), "float32")',
        others,
    )
    assert "cls.used(x, y, R.shape([n]))" in DeadCodeElimination()(checked).script()


def test_a_function_that_may_fail_or_never_end_is_called() -> None:
    others = """@R.function(private=True)
def checks(a: R.Tensor(("m",), "float32"), b: R.Tensor(("k",), "float32")) -> R.Tensor(("m",), "float32"):
    c = R.add(a, b)
    return a
@R.function(private=True)
def total(a: R.Tensor(("m",), "float32")) -> R.Tensor(("m",), "float32"):
    c = R.exp(a)
    return c
"""
    mod = module("a = cls.checks(x, x)\nb = cls.total(x)\nreturn x", others=others)
    assert names(DeadCodeElimination()(mod)) == ["a"]


def test_nothing_to_do() -> None:
    mod = module("a = R.exp(x)\nb = R.tanh(a)\nreturn b")
    assert DeadCodeElimination()(mod) is mod


def test_random_programs() -> None:
    """As they are written, and as tensor programs with the checks of their dimensions beside them."""
    assert check_pass(DeadCodeElimination(), range(12), Normalize()) > 6
    legal = Sequential((Normalize(), BindUnknownShapes(), LegalizeOps()))
    assert check_pass(DeadCodeElimination(), range(2), legal) > 0
