"""The check that every module made in any test goes through."""

from __future__ import annotations

import pytest

from relaxpy.ir import Function, IRModule, SeqExpr, TensorType, Var
from relaxpy.testing.round_trip import check_all, check_round_trip, modules_made


def identity(ret: TensorType) -> IRModule:
    x = Var("x", TensorType((4,), "float32"))
    return IRModule({"main": Function((x,), SeqExpr((), x), ret)})


def test_modules_are_listed_as_they_are_made() -> None:
    before = identity(TensorType((4,), "float32"))
    with modules_made() as made:
        one = identity(TensorType((4,), "float32"))
        two = one.with_functions({"other": one["main"]})
        two.with_function("main", one["main"])
    identity(TensorType((4,), "float32"))
    assert before not in made
    assert made == [one, two]


def test_a_printer_that_loses_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = identity(TensorType(None, None, 1))
    text = check_round_trip(mod)
    monkeypatch.setattr(IRModule, "script", lambda _: text.replace("R.Tensor(ndim=1)", "R.Tensor"))
    with pytest.raises(AssertionError, match=r"main\.ret"):
        check_round_trip(mod)


def test_what_is_left_to_be_checked_is_written_down_once() -> None:
    """`main` is declared to return more than is known of x: the parser makes a match_cast of it."""
    x = Var("x", TensorType(None, "float32", 1))
    function = Function((x,), SeqExpr((), x), TensorType((4,), "float32"))
    mod = IRModule({"main": function})
    with pytest.raises(AssertionError):
        check_round_trip(mod)
    check_all([mod])
