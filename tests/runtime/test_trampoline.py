from __future__ import annotations

import pytest

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import VirtualMachine, trampoline
from relaxpy.runtime.bytecode import (
    Call,
    FunctionCode,
    Heap,
    Invoke,
    MakeTuple,
    ObjectPattern,
    Packed,
    Reg,
    Return,
)
from relaxpy.runtime.translation import trampolined
from tests.runtime.support import executable, f32, function


def caller(*indices: int, invoke: bool = False, packed: bool = False) -> FunctionCode:
    body = [Call(0, 1, index, (0,)) for index in indices]
    body += [Invoke(0, 1, 0, ())] * invoke
    body += [Packed(0, 1, 0, (Reg(0),))] * packed
    return function("f", [("x", f32(Heap(0)))], [*body, Return(0, 0)])


def test_who_runs_on_the_trampoline() -> None:
    leaf, middle, loop, above, asks = (
        caller(),
        caller(0),
        caller(2),
        caller(2, 0),
        caller(invoke=True),
    )
    assert trampolined((leaf, middle, loop, above, asks)) == {2, 3, 4}


def test_a_recursion_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trampoline, "MAX_CALLS", 1000)
    main = function(
        "main", [("x", ObjectPattern())], [Call(0, 1, 0, (0,)), MakeTuple(0, 2, (1,)), Return(0, 2)]
    )
    vm = VirtualMachine(executable(main))
    for _ in range(2):
        with pytest.raises(RuntimeCheckError, match="nested more than 1000 deep") as caught:
            vm["main"](1)
        assert caught.value.code == "recursion"
        assert caught.value.span is not None
