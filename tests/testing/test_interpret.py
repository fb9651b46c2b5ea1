"""The reference interpreter on every kind of node, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy import op
from relaxpy.errors import RuntimeCheckError, UsageError
from relaxpy.ir import (
    BindingBlock,
    Function,
    IRModule,
    PrimType,
    SeqExpr,
    SymVar,
    TensorType,
    TupleType,
    Var,
    VarBinding,
)
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.runtime import Shape
from relaxpy.testing.interpret import interpret

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n"


def parse(body: str) -> IRModule:
    return relaxpy.parse(HEADER + body)


FIGURE_3 = parse("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 2, 2), "float32")):
        n, m = T.int64(), T.int64()
        with R.dataflow():
            lv0 = R.reshape(x, (n, 4))
            lv1 = R.flatten(lv0)
            lv2 = R.unique(lv1)
            lv3 = R.match_cast(lv2, R.Tensor((m,), "float32"))
            gv0 = R.exp(lv3)
            R.output(gv0)
        return gv0
""")


def test_figure_3() -> None:
    """A size that is known only when the program runs (paper, figure 3)."""
    x = np.array([[[1, 2], [2, 1]]], np.float32)
    np.testing.assert_array_equal(interpret(FIGURE_3, "main", x), np.exp([1, 2], dtype=np.float32))


CROSS_LEVEL = parse("""
@I.ir_module
class Module:
    @T.prim_func
    def mm(x: T.Buffer(("n", 3), "float32"), w: T.Buffer((3, 4), "float32"), o: T.Buffer(("n", 4), "float32")):
        n = T.int64()
        for i, j, k in T.grid(n, 4, 3):
            with T.sblock("mm"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    o[vi, vj] = T.float32(0)
                o[vi, vj] = o[vi, vj] + x[vi, vk] * w[vk, vj]
    @R.function
    def main(x: R.Tensor(("n", 3), "float32"), w: R.Tensor((3, 4), "float32")):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.mm, (x, w), out_ty=R.Tensor((n, 4), "float32"))
        z = R.call_dps_library("test.double", (y,), out_ty=R.Tensor((n, 4), "float32"))
        return z
""")


@pytest.mark.parametrize("n", [0, 1, 5])
def test_levels(n: int) -> None:
    """Tensor programs and library functions, destination passing (figures 4 and 5)."""
    x, w = np.random.default_rng(n).random((n, 3), np.float32), np.eye(3, 4, dtype=np.float32)

    def double(y: np.ndarray, out: np.ndarray) -> None:
        out[...] = 2 * y

    got = interpret(CROSS_LEVEL, "main", x, w, libraries={"test.double": double})
    np.testing.assert_allclose(got, 2 * x @ w, rtol=1e-6)


def test_wrong_argument() -> None:
    """The error of the virtual machine, with the parameter and its place."""
    with pytest.raises(
        RuntimeCheckError, match="main: parameter w: dimension 0 is 2, not 3"
    ) as caught:
        interpret(CROSS_LEVEL, "main", np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32))
    assert caught.value.span is not None


def test_unknown_function() -> None:
    with pytest.raises(UsageError, match="no graph function 'mm'"):
        interpret(CROSS_LEVEL, "mm")


COUNT = parse("""
@I.ir_module
class Module:
    @R.function
    def count(i: R.Tensor((), "int64")) -> R.Tensor((), "int64"):
        cls = Module
        done = R.equal(i, R.const(0, "int64"))
        if done:
            out = R.multiply(i, R.const(1, "int64"))
        else:
            less = R.subtract(i, R.const(1, "int64"))
            rest = cls.count(less)
            out = R.add(rest, R.const(1, "int64"))
        return out
""")


def test_deep_recursion() -> None:
    """Calls do not nest on Python's stack."""
    assert interpret(COUNT, "count", np.array(5_000)) == 5_000


def test_closures() -> None:
    """A nested function sees what it was made in; functions are values, Python's too."""
    n = SymVar("n")
    vector = TensorType((n,), "float32")
    x, y = Var("x", vector), Var("y", vector)
    inner = Var("inner", relaxpy.ir.CallableType([vector], vector))
    z = Var("z", vector)
    body = SeqExpr((BindingBlock((VarBinding(z, op.add(x, y)),)),), z)
    main = Function(
        (x,),
        SeqExpr((BindingBlock((VarBinding(inner, Function((y,), body, vector)),)),), inner),
        inner.annotation,
    )
    add = interpret(main, "main", np.ones(3, np.float32))
    np.testing.assert_array_equal(add(np.full(3, 2, np.float32)), np.full(3, 3, np.float32))
    with pytest.raises(RuntimeCheckError, match="dimension 0 .n. must be 3, got 4"):
        add(np.ones(4, np.float32))


def test_shapes_and_tuples() -> None:
    """Shape values, tuples, scalars come in and go out."""
    n = SymVar("n")
    x = Var("x", TensorType((n, 4), "float32"))
    bb = BlockBuilder()
    with bb.function("main", [x]):
        shape = bb.emit(op.shape_of(x))
        both = bb.emit(relaxpy.ir.Tuple((shape, x)))
        bb.emit_func_output(both)
    got = interpret(bb.get(), "main", np.zeros((3, 4), np.float32))
    assert isinstance(got[0], Shape)
    assert got[0] == (3, 4)
    assert got[1].shape == (3, 4)


def test_relations_are_checked() -> None:
    """What deduction left open is checked, and a parameter's relation too."""
    n, m = SymVar("n"), SymVar("m")
    x, y = Var("x", TensorType((n,), "float32")), Var("y", TensorType((m,), "float32"))
    bb = BlockBuilder()
    with bb.function("main", [x, y]):
        bb.emit_func_output(bb.emit(op.add(x, y)))
    ones = np.ones(3, np.float32)
    np.testing.assert_array_equal(interpret(bb.get(), "main", ones, ones[:1]), 2 * ones)
    with pytest.raises(RuntimeCheckError, match="broadcast"):
        interpret(bb.get(), "main", ones, ones[:2])


def test_a_wrong_deduction_is_found() -> None:
    """A binding whose annotation does not fit its value is a mistake of the compiler."""
    x = Var("x", TensorType((3,), "float32"))
    wrong = Var("wrong", TensorType((4,), "float32"))
    main = Function(
        (x,), SeqExpr((BindingBlock((VarBinding(wrong, op.exp(x)),)),), wrong), wrong.annotation
    )
    with pytest.raises(RuntimeCheckError, match="binding wrong: dimension 0 is 3, not 4"):
        interpret(main, "main", np.ones(3, np.float32))


def test_scalars_and_tuples_as_arguments() -> None:
    s = SymVar("s")
    p = Var("p", PrimType("int64", s))
    t = Var("t", TupleType([TensorType((s,), "float32"), TensorType((), "float32")]))
    bb = BlockBuilder()
    with bb.function("main", [p, t]):
        first = bb.emit(relaxpy.ir.TupleGetItem(t, 0))
        bb.emit_func_output(bb.emit(op.multiply(first, bb.emit(relaxpy.ir.TupleGetItem(t, 1)))))
    got = interpret(bb.get(), "main", 2, ([1.0, 2.0], 3.0))
    np.testing.assert_array_equal(got, np.array([3, 6], np.float32))
    with pytest.raises(RuntimeCheckError):
        interpret(bb.get(), "main", 3, ([1.0, 2.0], 3.0))
