"""bfloat16 in kernels: rounded as ml_dtypes does, and computed as the number that it is wherever it comes from."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.ir.dim import SymVar
from relaxpy.testing.interpret import interpret
from relaxpy.testing.kernels import Kernels
from relaxpy.tir import te as expressions
from relaxpy.tir.lowering.bfloat16 import without_bfloat16
from relaxpy.tir.prim_func import PrimFunc


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64"])
def test_rounding_to_bfloat16(target: str) -> None:
    """To nearest, ties to even, NaN and infinities kept: as ml_dtypes, also where the operand has `Let`s."""
    exe = relaxpy.build(
        relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "float32")) -> R.Tuple(R.Tensor(("n",), "bfloat16"), R.Tensor(("n",), "bfloat16")):
    a = R.astype(x, "bfloat16")
    b = R.exp(a)
    out = (a, b)
    return out
"""),
        target=target,
    )
    x = np.concatenate(
        [
            np.array(
                [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3.4e38, 1.00390625, 1.01171875],
                "float32",
            ),
            np.array([0x7FFFFFFF, 0xFFFFFFFF], "uint32").view("float32"),
            np.random.default_rng(0).normal(size=200).astype("float32"),
        ]
    )
    a, b = (out.numpy() for out in relaxpy.VirtualMachine(exe)["main"](x))
    expected = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(a.astype("float32"), expected.astype("float32"))
    with np.errstate(over="ignore"):
        exact = np.exp(expected.astype("float32"))
    np.testing.assert_allclose(b.astype("float32"), exact, rtol=2**-8)


@pytest.mark.parametrize(
    "expr", ["R.nn.silu(x) * y", "R.where(x > y, R.nn.silu(x), y) + y", "R.maximum(R.exp(x), y)"]
)
def test_bfloat16_that_was_just_rounded_is_an_operand(expr: str) -> None:
    """Fused behind an elementary function, arithmetic takes the rounded value, not its bits as a number."""
    module = relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("n",), "bfloat16"), y: R.Tensor(("n",), "bfloat16")) -> R.Tensor(("n",), "bfloat16"):
    with R.dataflow():
        out = {expr}
        R.output(out)
    return out
""")
    x, y = np.random.default_rng(0).normal(size=(2, 100)).astype(ml_dtypes.bfloat16)
    wide, other = x.astype("float32"), y.astype("float32")
    silu = (wide / (1 + np.exp(-wide))).astype(ml_dtypes.bfloat16).astype("float32")
    power = np.exp(wide).astype(ml_dtypes.bfloat16).astype("float32")
    expected = {
        "R.nn.silu(x) * y": silu * other,
        "R.where(x > y, R.nn.silu(x), y) + y": np.where(wide > other, silu, other) + other,
        "R.maximum(R.exp(x), y)": np.maximum(power, other),
    }[expr]
    got = relaxpy.VirtualMachine(relaxpy.build(module))["main"](x, y).numpy()
    np.testing.assert_allclose(got.astype("float32"), expected, rtol=2**-6, atol=2**-8)


def test_a_nan_of_any_bits_stays_one() -> None:
    """Rounded after arithmetic with the numbers that were read, where it needs no look, and with a float32 beside."""
    module = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "bfloat16"), y: R.Tensor(("m",), "float32")):
    with R.dataflow():
        a = R.multiply(R.nn.silu(x), x)
        b = R.astype(y, "bfloat16")
        out = (a, b)
        R.output(out)
    return out
""")
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = bits[bits & 0x7FFF != 0x7F80].view(ml_dtypes.bfloat16)  # no infinities
    y = (np.arange(1 << 16, dtype=np.uint32) << 16 | 0xFFFF).view(np.float32)
    a, b = (out.numpy() for out in relaxpy.VirtualMachine(relaxpy.build(module))["main"](x, y))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(x))
        np.testing.assert_array_equal(np.isnan(b), np.isnan(y))


@pytest.mark.parametrize("schedule", [True, False])
def test_bfloat16_that_is_computed_or_kept_is_widened(schedule: bool) -> None:
    """Not from bits in memory: from a result of arithmetic, and from a buffer that the program allocates."""
    n = SymVar("n").dim
    x = expressions.placeholder([n], "bfloat16", "x")
    twice = expressions.compute([n], lambda i: x(i) + x(i), "twice")
    k = expressions.reduce_axis(n)
    total = expressions.compute(
        [1], lambda _: expressions.sum(twice(k).astype("float32"), k), "total"
    )
    sums = expressions.compute([n], lambda i: (x(i) + x(i)).astype("float32") + total(0), "sums")
    values = np.array([1.5, 2.25, -3, 0.5], ml_dtypes.bfloat16)
    got = np.empty(4, np.float32)
    Kernels({"k": PrimFunc.from_te([x], [sums])}, schedule=schedule).run("k", [values], [got])
    np.testing.assert_array_equal(got, values.astype(np.float32) * 2 + 2.5)


