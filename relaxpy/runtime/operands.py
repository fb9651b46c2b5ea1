"""Classifies the operands of a function: tensors that only kernels use need a record, others an object.

`analyse` follows the values in a function's registers once, before `relaxpy.runtime.link` writes its code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from relaxpy.runtime import bytecode as bc
from relaxpy.runtime.effects import READS, sets, written_slots
from relaxpy.runtime.frame import FramePlan, RecordPlan


@dataclass(eq=False, slots=True)
class Value:
    """The value of a register between two definitions."""

    ndim: int = -1
    dtype: str = ""
    shape: int = -1
    """The heap slot where its shape starts; -1: only the object knows the shape."""
    storage: int = -1
    """The storage that holds it."""
    offset: int = 0
    """Offset in bytes in the storage."""
    planned: bool = False
    """Whether it lies in planned storage of the frame, or a part of it does."""
    slot: int = 0
    """The slot of a tensor."""
    constant: int = -1
    """The index of the constant that it is."""
    scalar: bool = False
    is_bool: bool = False
    """Whether it is a Python bool."""
    record: int = -1
    """Its record in the frame, once something needs one."""
    object: bool = False
    """Whether something needs the Python object."""
    uses: int = 0
    """How many instructions read it, without `Kill`."""
    is_unset: bool = False
    """Whether it is memory that no instruction has had yet."""
    is_new: bool = False
    """Whether the function has made it: it is not a constant, and contains none."""
    arms: tuple[Value, ...] = ()
    """After an `If`: the values of the two arms."""

    def want_object(self) -> None:
        """Records that something needs the Python object."""
        self.object = True
        for value in self.arms:
            if not value.object:
                value.want_object()

    @property
    def has_local(self) -> bool:
        """Whether the register's local variable holds the object."""
        return self.object or (self.storage < 0 and self.constant < 0 and not self.arms)


_NOTHING = Value()
"""The value of a register that was never written."""
_NONE: tuple[Value, ...] = ()


def analyse(code: bc.FunctionCode, hosts: Collection[int] = (bc.HOST,)) -> Analysis:
    """The value of each operand of a function. `hosts` are the slots whose tensors are in this process's memory;
    kernels access these through records."""
    analysis = Analysis(code, hosts)
    analysis.block(0, len(code.code), dict(enumerate(analysis.params)), {})
    return analysis


