"""`match`: the executable and the interpreter agree, programs print and come back, and wrong clauses are located."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import ErrorGroup, RelaxError
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.runtime.data import Data, fields_of
from relaxpy.runtime.tensor import Tensor
from relaxpy.testing.interpret import interpret
from tests.script.data_programs import SOURCE


@cache
def program() -> Any:
    mod = relaxpy.parse(SOURCE)
    return mod, relaxpy.VirtualMachine(relaxpy.build(mod))


def plain(value: Any) -> Any:
    """A value as Python's tuples and lists."""
    if isinstance(value, Data):
        return (type(value).__name__, *map(plain, fields_of(value)))
    if isinstance(value, Tensor):
        return value.numpy().tolist()
    return value.tolist() if isinstance(value, np.ndarray) else value


def check(name: str, *args: Any) -> Any:
    """The value of a function, by both."""
    mod, vm = program()
    found = plain(vm[name](*args))
    assert found == plain(interpret(mod, name, *args))
    return found


def leaf(*items: float) -> Data:
    return program()[0].types.Tree.Leaf(np.array(items, np.float32))


def test_it_prints_and_comes_back() -> None:
    mod = program()[0]
    again = relaxpy.parse(mod.script())
    assert_structural_equal(again, mod)
    assert again.script() == mod.script()


def test_nested_patterns_and_sizes_of_fields() -> None:
    node = program()[0].types.Tree.Node
    assert check("total", leaf(1, 2, 6)) == 3
    assert check("total", node(leaf(1, 2), leaf(3))) == 9
    assert check("total", node(node(leaf(1, 2), leaf(3)), leaf(4, 8))) == 9 + 6


def test_tuples_and_literals() -> None:
    cons, nil = program()[0].types.List.Cons, program()[0].types.List.Nil()
    assert check("literals", (cons(0, nil), True)) == 10
    assert check("literals", (cons(0, nil), False)) == 0
    assert check("literals", (cons(-1, cons(3, nil)), True)) == 20
    assert check("literals", (cons(5, cons(3, nil)), False)) == 3
    assert check("literals", (cons(5, cons(3, nil)), True)) == -1
    assert check("literals", (nil, True)) == -1
    assert check("scalar", np.array(0)) == 5
    assert check("scalar", np.array(7)) == 14


def test_mutual_recursion_and_parameters() -> None:
    types = program()[0].types
    forest = types.Forest.Empty()
    for number in (2, 3, 5):
        rose = types.Rose.Branch(np.array(number, np.float32), forest)
        forest = types.Forest.More(rose, forest)
    assert check("forest", forest) == 2 * 4 + 3 * 2 + 5
    assert check("rose", forest.first) == 5 + 3 + 2 * 2


def test_sizes_that_fields_share() -> None:
    x, y = np.ones((5, 3), np.float32), np.full((3, 10), 2, np.float32)
    assert check("both", x, y) == np.full((5, 10), 6).tolist()


def test_lists_of_any_length() -> None:
    """Made, mapped, counted, printed and freed in constant stack."""
    mod, vm = program()
    x = np.array([1, 2], np.float32)
    nil = mod.types.List.Nil()
    assert check("twice", vm["build"](3, x), nil) == plain(vm["build"](3, 2 * x))
    long = vm["twice"](vm["build"](20_000, x), nil)
    assert vm["length"](long, 0) == 20_000
    assert len(repr(long)) < 4000
    del long


