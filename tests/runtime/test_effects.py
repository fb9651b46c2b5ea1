"""What instructions declare: what they read and set, what they name, and how they are printed."""

from __future__ import annotations

import re
from dataclasses import fields
from string import Formatter
from typing import get_type_hints

import pytest

from relaxpy.runtime import bytecode as bc
from relaxpy.runtime.effects import KINDS, NAMES, TABLES, reads, sets, sets_slots, written_slots
from relaxpy.runtime.executable import Executable
from tests.runtime.support import f32, function

H = bc.Heap
INSTRUCTIONS: list[tuple[bc.Instr, tuple[int, ...], int, tuple[int, ...]]] = [
    (bc.Const(0, 3, 7), (), 3, ()),
    (bc.Match(0, 2, f32(H(4), 5, H(6)), 0), (2,), -1, (4, 6)),
    (bc.Match(0, 2, bc.TuplePattern((bc.ShapePattern((H(1),), 1), bc.PrimPattern("int64", H(2)))), 0), (2,), -1, (1, 2)),
    (bc.Eval(0, 3, bc.IntOp("add", (H(1), 2))), (), -1, (3,)),
    (bc.Assert(0, H(1), H(2), 0), (), -1, ()),
    (bc.Alloc(0, 3, 5, 2, "float32", -1), (), 3, ()),
    (bc.View(0, 3, 2, 5, 2, "float32"), (2,), 3, ()),
    (bc.Copy(0, 3, 2, 1), (2,), 3, ()),
    (bc.Read(0, 3, 2), (2,), 3, ()),
    (bc.Kernel(0, 7, (bc.Reg(2), H(9), 5, bc.Reg(4), bc.Reg(2)), 0), (2, 4, 2), -1, ()),
    (bc.Library(0, 7, (bc.Reg(2), "text")), (2,), -1, ()),
    (bc.Packed(0, 3, 7, (bc.Reg(2), 1.5, True)), (2,), 3, ()),
    (bc.Call(0, 3, 7, (2, 4)), (2, 4), 3, ()),
    (bc.Closure(0, 3, 7, (2,)), (2,), 3, ()),
    (bc.Invoke(0, 3, 6, (2, 4)), (6, 2, 4), 3, ()),
    (bc.MakeTuple(0, 3, (2, 2)), (2, 2), 3, ()),
    (bc.Item(0, 3, 2, 9), (2,), 3, ()),
    (bc.MakeShape(0, 3, 5, 2), (), 3, ()),
    (bc.MakePrim(0, 3, H(8), "int64"), (), 3, ()),
    (bc.Move(0, 3, 2), (2,), 3, ()),
    (bc.If(0, 2, 4, 5), (2,), -1, ()),
    (bc.Graph(0, 4, 1), (), -1, ()),
    (bc.Kill(0, (2, 3)), (), -1, ()),
    (bc.Return(0, 2), (2,), -1, ()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("instr", "read", "made", "slots"), INSTRUCTIONS, ids=lambda v: type(v).__name__
)
def test_reads_and_sets(
    instr: bc.Instr, read: tuple[int, ...], made: int, slots: tuple[int, ...]
) -> None:
    assert (*reads(instr),) == read
    assert sets(instr) == made
    assert (*sets_slots(instr),) == slots


def test_all_instructions_are_here() -> None:
    assert {type(instr) for instr, *_ in INSTRUCTIONS} == {*bc.INSTRUCTIONS} == {*KINDS}
    assert {cls for cls in vars(bc).values() if isinstance(cls, type) and issubclass(cls, bc.Instr)} == {
        bc.Instr, *bc.INSTRUCTIONS,
    }  # fmt: skip


def test_no_index_or_register_is_a_bare_number() -> None:
    """A plain `Index` says nothing: of these fields alone, which count and name nothing of the program."""
    bare = {
        f"{cls.__name__}.{field}"
        for cls, kinds in KINDS.items()
        for field, kind in kinds.items()
        if kind in ("Index", "tuple[Index, ...]", "int", "OrNone") and field != "loc"
    }
    assert bare == {"Item.index", "If.then_len", "If.else_len", "Graph.length"}


def test_annotations_that_walks_ask_for_are_names_of_the_bytecode() -> None:
    asked = {
        "Dst",
        "Src",
        "Srcs",
        "Operands",
        "Dead",
        "HeapDst",
        "HeapStart",
        "CheckIndex",
        "StorageOrNone",
        *TABLES,
    }
    assert asked <= vars(bc).keys()
    used = {kind for kinds in KINDS.values() for kind in kinds.values()}
    assert asked <= used
    for cls in bc.INSTRUCTIONS:
        assert get_type_hints(cls, include_extras=True).keys() >= {
            field.name for field in fields(cls)
        }


def test_tables_are_the_executables() -> None:
    assert {table for table, _ in TABLES.values()} <= {field.name for field in fields(Executable)}
    assert NAMES[bc.Copy] == [("slot", "SlotIndex")]
    assert NAMES[bc.Assert] == [("lhs", "IntExpr"), ("rhs", "IntExpr"), ("check", "CheckIndex")]


@pytest.mark.parametrize(
    "instr", [instr for instr, *_ in INSTRUCTIONS], ids=lambda v: type(v).__name__
)
def test_texts_name_fields(instr: bc.Instr) -> None:
    """Each field that a text names is one of its own; a register that it sets or reads is always shown."""
    text = instr.text()
    named = {name for _, name, _, _ in Formatter().parse(text) if name}
    assert text
    assert named <= {*KINDS[type(instr)], "on"}
    shown = {
        name
        for name, kind in KINDS[type(instr)].items()
        if re.fullmatch("Dst|Srcs?|Operands|Dead|HeapDst", kind)
    }
    assert shown <= named


def test_slots_that_code_sets() -> None:
    code = function(
        "main", [("x", f32(H(0)))], [bc.Eval(0, 2, H(0)), bc.Return(0, 0)], heap=(0, 7, 0)
    )
    assert written_slots(code) == {0, 2}
