"""Which calls of a function are tail calls, and which of them may take the place of their caller."""

from __future__ import annotations

from relaxpy.runtime.bytecode import (
    Alloc,
    Assert,
    Call,
    FunctionCode,
    Heap,
    If,
    Instr,
    Invoke,
    Item,
    Kill,
    MakeTuple,
    Match,
    Move,
    ObjectPattern,
    Return,
    View,
)
from relaxpy.runtime.tail_calls import promised, replacing, steps, tail_calls
from tests.runtime.support import function


def code(*body: Instr, storages: tuple[int, ...] = ()) -> FunctionCode:
    """A function without matches: its instructions have the numbers of `body`."""
    made = function("f", [("x", ObjectPattern())], body, storages=storages)
    return FunctionCode(**{**{n: getattr(made, n) for n in made.__slots__}, "code": body})


def test_the_last_call_is_one() -> None:
    call, kill, back = Call(0, 1, 0, (0,)), Kill(0, (0,)), Return(0, 1)
    assert tail_calls(code(call, back)) == {0: ()}
    assert tail_calls(code(call, kill, back)) == {0: (1,)}
    assert tail_calls(code(call, Move(0, 2, 1), kill, Return(0, 2))) == {0: (1, 2)}
    assert tail_calls(code(call, Move(0, 2, 1), Kill(0, (2,)), back)) == {0: (1, 2)}
    assert tail_calls(code(call, Call(0, 1, 0, (1,)), back)) == {1: ()}


def test_what_is_used_again_is_none() -> None:
    call = Call(0, 1, 0, (0,))
    assert tail_calls(code(call, Return(0, 0))) == {}
    assert tail_calls(code(call, MakeTuple(0, 2, (1,)), Return(0, 2))) == {}
    assert tail_calls(code(call, Kill(0, (1,)), Return(0, 1))) == {}
    assert tail_calls(code(call, Item(0, 1, 1, 0), Return(0, 1))) == {}


def test_arms_continue_behind_their_branch() -> None:
    arms = [
        If(0, 0, 5, 2),
        *(If(0, 0, 2, 2), Call(0, 1, 0, (0,)), Move(0, 2, 1)),
        *(Invoke(0, 1, 0, ()), Move(0, 2, 1)),
        *(Call(0, 3, 1, (0,)), Move(0, 2, 3)),
        Kill(0, (0,)),
    ]
    assert tail_calls(code(*arms, Return(0, 2))) == {2: (3, 8), 4: (5, 8), 6: (7, 8)}
    assert tail_calls(code(*arms, Return(0, 1))) == {2: (3, 8), 4: (5, 8)}
    assert tail_calls(code(*arms, Return(0, 5))) == {}
    empty = [If(0, 0, 1, 0), If(0, 0, 0, 0), Call(0, 1, 0, (0,)), Return(0, 1)]
    assert tail_calls(code(*empty)) == {2: ()}


def test_arguments_in_planned_storage_need_their_frame() -> None:
    planned, own = Alloc(0, 1, 0, 1, "float32", 0), Alloc(0, 1, 0, 1, "float32", -1)
    call, back = Call(0, 2, 0, (1,)), Return(0, 2)
    view, pair, item = View(0, 1, 1, 0, 1, "int32"), MakeTuple(0, 1, (0, 1)), Item(0, 1, 1, 1)
    for more in ([], [view], [pair], [pair, item], [Move(0, 3, 1), Move(0, 1, 3)]):
        assert replacing(code(own, *more, call, back)) == {1 + len(more): ()}
        assert replacing(code(planned, *more, call, back, storages=(64,))) == {}
    chosen = [If(0, 0, 1, 1), planned, own]
    assert replacing(code(*chosen, call, back, storages=(64,))) == {}


def test_results_that_are_checked_are_promised() -> None:
    match = Match(0, 1, ObjectPattern(), 0)
    equal = Assert(0, Heap(0), Heap(1), 0)
    for check in (match, equal):
        found = code(Invoke(0, 1, 0, ()), check, Return(0, 1))
        assert replacing(found) == {0: (1,)}
        assert promised(found, (1,)) == (1,)
        own = code(Call(0, 1, 7, (0,)), check, Return(0, 1))
        assert steps(own, 7) == set()


def test_steps_are_calls_of_the_function_itself() -> None:
    body = [If(0, 0, 2, 2), Call(0, 1, 3, (0,)), Move(0, 2, 1), Call(0, 1, 4, (0,)), Move(0, 2, 1)]
    found = code(*body, Return(0, 2))
    assert steps(found, 3) == {1}
    assert steps(found, 4) == {3}
    assert steps(found, 5) == set()
