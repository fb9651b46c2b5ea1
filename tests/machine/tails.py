"""Cases of tail calls, which take the place of their caller: loops, and what they must keep."""

from __future__ import annotations

from collections.abc import Sequence

from relaxpy.runtime.bytecode import (
    Alloc,
    Call,
    CallablePattern,
    Eval,
    Heap,
    If,
    Instr,
    Invoke,
    Kernel,
    Kill,
    MakePrim,
    MakeTuple,
    Move,
    PrimPattern,
    Reg,
    Return,
)
from tests.machine.cases import (
    ADD,
    ANY,
    DOUBLE,
    VECTOR,
    Case,
    M,
    N,
    Run,
    case,
    f32,
    function,
    op,
)
from tests.machine.values import FunctionValue

MANY = 100_001
TIMES = PrimPattern("int64", M)
"""A number of steps, in the heap's second slot."""


def _loop(step: Sequence[Instr], end: Sequence[Instr]) -> list[Instr]:
    """While the first parameter is above 0: `step`, with the number below it in register 9 and the result in 8; then
    `end`, with the result in 8, too."""
    return [
        Eval(0, 2, op("lt", 0, M)),
        Eval(0, 3, op("sub", M, 1)),
        MakePrim(0, 7, Heap(2), "bool"),
        If(0, 7, len(step) + 1, len(end)),
        MakePrim(0, 9, Heap(3), "int64"),
        *step,
        *end,
        Kill(0, (7,)),
        Return(0, 8),
    ]


def tails_cases() -> list[Case]:
    swap = [Call(0, 6, 0, (9, 2, 1)), Move(0, 8, 6)]
    both = [MakeTuple(0, 8, (1, 2))]
    other = [Call(0, 6, 0, (9, 1)), Kill(0, (9,)), Move(0, 8, 6)]
    ours = [Call(0, 6, 1, (9, 1)), Kill(0, (9,)), Move(0, 8, 6)]
    size = Alloc(0, 3, 0, 1, "float32", -1)
    planned = Alloc(0, 4, 0, 1, "float32", 0)
    again = [Call(0, 6, 0, (9, 3)), Kill(0, (3,)), Move(0, 8, 6)]
    return [
        case(
            "tail call: a loop that swaps what it carries",
            [TIMES, ANY, ANY],
            _loop(swap, both),
            Run([0, "a", "b"], ("a", "b")),
            Run([5, "a", "b"], ("b", "a")),
            Run([MANY, "a", 1], (1, "a")),
            Run([-1, 1, 2], (1, 2)),
        ),
        case(
            "tail call: an argument that does not fit",
            [TIMES, VECTOR, ANY],
            _loop(swap, both),
            Run([1, f32(1), f32(2)], (f32(2), f32(1))),
            Run([2, f32(1), f32(2)], (f32(1), f32(2))),
            Run([1, f32(1), 2], error="check"),
        ),
        Case(
            "tail call: two functions by turns",
            (
                function([TIMES, ANY], _loop(ours, [MakeTuple(0, 8, (1, 1))])),
                function([TIMES, ANY], _loop(other, [MakeTuple(0, 8, (1,))]), name="odd"),
            ),
            (Run([4, "x"], ("x", "x")), Run([MANY, "x"], ("x",))),
        ),
        case(
            "tail call: a function value",
            [TIMES, ANY, CallablePattern(-1)],
            _loop([Invoke(0, 6, 2, (9, 1, 2)), Move(0, 8, 6)], [Move(0, 8, 1)]),
            Run([MANY, "x", FunctionValue("main")], "x"),
        ),
        case(
            "tail call: each step has planned storage, and a result of its own",
            [TIMES, VECTOR],
            _loop(
                [
                    *(planned, Kernel(0, ADD, (Reg(1), Reg(1), Reg(4)), N)),
                    *(size, Kernel(0, ADD, (Reg(4), Reg(1), Reg(3)), N), *again),
                ],
                [Move(0, 8, 1)],
            ),
            Run([0, f32(1, 2)], f32(1, 2)),
            Run([4, f32(1, 2)], f32(81, 162), after=[4, f32(1, 2)]),
            Run([3, f32()], f32()),
            Run([MANY, f32(0, 0, 0)], f32(0, 0, 0)),
            storages=(op("mul", N, 4),),
        ),
        case(
            "tail call: planned storage that is an argument outlives its call",
            [TIMES, VECTOR],
            _loop(
                [
                    Alloc(0, 3, 0, 1, "float32", 0),
                    *(Kernel(0, ADD, (Reg(1), Reg(1), Reg(3)), N), *again),
                ],
                [size, Kernel(0, ADD, (Reg(1), Reg(1), Reg(3)), N), Move(0, 8, 3)],
            ),
            Run([5, f32(1, 2)], f32(64, 128)),
            storages=(op("mul", N, 4),),
        ),
        case(
            "tail call: sizes that change",
            [TIMES, VECTOR],
            _loop(
                [
                    Eval(0, 4, op("mul", N, 2)),
                    Alloc(0, 3, 4, 1, "float32", -1),
                    *(Kernel(0, DOUBLE, (Reg(1), Reg(3)), N), *again),
                ],
                [
                    planned,
                    Kernel(0, ADD, (Reg(1), Reg(1), Reg(4)), N),
                    size,
                    Kernel(0, ADD, (Reg(4), Reg(1), Reg(3)), N),
                    Move(0, 8, 3),
                ],
            ),
            Run([2, f32(1, 2)], f32(3, 3, 3, 3, 6, 6, 6, 6)),
            Run([0, f32(1, 2)], f32(3, 6)),
            storages=(op("mul", N, 4),),
            heap=(0, 0, 0, 0, 0),
        ),
    ]
