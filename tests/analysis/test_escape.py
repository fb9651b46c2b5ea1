"""Which tensors leave a function."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.analysis.escape import escaping
from relaxpy.ir.expr import Function

HEADER = "from relaxpy.script import relax as R, tir as T\n"


def names(body: str, pure: bool = True) -> str:
    """The variables that leave a function of this body, in order of the alphabet."""
    text = (
        HEADER
        + f'@R.function(pure={pure})\ndef main(x: R.Tensor(("n",), "float32"), p: R.Tensor((), "bool")):\n'
    )
    mod = relaxpy.parse(text + "".join(f"    {line}\n" for line in body.splitlines()))
    main = mod["main"] if not isinstance(mod, Function) else mod
    assert isinstance(main, Function)
    return " ".join(sorted(var.name for var in escaping(main)))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = R.exp(x)\nb = R.exp(a)\nreturn b", "b"),
        ("a = R.exp(x)\nb = a\nt = (b, x)\nu = t[0]\nreturn u", "a b t u x"),
        ('a = R.match_cast(x, R.Tensor((3,), "float32"))\nreturn a', "a x"),
        (
            "if p:\n    a = R.exp(x)\n    r = a\nelse:\n    b = R.exp(x)\n    r = x\nreturn r",
            "a r x",
        ),
    ],
)
def test_results_and_what_they_are_names_of(body: str, expected: str) -> None:
    assert set(expected.split()) <= set(names(body).split())
    assert "b" not in names("a = R.exp(x)\nb = R.exp(a)\nc = R.exp(b)\nreturn c").split()


LOCAL = """a = R.exp(x)
b = R.exp(x)
@R.function
def local(y: R.Tensor(("m",), "float32")) -> R.Tensor(("m",), "float32"):
    s = R.sum(b)
    z = R.add(y, s)
    return z
c = local(a)
d = R.exp(c)
return d"""


def test_what_an_impure_function_hands_on() -> None:
    """What it calls may update a tensor; what a pure function calls may only give it back."""
    assert names(LOCAL) == "d"
    assert {"a", "b", "d"} <= set(names(LOCAL, pure=False).split())
    given_back = LOCAL.replace("return d", "return c").replace("return z", "return y")
    assert {"a", "c"} <= set(names(given_back).split())
    assert "b" not in names(given_back).split()
