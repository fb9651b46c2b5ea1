"""Scalars and sizes as values: wherever a number can stand; the same from the interpreter, the virtual machine and the
program's text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.testing.interpret import interpret
from tests.sweeps import sweep

X = np.array([3, 1, 2], np.float32)
Y = np.array([3, 1, 2])
SCALARS: dict[str, tuple[str, Any]] = {
    "k": ('R.Prim("int64")', 2),
    "neg": ('R.Prim("int64")', -2),
    "o": ('R.Prim("int64", value=None)', 1),
    "i": ('R.Prim("int32")', 1),
    "f": ('R.Prim("float32")', 0.5),
    "b": ('R.Prim("bool")', True),
    "y": ('R.Tensor(("n",), "int64")', Y),
}


def module(body: str, scalars: str = "", decorator: str = "@R.function") -> relaxpy.IRModule:
    params = ['x: R.Tensor(("n",), "float32")', *(f"{s}: {SCALARS[s][0]}" for s in scalars.split())]
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    text = f"{decorator}\ndef main({', '.join(params)}):\n    n = T.int64()\n{lines}"
    return relaxpy.parse(text)


def run(body: str, scalars: str = "", x: np.ndarray = X, decorator: str = "@R.function") -> Any:
    mod = module(body, scalars, decorator)
    again = relaxpy.parse(mod.script())
    relaxpy.assert_structural_equal(mod, again)
    args = [x, *(SCALARS[s][1] for s in scalars.split())]
    expected = interpret(mod, "main", *args)
    same(relaxpy.VirtualMachine(relaxpy.build(again))["main"](*args), expected)
    return expected


def same(got: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            same(a, b)
    elif isinstance(expected, np.ndarray):
        assert got.dtype == str(expected.dtype)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
    else:
        assert type(got) is type(expected)
        assert got == pytest.approx(expected)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x * n", X * 3),
        ("return n - x", 3 - X),
        ("return R.sum(x) / n", np.float32(2)),
        ("return R.sum(x) * (1.0 / n)", np.float32(2)),
        ("return R.arange(0, n, 1) < n - 1", np.array([True, True, False])),
        ("return R.full((), n, 'float32')", np.float32(3)),
        ("return R.const(n)", np.int64(3)),
        ("return R.const(n * 2, 'float32') + x", X + 6),
        ("return R.take(x, n // 2, axis=0)", X[1]),
        ("return R.take(x, R.const(n // 2), axis=0)", X[1]),
        ("return R.clip(x, 1.5, n - 1)", np.array([2, 1.5, 2], "float32")),
        ("return R.where(n > 2, x, -x)", X),
        ("return R.astype(x, 'int8') + n", np.array([6, 4, 5], "int8")),
        ("return R.maximum(x, n - 1)", np.array([3, 2, 2], "float32")),
        ("return n > 2", True),
        ("return n // 2 + 1", 2),
        ("if n == n:\n    y = x\nelse:\n    y = -x\nreturn y", X),
        ("if n % 2 == 0:\n    y = x\nelse:\n    y = -x\nreturn y", -X),
        ("if n % 2 == 1 and not (n > 5):\n    y = x\nelse:\n    y = -x\nreturn y", X),
    ],
)
def test_a_size_is_a_number(body: str, expected: Any) -> None:
    same_value(run(body), expected)


def same_value(got: Any, expected: Any) -> None:
    for a, b in zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]:
        np.testing.assert_allclose(a, b, rtol=1e-6)


@sweep(2)
@pytest.mark.parametrize(
    ("scalars", "body", "expected"),
    [
        ("f", "return x * f", X * 0.5),
        ("f", "return f / x", np.float32(0.5) / X),
        ("f", "return f < x", np.array([True] * 3)),
        ("f", "return f + f, f * 2, -f, f < 1", (1.0, 1.0, -0.5, True)),
        ("f", "return R.where(x > 1, x, f)", np.array([3, 0.5, 2], "float32")),
        ("f", "return R.full((2,), f)", np.array([0.5, 0.5], "float32")),
        ("f", "return R.clip(x, 0, f)", np.array([0.5] * 3, "float32")),
        ("i", "return R.scalar_to_tensor(i, 'int32'), R.scalar_to_tensor(n, 'int64')", (1, 3)),
        ("k y", "return y * k + k", Y * 2 + 2),
        ("neg y", "return R.maximum(y * neg, neg)", np.maximum(Y * -2, -2)),
        ("k", "return x * R.full((), k, dtype='float32')", X * 2),
        ("k", "return k * k, k // 2, k - 7, R.power(k, 3), k == 2", (4, 1, -5, 8, True)),
        ("i", "return i * i, i // 2, i - 7, -i, i == 2", (1, 0, -6, -1, False)),
        ("k", "return R.arange(0, k, 1)", np.arange(2)),
        ("i", "return R.arange(0, i, 1)", np.arange(1)),
        ("neg", "return R.arange(0, neg, 1)", np.arange(0)),
        ("k", "return R.take(x, k, axis=0), x[k], x[k:], x[:k]", (X[2], X[2], X[2:], X[:2])),
        ("neg", "return x[neg], x[neg:], x[:neg]", (X[-2], X[-2:], X[:-2])),
        ("o", "return x[o], x[o:]", (X[1], X[1:])),
        ("i", "return x[i], x[: i + 1]", (X[1], X[:2])),
        ("k", "if k == 0:\n    z = x\nelse:\n    z = -x\nreturn z", -X),
        ("f", "if f < 1:\n    z = x\nelse:\n    z = -x\nreturn z", X),
        ("b", "if not b:\n    z = x\nelse:\n    z = -x\nreturn z", -X),
        ("b", "return R.logical_and(x > 1, b), b == b", (X > 1, True)),
        ("k f", "with R.dataflow():\n    a = R.exp(x * f) + n\n    c = a * f + k\n    R.output(c)\nreturn c", None),
        ("neg y", "@R.function\ndef inner(z: R.Tensor((n,), 'int64')):\n    return z * neg\nreturn inner(y)", Y * -2),
    ],
)  # fmt: skip
def test_a_scalar_is_an_operand(scalars: str, body: str, expected: Any) -> None:
    if expected is None:
        with pytest.raises(RelaxError, match=r"dtypes differ: float32 and int64"):
            module(body, scalars)
        return
    same_value(run(body, scalars), expected)


def test_conditions_of_asserts() -> None:
    body = "R.assert_op(n > 2 and f < 1, n, format='n is {}')\nreturn x"
    same_value(run(body, "f", decorator="@R.function(pure=False)"), X)
    with pytest.raises(RelaxError, match="n is 2"):
        run(body, "f", X[:2], "@R.function(pure=False)")


@pytest.mark.parametrize(
    ("scalars", "body", "x", "message"),
    [
        (
            "",
            "return R.astype(x, 'int8') + n",
            np.zeros(300, np.float32),
            "it is out of range of int8",
        ),
        ("", "return R.astype(x, 'float16') + n * 10000", X + 7, None),
        ("", "return R.astype(x, 'float16') + n * 30000", X, "it is out of range of float16"),
        ("neg", "return R.zeros((neg, 2), 'float32')", X, "neg is negative"),
        ("k", "return x[k]", X[:1], "is out of bounds for size"),
    ],
)
def test_out_of_range_is_an_error_at_run_time(
    scalars: str, body: str, x: np.ndarray, message: str | None
) -> None:
    mod = module(body, scalars)
    args = [x, *(SCALARS[s][1] for s in scalars.split())]
    function = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    if message is None:
        same(function(*args), interpret(mod, "main", *args))
        return
    for call in (function, lambda *a: interpret(mod, "main", *a)):
        with pytest.raises(RelaxError, match=message):
            call(*args)


@pytest.mark.parametrize(
    ("scalars", "body", "message"),
    [
        ("k", "return x * k", 'R.full((), k, dtype="float32")'),
        ("b", "return x + b", 'R.full((), b, dtype="float32")'),
        ("f", "return x[f]", "a tensor is indexed by integers"),
        ("", "return R.logical_and(R.astype(x, 'bool'), n)", "n > 0"),
        ("", "return 1 / n", "// to round down"),
    ],
)
def test_messages_say_what_to_write(scalars: str, body: str, message: str) -> None:
    with pytest.raises(RelaxError) as caught:
        module(body, scalars)
    assert message in str(caught.value)


def test_sizes_are_arguments_of_one_kernel() -> None:
    """No kernel for each value, and no tensor for a size."""
    mod = module("return x * n + (n // 2)")
    text = relaxpy.build(mod).as_text()
    assert "packed" not in text
    assert "scalar_to_tensor" not in text
    function = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    for n in (0, 1, 7):
        x = np.ones(n, np.float32)
        np.testing.assert_array_equal(function(x).numpy(), x * n + n // 2)


def test_power_of_a_scalar_recursion() -> None:
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function
    def power(x: R.Tensor(("n",), "float32"), times: R.Prim("int64")) -> R.Tensor(("n",), "float32"):
        cls = Module
        if times == 0:
            result = R.ones_like(x)
        else:
            result = cls.power(x, times - 1) * x
        return result

    @R.function
    def main(x: R.Tensor(("n",), "float32"), k: R.Prim("int64")):
        cls = Module
        return cls.power(x, k)
""")
    got = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](X, 3)
    np.testing.assert_array_equal(got.numpy(), X**3)
    np.testing.assert_array_equal(interpret(mod, "main", X, 3), X**3)


