"""The operands of instructions, read, set and named, by the annotations of their fields (`relaxpy.runtime.bytecode`).

    reads(Item(0, dst=3, src=1, index=0)) == (1,)
    sets(Item(0, dst=3, src=1, index=0)) == 3

Whoever walks over code asks here. Only those who run an instruction, or know more of its value, match on its class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from relaxpy.runtime import bytecode as bc

Registers = Callable[[Any], Sequence[int]]

KINDS: Mapping[type[bc.Instr], Mapping[str, str]] = {
    cls: {field.name: str(field.type) for field in fields(cls)} for cls in bc.INSTRUCTIONS
}
"""Instruction → field → the name of its annotation, which says what it is."""

TABLES: Mapping[str, tuple[str, str]] = {
    "ConstantIndex": ("constants", "constant"),
    "KernelIndex": ("kernels", "kernel"),
    "LibraryIndex": ("libraries", "library function"),
    "PackedIndex": ("packed", "function by name"),
    "FunctionIndex": ("functions", "function"),
    "SlotIndex": ("slots", "slot"),
}
"""Annotation → the table of the executable that it is an index of, and what that has."""

NAMES: Mapping[type[bc.Instr], Sequence[tuple[str, str]]] = {
    cls: [
        (name, kind)
        for name, kind in kinds.items()
        if kind in {*TABLES, "CheckIndex", "IntExpr", "Operands"}
    ]
    for cls, kinds in KINDS.items()
}
"""Instruction → the fields, with their annotations, that name entries of tables or slots of the heap."""


def registers(operands: Sequence[bc.Operand]) -> tuple[int, ...]:
    """The registers among the operands of a call."""
    return tuple([arg.index for arg in operands if isinstance(arg, bc.Reg)])


def _reads(kinds: Mapping[str, str]) -> Registers:
    """The registers of an instruction with these fields."""
    parts = [
        (kind, attrgetter(name))
        for name, kind in kinds.items()
        if kind in ("Src", "Srcs", "Operands")
    ]
    match parts:
        case []:
            return lambda _: ()
        case [("Src", get)]:
            return lambda instr: (get(instr),)
        case [("Srcs", get)]:
            return get
        case [("Operands", get)]:
            return lambda instr: registers(get(instr))
        case [("Src", one), ("Srcs", more)]:
            return lambda instr: (one(instr), *more(instr))
        case _:
            raise AssertionError(f"no way to read {kinds}")


READS = {cls: _reads(kinds) for cls, kinds in KINDS.items()}
"""Instruction → its `reads`, for those who ask for every instruction of an executable."""
_SETS = {cls for cls, kinds in KINDS.items() if kinds.get("dst") == "Dst"}
_SETS_SLOTS = {bc.Eval, bc.Match}


def reads(instr: bc.Instr) -> Sequence[int]:
    """The registers that an instruction reads, in the order of its fields."""
    return READS[type(instr)](instr)


def sets(instr: Any) -> int:
    """The register that an instruction sets; -1 if there is none."""
    return instr.dst if type(instr) in _SETS else -1


def sets_slots(instr: bc.Instr) -> Sequence[int]:
    """Heap slots that an instruction sets."""
    if isinstance(instr, bc.Eval):
        return (instr.dst,)
    return pattern_slots(instr.pattern) if isinstance(instr, bc.Match) else ()


def written_slots(code: bc.FunctionCode) -> frozenset[int]:
    """Heap slots that instructions set; all others are constant."""
    setting = [instr for instr in code.code if type(instr) in _SETS_SLOTS]
    return frozenset(slot for instr in setting for slot in sets_slots(instr))


def pattern_slots(pattern: bc.Pattern) -> list[int]:
    """Heap slots that a pattern binds."""
    match pattern:
        case bc.TensorPattern(shape=sizes) | bc.ShapePattern(dims=sizes):
            return [size.index for size in sizes or () if isinstance(size, bc.Heap)]
        case bc.PrimPattern(value=bc.Heap(index)):
            return [index]
        case bc.TuplePattern(fields):
            return [slot for item in fields for slot in pattern_slots(item)]
        case _:
            return []
