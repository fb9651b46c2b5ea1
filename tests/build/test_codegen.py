"""Bytecode from lowered functions: branches, recursion, closures, tuples, calls by name, shape values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.ir import (
    Call,
    GlobalVar,
    IRModule,
    PrimValue,
    ShapeExpr,
    ShapeType,
    SymVar,
    TensorType,
    Var,
)
from relaxpy.ir.dim import dim_op
from relaxpy.testing.interpret import interpret


def machine(text: str) -> relaxpy.VirtualMachine:
    return relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text)))


def test_branches() -> None:
    vm = machine("""
@R.function
def main(c: R.Tensor((), dtype="bool"), x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    if c:
        a = R.exp(x)
        y = R.add(a, x)
    else:
        b = R.negative(x)
        y = R.multiply(b, x)
    z = R.add(y, y)
    return z
""")
    x = np.array([0.5, -1, 2], "float32")
    np.testing.assert_allclose(
        vm["main"](np.array(True), x).numpy(), 2 * (np.exp(x) + x), rtol=1e-6
    )
    np.testing.assert_allclose(vm["main"](False, x).numpy(), -2 * x * x)


def countdown() -> IRModule:
    """`loop(s, x)`: calls itself until the shape s is (0,), then gives x."""
    n, k = SymVar("n"), SymVar("k")
    s, x = Var("s", ShapeType((n,))), Var("x", TensorType((k,), "float32"))
    bb = relaxpy.BlockBuilder()
    with bb.function("loop", [s, x], ret=x.annotation):
        with bb.seq() as done:
            done.result(x)
        with bb.seq() as again:
            again.result(bb.emit(Call(GlobalVar("loop"), (ShapeExpr((n.dim - 1,)), x))))
        bb.emit_func_output(bb.emit_if(PrimValue(dim_op("eq", n, 0), "bool"), done.seq, again.seq))
    return bb.get()


def test_recursion_100_000_deep() -> None:
    loop = relaxpy.VirtualMachine(relaxpy.build(countdown()))["loop"]
    x = np.arange(3, dtype="float32")
    np.testing.assert_array_equal(loop((100_000,), x).numpy(), x)


def test_closures_are_values() -> None:
    vm = machine("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Callable((R.Tensor(("n",), dtype="float32"),), R.Tensor(("n",), dtype="float32")):
    n = T.int64()

    @R.function
    def inner(y: R.Tensor((n,), dtype="float32")) -> R.Tensor((n,), dtype="float32"):
        z = R.add(x, y)
        return z

    return inner
""")
    add_one = vm["main"](np.ones(3, "float32"))
    np.testing.assert_array_equal(add_one(np.arange(3, dtype="float32")).numpy(), [1, 2, 3])
    with pytest.raises(RelaxError, match=r"must be 4, got 3|must be 3, got 4"):
        add_one(np.zeros(4, "float32"))


