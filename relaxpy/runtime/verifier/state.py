"""The verifier's abstract state at the current instruction of a function: registers, heap slots, values.

Registers related by a move share a value. At the end of a branch's arm, its assignments and the facts from its checks
are undone (`relaxpy.runtime.sizes`) and joined with those of the other arm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from relaxpy.runtime.bytecode import HOST, FunctionCode, Heap, IntExpr, IntOp
from relaxpy.runtime.effects import written_slots
from relaxpy.runtime.integers import ARITY
from relaxpy.runtime.sizes import Size, Sizes, number, value_of

if TYPE_CHECKING:
    from relaxpy.runtime.executable import Executable

MOST_NESTED = 150
"""The deepest nesting of operations in a formula."""
MOST_NESTED_TUPLES = 250
"""That of tuples in a pattern."""


@dataclass(frozen=True, slots=True)
class Value:
    """An abstract value: the known facts about a value."""

    kind: str = ""
    """`tensor`, `shape`, `scalar`, `tuple`, `function`; "": unknown."""
    dtype: str = ""
    dims: tuple[Size, ...] | None = None
    """The dimensions of a tensor or shape. For a scalar, its own value if it is a known integer."""
    fields: tuple[Token, ...] | None = None
    writable: bool = False
    """Whether its memory may be written to."""
    planned: bool = False
    """Whether it is in the frame's storage and must not leave the call."""
    leaves: int = 1
    """The number of values in it, including nested tuples. A value that is contained several times counts each time."""
    start: int = -1
    """For a tensor whose shape kernels read from the heap: the first slot."""
    slot: int = -1
    """The slot of a tensor; -1: unknown."""
    constant: bool = False
    """Whether it is known to be in the memory of one of the executable's constants."""


class Token:
    """The identity of a value at run time. Registers related by a move share it."""

    __slots__ = ()


class Refuted(Exception):
    """Raised for an invalid instruction."""


def within(index: int, table: Sequence[object], what: str) -> None:
    if not 0 <= index < len(table):
        raise Refuted(f"there is no {what} {index}, but {len(table)} of them")


def formula(expr: IntExpr, slot: Callable[[int], object]) -> None:
    """Checks the number of operands of each operation in a formula. `slot` is called with each slot."""
    if type(expr) is int:
        return
    level: list[IntExpr] = [expr]
    for _ in range(MOST_NESTED + 1):
        below: list[IntExpr] = []
        for each in level:
            if isinstance(each, Heap):
                slot(each.index)
            elif isinstance(each, IntOp):
                arity, given = ARITY.get(each.op, 2), len(each.args)
                if given < 2 if arity == -2 else given != arity:
                    raise Refuted(f"the operation {each.op} has {given} operands")
                below += each.args
        if not below:
            return
        level = below
    raise Refuted(f"a formula is nested more than {MOST_NESTED} operations deep")


Made: TypeAlias = "dict[int, tuple[Token, Value] | None]"
"""The registers that an arm changed, and their new values; None: the register is no longer set."""


@dataclass(slots=True)
class Branch:
    """An enclosing `If` during the walk."""

    at: int
    middle: int
    end: int
    """The end of its second arm, where the walk continues."""
    outer: int
    """The end of the enclosing block."""
    mark: int
    """The position in the undo trail of the sizes at the start of the arm."""
    then: Made | None = None
    """The registers that the first arm set; None until it was walked."""
    slots: dict[int, Size] = field(default_factory=dict[int, Size])
    """The heap slots that the first arm set."""


