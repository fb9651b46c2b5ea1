"""Which tensors each instruction of a function takes, and which of them it takes last.

Said of the tensors that `Alloc` makes, by the number of that instruction. They are followed through views, tuples,
moves and branches; what a call or a library gives is something new.
"""

from __future__ import annotations

from relaxpy.runtime.bytecode import Alloc, FunctionCode, Item, Kill, MakeTuple, View
from relaxpy.runtime.operands import Analysis, Value, analyse


class Lifetimes:
    """See the module."""

    def __init__(self, code: FunctionCode, analysis: Analysis | None = None) -> None:
        found = analysis or analyse(code)
        self._roots: dict[Value, frozenset[int]] = {}
        self._fields: dict[Value, tuple[Value, ...]] = {}
        """Of tuples that are put together here: their fields."""
        self.taken: list[frozenset[int]] = []
        """For each instruction the tensors that it takes; a `Kill` takes none."""
        self.last: dict[int, int] = {}
        """Tensor → the last instruction that takes it."""
        for at, instr in enumerate(code.code):
            reads = found.reads.get(at, ())
            made = found.defines.get(at)
            if isinstance(instr, Item) and (fields := self._fields.get(reads[0])) is not None:
                # Of a tuple that was put together here an item is one of its fields, and takes no other.
                reads = (fields[instr.index],)
                if made is not None and (inner := self._fields.get(reads[0])) is not None:
                    self._fields[made] = inner
            elif made is not None and isinstance(instr, MakeTuple):
                self._fields[made] = reads
            taken = frozenset[int]().union(*map(self._roots_of, reads))
            if made is not None and isinstance(instr, Alloc):
                self._roots[made] = frozenset({at})
            elif made is not None and isinstance(instr, (View, MakeTuple, Item)):
                self._roots[made] = taken
            if isinstance(instr, Kill):
                taken = frozenset()
            self.taken.append(taken)
            self.last.update(dict.fromkeys(taken, at))

    def _roots_of(self, value: Value) -> frozenset[int]:
        """The tensors whose memory a value is, or contains."""
        if value.arms:
            return frozenset[int]().union(*map(self._roots_of, value.arms))
        return self._roots.get(value, frozenset())
