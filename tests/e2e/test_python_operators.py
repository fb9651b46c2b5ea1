"""Python's operators on graph values mean what they mean on numpy arrays."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.testing.interpret import interpret

F = np.array([[1.5, -2.0], [0.25, 3.0]], "float32")
G = np.array([[2.0, 0.5], [-1.0, 4.0]], "float32")
A = np.array([[7, -3], [2, 5]], "int32")
B = np.array([[2, 2], [3, 1]], "int32")
P = np.array([[True, False], [True, True]])
Q = np.array([[True, True], [False, True]])


def check(expression: str, **values: np.ndarray) -> None:
    """The expression on graph values of symbolic shape, against numpy."""
    params = ", ".join(f'{n}: R.Tensor(("n", 2), "{v.dtype}")' for n, v in values.items())
    mod = relaxpy.parse(f"@R.function\ndef main({params}):\n    return {expression}\n")
    relaxpy.assert_structural_equal(mod, relaxpy.parse(mod.script()))
    got = interpret(mod, "main", *values.values())
    expected = np.asarray(eval(expression, dict(values)))
    kind = values[next(iter(values))].dtype if expected.dtype != bool else expected.dtype
    np.testing.assert_allclose(got, expected.astype(kind), rtol=1e-6)
    assert got.dtype == kind


@pytest.mark.parametrize(
    "op", ["+", "-", "*", "/", "//", "%", "<", "<=", ">", ">=", "==", "!=", "@"]
)
def test_two_floats(op: str) -> None:
    check(f"x {op} y", x=F, y=G)


@pytest.mark.parametrize(
    "op", ["+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!=", "&", "|", "^", "<<", ">>"]
)
def test_two_ints(op: str) -> None:
    check(f"x {op} y", x=A, y=B)


@pytest.mark.parametrize("op", ["+", "-", "*", "/", "//", "%", "<", "<=", ">", ">=", "==", "!="])
def test_a_number_on_either_side(op: str) -> None:
    check(f"x {op} 2", x=F)
    check(f"x {op} 2.5", x=F)
    check(f"2 {op} x", x=F)
    check(f"-1.5 {op} x", x=F)


@pytest.mark.parametrize("op", ["+", "-", "*", "//", "%", "<", "==", "&", "|", "^", "<<", ">>"])
def test_an_integer_on_either_side(op: str) -> None:
    check(f"x {op} 3", x=B)
    check(f"3 {op} x", x=B)


@pytest.mark.parametrize("op", ["&", "|", "^", "==", "!="])
def test_booleans(op: str) -> None:
    check(f"p {op} q", p=P, q=Q)
    check(f"p {op} True", p=P)


def test_power() -> None:
    check("x ** 2", x=F)
    check("2 ** x", x=F)
    check("x ** y", x=np.abs(F), y=G)


@pytest.mark.parametrize("expression", ["-x", "+x", "--x", "-(x - 1) * 2 + x", "x * x * 2 - 1 / x"])
def test_unary_and_nested(expression: str) -> None:
    check(expression, x=F)


def test_not() -> None:
    check("~p", p=P)
    check("~x", x=A)
    mod = relaxpy.parse('@R.function\ndef main(p: R.Tensor((2, 2), "bool")):\n    return not p\n')
    np.testing.assert_array_equal(interpret(mod, "main", P), ~P)


def test_and_or_on_values() -> None:
    mod = relaxpy.parse(
        '@R.function\ndef main(p: R.Tensor((2, 2), "bool"), q: R.Tensor((2, 2), "bool")):\n'
        "    return p and q or not p\n"
    )
    np.testing.assert_array_equal(interpret(mod, "main", P, Q), P & Q | ~P)


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("a + 0.5", "op-dtype"),
        ("x & 1", "op-dtype"),
        ("x + y[0, 0, 0]", "tensor-index"),
        ("x < y < x", "unsupported-syntax"),
        ("x in y", "unsupported-syntax"),
        ("x is y", "unsupported-syntax"),
        ("x if x else y", "if-condition"),
        ("x + 'a'", "op-arguments"),
        ("x + None", "bad-value"),
        ("x + a", "op-dtype"),
        ("x.shape", "unknown-name"),
        ("x()", "call-callee"),
        ("x @ 2", "op-arguments"),
    ],
)
def test_refused(expression: str, code: str) -> None:
    with pytest.raises(relaxpy.RelaxError) as caught:
        relaxpy.parse(
            '@R.function\ndef main(x: R.Tensor((2, 2), "float32"), y: R.Tensor((2, 2), "float32"), '
            f'a: R.Tensor((2, 2), "int32")):\n    return {expression}\n'
        )
    assert caught.value.code == code
    assert caught.value.span is not None
