"""Results of function values in tail calls are compared when they are there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import Shape, VirtualMachine, trampoline
from relaxpy.runtime.bytecode import (
    Assert,
    CallablePattern,
    Check,
    Closure,
    Eval,
    Heap,
    If,
    IntOp,
    Invoke,
    MakePrim,
    Match,
    Move,
    ObjectPattern,
    PrimPattern,
    Return,
    ShapePattern,
    TensorPattern,
    TuplePattern,
)
from relaxpy.runtime.promises import Promise, matches
from relaxpy.runtime.tensor import from_numpy
from tests.runtime.support import executable, f32, floats, function

ANY = ObjectPattern()


def machine() -> VirtualMachine:
    """`main(x, f, v)` returns what `other(v, f)` returns, f(v), which must be as long as x. `main` has ended by then."""
    checks = [
        Check("result", "y", 'R.Tensor((n,), dtype="float32")'),
        Check("result", "y", 'R.Tensor((n,), dtype="float32")', "dimension 0", (("n", 0),)),
    ]
    body = [
        Closure(0, 3, 1, ()),
        Invoke(1, 4, 3, (2, 1)),
        Match(2, 4, f32(Heap(1)), 3),
        Assert(2, Heap(1), Heap(0), 4),
        Return(3, 4),
    ]
    main = function("main", [("x", f32(Heap(0))), ("f", ANY), ("v", ANY)], body, checks=checks)
    other = function("other", [("v", ANY), ("f", ANY)], [Invoke(0, 2, 1, (0,)), Return(0, 2)])
    return VirtualMachine(executable(main, other))


def test_a_kept_promise() -> None:
    found = machine()["main"](floats(1, 2), lambda v: v, floats(3, 4))
    np.testing.assert_array_equal(found.numpy(), [3, 4])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (floats(1), "dimension 0 must be 2, got 1"),
        (np.ones((2, 2), np.float32), "it has 2 dimensions, not 1"),
        (np.ones(2, np.int64), "the dtype is int64"),
        (3, "expected a tensor"),
    ],
)
def test_a_broken_promise_is_located(value: Any, said: str) -> None:
    vm = machine()
    for _ in range(2):
        with pytest.raises(RuntimeCheckError, match=said) as caught:
            vm["main"](floats(1, 2), lambda v: v, value)
        error = caught.value
        assert error.code == "check"
        assert error.span is not None
        assert error.span.line == 12
        assert any("main" in note and "lv2" in note for note in error.notes)


def test_promises_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop through a function value, each step of which promises the same."""
    monkeypatch.setattr(trampoline, "MAX_CALLS", 5)
    kept: list[int] = []
    check = Promise.check
    monkeypatch.setattr(Promise, "check", lambda self, v: (kept.append(1), check(self, v))[1])
    body = [
        Eval(0, 2, IntOp("lt", (0, Heap(1)))),
        Eval(0, 3, IntOp("sub", (Heap(1), 1))),
        MakePrim(0, 3, Heap(2), "bool"),
        If(0, 3, 4, 1),
        MakePrim(0, 4, Heap(3), "int64"),
        Invoke(0, 5, 2, (0, 4, 2)),
        Match(0, 5, f32(None), 3),
        Move(0, 6, 5),
        Move(0, 6, 0),
        Return(0, 6),
    ]
    params = [("x", f32(Heap(0))), ("k", PrimPattern("int64", Heap(1))), ("f", ANY)]
    main = function("main", params, body, checks=[Check("result", "y", "")])
    vm = VirtualMachine(executable(main))
    found = vm["main"](floats(1, 2), 1000, vm["main"])
    np.testing.assert_array_equal(found.numpy(), [1, 2])
    assert len(kept) == 1


def test_matching() -> None:
    """As the code of matches does: which values fit, and what the slots get."""
    x = from_numpy(np.ones((2, 3), np.float32))
    cases: list[tuple[Any, Any, bool, dict[int, int]]] = [
        (x, TensorPattern((Heap(4), 3), 2, "float32"), True, {4: 2}),
        (x, TensorPattern((Heap(4), 4), 2, "float32"), False, {}),
        (x, TensorPattern((None, None), 2, ""), True, {}),
        (x, TensorPattern(None, 2, "float32"), True, {}),
        (x, TensorPattern(None, 1, "float32"), False, {}),
        (x, TensorPattern(None, -1, "int64"), False, {}),
        (Shape([5]), ShapePattern((Heap(1),), 1), True, {1: 5}),
        ((5,), ShapePattern((Heap(1),), 1), False, {}),
        (7, PrimPattern("int64", Heap(2)), True, {2: 7}),
        (7, PrimPattern("int64", 8), False, {}),
        (True, PrimPattern("int64"), False, {}),
        (
            (x, 7),
            TuplePattern((TensorPattern(None, 2, ""), PrimPattern("int64", Heap(0)))),
            True,
            {0: 7},
        ),
        ((x,), TuplePattern((ANY, ANY)), False, {}),
        (len, CallablePattern(1), True, {}),
        (x, CallablePattern(), False, {}),
        (None, ANY, True, {}),
    ]
    for value, pattern, fits, bound in cases:
        slots: dict[int, int] = {}
        assert matches(value, pattern, slots) is fits, (value, pattern)
        assert not fits or slots == bound
