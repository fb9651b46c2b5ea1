"""Normalize: A-normal form."""

from __future__ import annotations

from relaxpy import op
from relaxpy.ir import Call, Function, IRModule, SymVar, TensorType, Var
from relaxpy.ir.expr import VarBinding, is_leaf, seq
from relaxpy.testing.before_after import check_example
from relaxpy.transform import Normalize


def test_example() -> None:
    check_example(Normalize())


def test_nested_calls_by_hand_are_flattened() -> None:
    x = Var("x", TensorType((SymVar("n"),), "float32"))
    y = Var("y", x.annotation)
    nested = op.exp(op.exp(op.exp(x)))
    function = Function((x,), seq([VarBinding(y, nested)], y), x.annotation)
    result = Normalize()(IRModule({"main": function}))["main"]
    assert isinstance(result, Function)
    values = [binding.value for binding in result.body.bindings]
    assert len(values) == 3
    assert all(isinstance(v, Call) and all(map(is_leaf, v.args)) for v in values)


def test_nothing_to_do_gives_the_same_function() -> None:
    x = Var("x", TensorType((SymVar("n"),), "float32"))
    y = Var("y", x.annotation)
    mod = IRModule({"main": Function((x,), seq([VarBinding(y, op.exp(x))], y), x.annotation)})
    assert Normalize()(mod) is mod
