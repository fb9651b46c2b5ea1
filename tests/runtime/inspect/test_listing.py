from __future__ import annotations

import numpy as np

from relaxpy.runtime.bytecode import (
    INSTRUCTIONS,
    Alloc,
    Assert,
    Call,
    Check,
    Closure,
    Const,
    Copy,
    Eval,
    FunctionCode,
    Graph,
    Heap,
    If,
    Invoke,
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
    PrimPattern,
    Read,
    Reg,
    Return,
    ShapePattern,
    TensorPattern,
    TuplePattern,
    View,
)
from relaxpy.runtime.codec import decode, encode
from tests.runtime.support import ADD1, executable, f32, function, times

BODY = (
    Const(0, 1, 0),
    Match(
        0,
        1,
        TuplePattern((TensorPattern(None, -1, ""), ShapePattern(None, 2), PrimPattern("int64", 3))),
        0,
    ),
    Eval(1, 1, times(0, 4)),
    Assert(1, Heap(1), 8, 1),
    Alloc(2, 2, 0, 1, "float32", 0),
    View(2, 3, 2, 1, 1, "int32"),
    Copy(2, 13, 2, 0),
    Read(2, 14, 13),
    Graph(2, 1, 0),
    Kernel(2, ADD1, (Reg(0), Reg(2), Heap(1), 7), times(0, 2)),
    Library(3, 0, (Reg(2),)),
    Packed(3, 4, 0, (Reg(2), 1.5)),
    Call(3, 5, 0, (2,)),
    Closure(3, 6, 0, (2,)),
    Invoke(3, 7, 6, (2,)),
    MakeTuple(4, 8, (1, 2)),
    Item(4, 9, 8, 0),
    MakeShape(4, 10, 0, 2),
    MakePrim(4, 11, True, "bool"),
    If(5, 11, 1, 1),
    Move(5, 12, 2),
    Move(5, 12, 3),
    Kill(6, (2, 3)),
    Return(7, 12),
)


def sample():
    check = Check("match_cast", "lv", "R.Tensor")
    code = function("main", [("x", f32(Heap(0)))], BODY, storages=[times(0, 4)], checks=[check])
    constants = (np.zeros((2, 3), np.int8),)
    return executable(
        code,
        constants=constants,
        libraries=("lib",),
        packed=("fun",),
        sources={"add1": "@T.prim_func …"},
    )


def test_every_instruction_has_a_line() -> None:
    assert {type(instr) for instr in BODY} == set(INSTRUCTIONS)
    text = sample().as_text()
    for line in (
        "const c0: int8[2, 3]",
        "library lib",
        "func main(x: annotation of x) -> R.Object:",
        "storage m0: (h0 * 4) bytes",
        "match r0: float32[h0] for parameter x",
        "match r1: (any[…], shape[rank 2], int64 = 3) for parameter x",
        "h1 = (h0 * 4)",
        "assert h1 == 8 for match_cast lv",
        "r2 = alloc float32[h0] in m0",
        "r3 = view r2 as int32[h1]",
        "r13 = copy r2 to host",
        "r14 = read r13",
        "add1(r0, r2, h1, 7)  work (h0 * 2)",
        "library lib(r2)",
        "r4 = packed fun(r2, 1.5)",
        "r5 = call main(r2)",
        "r6 = closure main with (r2)",
        "r7 = invoke r6(r2)",
        "  if r11",
        "    r12 = r2",
        "  else",
        "  end",
        "kill r2, r3",
        "return r12",
        "# lv2, model.py:12",
    ):
        assert line in text
    assert "@T.prim_func" not in text
    assert "@T.prim_func" in sample().as_text(kernels=True)


def test_bytecode_survives_json() -> None:
    import json

    exe = sample()
    assert (
        decode(json.loads(json.dumps(encode(exe.functions))), tuple[FunctionCode, ...])
        == exe.functions
    )
