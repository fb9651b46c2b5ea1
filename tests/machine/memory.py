"""Cases of memory, kernels and libraries."""

from __future__ import annotations

import numpy as np

from relaxpy.runtime.bytecode import (
    HOST_SLOT,
    Alloc,
    Const,
    Copy,
    Eval,
    Graph,
    If,
    Kernel,
    Library,
    MakePrim,
    MakeTuple,
    PrimPattern,
    Read,
    Reg,
    Return,
    Slot,
    TensorPattern,
    View,
)
from tests.machine.cases import (
    ADD,
    ANY,
    BOOL,
    COUNT,
    DOUBLE,
    INCREASE,
    INT,
    OTHER,
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


def memory_cases() -> list[Case]:
    twice = [Kernel(0, ADD, (Reg(0), Reg(0), Reg(1)), N)]
    integer = PrimPattern("int64", N)
    return [
        case(
            "alloc: memory that leaves the call",
            [VECTOR],
            [Alloc(0, 1, 0, 1, "float32", -1), *twice, Return(0, 1)],
            Run([f32(1, -2)], f32(2, -4)),
            Run([f32()], f32()),
        ),
        case(
            "alloc: in a storage, and what is computed there",
            [VECTOR],
            [
                Alloc(0, 1, 0, 1, "float32", 0),
                *twice,
                Alloc(0, 2, 0, 1, "float32", -1),
                Kernel(0, ADD, (Reg(1), Reg(0), Reg(2)), N),
                Return(0, 2),
            ],
            Run([f32(1, 2, 3)], f32(3, 6, 9)),
            Run([f32(5)], f32(15)),
            Run([f32(*range(100))], f32(*range(0, 300, 3))),
            storages=[op("mul", N, 4)],
        ),
        case(
            "alloc: two tensors in one storage, apart",
            [VECTOR],
            [
                Eval(0, 1, op("mul", N, 1)),
                Alloc(0, 1, 0, 1, "float32", 0),
                *twice,
                Alloc(0, 2, 0, 1, "float32", 0, 64),
                Kernel(0, ADD, (Reg(1), Reg(0), Reg(2)), N),
                Alloc(0, 3, 0, 1, "float32", -1),
                Kernel(0, ADD, (Reg(1), Reg(2), Reg(3)), N),
                Return(0, 3),
            ],
            Run([f32(1, 2)], f32(5, 10)),
            Run([f32(*range(16))], f32(*range(0, 80, 5))),
            Run([f32(*range(17))], error="check"),
            storages=[128],
        ),
        case(
            "alloc: a storage that is too small",
            [VECTOR],
            [Alloc(0, 1, 0, 1, "float32", 0), *twice, Return(0, 0)],
            Run([f32(1, 2)], f32(1, 2)),
            Run([f32(1, 2, 3)], error="check"),
            storages=[8],
        ),
        case(
            "alloc: a storage whose size overflows",
            [integer, PrimPattern("int64", M)],
            [Alloc(0, 2, 3, 1, "float32", 0), Kernel(0, INCREASE, (Reg(2),), 1), Return(0, 0)],
            Run([3, 4], 3),
            Run([2**40, 2**40], error="out-of-memory"),
            storages=[op("add", op("mul", op("mul", N, M), 0), 64)],
            heap=(0, 0, 0, 4),
        ),
        case(
            "alloc: a dimension that is negative",
            [integer],
            [Alloc(0, 1, 0, 1, "float32", -1), Return(0, 0)],
            Run([2], 2),
            Run([-1], error="check"),
        ),
        case(
            "alloc: more bytes than there are",
            [integer],
            [Alloc(0, 1, 0, 1, "float32", -1), Return(0, 1)],
            Run([0], f32()),
            Run([2**62], error="out-of-memory"),
            Run([2**61], error="out-of-memory"),
        ),
        case(
            "view: another shape of the same memory",
            [TensorPattern((N, 2), 2, "float32")],
            [
                Eval(0, 1, op("mul", N, 2)),
                View(0, 1, 0, 1, 1, "float32"),
                Alloc(0, 2, 1, 1, "float32", -1),
                Kernel(0, ADD, (Reg(1), Reg(1), Reg(2)), N),
                Return(0, 2),
            ],
            Run([np.array([[1, 2], [3, 4]], np.float32)], f32(2, 4, 6, 8)),
        ),
        case(
            "view: another type",
            [TensorPattern((N,), 1, "int32")],
            [View(0, 1, 0, 0, 1, "float32"), Return(0, 1)],
            Run([np.array([0x3F800000, 0, -1], np.int32)], f32(1, 0, float("nan"))),
        ),
        case(
            "view: larger than what it views",
            [VECTOR, PrimPattern("int64", M)],
            [View(0, 2, 0, 1, 1, "float32"), Return(0, 2)],
            Run([f32(1, 2, 3), 2], f32(1, 2)),
            Run([f32(1, 2, 3), 4], error="check"),
            Run([f32(1), -1], error="check"),
        ),
        case(
            "view: of a storage's tensor",
            [VECTOR],
            [
                Alloc(0, 1, 0, 1, "float32", 0),
                *twice,
                MakePrim(0, 5, 1, "int64"),
                Eval(0, 1, op("mul", N, 1)),
                View(0, 2, 1, 1, 1, "float32"),
                Alloc(0, 3, 0, 1, "float32", -1),
                Kernel(0, ADD, (Reg(2), Reg(0), Reg(3)), N),
                Return(0, 3),
            ],
            Run([f32(1, 2)], f32(3, 6)),
            storages=[op("mul", N, 4)],
        ),
        case(
            "const: is copied when it leaves",
            [],
            [Const(0, 0, 0), Return(0, 0)],
            Run([], f32(1, 2)),
            Run([], f32(1, 2)),
            constants=(f32(1, 2),),
        ),
        case(
            "const: as an operand",
            [TensorPattern((2,), 1, "float32")],
            [
                Const(0, 1, 0),
                Alloc(0, 2, 3, 1, "float32", -1),
                Kernel(0, ADD, (Reg(0), Reg(1), Reg(2)), 2),
                Return(0, 2),
            ],
            Run([f32(10, 20)], f32(11, 22)),
            constants=(f32(1, 2),),
            heap=(0, 0, 0, 2),
        ),
        *(
            case(
                f"const: of {dtype}",
                [],
                [Const(0, 0, 0), Return(0, 0)],
                Run([], value),
                constants=(value,),
            )
            for dtype, value in _every_dtype()
        ),
    ]


def _every_dtype() -> list[tuple[str, np.ndarray]]:
    from relaxpy.half_bytes import SHARED
    from relaxpy.runtime import dtype as dtypes

    found: list[tuple[str, np.ndarray]] = []
    for name in (each for each in dtypes.INFO if each not in SHARED):  # refused for other machines
        kind = dtypes.to_numpy(name)
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            found.append((name, np.array([limits.min, 0, limits.max], kind)))
        elif name == "bool":
            found.append((name, np.array([[True], [False]])))
        elif name == "float8_e8m0fnu":
            found.append((name, np.array([0.5, 1, 2], np.float32).astype(kind)))
        else:
            found.append((name, np.array([0.5, 1, -2, 0], np.float32).astype(kind)))
    return found


def slots_cases() -> list[Case]:
    """Cases with two slots, which a machine may map to any devices. The expected results do not depend on the
    mapping."""
    both = (HOST_SLOT, Slot("other", "cpu"))
    there = TensorPattern((N,), 1, "float32", 1)
    back = [
        Copy(0, 2, 1, 0),
        Alloc(0, 3, 0, 1, "float32", -1),
        Kernel(0, ADD, (Reg(2), Reg(0), Reg(3)), N),
    ]
    scalar = TensorPattern(None, 0, "")
    return [
        case(
            "copy: to where it lives",
            [VECTOR],
            [
                Copy(0, 1, 0, 0),
                Alloc(0, 2, 0, 1, "float32", -1),
                Kernel(0, ADD, (Reg(0), Reg(1), Reg(2)), N),
                Return(0, 2),
            ],
            Run([f32(1, 2)], f32(2, 4)),
        ),
        case(
            "copy: to another slot and back",
            [VECTOR],
            [Copy(0, 1, 0, 1), *back, Return(0, 3)],
            Run([f32(1, 2)], f32(2, 4)),
            Run([f32()], f32()),
            slots=both,
        ),
        case(
            "copy: a result in another slot",
            [VECTOR],
            [Copy(0, 1, 0, 1), Return(0, 1)],
            Run([f32(1, 2)], f32(1, 2)),
            slots=both,
        ),
        case(
            "copy: a parameter that lives in another slot",
            [there],
            [
                Copy(0, 1, 0, 0),
                Alloc(0, 2, 0, 1, "float32", -1),
                Kernel(0, ADD, (Reg(1), Reg(1), Reg(2)), N),
                Return(0, 2),
            ],
            Run([f32(1, 2)], f32(2, 4)),
            slots=both,
        ),
        case(
            "copy: a constant of another slot, a view of it, and its items",
            [],
            [Const(0, 0, 0, 1), View(0, 1, 0, 0, 1, "int32", 1), Copy(0, 2, 1, 0), Return(0, 2)],
            Run([], np.array([0x3F800000, 0], np.int32)),
            heap=(2, 0),
            constants=(f32(1, 0),),
            slots=both,
        ),
        case(
            "copy: what is no tensor",
            [ANY],
            [Copy(0, 1, 0, 0), Return(0, 1)],
            Run([f32(1)], f32(1)),
            Run([(1, 2)], error="check"),
        ),
        case(
            "read: a tensor of no dimension",
            [scalar],
            [Read(0, 1, 0), Return(0, 1)],
            Run([np.array(-5, np.int8)], -5),
            Run([np.array(2**63 - 1)], 2**63 - 1),
            Run([np.array(2**64 - 1, np.uint64)], 2**64 - 1),
            Run([np.array(0.1, np.float32)], float(np.float32(0.1))),
            Run([np.array(True)], True),
        ),
        case(
            "read: what has dimensions",
            [ANY],
            [Read(0, 1, 0), Return(0, 1)],
            Run([np.array(1.5)], 1.5),
            Run([f32(1)], error="check"),
            Run([5], error="check"),
        ),
        case(
            "read: the condition of a branch, of another slot",
            [BOOL],
            [
                Copy(0, 1, 0, 1),
                Read(0, 2, 1),
                If(0, 2, 1, 1),
                MakePrim(0, 3, 1, "int64"),
                MakePrim(0, 3, 2, "int64"),
                Return(0, 3),
            ],
            Run([np.array(True)], 1),
            Run([np.array(False)], 2),
            slots=both,
        ),
    ]


def kernels_cases() -> list[Case]:
    integer = PrimPattern("int64", M)
    return [
        case(
            "kernel: a scalar of the heap, and a literal",
            [integer],
            [
                Alloc(0, 1, 2, 1, "int64", -1),
                Kernel(0, COUNT, (Reg(1), M), -1),
                Alloc(0, 2, 2, 1, "int64", -1),
                Kernel(0, COUNT, (Reg(2), -5), 3),
                MakeTuple(0, 3, (1, 2)),
                Return(0, 3),
            ],
            Run([2**40], (i64(2**40, 2**40 + 1, 2**40 + 2), i64(-5, -4, -3))),
            heap=(0, 0, 3, 0),
        ),
        case(
            "kernel: a scalar of a register",
            [INT],
            [Alloc(0, 1, 2, 1, "int64", -1), Kernel(0, COUNT, (Reg(1), Reg(0)), -1), Return(0, 1)],
            Run([7], i64(7, 8, 9)),
            heap=(0, 0, 3, 0),
        ),
        case(
            "kernel: sizes that must agree",
            [VECTOR, OTHER],
            [
                Alloc(0, 2, 0, 1, "float32", -1),
                Kernel(0, ADD, (Reg(0), Reg(1), Reg(2)), N),
                Return(0, 2),
            ],
            Run([f32(1, 2), f32(3, 4)], f32(4, 6)),
            Run([f32(1, 2), f32(3)], error="check"),
            Run([f32(), f32()], f32()),
        ),
        case(
            "kernel: a size that is a formula",
            [VECTOR, OTHER],
            [
                Alloc(0, 2, 1, 1, "float32", -1),
                Kernel(0, DOUBLE, (Reg(0), Reg(2)), N),
                Return(0, 2),
            ],
            Run([f32(1, 2), f32(0, 0, 0, 0)], f32(1, 1, 2, 2)),
            Run([f32(1, 2), f32(0, 0, 0)], error="check"),
        ),
        case(
            "kernel: its work is an estimate",
            [VECTOR],
            [
                Alloc(0, 1, 0, 1, "float32", -1),
                Kernel(0, ADD, (Reg(0), Reg(0), Reg(1)), op("mul", op("mul", N, 2**62), 2**62)),
                Return(0, 1),
            ],
            Run([f32(1, 2)], f32(2, 4)),
        ),
        case(
            "kernel: kernels in a row, large and small",
            [VECTOR],
            [
                Alloc(0, 1, 0, 1, "float32", 0),
                Kernel(0, ADD, (Reg(0), Reg(0), Reg(1)), op("mul", N, 1000000)),
                Alloc(0, 2, 0, 1, "float32", 1),
                Kernel(0, ADD, (Reg(1), Reg(0), Reg(2)), op("mul", N, 1000000)),
                Alloc(0, 3, 0, 1, "float32", -1),
                Kernel(0, ADD, (Reg(2), Reg(1), Reg(3)), 1),
                Return(0, 3),
            ],
            Run([f32(1, 2, 3)], f32(5, 10, 15)),
            storages=[op("mul", N, 4)] * 2,
        ),
        case(
            "graph: launches in planned storage, on sizes that come again",
            [VECTOR],
            [
                Alloc(0, 2, 0, 1, "float32", -1),
                Graph(0, 6, 0),
                Alloc(0, 1, 0, 1, "float32", 0),
                Kernel(0, ADD, (Reg(0), Reg(0), Reg(1)), N),
                View(0, 3, 1, 0, 1, "float32"),
                Alloc(0, 4, 0, 1, "float32", 1),
                Kernel(0, ADD, (Reg(3), Reg(0), Reg(4)), N),
                Kernel(0, ADD, (Reg(4), Reg(1), Reg(2)), N),
                Return(0, 2),
            ],
            Run([f32(1, -2)], f32(5, -10)),
            Run([f32(2, 3)], f32(10, 15)),
            Run([f32(*range(100))], f32(*range(0, 500, 5))),
            Run([f32()], f32()),
            Run([f32(1, -2)], f32(5, -10)),
            storages=[op("mul", N, 4)] * 2,
        ),
        case(
            "graph: an empty one, in an arm",
            [BOOL],
            [If(0, 0, 1, 0), Graph(0, 0, 0), Return(0, 0)],
            Run([np.array(True)], np.array(True)),
        ),
        case(
            "kernel: a parameter that is updated",
            [VECTOR],
            [Kernel(0, INCREASE, (Reg(0),), N), Return(0, 0)],
            Run([f32(1, 2)], f32(2, 3), after=[f32(2, 3)]),
            updated=[0],
        ),
        case(
            "kernel: two parameters that share memory, one of them updated",
            [VECTOR, ANY],
            [Kernel(0, INCREASE, (Reg(0),), N), Return(0, 1)],
            Run([f32(1, 2), 5], 5, after=[f32(2, 3), 5]),
            updated=[0],
        ),
        case(
            "library: an output in memory of its own",
            [VECTOR],
            [Alloc(0, 1, 0, 1, "float32", -1), Library(0, 0, (Reg(0), Reg(1))), Return(0, 1)],
            Run([f32(1, -2)], f32(-1, 2)),
            libraries=("suite.negate",),
        ),
        case(
            "library: in a storage, between kernels",
            [VECTOR],
            [
                Alloc(0, 1, 0, 1, "float32", 0),
                Library(0, 0, (Reg(0), Reg(1))),
                Alloc(0, 2, 0, 1, "float32", -1),
                Kernel(0, ADD, (Reg(1), Reg(1), Reg(2)), N),
                Return(0, 2),
            ],
            Run([f32(1, -2)], f32(-2, 4)),
            libraries=("suite.negate",),
            storages=[op("mul", N, 4)],
        ),
    ]