def test_functions_as_arguments() -> None:
    vm = machine("""
@R.function(pure=False)
def main(f: R.Callable((R.Tensor(("n",), dtype="float32"),), R.Tensor(("n",), dtype="float32"), False), x: R.Tensor(("m",), dtype="float32")) -> R.Tensor(("m",), dtype="float32"):
    m = T.int64()
    y = f(x)
    z = R.match_cast(y, R.Tensor((m,), dtype="float32"))
    w = f(z)
    v = R.match_cast(w, R.Tensor((m,), dtype="float32"))
    return v
""")
    seen: list[Any] = []

    def double(x: Any) -> Any:
        seen.append(x.shape)
        return x.numpy() * 2

    np.testing.assert_array_equal(vm["main"](double, np.ones(2, "float32")).numpy(), [4, 4])
    assert seen == [(2,), (2,)]
    with pytest.raises(
        RelaxError, match="a function that was passed as an argument failed"
    ) as error:
        vm["main"](lambda x: 1 / 0, np.ones(2, "float32"))
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_nested_tuples_and_shapes() -> None:
    mod = relaxpy.parse("""
@R.function
def main(t: R.Tuple(R.Tensor(("n", "m"), dtype="float32"), R.Tuple(R.Shape(["n", "k"]), R.Tensor(("m",), dtype="float32")))) -> R.Tuple(R.Tensor(("n", "m"), dtype="float32"), R.Shape(["n + k"])):
    n = T.int64()
    k = T.int64()
    x = t[0]
    pair = t[1]
    y = pair[1]
    z = R.add(x, y)
    out = (z, R.shape([n + k]))
    return out
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    x, y = np.ones((2, 3), "float32"), np.arange(3, dtype="float32")
    z, shape = vm["main"]((x, ((2, 5), y)))
    np.testing.assert_array_equal(z.numpy(), x + y)
    assert tuple(shape) == (7,)
    assert tuple(interpret(mod, "main", (x, ((2, 5), y)))[1]) == (7,)
    with pytest.raises(RelaxError, match=r"must be 2, got 4|must be 4, got 2"):
        vm["main"]((x, ((4, 5), y)))


def test_figure_3_data_dependent_shapes() -> None:
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 2, 2), dtype="float32")) -> R.Tensor(dtype="float32", ndim=1):
    n = T.int64()
    m = T.int64()
    lv0 = R.reshape(x, R.shape([n, 4]))
    lv1 = R.flatten(lv0)
    lv2 = R.unique(lv1)
    lv3 = R.match_cast(lv2, R.Tensor((m,), dtype="float32"))
    gv0 = R.exp(lv3)
    return gv0
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    for n in (0, 1, 3):
        x = np.random.default_rng(n).integers(0, 3, (n, 2, 2)).astype("float32")
        np.testing.assert_allclose(vm["main"](x).numpy(), np.exp(np.unique(x)), rtol=1e-6)


def test_figure_4_a_library_beside_a_tensor_program() -> None:
    @relaxpy.register_library("test.rms_norm")
    def rms_norm(x: Any, out: Any) -> None:
        a = np.from_dlpack(x)
        np.from_dlpack(out)[...] = a / np.sqrt((a * a).mean(-1, keepdims=True))

    vm = machine("""
@I.ir_module
class Module:
    @T.prim_func
    def mm(x: T.Buffer(("n", 8), "float32"), w: T.Buffer((8, 4), "float32"), y: T.Buffer(("n", 4), "float32")):
        n = T.int64()
        for i, j, k in T.grid(n, 4, 8):
            with T.block("mm"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    y[vi, vj] = T.float32(0)
                y[vi, vj] = y[vi, vj] + x[vi, vk] * w[vk, vj]

    @R.function
    def main(x: R.Tensor(("n", 8), dtype="float32"), w: R.Tensor((8, 4), dtype="float32")) -> R.Tensor(("n", 4), dtype="float32"):
        n = T.int64()
        cls = Module
        lv0 = R.call_tir(cls.mm, (x, w), out_ty=R.Tensor((n, 4), dtype="float32"))
        lv1 = R.call_dps_library("test.rms_norm", (lv0,), out_ty=R.Tensor((n, 4), dtype="float32"))
        return lv1
""")
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(5, 8)).astype("float32"), rng.normal(size=(8, 4)).astype("float32")
    y = x @ w
    expected = y / np.sqrt((y * y).mean(-1, keepdims=True))
    np.testing.assert_allclose(vm["main"](x, w).numpy(), expected, rtol=1e-5)


def test_figure_7_shapes_across_functions() -> None:
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function
    def subfn(s: R.Shape(["n", "m"])) -> R.Tensor(("n * m",), dtype="float32"):
        n = T.int64()
        m = T.int64()
        x = R.ones(R.shape([n * m]), dtype="float32")
        return x

    @R.function
    def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n * 4",), dtype="float32"):
        n = T.int64()
        cls = Module
        a = cls.subfn(R.shape([n, 4]))
        b = R.exp(a)
        return b
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    assert vm["main"](np.zeros(3, "float32")).shape == (12,)


def test_symbols_passed_to_a_program() -> None:
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n * 2",), dtype="float32"), y: R.Tensor(("n * 2",), dtype="float32"), s: R.Shape(["n"])) -> R.Tensor(("n * 2",), dtype="float32"):
    z = R.add(x, y)
    w = R.nn.relu(z)
    return w
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    x = np.array([1, -2, 3, -4], "float32")
    np.testing.assert_array_equal(vm["main"](x, x, (2,)).numpy(), [2, 0, 6, 0])
    with pytest.raises(RelaxError, match=r"n \* 2.*must be 6, got 4"):
        vm["main"](x, x, (3,))


def test_earlier_results_stay() -> None:
    vm = machine("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    y = R.exp(x)
    z = R.exp(y)
    return z
""")
    first = vm["main"](np.zeros(4, "float32"))
    kept = first.numpy().copy()
    vm["main"](np.ones(4, "float32"))
    np.testing.assert_array_equal(first.numpy(), kept)


def test_a_call_by_name_is_checked() -> None:
    relaxpy.register_function("test.grow", lambda x: np.append(x.numpy(), np.float32(0)))
    vm = machine("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    n = T.int64()
    y = R.call_pure_packed("test.grow", x, ty_args=R.Tensor((n,), dtype="float32"))
    z = R.exp(y)
    return z
""")
    with pytest.raises(RelaxError, match=r"result y.*must be 3, got 4"):
        vm["main"](np.zeros(3, "float32"))


def test_a_symbol_that_is_solved_for() -> None:
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n * 4 + 2",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    n = T.int64()
    y = R.ones(R.shape([n]), dtype="float32")
    return y
""")
    main = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    assert main(np.zeros(14, "float32")).shape == (3,)
    assert interpret(mod, "main", np.zeros(14, "float32")).shape == (3,)
    with pytest.raises(RelaxError, match=r"n \* 4 \+ 2.*must be 14, got 15"):
        main(np.zeros(15, "float32"))


def test_sizes_that_come_out_negative() -> None:
    vm = machine("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n - 3",), dtype="float32"):
    n = T.int64()
    y = R.ones((n - 3,), dtype="float32")
    z = R.exp(y)
    return z