SCALE = """
@I.ir_module
class Module:
    @T.prim_func
    def scale(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32"), a: T.float32):
        n = T.int64()
        for i in range(n):
            with T.sblock("scale"):
                v = T.axis.spatial(n, i)
                y[v] = x[v] * a

    @R.function
    def main(x: R.Tensor(("n",), "float32"), k: R.Prim("int64"), f: R.Prim("float32")):
        n = T.int64()
        cls = Module
        return R.call_tir(cls.scale, (x, VALUE), out_ty=R.Tensor((n,), "float32"))
"""


@pytest.mark.parametrize(
    ("value", "factor"),
    [
        ("f", 0.5),
        ("R.prim_value(3.5)", 3.5),
        ('R.prim_value(n * 2, "float32")', 6),
        ('R.prim_value(k, "float32")', 2),
        ('R.prim_value(2, "float32")', 2),
    ],
)
def test_floats_of_tensor_programs(value: str, factor: float) -> None:
    mod = relaxpy.parse(SCALE.replace("VALUE", value))
    relaxpy.assert_structural_equal(mod, relaxpy.parse(mod.script()))
    expected = interpret(mod, "main", X, 2, 0.5)
    np.testing.assert_allclose(expected, X * factor)
    same(relaxpy.VirtualMachine(relaxpy.build(mod))["main"](X, 2, 0.5), expected)


