"""Forward deduction: across calls, tuples, branches and bodies; what is not known makes results coarser, never
wrong."""

from __future__ import annotations

import numpy as np
import pytest

from relaxpy.errors import DeduceError
from relaxpy.ir import (
    Call,
    CallableType,
    Constant,
    ExternFunc,
    Function,
    GlobalVar,
    If,
    IRModule,
    MatchCast,
    ObjectType,
    PrimType,
    PrimValue,
    ShapeExpr,
    ShapeType,
    SymVar,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    VarBinding,
)
from relaxpy.ir.annotation import Annotation
from relaxpy.ir.expr import Expr, seq
from relaxpy.op import OPS
from relaxpy.op.binary import Add
from relaxpy.op.call import call_dps_library, call_packed, call_pure_packed, call_tir
from relaxpy.op.deduce import deduce
from relaxpy.op.unary import Exp

n, m, k = SymVar("n"), SymVar("m"), SymVar("k")


def var(annotation: Annotation) -> Var:
    return Var("x", annotation)


def tensor(*dims: object, dtype: str | None = "float32") -> TensorType:
    return TensorType(dims, dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (Constant(np.zeros((2, 3), "int8")), tensor(2, 3, dtype="int8")),
        (ShapeExpr((n, 4)), ShapeType((n, 4))),
        (PrimValue(n.dim + 1), PrimType("int64", n.dim + 1)),
        (PrimValue(1.5), PrimType("float32")),
        (Tuple((PrimValue(True), ShapeExpr(()))), TupleType([PrimType("bool"), ShapeType(())])),
        (TupleGetItem(Tuple((PrimValue(1), ShapeExpr(()))), 1), ShapeType(())),
        (TupleGetItem(var(ObjectType()), 3), ObjectType()),
        (ExternFunc("f"), CallableType(pure=False)),
        (call_packed("f"), ObjectType()),
        (call_pure_packed("f", ty_args=tensor(n)), tensor(n)),
        (call_dps_library("f", (), tensor(n)), tensor(n)),
        (call_tir(GlobalVar("f"), (), [tensor(n), tensor(4)]), TupleType([tensor(n), tensor(4)])),
    ],
)
def test_values(expr: Expr, expected: Annotation) -> None:
    assert deduce(expr) == expected


def call_of(params: list[Annotation], ret: Annotation, *actuals: Annotation) -> Annotation:
    """What calling a function of this type with such arguments gives."""
    return deduce(Call(var(CallableType(params, ret)), tuple(map(var, actuals))))


