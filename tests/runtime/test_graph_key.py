"""What a recording depends on, and which tensors may be moved."""

from __future__ import annotations

from collections.abc import Sequence

from relaxpy.runtime.bytecode import (
    Alloc,
    Const,
    Eval,
    FunctionCode,
    Graph,
    Heap,
    If,
    Instr,
    Kernel,
    KernelImage,
    KernelInfo,
    KernelParam,
    MakePrim,
    Move,
    PrimPattern,
    Reg,
    Return,
    View,
)
from relaxpy.runtime.graph_key import GraphKey, graph_key
from relaxpy.runtime.operands import analyse
from tests.runtime.support import f32, function, times

N = Heap(0)
IMAGE = (KernelImage("k", "k"),)
READ, WRITE = KernelParam("float32", (N,)), KernelParam("float32", (N,), access="write")
KERNELS = (
    KernelInfo("copy", IMAGE, (READ, WRITE)),
    KernelInfo("increase", IMAGE, (KernelParam("float32", (N,), access="read-write"),)),
    KernelInfo("fixed", IMAGE, (KernelParam("float32", (4,)), WRITE)),
    KernelInfo("fill", IMAGE, (WRITE, KernelParam("float32", None))),
)
COPY, INCREASE, FIXED, FILL = range(4)


def own(dst: int) -> Alloc:
    return Alloc(0, dst, 1, 1, "float32", -1)


def planned(dst: int) -> Alloc:
    return Alloc(0, dst, 1, 1, "float32", 0)


def copy(a: int, b: int, kernel: int = COPY) -> Kernel:
    return Kernel(0, kernel, (Reg(a), Reg(b)), N)


def key(before: Sequence[Instr], inside: Sequence[Instr], params: int = 1) -> GraphKey:
    """The key of a graph behind other instructions. The sizes of what is allocated are in slot 1."""
    body = [Eval(0, 1, times(0, 2)), *before, Graph(0, len(inside), 0), *inside, Return(0, 0)]
    code: FunctionCode = function(
        "main", [(f"p{i}", f32(N)) for i in range(params)], body, storages=[64], heap=(0, 0, 3)
    )
    at = next(at for at, instr in enumerate(code.code) if isinstance(instr, Graph))
    return graph_key(code, analyse(code), KERNELS, at)


def movable(found: GraphKey) -> tuple[list[int], list[int], list[int]]:
    return found.inputs, found.outputs, found.updated


def test_planned_storage_is_not_part_of_it() -> None:
    found = key([own(1)], [planned(2), copy(0, 2), copy(2, 1)])
    assert list(found.sizes) == ["s1", "r0.shape"]
    places = ["r0.buffer.handle", "r0.offset", "r1.buffer.handle", "r1.offset"]
    assert list(found.places) == places
    assert movable(found) == ([0], [1], [])


def test_a_kernel_of_one_size_is_not_told_it() -> None:
    found = key([own(1)], [copy(0, 1, FIXED)])
    assert list(found.sizes) == ["s1"]


def test_constants_and_constant_sizes_are_not_part_of_it() -> None:
    found = key([Const(0, 2, 0), Alloc(0, 1, 2, 1, "float32", -1)], [copy(2, 1)])
    assert list(found.sizes) == []
    assert list(found.places) == ["r1.buffer.handle", "r1.offset"]


def test_scalars_are_told_apart_by_their_text() -> None:
    """0.0 and -0.0 are equal, and True and 1."""
    found = key([own(1), MakePrim(0, 2, 1.5, "float32")], [Kernel(0, FILL, (Reg(1), Reg(2)), N)])
    assert "repr(r2)" in found.sizes
    sizes = key([own(1)], [Kernel(0, FILL, (Reg(1), Heap(0)), N)]).sizes
    assert "s0" in sizes


def test_what_is_updated_stays() -> None:
    assert movable(key([], [Kernel(0, INCREASE, (Reg(0),), N), copy(1, 0)], 2)) == ([1], [], [0])


def test_what_was_used_before_stays() -> None:
    """Its contents would be missing, or a view of it would be elsewhere."""
    assert movable(key([own(1), copy(0, 1)], [copy(1, 1)])) == ([], [], [1])
    viewed = [own(1), View(0, 2, 1, 1, 1, "float32")]
    assert movable(key(viewed, [copy(0, 2), copy(0, 1)])) == ([0], [], [2, 1])


def test_a_view_inside() -> None:
    inside = [View(0, 2, 0, 1, 1, "float32"), View(0, 3, 1, 1, 1, "float32"), copy(2, 3)]
    found = key([own(1)], inside)
    assert movable(found) == ([0], [1], [])
    assert list(found.sizes) == ["s1"]
    inside = [View(0, 2, 0, 1, 1, "float32"), View(0, 3, 2, 1, 1, "float32"), copy(1, 3)]
    assert movable(key([], inside, 2)) == ([1], [], [0])


def test_values_of_a_branch_move_and_aliases_stay() -> None:
    branch = [MakePrim(0, 3, True, "bool"), own(1), If(0, 3, 1, 1), Move(0, 2, 0), Move(0, 2, 1)]
    found = key([*branch, own(4)], [copy(2, 4)])
    assert movable(found) == ([2], [4], [])
    assert "r2.buffer.handle" in found.places
    assert movable(key([own(1), Move(0, 2, 0)], [copy(0, 1), copy(2, 1)])) == ([], [1], [])


def test_a_size_that_is_a_scalar_argument() -> None:
    code = function(
        "main",
        [("n", PrimPattern("int64", N))],
        [Alloc(0, 1, 0, 1, "float32", -1), Graph(0, 1, 0), Kernel(0, FILL, (Reg(1), Reg(0)), N), Return(0, 1)],
    )  # fmt: skip
    found = graph_key(code, analyse(code), KERNELS, 2)
    assert {"s0", "repr(r0)"} == {*found.sizes}