""")
    assert vm["main"](np.zeros(3, "float32")).shape == (0,)
    with pytest.raises(RelaxError, match=r"the dimension n - 3 is negative[\s\S]*n = 2"):
        vm["main"](np.zeros(2, "float32"))


def test_shape_arithmetic_that_divides_by_zero() -> None:
    vm = machine("""
@R.function
def main(x: R.Tensor(("n", "m"), dtype="float32")) -> R.Tensor(("n // m",), dtype="float32"):
    n = T.int64()
    m = T.int64()
    y = R.ones((n // m,), dtype="float32")
    return y
""")
    assert vm["main"](np.zeros((4, 2), "float32")).shape == (2,)
    with pytest.raises(RelaxError, match=r"a dimension cannot be computed: it divides by 0"):
        vm["main"](np.zeros((4, 0), "float32"))


def test_what_a_python_function_returns_is_checked() -> None:
    vm = machine("""
@R.function(pure=False)
def main(f: R.Callable((R.Tensor(("n",), dtype="float32"),), R.Tensor(("n",), dtype="float32"), False), x: R.Tensor(("m",), dtype="float32")) -> R.Tensor(("m",), dtype="float32"):
    y = f(x)
    return y
""")
    with pytest.raises(RelaxError, match="result y"):
        vm["main"](lambda x: np.zeros(1, "float32"), np.ones(3, "float32"))


def test_work_is_bytes_where_those_are_more() -> None:
    """A core moves about a byte in the time of an operation: an addition counts its 12 bytes, looked-up rows count, and
    a product counts its operations."""
    text = """
@R.function
def added(x: R.Tensor(("n",), dtype="float32"), y: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    return R.add(x, y)

@R.function
def taken(x: R.Tensor(("m", 64), dtype="float32"), i: R.Tensor(("n",), dtype="int64")) -> R.Tensor(("n", 64), dtype="float32"):
    return R.take(x, i, axis=0)

@R.function
def product(x: R.Tensor(("n", 64), dtype="float32"), y: R.Tensor((64, 64), dtype="float32")) -> R.Tensor(("n", 64), dtype="float32"):
    return R.matmul(x, y)
"""
    vm = machine(text)
    for name, expected in (
        ("added", "(s0 * 12)"),
        ("taken", "((s1 * 264) + (min((s0 * 64), (s1 * 64)) * 4))"),
        ("product", f"(s0 * {3 * 64 * 64})"),
    ):
        assert f"w0 = {expected}\n" in vm[name].source