@pytest.mark.parametrize(
    ("params", "ret", "actuals", "expected"),
    [
        # the paper's figure 7: symbols of the callee become dimensions of the caller
        ([tensor(k, 4)], tensor(k.dim * 4), [tensor(n, 4)], tensor(n.dim * 4)),
        ([tensor(k, 4)], tensor(k.dim * 4), [tensor(n.dim + 2, 4)], tensor(n.dim * 4 + 8)),
        ([tensor(k, 4)], tensor(k.dim * 4), [tensor(3, 4)], tensor(12)),
        (
            [tensor(k, 4)],
            tensor(k.dim * 4),
            [TensorType(None, "float32", 2)],
            TensorType(None, "float32", 1),
        ),
        ([tensor(k, 4)], tensor(k.dim * 4), [ObjectType()], TensorType(None, "float32", 1)),
        (
            [tensor(k), ShapeType((m,))],
            TupleType([tensor(k), tensor(m)]),
            [tensor(n), ShapeType(ndim=1)],
            TupleType([tensor(n), TensorType(None, "float32", 1)]),
        ),
        ([PrimType("int64", k)], tensor(k), [PrimType("int64", n.dim // 2)], tensor(n.dim // 2)),
        ([tensor(k.dim * 2), tensor(k)], tensor(k), [tensor(8), tensor(4)], tensor(4)),
        ([], ObjectType(), [], ObjectType()),
    ],
)
def test_calls(
    params: list[Annotation], ret: Annotation, actuals: list[Annotation], expected: Annotation
) -> None:
    assert call_of(params, ret, *actuals) == expected


@pytest.mark.parametrize(
    ("params", "actuals", "code"),
    [
        ([tensor(k, 4)], [tensor(n, 5)], "call-argument"),
        ([tensor(k, k)], [tensor(3, 4)], "call-argument"),
        ([tensor(k, k)], [tensor(n, n.dim + 1)], "call-argument"),
        ([tensor(k.dim * 2), tensor(k)], [tensor(8), tensor(5)], "call-argument"),
        ([tensor(k)], [tensor(n, dtype="int8")], "call-argument"),
        ([tensor(k)], [ShapeType((n,))], "call-argument"),
        ([tensor(k)], [], "call-arity"),
        ([tensor(k)], [tensor(n), tensor(n)], "call-arity"),
    ],
)
def test_calls_that_never_fit(
    params: list[Annotation], actuals: list[Annotation], code: str
) -> None:
    with pytest.raises(DeduceError) as caught:
        call_of(params, ObjectType(), *actuals)
    assert caught.value.code == code


def test_a_call_that_may_fit_is_left_to_run_time() -> None:
    assert call_of([tensor(k, k)], tensor(k), tensor(n, m)) == tensor(n)


def test_own_symbols_of_a_recursive_call() -> None:
    """A function that calls itself with another size: its parameters' symbols are bound, not its caller's."""
    assert call_of([tensor(n)], tensor(n.dim + 1), tensor(n.dim - 1)) == tensor(n)


def test_modules() -> None:
    """Global names are looked up; a tensor program is not called like a graph function."""
    x = var(tensor(k))
    mod = IRModule({"f": Function((x,), seq([], x), tensor(k))})
    assert deduce(Call(GlobalVar("f"), (var(tensor(7)),)), mod) == tensor(7)
    assert deduce(Call(GlobalVar("unknown"), ()), mod) == ObjectType()


def test_not_callable() -> None:
    with pytest.raises(DeduceError) as caught:
        deduce(Call(var(tensor(n)), ()))
    assert caught.value.code == "call-callee"


@pytest.mark.parametrize(
    ("annotation", "index"), [(TupleType([ObjectType()]), 1), (TupleType([]), 0), (tensor(n), 0)]
)
def test_tuple_index(annotation: Annotation, index: int) -> None:
    with pytest.raises(DeduceError) as caught:
        deduce(TupleGetItem(var(annotation), index))
    assert caught.value.code == "tuple-index"


def test_branches_join() -> None:
    """After a branch holds what both sides give."""
    x, y = var(tensor(n, 4)), var(tensor(n, 5))
    cond = var(TensorType((), "bool"))
    assert deduce(If(cond, seq([], x), seq([], y))) == TensorType(None, "float32", 2)
    assert deduce(If(cond, seq([], x), seq([], x))) == tensor(n, 4)


def test_bodies_hide_their_symbols() -> None:
    """What match_cast defines is not known outside of the body."""
    x = var(ObjectType())
    y = Var("y", tensor(m, 4))
    body = seq([MatchCast(y, x, y.annotation)], y)
    assert deduce(body) == TensorType(None, "float32", 2)


def test_bodies_keep_outer_symbols() -> None:
    x = var(tensor(n, 4))
    y = Var("y", tensor(n, 4))
    assert deduce(seq([VarBinding(y, Call(Exp(), (x,)))], y)) == tensor(n, 4)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (tensor(n, 4), tensor(4), tensor(n, 4)),
        (tensor(n), tensor(n), tensor(n)),
        (tensor(n), tensor(m), TensorType(None, "float32", 1)),
        (tensor(n), tensor(4), tensor(4)),
        (TensorType(None, "float32", 2), tensor(4), TensorType(None, "float32", 2)),
        (TensorType(None, "float32"), tensor(4), TensorType(None, "float32")),
        (tensor(n, dtype=None), tensor(n, dtype=None), tensor(n, dtype=None)),
        (ObjectType(), tensor(4), TensorType()),
    ],
)
def test_coarse_arguments_of_operators(a: Annotation, b: Annotation, expected: Annotation) -> None:
    """Unknown shapes and dtypes are handled once for all operators."""
    found = deduce(Call(Add(), (Var("a", a), Var("b", b))))
    if isinstance(expected, TensorType) and expected == TensorType():
        assert isinstance(found, TensorType)
        assert found.dims is None
    else:
        assert found == expected


def test_errors_name_the_arguments() -> None:
    with pytest.raises(DeduceError) as caught:
        deduce(Call(Add(), (Var("a", tensor(3)), Var("b", tensor(4)))))
    assert caught.value.code == "shape-mismatch"
    assert len(caught.value.notes) == 2


@pytest.mark.parametrize("op", ["hint_on_device", "nn.dropout", "shape_of", "split", "abs"])
def test_programs_hold_plain_annotations(op: str) -> None:
    """An operator is given known tensors and shapes; what it gives back of them are any."""
    x = Var("x", TensorType((SymVar("n"), 4), "float32"))
    attrs = {"split": {"indices_or_sections": 2, "axis": 1}}.get(op, {})
    found = deduce(OPS[op].make(x, **attrs))
    kinds = {type(a) for a in (found.fields if isinstance(found, TupleType) else (found,))}
    assert kinds <= {TensorType, ShapeType}
