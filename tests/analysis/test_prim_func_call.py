"""Does a call_tir give its tensor program what that takes? What cannot be decided is no problem."""

from __future__ import annotations

import pytest

from relaxpy.analysis.prim_func_call import check_prim_func_call
from relaxpy.ir import Call, GlobalVar, IRModule, ObjectType, ShapeExpr, SymVar, TensorType, Var
from relaxpy.ir.annotation import Annotation
from relaxpy.op.call import call_tir, call_tir_inplace
from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc

n, m = SymVar("n"), SymVar("m")


def concat() -> IRModule:
    """(a, 4) and (b, 4) to (a + b, 4)."""
    a, b = SymVar("a"), SymVar("b")
    x, y = te.placeholder((a, 4), "float32", "x"), te.placeholder((b, 4), "float32", "y")
    out = te.topi.concatenate([x, y], axis=0)
    return IRModule({"concat": PrimFunc.from_te([x, y], [out])})


def call(first: Annotation, second: Annotation, out: Annotation) -> Call:
    return call_tir(GlobalVar("concat"), (Var("x", first), Var("y", second)), out)


def tensor(*dims: object) -> TensorType:
    return TensorType(dims, "float32")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "second", "out"),
    [
        (tensor(n, 4), tensor(m, 4), tensor(n.dim + m, 4)),
        (tensor(2, 4), tensor(3, 4), tensor(5, 4)),
        (tensor(n, 4), tensor(n, 4), tensor(n.dim * 2, 4)),
        (TensorType(None, "float32", 2), tensor(n, 4), tensor(m, 4)),
        (ObjectType(), TensorType(), tensor(m, 4)),
        (tensor(n, m), tensor(n, m), tensor(n.dim * 2, m)),
    ],
)
def test_fits(first: Annotation, second: Annotation, out: Annotation) -> None:
    assert check_prim_func_call(call(first, second, out), concat()) == []


@pytest.mark.parametrize(
    ("first", "second", "out", "message"),
    [
        (tensor(2, 4), tensor(3, 4), tensor(6, 4), "the output of concat"),
        (tensor(n, 4), tensor(m, 4), tensor(n.dim + m + 1, 4), "the output of concat"),
        (tensor(n, 5), tensor(m, 4), tensor(n.dim + m, 4), "argument 1 of concat"),
        (tensor(n), tensor(m, 4), tensor(n.dim + m, 4), "argument 1 of concat"),
        (tensor(n, 4), TensorType((m, 4), "int8"), tensor(n.dim + m, 4), "argument 2 of concat"),
    ],
)
def test_does_not_fit(first: Annotation, second: Annotation, out: Annotation, message: str) -> None:
    (found,) = check_prim_func_call(call(first, second, out), concat())
    assert found.message.startswith(message)
    assert any(note.startswith("concat takes (x: ") for note in found.notes)


def test_in_place() -> None:
    """An output in the memory of an argument is no further tensor of the program."""
    x, y = Var("x", tensor(n, 4)), Var("y", tensor(m, 5))
    twice = te.placeholder((SymVar("r"), 4), "float32", "x")
    out = te.compute(twice.shape, lambda i, j: twice[i, j] + twice[i, j], "out")
    mod = concat().with_function("twice", PrimFunc.from_te([twice], [out]))
    right = call_tir_inplace(GlobalVar("twice"), (x, x), [1], tensor(n, 4))
    assert check_prim_func_call(right, mod) == []
    wrong = call_tir_inplace(GlobalVar("twice"), (x, y), [1], tensor(m, 5))
    (found,) = check_prim_func_call(wrong, mod)
    assert found.message.startswith("argument 2 of twice must be out: ")
    count = call_tir_inplace(GlobalVar("twice"), (x,), [0], tensor(n, 4))
    (found,) = check_prim_func_call(count, mod)
    assert found.message == "twice takes 2 tensors, outputs included, got 1"


def test_scalars() -> None:
    """A program without scalars takes no tir_vars."""
    args = (Var("x", tensor(n, 4)), Var("y", tensor(m, 4)))
    extra = call_tir(GlobalVar("concat"), args, tensor(n.dim + m, 4), ShapeExpr((n,)))
    (found,) = check_prim_func_call(extra, concat())
    assert found.message == "concat takes 0 scalars, got 1 in tir_vars"