@pytest.mark.parametrize("value", ["k", "n", "R.prim_value(3)", "n > 2"])
def test_an_integer_is_no_float_of_a_tensor_program(value: str) -> None:
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(SCALE.replace("VALUE", value))
    assert "scalar a of scale must be float32" in str(caught.value)
    assert 'float32")' in str(caught.value)


def test_sizes_in_python_modules() -> None:
    class Mean(relaxpy.nn.Module):
        def forward(self, x: Any) -> Any:
            n = x.shape[0]
            return relaxpy.nn.op.sum(x * n + n // 2) / n

    mod = Mean().export({"forward": {"x": relaxpy.nn.spec.Tensor(("n",), "float32")}})[0]
    got = relaxpy.VirtualMachine(relaxpy.build(mod))["forward"](X)
    np.testing.assert_allclose(got.numpy(), np.sum(X * 3 + 1) / 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "scalar", "message"),
    [
        ("z = R.zeros((neg, 2), 'float32')\nreturn x", "neg", "neg is negative"),
        ("z = R.multiply(neg, R.prim_value(2**62))\nreturn x", "neg", None),
        ("z = R.multiply(k, R.prim_value(2**62))\nreturn x", "k", "does not fit into 64 bits"),
    ],
)
def test_what_may_fail_is_not_removed(body: str, scalar: str, message: str | None) -> None:
    mod = module(body, scalar)
    function = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    for call in (function, lambda *a: interpret(mod, "main", *a)):
        if message is None:
            np.testing.assert_array_equal(np.asarray(call(X, SCALARS[scalar][1])), X)
            continue
        with pytest.raises(RelaxError, match=message):
            call(X, SCALARS[scalar][1])
