"""Writes the code of calls about values of data types (`relaxpy.runtime.data`) in place: making one, asking for its
constructor and reading a field take a tenth of a call's time."""

from __future__ import annotations

from collections.abc import Callable

from relaxpy.runtime.bytecode import Packed, Reg
from relaxpy.runtime.data import KEY


def data_lines(name: str, instr: Packed, class_of: Callable[[str], str]) -> list[str]:
    """The lines of a call of this function; none where the function itself has to be called, as for an error.
    `class_of` gives the name of a constructor's class."""
    match name, instr.args:
        case "relaxpy.data.make", (str() as key, *fields) if _count(key) == len(fields):
            shown = [f"r{field.index}" for field in fields if isinstance(field, Reg)]
            if len(shown) < len(fields):
                return []
            inner = f"({', '.join(shown)},)" if shown else "()"
            return [f"r{instr.dst} = make_tuple({class_of(key)}, {inner})"]
        case "relaxpy.data.is", (str() as key, Reg(index)) if _count(key) >= 0:
            return [f"r{instr.dst} = r{index}.__class__ is {class_of(key)}"]
        case "relaxpy.data.field", (str() as key, Reg(index), int() as number):
            if not 0 <= number < _count(key):
                return []
            return [
                f"if r{index}.__class__ is not {class_of(key)}: p{instr.index}({class_of(key)}.key, r{index}, 0)",
                f"r{instr.dst} = item_of(r{index}, {number})",
            ]
        case _:
            return []


def _count(key: str) -> int:
    """The number of fields of a constructor; -1: the name is none of a constructor."""
    found = KEY.fullmatch(key)
    if found is None:
        return -1
    return len(found[3].split(", ")) if found[3] else 0