def test_a_stored_conversion_is_rounded_once() -> None:
    """The bits of a conversion are those that are stored."""
    n = SymVar("n")
    x = expressions.placeholder((n,), "float32", "x")
    y = expressions.compute((n,), lambda i: x(i).astype("bfloat16"), "y")
    text = without_bfloat16(PrimFunc.from_te([x], [y]).func).script()
    assert text.count("where={wide") == 1


def test_a_buffer_that_is_read_inside_a_rounding() -> None:
    """Of a program that no rule arranges: what its loops have between them is read where the result is rounded."""
    mod = relaxpy.parse("""
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @T.prim_func
    def main(x: T.Buffer(("n",), "bfloat16"), y: T.Buffer(("n",), "bfloat16")):
        n = T.int64()
        moved = T.sblock_alloc_buffer((n,), "bfloat16")
        for i in range(n):
            with T.sblock("moved"):
                v = T.axis.spatial(n, i)
                moved[v] = x[v]
        for i in range(n):
            with T.sblock("y"):
                v = T.axis.spatial(n, i)
                y[v] = moved[v] * T.Cast("bfloat16", T.Cast("float32", moved[n - 1 - v]) * T.float32(1.01))
""")
    x = np.array([1.5, -2.25, np.nan, 3e18, 0.1], ml_dtypes.bfloat16)
    got = np.empty_like(x)
    program = mod["main"]
    assert isinstance(program, PrimFunc)
    Kernels({"main": program}, schedule=False).run("main", [x], [got])
    wide = x.astype("float32")
    factor = (wide[::-1] * np.float32(1.01)).astype(x.dtype).astype("float32")
    np.testing.assert_array_equal(
        got.astype("float32"), (wide * factor).astype(x.dtype).astype("float32")
    )


@pytest.mark.parametrize(
    "name", ["add", "subtract", "multiply", "divide", "floor_divide", "mod", "maximum", "minimum"]
)
def test_both_operands_the_same_under_a_consumer(name: str) -> None:
    """TVM simplifies `x - x` in the value of a name, once so and once otherwise."""
    mod = relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("n", 20), "bfloat16")):
    with R.dataflow():
        y = R.tanh(R.{name}(R.{name}(x, x), x))
        R.output(y)
    return y
""")
    x = (np.random.default_rng(0).random((3, 20)) + 0.5).astype(ml_dtypes.bfloat16)
    got = relaxpy.VirtualMachine(relaxpy.build(mod))(x).numpy().astype(np.float32)
    wanted = np.asarray(interpret(mod, "main", x)).astype(np.float32)
    np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("params", "body", "expected"),
    [
        (
            'x: R.Tensor((12, 8, 8), "bfloat16")',
            'a = R.permute_dims(x, axes=[2, 1, 0])\n    y = R.multiply(a, R.const(0.5, "bfloat16"))',
            lambda x: x.transpose(2, 1, 0) * 0.5,
        ),
        (
            'x: R.Tensor(("n", 256), "float32"), w: R.Tensor((256, 64), "float32")',
            'a = R.matmul(x, w)\n    y = R.astype(a, "bfloat16")',
            lambda x, w: x @ w,
        ),
    ],
    ids=["permutation", "product"],
)
def test_places_that_are_prefetched(
    params: str, body: str, expected: Callable[..., np.ndarray]
) -> None:
    """The address of an element is taken where it is in memory, also if others of its buffer are computed."""
    mod = relaxpy.parse(f"@R.function\ndef main({params}):\n    {body}\n    return y\n")
    rng = np.random.default_rng(0)
    if "w:" in params:
        x = rng.standard_normal((40, 256), dtype="float32")
        w = rng.standard_normal((256, 64), dtype="float32")
        got = relaxpy.VirtualMachine(relaxpy.build(mod, params={"w": w}))["main"](x).numpy()
        wanted = expected(x, w)
    else:
        x = rng.standard_normal((12, 8, 8)).astype(ml_dtypes.bfloat16)
        got = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x).numpy()
        wanted = expected(x.astype("float32"))
    np.testing.assert_allclose(got.astype("float32"), wanted, rtol=2**-7, atol=2**-7)
