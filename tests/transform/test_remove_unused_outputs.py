"""RemoveUnusedOutputs: fields of results that no caller takes."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.ir.annotation import TupleType
from relaxpy.ir.expr import Function
from relaxpy.ir.module import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.differential import Call
from relaxpy.testing.pass_check import check_pass
from relaxpy.transform import DeadCodeElimination, Normalize, RemoveUnusedOutputs

THREE = """
    @R.function(private=True)
    def three(x: R.Tensor(("n",), "float32")) -> R.Tuple(
        R.Tensor(("n",), "float32"), R.Tensor((), "float32"), R.Tensor(("n",), "float32")
    ):
        with R.dataflow():
            a = R.exp(x)
            b = R.sum(x)
            c = R.negative(x)
            R.output(a, b, c)
        return (a, b, c)
"""


def module(body: str, other: str = THREE) -> IRModule:
    text = f'@I.ir_module\nclass Module:\n{other}\n    @R.function\n    def main(x: R.Tensor(("n",), "float32")):\n'
    text += "        cls = Module\n" + "".join(f"        {line}\n" for line in body.splitlines())
    return Normalize()(relaxpy.parse(text))


def outputs(body: str, other: str = THREE) -> int:
    """How many fields `three` gives afterwards; 1 for no tuple. The numbers were compared."""
    mod = module(body, other)
    after = RemoveUnusedOutputs()(mod)
    check_well_formed(after)
    assert RemoveUnusedOutputs()(after) is after
    for n in (0, 4):
        call = Call(mod, "main", [np.linspace(-1, 1, n, dtype=np.float32)])
        assert call.disagreement(call.run(after)) == ""
    three = after["three"]
    assert isinstance(three, Function)
    return len(three.ret.fields) if isinstance(three.ret, TupleType) else 1


def test_example() -> None:
    check_example(RemoveUnusedOutputs())


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("t = cls.three(x)\na = t[2]\nreturn a", 1),
        ("t = cls.three(x)\na = t[2]\nb = t[0]\nreturn R.add(a, b)", 2),
        ("t = cls.three(x)\nu = cls.three(t[2])\nreturn (t[2], u[1])", 2),
        ("t = cls.three(x)\nu = cls.three(t[2])\nreturn (t[0], u[1], u[2])", 3),
        ("with R.dataflow():\n    t = cls.three(x)\n    a = t[1]\n    R.output(a)\nreturn a", 1),
    ],
)
def test_fields_that_some_call_takes_stay(body: str, left: int) -> None:
    assert outputs(body) == left


@pytest.mark.parametrize(
    "body",
    [
        "t = cls.three(x)\nreturn t",
        "t = cls.three(x)\nu = (t, t[0])\nreturn u",
        "f = cls.three\nt = f(x)\nu = cls.three(x)\nreturn (t[0], u[0])",
        "t = cls.three(x)\nreturn x",
    ],
    ids=["returned", "inside a tuple", "the function is a value", "nothing is taken"],
)
def test_what_stays_as_it_is(body: str) -> None:
    assert outputs(body) == 3


def test_public_functions_and_those_with_attributes_keep_their_results() -> None:
    for other in (
        THREE.replace("(private=True)", ""),
        THREE.replace("        with R", '        R.func_attr({"mine": 1})\n        with R'),
    ):
        assert outputs("t = cls.three(x)\nreturn t[0]", other) == 3


def test_what_computed_them_goes_then() -> None:
    mod = RemoveUnusedOutputs()(module("t = cls.three(x)\nreturn t[1]"))
    text = DeadCodeElimination()(mod).script()
    assert "R.sum" in text
    assert "R.exp" not in text
    assert "R.negative" not in text


def test_random_programs() -> None:
    check_pass(RemoveUnusedOutputs(), range(40), before=Normalize())
