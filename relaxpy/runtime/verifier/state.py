"""The verifier's abstract state of a function at the current instruction: registers, heap slots, values.

Registers that are moved share a value. The assignments of an arm of a branch, and the facts that its checks establish,
are undone at its end (`relaxpy.runtime.sizes`), and joined with those of the other arm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from relaxpy.runtime.bytecode import HOST, FunctionCode, Heap, IntExpr, IntOp, Operand, Reg
from relaxpy.runtime.integers import ARITY
from relaxpy.runtime.operands import written_slots
from relaxpy.runtime.sizes import Size, Sizes, number, value_of

if TYPE_CHECKING:
    from relaxpy.runtime.executable import Executable

MOST_NESTED = 150
"""Operations in a formula, or tuples in a pattern, one in the other."""


@dataclass(frozen=True, slots=True)
class Value:
    """The abstract value: the facts that are known of a value."""

    kind: str = ""
    """`tensor`, `shape`, `scalar`, `tuple`, `function`; "": anything."""
    dtype: str = ""
    dims: tuple[Size, ...] | None = None
    """Of a tensor or shape; of a scalar its own value, if it is an integer that is known."""
    fields: tuple[Token, ...] | None = None
    writable: bool = False
    """Memory that may be written to."""
    planned: bool = False
    """It lies in the frame, and may not leave the call."""
    leaves: int = 1
    """Values in it, those of tuples in tuples too: one may be contained many times."""
    start: int = -1
    """Of a tensor whose shape kernels read from the heap: the first slot."""
    slot: int = -1
    """Where a tensor lives; -1: not known."""
    constant: bool = False
    """Certainly the memory of one of the executable's constants."""


class Token:
    """A value of a run: registers that are moved share it."""

    __slots__ = ()


class Refuted(Exception):
    """An instruction is not valid."""


def within(index: int, table: Sequence[object], what: str) -> None:
    if not 0 <= index < len(table):
        raise Refuted(f"there is no {what} {index}, but {len(table)} of them")


def formula(expr: IntExpr, slot: Callable[[int], object]) -> None:
    """Compare the operations of a formula with how many operands they take; `slot` is called with each slot."""
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
"""Registers that an arm has set, and with what; None: it is not set any more."""


@dataclass(slots=True)
class Branch:
    """An `If` that the walk is in."""

    at: int
    middle: int
    end: int
    """Where its second arm ends, and the walk goes on."""
    outer: int
    """Where the block around it ends."""
    mark: int
    """The position in the undo trail of the sizes where the arm begins."""
    then: Made | None = None
    """Registers that the first arm has set; None until it was walked."""
    slots: dict[int, Size] = field(default_factory=dict[int, Size])
    """Heap slots that the first arm has set."""


class State:
    """See the module."""

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
        """A slot was set a second time."""

    # What registers and slots hold

    def new(self, value: Value) -> Token:
        token = Token()
        self.values[token] = value
        return token

    def learn(self, token: Token, value: Value) -> None:
        """From here on, this is known of a value."""
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

    def check(self, index: int) -> None:
        within(index, self.code.checks, "check")

    def operands(self, args: Sequence[Operand]) -> None:
        for arg in args:
            if isinstance(arg, Reg):
                self.read(arg.index)
            elif isinstance(arg, Heap):
                self.slot(arg.index)

    def refuted(self, size: Size, problem: str) -> None:
        """Complain if a size that should not be negative is a negative number."""
        known = value_of(size)
        if known is not None and known < 0:
            raise Refuted(f"{problem}, by {-known}")

    def home(self, slot: int) -> int:
        """A slot of the executable; for all that are memory of the host the same."""
        within(slot, self.exe.slots, "slot")
        return HOST if self.exe.slots[slot].kind == self.exe.slots[HOST].kind else slot

    # Branches

    def leave(self, branches: list[Branch], at: int) -> int:
        """The walk is at the end of an arm. Gives where the block that it goes on in ends."""
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
        """One of two sizes."""
        if self.sizes.are_equal(a, b):
            return a
        sign = self.sizes.is_at_least_0(a) and self.sizes.is_at_least_0(b)
        return self.sizes.fresh(0 if sign else None)

    def joined(self, a: Value, b: Value) -> Value:
        """One of two values."""
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
