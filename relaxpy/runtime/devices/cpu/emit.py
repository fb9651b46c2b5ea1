"""The code that linked functions run for tensors and kernels on the CPU.

A tensor that only kernels access is a record `t<i>` of the frame and costs nothing at run time; `d<i>` is the address
in it. Consecutive kernels with large work run as one row (`relaxpy.runtime.devices.cpu.kernels.KernelRow`): independent
code between them, for sizes, memory and handles, is moved before the row. The choice between the serial and the
parallel variant is made once for each distinct formula of work, not once for each kernel, as soon as its sizes are
known.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.bytecode import (
    Alloc,
    Eval,
    Heap,
    Instr,
    IntExpr,
    IntOp,
    Kernel,
    Kill,
    Match,
    Operand,
    Reg,
    View,
)
from relaxpy.runtime.devices.cpu.kernels import LARGE_WORK, SMALL_WORK
from relaxpy.runtime.devices.cpu.line_names import CpuNames
from relaxpy.runtime.devices.emit import DeviceLines, Launch
from relaxpy.runtime.integers import by_slot
from relaxpy.runtime.operands import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relaxpy.runtime.link import Emitter, Scope

MUCH = 1 << 30
"""Kernels that allocate more bytes than this check first that the memory is available."""
MAX_ROW = 64
"""The most kernels in a row. The arguments are on the frame's stack, which takes memory at each level of a
recursion."""


class CpuLines(DeviceLines):
    """Writes the code for a slot on the CPU."""

    shared: ClassVar[bool] = True

    def __init__(self, emitter: Emitter, slot: int) -> None:
        super().__init__(emitter, slot)
        self.pending: list[Launch] = []
        """Kernels that are not written yet, since the next kernel may join their row."""
        self.rows = 0
        self.group_exprs: list[IntExpr] = []
        self.group_kernels: list[list[int]] = []
        self.group_of: dict[IntExpr, int] = {}
        for instr in emitter.code.code:
            if isinstance(instr, Kernel) and emitter.slot_of(instr) == slot:
                work = emitter.fold(instr.work)
                if work not in self.group_of:
                    self.group_of[work] = len(self.group_exprs)
                    self.group_exprs.append(work)
                    self.group_kernels.append([])
                group = self.group_kernels[self.group_of[work]]
                if instr.index not in group:
                    group.append(instr.index)
        self.groups_of_slot = by_slot(self.group_exprs)

    # Tensors

    def own(self, at: int, instr: Alloc, dims: str) -> None:
        made = self.to.own_tensor(dims, instr.dtype, self._nbytes(instr))
        if spare := self.to.spare(at):
            self.to.emit(f"r{instr.dst} = {spare}")
            self.to.emit(f"if r{instr.dst} is None: r{instr.dst} = {made}")
        else:
            self.to.emit(f"r{instr.dst} = {made}")
        self._point(self.to.info.defines[at], instr.dst)

    def _nbytes(self, instr: Alloc) -> str:
        """The number of bytes of a tensor, as an expression. -1 for a type that the runtime does not have: the
        allocation fails."""
        info = dtypes.INFO.get(instr.dtype)
        if info is None:
            return "-1"
        sizes = [self.to.fold(Heap(s)) for s in range(instr.shape, instr.shape + instr.ndim)]
        fixed = math.prod((info.itemsize, *(size for size in sizes if isinstance(size, int))))
        nbytes: IntExpr = fixed
        for size in sizes:
            if not isinstance(size, int):
                nbytes = IntOp("mul", (size, nbytes))
        return self.to.expr(nbytes)

    def stored(self, dst: int, value: Value, dims: str) -> None:
        s = value.storage
        begin = f"f.pointers[{s}]" + (f" + {value.offset}" if value.offset else "")
        self.to.emit(f"r{dst} = tensor_at({begin}, {dims}, {value.dtype!r}, f.buffers[{s}])")

    def view(self, at: int, instr: View, dims: str) -> None:
        self.to.emit(f"r{instr.dst} = view_of(r{instr.src}, {dims}, {instr.dtype!r})")
        self._point(self.to.info.defines[at], instr.dst)

    def _point(self, value: Value, reg: int) -> None:
        if value.record >= 0:
            self.to.emit(f"d{value.record}.value = r{reg}.pointer")

    def constant(self, index: int) -> str:
        return f"c{index}"

    def is_tensor(self, src: str) -> str:
        return f"{src}.__class__ is not Tensor"

    def matched(self, at: int, src: str, sizes: Sequence[str]) -> None:
        instr = self.to.code.code[at]
        assert isinstance(instr, Match)
        record = self.to.info.match_records.get(at, -1)
        if record >= 0:
            self.pointed(at, src)
            offset = self.to.plan.records[record].shape
            for axis, size in enumerate(sizes):
                if not size.isdigit():
                    self.to.emit(f"h[{offset + axis}] = {size}")

    def pointed(self, at: int, src: str) -> None:
        record = self.to.info.match_records.get(at, -1)
        if record >= 0:
            self.to.emit(f"d{record}.value = {src}.pointer")

    # Kernels

    def kernel(self, at: int, instr: Kernel, scope: Scope) -> None:
        emit, info = self.to.emit, self.to.info
        group = self.group_of[self.to.fold(instr.work)]
        work = self.group_exprs[group]
        always_small = isinstance(work, int) and 0 <= work < SMALL_WORK
        if not always_small and group not in scope.groups:
            scope.groups.add(group)
            names = ", ".join(f"k{group}_{index}" for index in self.group_kernels[group])
            if isinstance(work, int):
                emit(f"({names},) = pick{group}({work})")
            else:
                size = f"w{group}"
                emit(f"{size} = {self.to.expr(work)}")
                emit(
                    f"({names},) = serial{group} if 0 <= {size} < {SMALL_WORK} else pick{group}({size})"
                )
        self._reserve(at, instr)
        records = iter(info.kernel_records[at])
        values = iter(info.reads[at])
        args: list[str] = []
        for arg in instr.args:
            if not isinstance(arg, Reg):
                args.append(self.to.operand(arg))
                continue
            record, value = next(records), next(values)
            if record >= 0:
                args.append(f"t{record}")
            elif value.constant >= 0:
                args.append(f"ct{value.constant}")
            elif value.scalar:
                args.append(f"r{arg.index}")
            else:
                args.append(f"argument(r{arg.index})")
        name = f"small{instr.index}" if always_small else f"k{group}_{instr.index}"
        self.pending.append(Launch(at, name, args, args, -1 if always_small else group))

    def _reserve(self, at: int, instr: Kernel) -> None:
        """Before a kernel that allocates memory of a size that depends on its arguments, check a size above `MUCH`: a
        failed allocation inside a kernel ends the process."""
        found = self.to.kernels[instr.index] if self.to.kernels else None
        memory = None if found is None else found.image.memory
        if found is None or memory is None:
            return
        if all(isinstance(part, int) and part <= MUCH for part in (memory.shared, memory.each)):
            return
        values = iter(self.to.info.reads[at])
        given = [next(values) if isinstance(arg, Reg) else None for arg in instr.args]
        sizes: dict[int, str] = {}
        for number, (position, axis) in enumerate(memory.sizes):
            sizes[number] = self._size(instr.args[position], given[position], axis)
        over = self.to.formulas.over
        taken = self.to.temp()
        parts = [over(part, sizes) for part in (memory.shared, memory.each) if part != 0]
        self.to.emit(f"{taken} = {' + '.join(parts)}")
        self.to.emit(f"if {taken} > {MUCH}: reserve({found.name!r}, {taken})")

    def _size(self, arg: Operand, value: Value | None, axis: int) -> str:
        """A dimension of an argument, or a scalar argument itself."""
        if axis < 0 or not isinstance(arg, Reg) or value is None:
            return self.to.operand(arg)
        if value.shape >= 0:
            return self.to.expr(Heap(value.shape + axis))
        tensor = f"c{value.constant}" if value.constant >= 0 else f"r{arg.index}"
        return f"{tensor}.shape[{axis}]"

    def may_precede(self, at: int, instr: Instr) -> bool:
        match instr:
            case Kernel():
                return self.to.slot_of(instr) == self.slot and len(self.pending) < MAX_ROW
            case Eval(dst=slot):
                # A slot that is written again may be one of the sizes of the pending kernels.
                return slot not in self.to.slots_set
            case Alloc(dst=dst, storage=storage):
                # Storage is checked once, before the first tensor in it, unless its size changes.
                if storage >= 0:
                    return (
                        not self.to.slots_change
                        or self.to.storage_group[storage] in self.to.plan.fixed
                    )
                # A register that is written again may own memory that pending kernels use.
                record = f"t{self.to.info.defines[at].record}"
                used = any(record in launch.args for launch in self.pending)
                return dst not in self.to.registers_set and not used
            case View():
                value = self.to.info.defines[at]
                return value.storage >= 0 and not value.object
            case Kill():
                return not any(value.has_local for value in self.to.info.reads[at])
            case _:
                return False

    def flush(self) -> None:
        """Write the pending kernels: as a row if one of them is large, else one by one."""
        emit = self.to.emit
        pending, self.pending = self.pending, []
        if len(pending) < 2:
            self.to.launch(pending)
            return
        groups = [launch.group for launch in pending if launch.group >= 0]
        sizes = {group: self.group_exprs[group] for group in sorted(set(groups))}
        known = any(isinstance(size, int) and size >= LARGE_WORK for size in sizes.values())
        tests = [
            f"w{group} >= {LARGE_WORK}"
            for group, size in sizes.items()
            if not isinstance(size, int)
        ]
        if not known and not tests:
            self.to.launch(pending)
            return
        self.to.at = pending[0].at
        emit(f"if {'True' if known else ' or '.join(tests)}:")
        work = " + ".join(
            str(size * groups.count(group))
            if isinstance(size, int)
            else f"{groups.count(group)} * w{group}"
            for group, size in sizes.items()
        )
        self.to.depth += 1
        # One line for each kernel, directly after this one: an error is located by counting from here.
        emit(f"row{self.rows}({work}, (")
        for launch in pending:
            self.to.at = launch.at
            emit(f"({', '.join([launch.handle, *launch.args])}),")
            self.to.comment(self.to.code.code[launch.at])
        emit("))")
        self.to.depth -= 1
        self.rows += 1
        if not known:
            emit("else:")
            self.to.depth += 1
            self.to.launch(pending)
            self.to.depth -= 1

    def stale(self, slot: int, scope: Scope) -> None:
        scope.groups -= self.groups_of_slot.get(slot, set())

    def names(self) -> CpuNames:
        return CpuNames(tuple(map(tuple, self.group_kernels)), self.rows)
