"""Which calls have an effect."""

from __future__ import annotations

import pytest

from relaxpy.analysis.purity import is_pure
from relaxpy.ir import (
    Call,
    CallableType,
    ExternFunc,
    Function,
    GlobalVar,
    IRModule,
    ObjectType,
    Var,
)
from relaxpy.ir.expr import Expr, seq
from relaxpy.op.call import call_pure_packed
from relaxpy.op.unary import Exp


def function(pure: bool) -> Function:
    x = Var("x", ObjectType())
    return Function((x,), seq([], x), ObjectType(), pure)


MODULE = IRModule({"pure": function(True), "impure": function(False)})


@pytest.mark.parametrize(
    ("callee", "pure"),
    [
        (GlobalVar("pure"), True),
        (GlobalVar("impure"), False),
        (ExternFunc("print"), False),
        (Var("f", CallableType([], ObjectType())), True),
        (Var("f", CallableType([], ObjectType(), pure=False)), False),
        (Var("f", ObjectType()), False),
    ],
)
def test_callees(callee: Expr, pure: bool) -> None:
    assert is_pure(Call(callee, ()), MODULE) is pure


def test_operators() -> None:
    assert is_pure(Call(Exp(), (Var("x", ObjectType()),)), MODULE)
    assert is_pure(call_pure_packed("f"), MODULE)
