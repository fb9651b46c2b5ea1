"""Writes the code of calls about values of data types (`relaxpy.runtime.data`) in place: making one, asking for its
constructor and reading a field take a tenth of a call's time."""

from __future__ import annotations

from collections.abc import Sequence

from relaxpy.runtime.bytecode import Packed, Reg
from relaxpy.runtime.data import KEY


class DataLines:
    """Writes these calls in one function."""

    def __init__(self, packed: Sequence[str]) -> None:
        self._packed = packed
        self.classes: dict[str, str] = {}
        """Constructor of a data type → the name of its class."""

    def is_test(self, instr: Packed) -> bool:
        """Does a call give a Python bool?"""
        return instr.index < len(self._packed) and self._packed[instr.index] == "relaxpy.data.is"

    def lines(self, instr: Packed) -> list[str]:
        """The lines of a call; none where the function itself has to be called, as for an error."""
        name = self._packed[instr.index] if instr.index < len(self._packed) else ""
        dst = f"r{instr.dst}"
        match name, instr.args:
            case "relaxpy.data.make", (str() as key, *fields) if _count(key) == len(fields):
                given = [f"r{each.index}" for each in fields if isinstance(each, Reg)]
                if len(given) < len(fields):
                    return []
                inner = f"({', '.join(given)},)" if given else "()"
                return [f"{dst} = make_tuple({self.class_of(key)}, {inner})"]
            case "relaxpy.data.is", (str() as key, Reg(index)) if _count(key) >= 0:
                return [f"{dst} = r{index}.__class__ is {self.class_of(key)}"]
            case "relaxpy.data.field", (str() as key, Reg(index), int() as number) if (
                0 <= number < _count(key)
            ):
                made = self.class_of(key)
                other = f"if r{index}.__class__ is not {made}"
                return [
                    f"{other}: p{instr.index}({made}.key, r{index}, 0)",
                    f"{dst} = item_of(r{index}, {number})",
                ]
            case _:
                return []

    def class_of(self, key: str) -> str:
        """The name of the class of a constructor."""
        return self.classes.setdefault(key, f"D{len(self.classes)}")


def _count(key: str) -> int:
    """The number of fields of a constructor; -1: the name is none of a constructor."""
    found = KEY.fullmatch(key)
    if found is None:
        return -1
    return len(found[3].split(", ")) if found[3] else 0