class State:
    """The abstract state of a function at the current instruction."""

    def __init__(self, exe: Executable, code: FunctionCode) -> None:
        self.exe = exe
        self.code = code
        self.at = -1
        self.sizes = Sizes()
        self.regs: dict[int, Token] = {}
        self.values: dict[Token, Value] = {}
        written = written_slots(code)
        self.slots: dict[int, Size] = {
            slot: number(value) for slot, value in enumerate(code.heap_init) if slot not in written
        }
        self.only_host = all(slot.kind == exe.slots[HOST].kind for slot in exe.slots)
        self.rewritten = False
        """Whether a slot was set a second time."""

    # The values of registers and slots

    def new(self, value: Value) -> Token:
        token = Token()
        self.values[token] = value
        return token

    def learn(self, token: Token, value: Value) -> None:
        """Adds facts about a value."""
        self.sizes.put(self.values, token, value)

    def read(self, reg: int) -> Token:
        token = self.regs.get(reg)
        if token is None:
            raise Refuted(f"register {reg} is read and not set, on some way here at least")
        return token

    def define(self, reg: int, value: Value | Token) -> None:
        if reg >= self.code.num_regs:
            raise Refuted(f"there is no register {reg}, but {self.code.num_regs} of them")
        token = value if isinstance(value, Token) else self.new(value)
        self.sizes.put(self.regs, reg, token)

    def slot(self, index: int) -> Size:
        within(index, self.code.heap_init, "heap slot")
        size = self.slots.get(index)
        if size is None:
            raise Refuted(f"heap slot {index} is read and not set, on some way here at least")
        return size

    def set_slot(self, index: int, size: Size) -> None:
        within(index, self.code.heap_init, "heap slot")
        self.rewritten |= index in self.slots
        self.sizes.put(self.slots, index, size)

    def dims(self, start: int, count: int) -> tuple[Size, ...]:
        return tuple(self.slot(slot) for slot in range(start, start + count))

    def size(self, expr: IntExpr) -> Size:
        if type(expr) is int:
            return number(expr)
        formula(expr, self.slot)
        return self.sizes.of(expr, self.slot)

    def refuted(self, size: Size, problem: str) -> None:
        """Raises an error if a size that must not be negative is a negative number."""
        known = value_of(size)
        if known is not None and known < 0 and not self.sizes.contradictory:
            raise Refuted(f"{problem}, by {-known}")

    def home(self, slot: int) -> int:
        """A slot of the executable. Slots on the host are mapped to the same number."""
        within(slot, self.exe.slots, "slot")
        return HOST if self.exe.slots[slot].kind == self.exe.slots[HOST].kind else slot

    # Branches

    def leave(self, branches: list[Branch], at: int) -> int:
        """Called at the end of an arm. Returns the end of the block where the walk continues."""
        branch = branches[-1]
        self.at = branch.at
        made: Made = {}
        for reg in self.sizes.changed(branch.mark, self.regs):
            token = self.regs.get(reg)
            made[reg] = None if token is None else (token, self.values[token])
        slots: dict[int, Size] = self.sizes.changed(branch.mark, self.slots)
        self.sizes.undo(branch.mark)
        if branch.then is None:
            branch.then, branch.slots = made, slots
            return branch.end
        branches.pop()
        for slot in branch.slots.keys() | slots.keys():
            sizes = [arm.get(slot, self.slots.get(slot)) for arm in (branch.slots, slots)]
            if sizes[0] is not None and sizes[1] is not None:
                self.sizes.put(self.slots, slot, self.either(sizes[0], sizes[1]))
        for reg in branch.then.keys() | made.keys():
            token = self.regs.get(reg)
            before = None if token is None else (token, self.values[token])
            one, two = branch.then.get(reg, before), made.get(reg, before)
            if one is None or two is None:
                self.sizes.put(self.regs, reg)
            else:
                same = one[0] is two[0]
                joined = one[0] if same else self.new(self.joined(one[1], two[1]))
                self.sizes.put(self.regs, reg, joined)
        return branch.outer

    def either(self, a: Size, b: Size) -> Size:
        """A size that is one of two."""
        if self.sizes.are_equal(a, b):
            return a
        sign = self.sizes.is_at_least_0(a) and self.sizes.is_at_least_0(b)
        return self.sizes.fresh(0 if sign else None)

    def joined(self, a: Value, b: Value) -> Value:
        """The facts that hold for both of two values."""
        if a.kind != b.kind or a.kind not in ("tensor", "tuple"):
            return Value(planned=a.planned or b.planned)
        planned, writable = a.planned or b.planned, a.writable and b.writable
        fields: tuple[Token, ...] | None = None
        dims: tuple[Size, ...] | None = None
        if a.fields is not None and b.fields is not None and len(a.fields) == len(b.fields):
            pairs = zip(a.fields, b.fields, strict=True)
            fields = tuple(
                x if x is y else self.new(self.joined(self.values[x], self.values[y]))
                for x, y in pairs
            )
        if a.dims is not None and b.dims is not None and len(a.dims) == len(b.dims):
            dims = tuple(map(self.either, a.dims, b.dims))
        dtype = a.dtype if a.dtype == b.dtype else ""
        leaves = max(a.leaves, b.leaves)
        slot = a.slot if a.slot == b.slot else -1
        constant = a.constant and b.constant
        return Value(
            a.kind, dtype, dims, fields, writable, planned, leaves, slot=slot, constant=constant
        )
