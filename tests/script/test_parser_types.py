"""Declarations of data types, and constructors."""

from __future__ import annotations

import re

import pytest

import relaxpy
from relaxpy.errors import ErrorGroup, RelaxError
from relaxpy.ir.structural import structural_equal
from relaxpy.script import ir as I
from relaxpy.script import relax as R

LIST = """
    @R.type
    class List:
        A = R.type_param()

        def Nil(): ...
        def Cons(head: A, tail: "List[A]"): ...
"""


@I.ir_module
class Decorated:
    """Python runs this class."""

    @R.type
    class List:
        """A list."""

        A = R.type_param()

        def Nil(): ...
        def Cons(head: A, tail: List[A]): ...

    @R.type
    class Shaped:
        def Of(x: R.Tensor(("n", 4), "float32"), both: R.Tuple(R.Shape(["n"]), List[R.Object])): ...

    @R.function
    def main(xs: List[R.Tensor((2,), "float32")]) -> List[R.Tensor((2,), "float32")]:
        match xs:
            case Nil():
                y = xs
            case Cons(_, tail):
                y = tail
        return y


def test_a_decorated_module() -> None:
    again = relaxpy.parse(Decorated.script())
    assert structural_equal(again, Decorated)
    assert [decl.name for decl in again.data_types] == ["List", "Shaped"]
    assert relaxpy.VirtualMachine(relaxpy.build(again))["main"](again.types.List.Nil()) is not None


def test_declarations_differ_by_fields_and_not_by_symbols() -> None:
    text = Decorated.script()
    assert structural_equal(relaxpy.parse(re.sub(r"\bn\b", "m", text)), Decorated)
    for old, new in (("head: A", "heads: A"), ('"n", 4', '"n", 5'), ("def Nil", "def Nol")):
        changed = text.replace(old, new).replace(
            "List.Nil", "List.Nol" if "Nol" in new else "List.Nil"
        )
        assert not structural_equal(relaxpy.parse(changed), Decorated)


def messages(text: str) -> list[str]:
    """Code and message of the errors of a module, each located."""
    with pytest.raises(RelaxError) as raised:
        relaxpy.parse("@I.ir_module\nclass Module:" + text)
    found = raised.value.errors if isinstance(raised.value, ErrorGroup) else [raised.value]
    assert all(error.span is not None for error in found)
    return [f"{error.code}: {error.message}" for error in found]


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("def One(x: B, x: B): ...", "data-type: the field x is there twice"),
        ("def One(_x: B): ...", "data-type: the field _x begins with _"),
        (
            "def One(): ...\n        def One(y: B): ...",
            "duplicate-name: Bad has two constructors called One",
        ),
        ("def One(y): ...", "missing-annotation: the field y needs an annotation"),
        ("def One(y: List): ...", "bad-annotation: List takes 1 type argument (A), got 0"),
        ("def One(y: List[B, B]): ...", "bad-annotation: List takes 1 type argument (A), got 2"),
        ("def One(y: List[3]): ...", "bad-annotation: 3 is not an annotation"),
        ("def One(y: Lost): ...", "unknown-name: Lost is not defined"),
        (
            'def One(y: R.Tensor(("n * m",))): ...',
            "symbol-undefined: the value of m cannot be determined",
        ),
        ("def One(y: B) -> B: ...", "unsupported-syntax: this in a constructor is not part"),
        ("def One(*y: B): ...", "unsupported-syntax: this in a constructor is not part"),
        ("def One(y: B = 1): ...", "unsupported-syntax: this in a constructor is not part"),
        ("def One(y: B): return y", "unsupported-syntax: a body of a constructor is not part"),
        (
            "def One(): ...\n        z = 3",
            "unsupported-syntax: this statement in a type is not part",
        ),
        ("pass", "data-type: the type Bad has no constructor"),
    ],
)
def test_wrong_declarations(member: str, message: str) -> None:
    text = f"{LIST}\n    @R.type\n    class Bad:\n        B = R.type_param()\n        {member}\n"
    assert messages(text)[0].startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LIST + LIST, "duplicate-name: there are two types called List"),
        (
            "\n    class List:\n        def A(): ...\n",
            "missing-decorator: the class List in a module has no @R.type",
        ),
        (
            "\n    @R.type\n    class A(B):\n        def C(): ...\n",
            "unsupported-syntax: a base class of a type",
        ),
        (
            "\n    @R.function\n    def f(x: R.Object):\n        return x\n" + LIST,
            "data-type: the type List is declared after a function",
        ),
    ],
)
def test_wrong_types(text: str, message: str) -> None:
    assert messages(text)[0].startswith(message)


def test_all_errors_are_reported() -> None:
    text = f"{LIST}\n    @R.type\n    class Bad:\n        def One(x): ...\n        def Two(y: List): ...\n        z = 3\n"
    assert len(messages(text)) == 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("List.Cons(x)", "List.Cons takes 2 fields (head, tail), got 1"),
        ("List.Cons(x, x, x)", "List.Cons takes 2 fields (head, tail), got 3"),
        ("List.Cons(head=x, tial=x)", "List.Cons takes 2 fields (head, tail), got head, tial"),
        (
            "List.Cons(x, x)",
            'field tail of List.Cons must be List[R.Tensor((2,), dtype="float32")], got R.Tensor',
        ),
        ("List.Nil()", "the parameter A of List does not follow from the fields of List.Nil"),
        ("List.Con(x, x)", "the type List has no constructor Con"),
        (
            'List[R.Tensor((3,), "float32")].Cons(x, x)',
            "field head of List.Cons must be R.Tensor((3,)",
        ),
        ("R.data.field(x, List.Cons, 0)", "List.Cons is of the type List, the value is R.Tensor"),
        ("R.data.field(xs, List.Cons, 2)", "List.Cons has 2 fields, not a field 2"),
        ("R.data.made_by(xs, x)", "a constructor is expected, as List.Cons"),
    ],
)
def test_wrong_constructors(value: str, message: str) -> None:
    text = (
        LIST
        + f"""
    @R.function
    def main(x: R.Tensor((2,), "float32"), xs: List[R.Tensor((2,), "float32")]):
        y = {value}
        return y
"""
    )
    (found,) = messages(text)
    assert found.startswith(f"data-type: {message}")


def test_fields_of_one_symbol_must_agree() -> None:
    text = """
    @R.type
    class Pair:
        def Both(a: R.Tensor(("n",), "float32"), b: R.Tensor(("n", 2), "float32")): ...

    @R.function
    def main(x: R.Tensor(("k",), "float32"), y: R.Tensor((3, 2), "float32"), z: R.Tensor((4,), "float32")):
        p = Pair.Both(x, y)
        q = Pair.Both(z, y)
        return p, q
"""
    assert messages(text) == [
        'data-type: field b of Pair.Both must be R.Tensor((4, 2), dtype="float32"), got R.Tensor((3, 2), dtype="float32")'
    ]


def test_the_argument_of_a_type_is_what_all_fields_are() -> None:
    mod = relaxpy.parse(
        "@I.ir_module\nclass Module:"
        + LIST
        + """
    @R.function
    def main(x: R.Tensor((2,), "float32"), y: R.Tensor((3,), "float32")):
        a = List.Cons(x, List[R.Tensor((3,), "float32")].Nil())
        b = List.Cons(y, a)
        return b
"""
    )
    assert str(mod["main"].ret) == 'List[R.Tensor(dtype="float32", ndim=1)]'