def test_a_stored_tensor_is_not_overwritten() -> None:
    """What is in a value stays what it is, whatever is computed of the same tensors later."""
    mod = relaxpy.parse(
        """
@I.ir_module
class Module:
    @R.type
    class Box:
        def Of(x: R.Tensor((5,), "float32")): ...

    @T.prim_func
    def add_one(x: T.Buffer((5,), "float32")):
        for i in range(5):
            with T.sblock("add"):
                v = T.axis.spatial(5, i)
                x[v] = x[v] + T.float32(1)

    @R.function
    def main(x: R.Tensor((5,), "float32")):
        cls = Module
        a = R.exp(x)
        box = Box.Of(a)
        b = R.negative(R.add(a, a))
        match box:
            case Of(stored):
                c = R.call_tir_inplace(cls.add_one, (stored,), inplace_indices=[0], out_ty=R.Tensor((5,), "float32"))
        d = R.call_tir_inplace(cls.add_one, (a,), inplace_indices=[0], out_ty=R.Tensor((5,), "float32"))
        match box:
            case Of(again):
                e = again * 1
        return box, b, c, d, e
"""
    )
    x = np.arange(5, dtype=np.float32)
    a = np.exp(x)
    for found in (relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x), interpret(mod, "main", x)):
        values = [
            np.asarray(getattr(v, "numpy", lambda v=v: v)()) for v in (found[0].x, *found[1:])
        ]
        for value, wanted in zip(values, (a, -2 * a, a + 1, a + 1, a), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-6)


def test_constants_in_values_are_the_programs_own() -> None:
    mod = relaxpy.parse(
        """
@I.ir_module
class Module:
    @R.type
    class Box:
        def Of(x: R.Tensor((2,), "float32")): ...

    @R.function
    def main() -> Box:
        b = Box.Of(R.const([1.0, 2.0]))
        return b
"""
    )
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    vm["main"]().x.numpy()[:] = 7
    assert vm["main"]().x.numpy().tolist() == [1, 2]


HEAD = """
@I.ir_module
class Module:
    @R.type
    class List:
        A = R.type_param()

        def Nil(): ...
        def Cons(head: A, tail: "List[A]"): ...

    @R.type
    class Other:
        def Alone(): ...

    @R.function
    def main(xs: List[R.Prim("int64", value=None)]) -> R.Prim("int64", value=None):
        match xs:
"""


def errors_of(*clauses: str, head: str = HEAD) -> list[tuple[str, str, str | None]]:
    """Code, message and help of the errors of a match with these clauses, each with a body."""
    lines = [f"            case {each}:\n                y = R.prim_value(0)" for each in clauses]
    with pytest.raises(RelaxError) as raised:
        relaxpy.parse(head + "\n".join(lines) + "\n        return y\n")
    found = raised.value.errors if isinstance(raised.value, ErrorGroup) else [raised.value]
    assert all(error.span is not None and error.span.line >= 17 for error in found)
    return [(error.code, error.message, error.help) for error in found]


def test_missed_values_are_shown() -> None:
    assert errors_of("Nil()") == [
        ("match-missing", "no clause matches Cons(_, _)", "add a clause: case Cons(_, _):")
    ]
    found = errors_of("Nil()", "Cons(0, Nil())", "Cons(1, _)", "Cons(_, Cons(_, Cons(_, _)))")
    assert [message for _, message, _ in found] == ["no clause matches Cons(0, Cons(_, Nil()))"]


def test_unreachable_clauses() -> None:
    found = errors_of("Nil()", "Cons(a, _)", "Cons(_, b)", "_")
    assert [code for code, _, _ in found] == ["match-unreachable"] * 2


