"""Cases of calls, function values, tuples and branches."""

from __future__ import annotations

import numpy as np

from relaxpy.runtime.bytecode import (
    Alloc,
    Call,
    CallablePattern,
    Closure,
    Eval,
    Heap,
    If,
    Invoke,
    Item,
    Kernel,
    Kill,
    Library,
    MakePrim,
    MakeTuple,
    Move,
    Packed,
    PrimPattern,
    Reg,
    Return,
    TuplePattern,
)
from relaxpy.runtime.tensor import Shape
from tests.machine.cases import (
    ADD,
    ANY,
    BOOL,
    INT,
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


def calls_cases() -> list[Case]:
    shift = function([INT, INT], [MakeTuple(0, 2, (1, 0)), Return(0, 2)], name="swap")
    down = function(
        [PrimPattern("int64", N), ANY],
        [
            Eval(0, 1, op("sub", N, 1)),
            Eval(0, 2, op("lt", 0, N)),
            MakePrim(0, 2, Heap(2), "bool"),
            If(0, 2, 3, 1),
            MakePrim(0, 3, M, "int64"),
            MakeTuple(0, 4, (1, 3)),
            Call(0, 5, 1, (3, 4)),
            Move(0, 5, 1),
            Return(0, 5),
        ],
        name="down",
    )
    first = function([ANY, ANY], [Return(0, 0)], name="first")
    packed = ("vm.builtin.shape_of", "suite.missing")
    return [
        Case(
            "call: arguments in order",
            (function([ANY, ANY], [Call(0, 2, 1, (0, 1)), Return(0, 2)]), shift),
            (Run([1, 2], (2, 1)), Run([1, True], error="check")),
        ),
        Case(
            "call: recursion",
            (function([ANY, ANY], [Call(0, 2, 1, (0, 1)), Return(0, 2)]), down),
            (Run([0, "x"], "x"), Run([2, "x"], (("x", 1), 0))),
        ),
        Case(
            "closure: a plain function value",
            (function([ANY], [Closure(0, 1, 1, ()), Invoke(0, 2, 1, (0, 0)), Return(0, 2)]), shift),
            (Run([4], (4, 4)),),
        ),
        Case(
            "closure: fills in the last parameters",
            (
                function([ANY, ANY], [Closure(0, 2, 1, (1,)), Invoke(0, 3, 2, (0,)), Return(0, 3)]),
                shift,
            ),
            (Run([1, 2], (2, 1)),),
        ),
        Case(
            "closure: that leaves the call",
            (function([ANY], [Closure(0, 1, 1, (0,)), Return(0, 1)]), shift),
            (Run([5], FunctionValue("swap", (5,))),),
        ),
        Case(
            "invoke: what came as an argument",
            (function([CallablePattern(-1), ANY], [Invoke(0, 2, 0, (1, 1)), Return(0, 2)]), shift),
            (
                Run([FunctionValue("swap"), 3], (3, 3)),
                Run([FunctionValue("main"), 3], error="check"),
            ),
        ),
        Case(
            "invoke: another number of arguments",
            (function([ANY], [Closure(0, 1, 1, ()), Invoke(0, 2, 1, (0,)), Return(0, 2)]), shift),
            (Run([1], error="arity"),),
        ),
        Case(
            "invoke: what is no function",
            (function([ANY], [Invoke(0, 1, 0, ()), Return(0, 1)]),),
            (Run([1], error="not-callable"),),
        ),
        Case(
            "packed: a function by name",
            (function([VECTOR], [Packed(0, 1, 0, (Reg(0),)), Return(0, 1)]),),
            (Run([f32(1, 2)], Shape([2])),),
            packed=packed[:1],
        ),
        Case(
            "packed: a name that nobody has registered",
            (function([VECTOR], [Packed(0, 1, 0, (Reg(0),)), Return(0, 1)]),),
            packed=packed[1:],
            refused="library-missing",
        ),
        Case(
            "call: a function that needs no argument's value",
            (function([ANY, ANY], [Call(0, 2, 1, (1, 0)), Return(0, 2)]), first),
            (Run([1, "y"], "y"),),
        ),
    ]


def values_cases() -> list[Case]:
    return [
        case(
            "maketuple: of nothing, and of one value twice",
            [ANY],
            [MakeTuple(0, 1, ()), MakeTuple(0, 2, (0, 0, 1)), Return(0, 2)],
            Run([7], (7, 7, ())),
        ),
        case(
            "item: of a tuple",
            [TuplePattern((ANY, ANY))],
            [Item(0, 1, 0, 1), Return(0, 1)],
            Run([(1, "b")], "b"),
        ),
        case(
            "move: a register that is written again",
            [ANY],
            [Move(0, 1, 0), MakePrim(0, 0, 5, "int64"), MakeTuple(0, 2, (0, 1)), Return(0, 2)],
            Run([9], (5, 9)),
        ),
        case(
            "kill: others stay",
            [ANY, ANY],
            [Move(0, 2, 0), Kill(0, (0,)), MakeTuple(0, 3, (1, 2)), Return(0, 3)],
            Run([1, 2], (2, 1)),
        ),
        case(
            "return: an argument",
            [ANY],
            [Return(0, 0)],
            Run([f32(1)], f32(1)),
            Run([(f32(1), 2)], (f32(1), 2)),
        ),
    ]


def branches_cases() -> list[Case]:
    one, two = MakePrim(0, 1, 1, "int64"), MakePrim(0, 1, 2, "int64")
    return [
        case(
            "if: a tensor of truth",
            [BOOL],
            [If(0, 0, 1, 1), one, two, Return(0, 1)],
            Run([np.array(True)], 1),
            Run([np.array(False)], 2),
        ),
        case(
            "if: a scalar of truth",
            [ANY],
            [If(0, 0, 1, 1), one, two, Return(0, 1)],
            Run([True], 1),
            Run([False], 2),
            Run([1], error="condition"),
            Run(["x"], error="condition"),
        ),
        case(
            "if: an empty arm",
            [ANY],
            [MakePrim(0, 1, 0, "int64"), If(0, 0, 1, 0), one, Return(0, 1)],
            Run([True], 1),
            Run([False], 0),
        ),
        case(
            "if: one in the other",
            [ANY, ANY],
            [If(0, 0, 3, 1), If(0, 1, 1, 1), one, two, MakePrim(0, 1, 3, "int64"), Return(0, 1)],
            Run([True, True], 1),
            Run([True, False], 2),
            Run([False, True], 3),
        ),
        case(
            "if: kernels in its arms",
            [VECTOR, ANY],
            [
                Alloc(0, 2, 0, 1, "float32", -1),
                If(0, 1, 1, 2),
                Kernel(0, ADD, (Reg(0), Reg(0), Reg(2)), N),
                Alloc(0, 3, 0, 1, "float32", 0),
                Library(0, 0, (Reg(0), Reg(2))),
                Return(0, 2),
            ],
            Run([f32(1, 2), True], f32(2, 4)),
            Run([f32(1, 2), False], f32(-1, -2)),
            libraries=("suite.negate",),
            storages=[op("mul", N, 4)],
        ),
        case(
            "if: a slot that both arms write",
            [PrimPattern("int64", N), ANY],
            [
                If(0, 1, 1, 1),
                Eval(0, 1, op("add", N, 1)),
                Eval(0, 1, op("mul", N, N)),
                MakePrim(0, 2, M, "int64"),
                Return(0, 2),
            ],
            Run([5, True], 6),
            Run([5, False], 25),
            Run([2**32, True], 2**32 + 1),
            Run([2**32, False], error="shape-arithmetic"),
        ),
    ]
