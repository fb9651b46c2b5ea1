"""Liveness of tensors: the tensors that each instruction uses, and the last use of each tensor.

Tensors are those of `Alloc` instructions, identified by the instruction's index. They are followed through views,
tuples, moves and branches. The result of a call or a library is a new value.
"""

from __future__ import annotations

from relaxpy.runtime.bytecode import Alloc, FunctionCode, Item, Kill, MakeTuple
from relaxpy.runtime.operands import Analysis, Value, analyse


class Lifetimes:
    """The uses of each tensor of a function."""

    def __init__(self, code: FunctionCode, analysis: Analysis | None = None) -> None:
        found = analysis or analyse(code)
        self._roots: dict[Value, frozenset[int]] = {}
        self._fields: dict[Value, tuple[Value, ...]] = {}
        """The fields of tuples that this function builds."""
        self.taken: list[frozenset[int]] = []
        """For each instruction, the tensors that it uses. A `Kill` uses none."""
        self.last: dict[int, int] = {}
        """Tensor → the last instruction that uses it."""
        for at, instr in enumerate(code.code):
            reads = found.reads.get(at, ())
            made = found.defines.get(at)
            if isinstance(instr, Item) and (fields := self._fields.get(reads[0])) is not None:
                # An item of a tuple that this function built is one field, so only that field is used.
                reads = (fields[instr.index],)
                if made is not None and (inner := self._fields.get(reads[0])) is not None:
                    self._fields[made] = inner
            elif made is not None and isinstance(instr, MakeTuple):
                self._fields[made] = reads
            taken = frozenset[int]().union(*map(self._roots_of, reads))
            if made is not None and isinstance(instr, Alloc):
                self._roots[made] = frozenset({at})
            elif made is not None and instr.ALIASES:
                self._roots[made] = taken
            if isinstance(instr, Kill):
                taken = frozenset()
            self.taken.append(taken)
            self.last.update(dict.fromkeys(taken, at))

    def _roots_of(self, value: Value) -> frozenset[int]:
        """The tensors whose memory a value is or contains."""
        if value.arms:
            return frozenset[int]().union(*map(self._roots_of, value.arms))
        return self._roots.get(value, frozenset())