class Analysis:
    """The value of each operand, and the needs of each value: a record, an object, both or neither."""

    def __init__(self, code: bc.FunctionCode, hosts: Collection[int] = (bc.HOST,)) -> None:
        self.code = code
        self.hosts = hosts
        self.params = tuple(Value() for _ in code.params)
        self.plan = FramePlan(list(code.heap_init))
        self._shared: dict[RecordPlan, int] = {}
        self.reads: dict[int, tuple[Value, ...]] = {}
        """Instruction → the values of the registers that it reads, in the instruction's order."""
        self.defines: dict[int, Value] = {}
        self.match_records: dict[int, int] = {}
        """`Match` → the record that it fills for the matched value."""
        self.kernel_records: dict[int, tuple[int, ...]] = {}
        """`Kernel` → the record of each register argument; -1: taken from the object at run time."""
        self.outputs: dict[int, tuple[Value, ...]] = {}
        """`Library` → those of its last arguments that are outputs: memory that nothing has written yet."""
        self.gives_new = True
        """Whether its results are new (`Value.is_new`)."""
        self.written = written_slots(code)

    def block(self, start: int, end: int, env: dict[int, Value], matched: dict[Value, int]) -> None:
        """Visits instructions start…end. `matched`: values whose shape is bound by a dominating `Match`, and its
        index."""
        at = start
        while at < end:
            instr = self.code.code[at]
            if isinstance(instr, bc.If):
                self._read(at, env, (instr.cond,), wanted=not self._in_storage(env[instr.cond]))
                middle = at + 1 + instr.then_len
                after = middle + instr.else_len
                arms = (dict(env), dict(env))
                self.block(at + 1, middle, arms[0], dict(matched))
                self.block(middle, after, arms[1], dict(matched))
                _join(env, *arms)
                at = after
                continue
            self._instr(at, instr, env, matched)
            at += 1

    def _in_storage(self, value: Value) -> bool:
        """Whether a condition is read from planned storage, without an object."""
        is_condition = value.ndim == 0 and value.dtype == "bool" and value.slot in self.hosts
        return is_condition and value.storage >= 0

    def _read(
        self, at: int, env: dict[int, Value], regs: Sequence[int], wanted: bool
    ) -> tuple[Value, ...]:
        values = tuple(env[reg] for reg in regs)
        self.reads[at] = values
        for value in values:
            value.is_unset = False
            value.uses += 1
        if wanted:
            for value in values:
                value.want_object()
        return values

    def _instr(
        self, at: int, instr: bc.Instr, env: dict[int, Value], matched: dict[Value, int]
    ) -> None:
        if isinstance(instr, bc.Kill):
            self.reads[at] = tuple(env.get(reg, _NOTHING) for reg in instr.regs)
            return
        if isinstance(instr, bc.Library):
            values = [env[arg.index] if isinstance(arg, bc.Reg) else _NOTHING for arg in instr.args]
            self.outputs[at] = (*takewhile(_is_unset, reversed(values)),)[::-1]
        regs = READS[type(instr)](instr)
        values = self._read(at, env, regs, self._wants(instr, env)) if regs else _NONE
        if isinstance(instr, bc.Match):
            self._matched(at, instr.pattern, values[0], matched)
        elif isinstance(instr, bc.Kernel):
            self.kernel_records[at] = tuple(self._record(value, matched) for value in values)
        elif isinstance(instr, bc.Return):
            self.gives_new &= values[0].is_new
        if (dst := sets(instr)) >= 0:
            made = env[dst] = self._made(instr, values)
            if not isinstance(instr, bc.Move):
                self.defines[at] = made

    def _wants(self, instr: bc.Instr, env: Mapping[int, Value]) -> bool:
        """Whether an instruction needs the objects of what it reads."""
        match instr:
            case bc.Kernel() | bc.Move():
                return False
            case bc.View(src=src):
                return env[src].storage < 0
            case bc.Match(src=src, pattern=bc.TensorPattern()):
                return env[src].shape < 0
            case _:
                return True

    def _matched(
        self, at: int, pattern: bc.Pattern, value: Value, matched: dict[Value, int]
    ) -> None:
        if isinstance(pattern, bc.PrimPattern):
            value.scalar = True
        if not isinstance(pattern, bc.TensorPattern):
            return
        if value.shape < 0:
            value.slot = pattern.slot
        if pattern.shape is not None and pattern.dtype:
            matched.setdefault(value, at)

    def _made(self, instr: bc.Instr, values: Sequence[Value]) -> Value:
        """The value that an instruction sets its register to, of those that it reads."""
        planned = instr.ALIASES and any(value.planned for value in values)
        match instr:
            case bc.Alloc(shape=shape, ndim=ndim, dtype=dtype, storage=storage, offset=offset):
                at_call = storage >= 0
                return Value(
                    ndim,
                    dtype,
                    shape,
                    storage,
                    offset,
                    at_call,
                    instr.slot,
                    is_unset=True,
                    is_new=True,
                )
            case bc.View(shape=shape, ndim=ndim, dtype=dtype, slot=slot):
                (seen,) = values
                return Value(ndim, dtype, shape, seen.storage, seen.offset, planned, slot)
            case bc.Const(index=index, slot=slot):
                return Value(constant=index, slot=slot)
            case bc.Copy(slot=slot):
                return Value(slot=slot, planned=values[0].planned)
            case bc.Read():
                return Value(scalar=True, object=True, is_new=True)
            case bc.MakePrim(dtype=dtype):
                return Value(scalar=True, object=True, is_new=True, is_bool=dtype == "bool")
            case bc.Move():
                return values[0]
            case bc.MakeTuple() | bc.MakeShape():
                return Value(is_new=all(value.is_new for value in values), planned=planned)
            case _:
                return Value(planned=planned)

    def _record(self, value: Value, matched: dict[Value, int]) -> int:
        """The record through which kernels access a value; -1 if they need its object or a constant's own record."""
        if value.constant >= 0:
            return -1
        if value.slot not in self.hosts:
            value.want_object()
            return -1
        if value.shape >= 0:
            if value.record < 0:
                plan = RecordPlan(value.ndim, value.dtype, value.shape, value.storage, value.offset)
                # Tensors of the same type that share a place in a storage share a record.
                shared = self._shared.get(plan) if plan.storage >= 0 else None
                if shared is None:
                    shared = self._shared[plan] = len(self.plan.records)
                    self.plan.records.append(plan)
                value.record = shared
            return value.record
        value.want_object()
        if value.scalar or value not in matched:
            return -1
        at = matched[value]
        if at not in self.match_records:
            pattern = self._pattern(at)
            assert pattern.shape is not None
            self.match_records[at] = len(self.plan.records)
            offset = len(self.plan.heap)
            self.plan.heap.extend(size if isinstance(size, int) else 0 for size in pattern.shape)
            self.plan.records.append(RecordPlan(len(pattern.shape), pattern.dtype, offset, -1))
        return self.match_records[at]

    def _pattern(self, at: int) -> bc.TensorPattern:
        instr = self.code.code[at]
        assert isinstance(instr, bc.Match)
        assert isinstance(instr.pattern, bc.TensorPattern)
        return instr.pattern


def _join(env: dict[int, Value], then: dict[int, Value], other: dict[int, Value]) -> None:
    """The registers after an `If`: where the arms differ, an object from either of them."""
    for reg in then.keys() & other.keys():
        if then[reg] is other[reg]:
            env[reg] = then[reg]
        else:
            planned = then[reg].planned or other[reg].planned
            env[reg] = Value(planned=planned, arms=(then[reg], other[reg]))


def _is_unset(value: Value) -> bool:
    return value.is_unset
