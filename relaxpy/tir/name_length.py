"""How long values are with the names in them written out.

TVM's analyser knows what the name of an integer means and writes that in wherever the name is used, names within
included: time doubles with every name that is used twice in the value of another.
"""

from __future__ import annotations

from typing import Any

from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import walk

LONGEST = 32
"""Variables in an integer, names written out, up to which the analyser may know what its name means."""


class NameLengths:
    """The lengths of names that keep their meaning; of others, and of plain variables, it is 1."""

    def __init__(self) -> None:
        self._lengths: dict[tvm.ir.Var, int] = {}

    def keeps(self, var: tvm.ir.Var, value: Any) -> bool:
        """Is the value short enough for its name to keep its meaning? To be asked in the order of definitions, once of
        each name."""
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