@pytest.mark.parametrize(
    ("clause", "code", "message", "help"),
    [
        (
            "Nil",
            "match-pattern",
            "Nil is a new name here, which matches anything, not",
            "case Nil():",
        ),
        ("Con", "match-pattern", "Con is a new name here", "write case Cons(_, _):"),
        ("Conss", "match-pattern", "Conss is a new name here", "write case Cons(_, _):"),
        ("Nil(x)", "match-pattern", "Nil has 0 fields (none), the pattern 1", "write Nil()"),
        ("Cons(x)", "match-pattern", "Cons has 2 fields (head, tail), the pattern 1", "Cons(_, _)"),
        ("Cons(a, b, c)", "match-pattern", "the pattern 3", "Cons(_, _)"),
        ("Cons(head=a, tial=b)", "match-pattern", "tial is no field of Cons", "did you mean tail?"),
        ("Cons(a, head=b)", "match-pattern", "head is given twice", ""),
        ("Kons(a, b)", "data-type", "the type List has no constructor Kons", "did you mean Cons?"),
        ("Other.Alone()", "match-pattern", "Other.Alone is no pattern for List[", ""),
        ("nothing.Nil()", "match-pattern", "nothing.Nil is no constructor", ""),
        ("(a, b)", "match-pattern", "a tuple is no pattern for List[", ""),
        ("3", "match-pattern", "a number is no pattern for List[", ""),
        ("Cons(True, _)", "match-pattern", "True is no pattern for R.Prim", ""),
        ("Cons(1.5, _)", "match-pattern", "1.5 is no pattern for R.Prim", ""),
        ("Cons('a', _)", "match-pattern", "a pattern of a value is a number, or True or False", ""),
        ("Cons(a, a)", "match-pattern", "the pattern binds a twice", ""),
        ("Cons(a, _) as b if a", "unsupported-syntax", "a condition of a clause", "write an if"),
        ("Nil() | Cons(_, _)", "unsupported-syntax", "`|` in a pattern", "a clause for each"),
        ("{}", "unsupported-syntax", "this pattern", "patterns are constructors"),
    ],
)
def test_wrong_patterns(clause: str, code: str, message: str, help: str) -> None:
    ((found, text, advice),) = errors_of(clause, "_")
    assert found == code
    assert message in text
    assert help in (advice or "")


def test_all_wrong_clauses_are_reported() -> None:
    assert len(errors_of("Nil", "Cons(x)", "Kons()")) == 3


def test_a_constructor_of_a_tuple() -> None:
    head = HEAD.replace('List[R.Prim("int64", value=None)])', "R.Tuple(R.Object, Other))")
    assert errors_of("(a, b, c)", "_", head=head)[0][1] == "the tuple has 2 values, the pattern 3"
    assert "is no pattern for R.Object" in errors_of("(Other.Alone(), _)", "_", head=head)[0][1]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (
            "match xs:\n            case Nil():\n                y = 1\n            case _:\n                z = 1",
            "if-branches",
        ),
        (
            "with R.dataflow():\n            match xs:\n                case _:\n                    y = xs",
            "dataflow-if",
        ),
        (
            "match xs:\n            case _:\n                return xs\n        y = xs",
            "return-place",
        ),
        ("y = xs[0]", "tuple-index"),
        ("y = xs + 1", "op-arguments"),
        ("y = xs(1)", "call-callee"),
        ("if xs:\n            y = xs\n        else:\n            y = xs", "if-condition"),
    ],
)
def test_data_elsewhere(body: str, code: str) -> None:
    head = HEAD.replace("        match xs:\n", "").replace(' -> R.Prim("int64", value=None)', "")
    with pytest.raises(RelaxError) as raised:
        relaxpy.parse(f"{head}        {body}\n        return y\n")
    found = raised.value.errors if isinstance(raised.value, ErrorGroup) else [raised.value]
    assert found[0].code == code
    assert found[0].span is not None


@pytest.mark.parametrize(
    ("value", "help"),
    [
        ("Cons(1, xs)", "write List.Cons"),
        ("cls.List.Cons(1, xs)", "List is a data type: write List alone"),
        ("xs.head", "fields are read by a match: match xs:"),
    ],
)
def test_data_as_python_would_have_it(value: str, help: str) -> None:
    head = HEAD.replace("        match xs:\n", "        cls = Module\n")
    with pytest.raises(RelaxError) as raised:
        relaxpy.parse(f"{head}        y = {value}\n        return y\n")
    found = raised.value.errors if isinstance(raised.value, ErrorGroup) else [raised.value]
    assert (found[0].code, found[0].help) == ("unknown-name", help)


def test_one_clause_that_always_matches() -> None:
    text = (
        HEAD.replace(' -> R.Prim("int64", value=None)', "")
        + "            case all:\n                y = all\n        return y\n"
    )
    mod = relaxpy.parse(text)
    assert "if " not in mod.script()
