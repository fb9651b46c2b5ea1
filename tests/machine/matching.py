"""Cases of matching, formulas and scalars, and of invalid code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy.runtime.bytecode import (
    Alloc,
    Assert,
    Call,
    CallablePattern,
    Check,
    Closure,
    Const,
    Copy,
    Eval,
    Graph,
    Heap,
    If,
    Instr,
    Item,
    Kernel,
    Kill,
    Library,
    MakePrim,
    MakeShape,
    MakeTuple,
    Match,
    Move,
    Packed,
    Pattern,
    PrimPattern,
    Read,
    Reg,
    Return,
    ShapePattern,
    TensorPattern,
    TuplePattern,
    View,
)
from relaxpy.runtime.tensor import Shape
from tests.machine.cases import (
    ADD,
    ANY,
    INCREASE,
    INT,
    VECTOR,
    Case,
    M,
    N,
    Run,
    case,
    f32,
    i64,
    op,
)
from tests.machine.values import FunctionValue


def match_cases() -> list[Case]:
    out = Return(0, 0)
    wrong = "check"
    many = TuplePattern((VECTOR, TuplePattern((INT, ShapePattern((M, None), 2)))))
    return [
        case(
            "match: a tensor of any shape",
            [TensorPattern(None, -1, "")],
            [out],
            Run([f32(1, 2)], f32(1, 2)),
            Run([np.array(3, np.int8)], np.array(3, np.int8)),
            Run([Shape([2])], error=wrong),
            Run(["x"], error=wrong),
        ),
        case(
            "match: rank",
            [TensorPattern(None, 2, "float32")],
            [out],
            Run([np.zeros((0, 3), np.float32)], np.zeros((0, 3), np.float32)),
            Run([f32(1)], error=wrong),
        ),
        case(
            "match: element type",
            [TensorPattern((None,), 1, "float32")],
            [out],
            Run([f32(1)], f32(1)),
            Run([np.zeros(1)], error=wrong),
            Run([i64(1)], error=wrong),
        ),
        case(
            "match: fixed dimensions",
            [TensorPattern((2, None, N), 3, "int64")],
            [MakePrim(0, 1, N, "int64"), Return(0, 1)],
            Run([np.zeros((2, 7, 5), np.int64)], 5),
            Run([np.zeros((3, 7, 5), np.int64)], error=wrong),
            Run([np.zeros((2, 7), np.int64)], error=wrong),
        ),
        case(
            "match: one slot gets the last of its dimensions",
            [TensorPattern((N, N), 2, "int64")],
            [MakePrim(0, 1, N, "int64"), Return(0, 1)],
            Run([np.zeros((2, 3), np.int64)], 3),
        ),
        case(
            "match: a shape",
            [ShapePattern((N, 4), 2)],
            [MakePrim(0, 1, N, "int64"), Return(0, 1)],
            Run([Shape([3, 4])], 3),
            Run([Shape([2**40, 4])], 2**40),
            Run([Shape([3, 5])], error=wrong),
            Run([Shape([3])], error=wrong),
            Run([f32(3, 4)], error=wrong),
            Run([Shape([-1, 4])], error="shape-value"),
        ),
        case(
            "match: a shape of any sizes",
            [ShapePattern(None, 2)],
            [out],
            Run([Shape([0, 9])], Shape([0, 9])),
            Run([Shape([])], error=wrong),
        ),
        case(
            "match: an integer scalar",
            [PrimPattern("int64", N)],
            [MakePrim(0, 1, N, "int64"), Return(0, 1)],
            Run([-3], -3),
            Run([2**63 - 1], 2**63 - 1),
            Run([-(2**63)], -(2**63)),
            Run([2**63], error=wrong),
            Run([True], error=wrong),
            Run([1.0], error=wrong),
            Run(["1"], error=wrong),
        ),
        case(
            "match: a fixed scalar",
            [PrimPattern("int64", 7)],
            [out],
            Run([7], 7),
            Run([8], error=wrong),
        ),
        case(
            "match: a narrow integer",
            [PrimPattern("uint8")],
            [out],
            Run([255], 255),
            Run([256], error=wrong),
            Run([-1], error=wrong),
        ),
        case(
            "match: a scalar of truth",
            [PrimPattern("bool", N)],
            [MakePrim(0, 1, N, "int64"), Return(0, 1)],
            Run([True], 1),
            Run([False], 0),
            Run([1], error=wrong),
        ),
        case(
            "match: a number of floating point",
            [PrimPattern("float32")],
            [out],
            Run([1.5], 1.5),
            Run([float("inf")], float("inf")),
            Run(["x"], error=wrong),
            Run([True], error=wrong),
        ),
        case(
            "match: a text",
            [PrimPattern("string")],
            [out],
            Run(["añ✓"], "añ✓"),
            Run([1], error=wrong),
        ),
        case(
            "match: a scalar whose integer is too large",
            [PrimPattern("uint64", N)],
            [MakePrim(0, 1, N, "int64"), Return(0, 1)],
            Run([5], 5),
            Run([2**63], error="shape-arithmetic"),
            Run([2**64], error=wrong),
        ),
        case(
            "match: tuples in tuples",
            [many],
            [MakeShape(0, 1, 0, 2), Return(0, 1)],
            Run([(f32(1, 2, 3), (9, Shape([6, 1])))], Shape([3, 6])),
            Run([(f32(1), (9, Shape([6])))], error=wrong),
            Run([(f32(1),)], error=wrong),
            Run([(f32(1), 9)], error=wrong),
        ),
        case(
            "match: a function",
            [CallablePattern(-1)],
            [MakePrim(0, 1, True, "bool"), Return(0, 1)],
            Run([FunctionValue("main")], True),
            Run([3], error=wrong),
        ),
        case(
            "match: how many parameters a function has",
            [CallablePattern(2)],
            [MakePrim(0, 1, True, "bool"), Return(0, 1)],
            Run([FunctionValue("main")], error=wrong),
        ),
        case(
            "match: anything",
            [ANY],
            [out],
            Run([5], 5),
            Run([()], ()),
            Run([("a", (True,))], ("a", (True,))),
        ),
        case(
            "match: in the body, of a part",
            [ANY],
            [Item(0, 1, 0, 1), Match(0, 1, VECTOR, 1), MakePrim(0, 2, N, "int64"), Return(0, 2)],
            Run([(5, f32(1, 2))], 2),
            Run([(5, Shape([2]))], error=wrong),
            checks=[Check("match_cast", "y", "R.Tensor")],
        ),
    ]


def sizes_cases() -> list[Case]:
    integers = [PrimPattern("int64", N), PrimPattern("int64", M)]
    relation = Check("relation", "", "", "p0 is twice p1")
    came = Check("parameter", "p0", "R.Tensor", "dimension 0 (p1 * 2)")
    return [
        case(
            "eval: a slot that other formulas read",
            integers,
            [
                Eval(0, 2, op("add", N, op("mul", M, 3))),
                Eval(0, 3, op("floordiv", Heap(2), 2)),
                MakeShape(0, 2, 2, 2),
                Return(0, 2),
            ],
            Run([1, 2], Shape([7, 3])),
        ),
        case(
            "eval: a slot that is written again",
            integers,
            [
                Eval(0, 0, op("add", N, 1)),
                Eval(0, 0, op("mul", N, N)),
                MakePrim(0, 2, N, "int64"),
                Return(0, 2),
            ],
            Run([4, 0], 25),
            Run([2**32, 0], error="shape-arithmetic"),
        ),
        case(
            "eval: constant slots",
            [],
            [Eval(0, 1, op("sub", Heap(0), 50)), MakePrim(0, 0, Heap(1), "int64"), Return(0, 0)],
            Run([], -8),
            heap=(42, 0),
        ),
        case(
            "eval: division by zero",
            integers,
            [Eval(0, 2, op("floordiv", N, M)), MakePrim(0, 2, Heap(2), "int64"), Return(0, 2)],
            Run([7, 2], 3),
            Run([7, 0], error="shape-arithmetic"),
        ),
        case(
            "eval: overflow of what is not used",
            integers,
            [Eval(0, 2, op("mul", N, M)), Return(0, 0)],
            Run([3, 5], 3),
            Run([2**32, 2**32], error="shape-arithmetic"),
        ),
        case(
            "eval: overflow on the way",
            integers,
            [
                Eval(0, 2, op("sub", op("add", N, M), M)),
                MakePrim(0, 2, Heap(2), "int64"),
                Return(0, 2),
            ],
            Run([5, 6], 5),
            Run([2**63 - 1, 1], error="shape-arithmetic"),
            Run([-(2**63), -1], error="shape-arithmetic"),
        ),
        case(
            "assert: holds, or does not",
            integers,
            [Assert(0, N, op("mul", M, 2), 2), Return(0, 0)],
            Run([6, 3], 6),
            Run([6, 4], error="check"),
            Run([0, 2**62], error="shape-arithmetic"),
            checks=[came],
        ),
        case(
            "assert: a condition",
            integers,
            [Assert(0, op("and", op("le", M, N), op("lt", N, 10)), 1, 2), Return(0, 0)],
            Run([6, 3], 6),
            Run([2, 3], error="check"),
            Run([10, 3], error="check"),
            checks=[relation],
        ),
        case(
            "makeshape: an empty one", [], [MakeShape(0, 0, 0, 0), Return(0, 0)], Run([], Shape([]))
        ),
        case(
            "makeprim: of every kind",
            [PrimPattern("int64", N)],
            [
                MakePrim(0, 1, N, "int64"),
                MakePrim(0, 2, N, "float32"),
                MakePrim(0, 3, N, "bool"),
                MakePrim(0, 4, -(2**63), "int64"),
                MakePrim(0, 5, 0.1, "float64"),
                MakePrim(0, 6, True, "bool"),
                MakePrim(0, 7, "text", "string"),
                MakePrim(0, 8, float("-inf"), "float32"),
                MakePrim(0, 9, 0, "bool"),
                MakeTuple(0, 10, tuple(range(1, 10))),
                Return(0, 10),
            ],
            Run([3], (3, 3.0, True, -(2**63), 0.1, True, "text", float("-inf"), False)),
            Run([0], (0, 0.0, False, -(2**63), 0.1, True, "text", float("-inf"), False)),
        ),
    ]


def refused_cases() -> list[Case]:
    """Invalid code, which every machine must reject."""
    out = Return(0, 0)
    bad: list[tuple[str, Sequence[Pattern], Sequence[Instr], dict[str, Any]]] = [
        ("no return", [ANY], [Move(0, 1, 0)], {}),
        ("a return in the middle", [ANY], [out, out], {}),
        ("a register that is not set", [ANY], [Return(0, 1)], {}),
        ("a register that one arm sets", [ANY], [If(0, 0, 1, 0), Move(0, 1, 0), Return(0, 1)], {}),
        ("a register that was killed", [ANY], [Kill(0, (0,)), out], {}),
        ("a register beyond the last", [ANY], [Move(0, 99, 0), out], {}),
        (
            "a slot that is not set",
            [ANY],
            [MakePrim(0, 1, Heap(1), "int64"), Eval(0, 1, 3), Return(0, 1)],
            {},
        ),
        ("a slot beyond the last", [ANY], [Eval(0, 99, 3), out], {}),
        ("arms that are too long", [ANY], [If(0, 0, 5, 5), out], {}),
        ("a graph that is too long", [ANY], [Graph(0, 2, 0), out], {}),
        ("a graph in a slot that is not there", [ANY], [Graph(0, 0, 1), out], {}),
        ("a graph in a graph", [ANY], [Graph(0, 1, 0), Graph(0, 0, 0), out], {}),
        ("a return in a graph", [ANY], [Graph(0, 1, 0), out], {}),
        ("a size that a graph computes", [ANY], [Graph(0, 1, 0), Eval(0, 0, 3), out], {}),
        (
            "a result that a graph allocates",
            [VECTOR],
            [Graph(0, 1, 0), Alloc(0, 1, 0, 1, "float32", -1), Return(0, 1)],
            {},
        ),
        (
            "a register of a graph after it",
            [VECTOR],
            [Graph(0, 1, 0), View(0, 1, 0, 0, 1, "float32"), Return(0, 1)],
            {},
        ),
        ("a constant that is not there", [ANY], [Const(0, 1, 0), out], {}),
        ("a kernel that is not there", [ANY], [Kernel(0, 99, (), 1), out], {}),
        ("a function that is not there", [ANY], [Call(0, 1, 9, ()), out], {}),
        ("a call with too few arguments", [ANY], [Call(0, 1, 0, ()), out], {}),
        ("more values captured than parameters", [ANY], [Closure(0, 1, 0, (0, 0)), out], {}),
        ("a name that is not there", [ANY], [Packed(0, 1, 0, ()), out], {}),
        ("a library that is not there", [ANY], [Library(0, 0, ()), out], {}),
        ("a check that is not there", [ANY], [Match(0, 0, ANY, 9), out], {}),
        ("an operation with too few operands", [ANY], [Eval(0, 1, op("add", 1)), out], {}),
        ("a storage that is not there", [VECTOR], [Alloc(0, 1, 0, 1, "float32", 0), out], {}),
        (
            "a tensor larger than its storage, for every size",
            [VECTOR],
            [Alloc(0, 1, 0, 1, "float32", 0), out],
            {"storages": [op("sub", op("mul", N, 4), 4)]},
        ),
        (
            "a tensor that is not aligned to its items",
            [VECTOR],
            [Alloc(0, 1, 0, 1, "float32", 0, 2), out],
            {"storages": [op("mul", N, 8)]},
        ),
        ("a slot that is not there", [VECTOR], [Copy(0, 1, 0, 1), out], {}),
        ("a copy of a shape", [ShapePattern((N,), 1)], [Copy(0, 1, 0, 0), out], {}),
        ("a read of a vector", [VECTOR], [Read(0, 1, 0), out], {}),
        (
            "a result in a storage",
            [VECTOR],
            [Alloc(0, 1, 0, 1, "float32", 0), Return(0, 1)],
            {"storages": [op("mul", N, 4)]},
        ),
        (
            "a result in a storage, in a tuple",
            [VECTOR],
            [Alloc(0, 1, 0, 1, "float32", 0), MakeTuple(0, 2, (0, 1)), Return(0, 2)],
            {"storages": [op("mul", N, 4)]},
        ),
        ("an item of what is no tuple", [VECTOR], [Item(0, 1, 0, 0), out], {}),
        ("an item beyond the last", [TuplePattern((ANY,))], [Item(0, 1, 0, 1), out], {}),
        ("a kernel with too few arguments", [VECTOR], [Kernel(0, ADD, (Reg(0),), 1), out], {}),
        (
            "a kernel with an argument of another type",
            [TensorPattern((N,), 1, "int64")],
            [Kernel(0, ADD, (Reg(0), Reg(0), Reg(0)), 1), out],
            {},
        ),
        (
            "a kernel with an argument of another rank",
            [TensorPattern((N, M), 2, "float32")],
            [Kernel(0, INCREASE, (Reg(0),), 1), out],
            {"updated": [0]},
        ),
    ]
    return [
        case(f"refused: {name}", params, body, refused="bytecode", **more)
        for name, params, body, more in bad
    ]
