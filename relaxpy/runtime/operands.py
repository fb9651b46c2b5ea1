"""Classifies the operands of a function: tensors that only kernels use need a record, others an object.

`analyse` follows the values in a function's registers once, before `relaxpy.runtime.link` writes its code.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from relaxpy.runtime.bytecode import (
    HOST,
    Alloc,
    Call,
    Closure,
    Const,
    Copy,
    Eval,
    FunctionCode,
    Heap,
    If,
    Instr,
    Invoke,
    Item,
    Kernel,
    Kill,
    Library,
    MakePrim,
    MakeShape,
    MakeTuple,
    Match,
    Move,
    Operand,
    Packed,
    Pattern,
    PrimPattern,
    Read,
    Reg,
    Return,
    ShapePattern,
    TensorPattern,
    TuplePattern,
    View,
)
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


def analyse(code: FunctionCode, hosts: Collection[int] = (HOST,)) -> Analysis:
    """The value of each operand of a function. `hosts` are the slots whose tensors are in this process's memory;
    kernels access these through records."""
    analysis = Analysis(code, hosts)
    analysis.block(0, len(code.code), dict(enumerate(analysis.params)), {})
    return analysis


class Analysis:
    """The value of each operand, and the needs of each value: a record, an object, both or neither."""

    def __init__(self, code: FunctionCode, hosts: Collection[int] = (HOST,)) -> None:
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
            if isinstance(instr, If):
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

    def _instr(  # noqa: C901  (a case an instruction)
        self, at: int, instr: Instr, env: dict[int, Value], matched: dict[Value, int]
    ) -> None:
        made: Value | None = None
        match instr:
            case Match(src=src, pattern=pattern):
                value = env[src]
                known = value.shape >= 0 and isinstance(pattern, TensorPattern)
                self._read(at, env, (src,), wanted=not known)
                if isinstance(pattern, PrimPattern):
                    value.scalar = True
                if isinstance(pattern, TensorPattern) and not known:
                    value.slot = pattern.slot
                if (
                    isinstance(pattern, TensorPattern)
                    and pattern.shape is not None
                    and pattern.dtype
                ):
                    matched.setdefault(value, at)
            case Alloc(
                shape=shape, ndim=ndim, dtype=dtype, storage=storage, offset=offset, slot=slot
            ):
                made = Value(
                    ndim,
                    dtype,
                    shape,
                    storage,
                    offset,
                    storage >= 0,
                    slot,
                    is_unset=True,
                    is_new=True,
                )
            case View(src=src, shape=shape, ndim=ndim, dtype=dtype, slot=slot):
                (value,) = self._read(at, env, (src,), wanted=env[src].storage < 0)
                made = Value(ndim, dtype, shape, value.storage, value.offset, value.planned, slot)
            case Const(index=index, slot=slot):
                made = Value(constant=index, slot=slot)
            case Copy(src=src, slot=slot):
                (value,) = self._read(at, env, (src,), wanted=True)
                made = Value(slot=slot, planned=value.planned)
            case Read(src=src):
                self._read(at, env, (src,), wanted=True)
                made = Value(scalar=True, object=True, is_new=True)
            case MakePrim(dtype=dtype):
                made = Value(scalar=True, object=True, is_new=True, is_bool=dtype == "bool")
            case Kernel(args=args):
                values = self._read(at, env, _registers(args), wanted=False)
                self.kernel_records[at] = tuple(self._record(value, matched) for value in values)
            case Move(dst=dst, src=src):
                self._read(at, env, (src,), wanted=False)
                env[dst] = env[src]
            case Library(args=args):
                values = [env[arg.index] if isinstance(arg, Reg) else _NOTHING for arg in args]
                self.outputs[at] = (*takewhile(_is_unset, reversed(values)),)[::-1]
                self._read(at, env, _registers(args), wanted=True)
            case Packed(args=args):
                self._read(at, env, _registers(args), wanted=True)
                made = Value()
            case Call(args=args):
                self._read(at, env, args, wanted=True)
                made = Value()
            case Closure(captured=captured):
                self._read(at, env, captured, wanted=True)
                made = Value()
            case Invoke(closure=closure, args=args):
                self._read(at, env, (closure, *args), wanted=True)
                made = Value()
            case MakeTuple(fields=fields):
                values = self._read(at, env, fields, wanted=True)
                made = Value(
                    is_new=all(value.is_new for value in values),
                    planned=any(value.planned for value in values),
                )
            case Item(src=src):
                (value,) = self._read(at, env, (src,), wanted=True)
                made = Value(planned=value.planned)
            case Return(src=src):
                (value,) = self._read(at, env, (src,), wanted=True)
                self.gives_new &= value.is_new
            case MakeShape():
                made = Value(is_new=True)
            case Kill(regs=regs):
                self.reads[at] = tuple(env.get(reg, _NOTHING) for reg in regs)
                return
            case _:
                return
        dst = getattr(instr, "dst", -1)
        if made is not None and dst >= 0:
            self.defines[at] = made
            env[dst] = made

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

    def _pattern(self, at: int) -> TensorPattern:
        instr = self.code.code[at]
        assert isinstance(instr, Match)
        assert isinstance(instr.pattern, TensorPattern)
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


def _registers(args: Sequence[Operand]) -> tuple[int, ...]:
    return tuple(arg.index for arg in args if isinstance(arg, Reg))


def written_slots(code: FunctionCode) -> frozenset[int]:
    """Heap slots that instructions write; all others are constant."""
    return frozenset(slot for instr in code.code for slot in sets_slots(instr))


def sets_slots(instr: Instr) -> Sequence[int]:
    """Heap slots that an instruction writes."""
    if isinstance(instr, Eval):
        return (instr.dst,)
    return pattern_slots(instr.pattern) if isinstance(instr, Match) else ()


def pattern_slots(pattern: Pattern) -> list[int]:
    """Heap slots that a pattern binds."""
    match pattern:
        case TensorPattern(shape=sizes) | ShapePattern(dims=sizes):
            return [size.index for size in sizes or () if isinstance(size, Heap)]
        case PrimPattern(value=Heap(index)):
            return [index]
        case TuplePattern(fields):
            return [slot for item in fields for slot in pattern_slots(item)]
        case _:
            return []
