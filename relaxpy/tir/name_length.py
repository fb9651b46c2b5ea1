"""The lengths of values with their names expanded.

TVM's analyser replaces the name of an integer by its value wherever the name is used, recursively: the time doubles
with every name that is used twice in the value of another.
"""

from __future__ import annotations

from typing import Any

from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import walk

LONGEST = 32
"""The most variables in an integer, with names expanded, up to which the analyser may know its value."""


class NameLengths:
    """The lengths of names whose values are known; for others, and for plain variables, it is 1."""

    def __init__(self) -> None:
        self._lengths: dict[tvm.ir.Var, int] = {}

    def keeps(self, var: tvm.ir.Var, value: Any) -> bool:
        """Is the value short enough for the analyser to know it? Call it in the order of definitions, once for each
        name."""
        length = 0

        def count(used: tvm.ir.Var) -> None:
            nonlocal length
            length += self._lengths.get(used, 1)

        def within(node: tirx.Let) -> None:
            if node.var not in self._lengths:
                self.keeps(node.var, node.value)

        walk(value, (tirx.Let, within), (tvm.ir.Var, count))
        self._lengths[var] = max(1, length) if length <= LONGEST else 1
        return length <= LONGEST


def has_long_values(func: tirx.PrimFunc) -> bool:
    """Does the function bind an integer that is too long with names expanded?"""
    lengths = NameLengths()
    found: list[bool] = []

    def bind(node: tirx.Bind | tirx.Let) -> None:
        found.append(not lengths.keeps(node.var, node.value))

    walk(func.body, ((tirx.Bind, tirx.Let), bind))
    return any(found)
