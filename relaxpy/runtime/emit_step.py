"""Writes the steps of loops: tail calls of a function by itself.

The parameters are matched once, before the loop. A step assigns the arguments to the parameters, and matches those that
it changes. Sizes that are the same by the instructions that made the argument are not looked at again.

A variable whose tensors are made by the loop, have the same sizes in every step, and are used by kernels only needs two
of them, which take turns: `last<i>` is the tensor of this step, if the loop made it, and `spare<i>` that of the step
before, which the next one may have. What leaves the loop is no longer used by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from relaxpy.runtime.bytecode import (
    Alloc,
    Assert,
    Eval,
    Heap,
    If,
    Instr,
    IntExpr,
    Kernel,
    Kill,
    MakePrim,
    Match,
    Move,
    PrimPattern,
    TensorPattern,
)
from relaxpy.runtime.effects import sets_slots
from relaxpy.runtime.integers import slots_of
from relaxpy.runtime.operands import Value

if TYPE_CHECKING:
    from relaxpy.runtime.link import Emitter, Scope


class StepLines:
    """Writes the steps of a function's loop."""

    def __init__(self, emitter: Emitter, calls: Collection[int]) -> None:
        self.to = emitter
        self.calls = calls
        """The tail calls that are steps."""
        code = emitter.code.code
        self.start = 0
        """The first instruction of the loop. Those before it match the parameters."""
        for at, instr in enumerate(code):
            if isinstance(instr, (Match, Assert)):
                self.start = at + 1
            elif not isinstance(instr, (Eval, Move, Kill)):
                break
        makers = emitter.info.defines.items()
        self.made = {
            value: code[at] for at, value in makers if isinstance(code[at], (Alloc, MakePrim))
        }
        """The instructions that make tensors of known shape, and scalars."""
        self.takers: dict[int, set[int]] = {}
        """Variables with two tensors that take turns, and the instructions that make them."""
        self.spares: dict[int, str] = {}
        """These instructions, and the tensor that they may use."""
        self.same = self._equal_slots(code)
        """Slots that have the value of another, and which."""

    def begin(self) -> None:
        """Write what precedes the loop."""
        if self.to.takes_turns:
            self._find_turns()
        for param, makers in self.takers.items():
            self.to.emit(f"spare{param} = last{param} = None")
            self.spares |= dict.fromkeys(makers, f"spare{param}")

    def _find_turns(self) -> None:
        info, code = self.to.info, self.to.code.code
        made_at = {value: at for at, value in info.defines.items() if isinstance(code[at], Alloc)}
        readers: dict[Value, list[int]] = {}
        joined: dict[Value, list[Value]] = {}
        """Values that may be one of the arms of a branch, and what is read behind it."""
        for at, values in info.reads.items():
            for value in values:
                readers.setdefault(value, []).append(at)
                waiting = list(value.arms)
                while waiting:
                    arm = waiting.pop()
                    joined.setdefault(arm, []).append(value)
                    waiting += arm.arms

        leading = self._leading()

        def is_kept(value: Value, param: int = -1) -> bool:
            """Is a value used by kernels only, until the loop ends? It may stay this parameter."""
            for at in readers.get(value, ()):
                given = info.reads[at]
                stays = at in self.calls and given.count(value) == 1 and param >= 0
                if at not in leading or (stays and given[param] is value):
                    continue
                if not isinstance(code[at], (Match, Kernel, Kill, Move)):
                    return False
            return True

        patterns = {
            info.reads[at][0]: instr.pattern
            for at, instr in reversed([*enumerate(code[: self.start])])
            if isinstance(instr, Match)
        }
        for param, value in enumerate(info.params):
            pattern = patterns.get(value)
            if not isinstance(pattern, TensorPattern) or not self.to.devices[pattern.slot].shared:
                continue
            kept = is_kept(value, param) and all(map(is_kept, joined.get(value, ())))
            for call in self.calls if kept else ():
                given = info.reads[call][param]
                at = made_at.get(given, -1)
                maker = code[at] if at >= 0 else None
                if (
                    isinstance(maker, Alloc)
                    and maker.storage < 0
                    and given not in joined
                    and info.reads[call].count(given) == 1
                    and all(
                        each == call or isinstance(code[each], (Kernel, Kill))
                        for each in readers[given]
                    )
                    and self.fits(pattern, maker, set())
                ):
                    self.takers.setdefault(param, set()).add(at)

    def _leading(self) -> set[int]:
        """The instructions after which another step may follow."""
        code = self.to.code.code
        branches = [(at, instr) for at, instr in enumerate(code) if isinstance(instr, If)]
        found: set[int] = set()
        for call in self.calls:
            before = set(range(call + 1))
            for at, branch in branches:
                middle = at + 1 + branch.then_len
                if middle <= call < middle + branch.else_len:
                    before.difference_update(range(at + 1, middle))
            found |= before
        return found

    def _equal_slots(self, code: Sequence[Instr]) -> dict[int, int]:
        writers = Counter(slot for instr in code for slot in sets_slots(instr))
        same: dict[int, int] = {}
        for at, instr in enumerate(code):
            match instr:
                case Eval(dst=slot, expr=Heap(other)):
                    pass
                case Assert(lhs=Heap(slot), rhs=Heap(other)) if at < self.start:
                    pass
                case _:
                    continue
            if writers[slot] == 1 and writers[other] <= 1:
                same[slot] = other
        return same

    def size(self, slot: int) -> IntExpr:
        """The number that a slot holds, or the first slot of the same value."""
        seen: set[int] = set()
        while slot in self.same and slot not in seen:
            seen.add(slot)
            slot = self.same[slot]
        return self.to.fold(Heap(slot))

    def step(self, at: int, args: Sequence[int], scope: Scope) -> None:
        """Write a step, which ends with `continue`."""
        emit, info = self.to.emit, self.to.info
        values = info.reads[at]
        moved = {
            param: reg
            for param, (reg, value) in enumerate(zip(args, values, strict=True))
            if reg != param or value is not info.params[param]
        }
        for param, makers in self.takers.items():
            maker = self.made.get(values[param])
            if any(self.to.code.code[each] is maker for each in makers):
                emit(f"spare{param} = last{param}")
                emit(f"last{param} = r{args[param]}")
            elif param in moved:
                emit(f"spare{param} = last{param} = None")
        if moved:
            names = ", ".join(f"r{param}" for param in moved)
            emit(f"({names},) = ({', '.join(f'r{reg}' for reg in moved.values())},)")
        dead = [
            reg
            for each in self.to.replacing[at]
            if isinstance(instr := self.to.code.code[each], Kill)
            for reg in instr.regs
            if reg >= len(args)
        ]
        if dead:
            emit(f"{' = '.join(f'r{reg}' for reg in dead)} = None")
        changed: set[int] = set()
        for number in range(self.start):
            instr = self.to.code.code[number]
            self.to.at = number
            match instr:
                case Match():
                    param = info.params.index(info.reads[number][0])
                    if values[param] is not info.params[param]:
                        self.match(number, instr, values[param], scope, changed)
                        self.to.comment(instr)
                case Move() | Kill():
                    self.to.instr(number, instr, scope)
                case Eval(dst=dst, expr=expr) if changed.intersection(slots_of(expr)):
                    self.to.instr(number, instr, scope)
                    changed.add(dst)
                case Assert(lhs=lhs, rhs=rhs) if changed.intersection(
                    (*slots_of(lhs), *slots_of(rhs))
                ):
                    self.to.instr(number, instr, scope)
                case _:
                    pass
        self.to.next_step()
        self.to.at = at
        emit("continue")

    def match(self, at: int, instr: Match, value: Value, scope: Scope, changed: set[int]) -> None:
        """Match an argument with the pattern of its parameter."""
        src = f"r{instr.src}"
        maker = self.made.get(value)
        match instr.pattern, maker:
            case TensorPattern() as pattern, Alloc() if self.fits(pattern, maker, changed):
                self.to.devices[pattern.slot].pointed(at, src)
            case PrimPattern(dtype="int64", value=Heap(slot)), MakePrim(
                dtype="int64", value=Heap() | int()
            ):
                self.to.emit(f"s{slot} = {src}")
                self.to.slot_written(slot, scope)
                self.to.guard((slot,), signed=True)
                changed.add(slot)
            case _:
                self.to.match_value(at, instr, scope)
                changed.update(sets_slots(instr))

    def fits(self, pattern: TensorPattern, made: Alloc, changed: set[int]) -> bool:
        """Whether a tensor that an instruction of the loop makes has the type and the sizes that the parameter had in
        this step."""
        if pattern.shape is None or len(pattern.shape) != made.ndim:
            return False
        if pattern.dtype != made.dtype or self.to.home[pattern.slot] != self.to.home[made.slot]:
            return False
        for wanted, slot in zip(
            pattern.shape, range(made.shape, made.shape + made.ndim), strict=True
        ):
            size = self.size(slot)
            if isinstance(wanted, Heap):
                if wanted.index in changed or size != self.size(wanted.index):
                    return False
            elif wanted is not None and size != wanted:
                return False
            if isinstance(size, Heap) and size.index in changed:
                return False
        return True
