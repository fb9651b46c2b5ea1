"""The lines of linked functions that touch a device's memory.

`relaxpy.runtime.link` writes a function once, when it is linked. Where an instruction makes a tensor in a slot, sees
one otherwise, or launches a kernel, it asks the lines of that slot's device. So a device is asked what to write, and at
a call nothing but its lines runs.

`DeviceLines` are right for every device: tensors are objects (`relaxpy.runtime.devices.tensor.DeviceTensor`), and a
launch is a call of the handle that the device gave for the kernel. A device that knows better names a class of its own
(`DeviceRuntime.lines`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar

from relaxpy.runtime.bytecode import (
    Alloc,
    Heap,
    Instr,
    IntExpr,
    IntOp,
    Kernel,
    KernelInfo,
    Reg,
    View,
)
from relaxpy.runtime.operands import Value

if TYPE_CHECKING:
    from relaxpy.runtime.link import Emitter, Scope
    from relaxpy.runtime.program import BoundProgram


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel that is to be called."""

    at: int
    handle: str
    args: list[str]
    """What the handle is called with."""
    tensors: list[str]
    """Those of them whose bytes the kernel reads or writes."""
    group: int = -1
    """Its work group on the CPU; -1: always small."""


class DeviceLines:
    """Writes the lines of one slot of a function."""

    shared: ClassVar[bool] = False
    """Slots of such devices have their memory in common, and are one."""

    def __init__(self, emitter: Emitter, slot: int) -> None:
        self.to = emitter
        self.slot = slot
        self.queue = "" if self.shared else f", queue{slot}"
        """The slot's queue as a last argument; none for the host's."""

    # Tensors

    def own(self, at: int, instr: Alloc, dims: str) -> None:
        """A tensor in memory of its own."""
        self.to.emit(f"r{instr.dst} = empty{self.slot}({dims}, {instr.dtype!r})")

    def stored(self, dst: int, value: Value, dims: str) -> None:
        """The object of a tensor in planned storage."""
        place = f"f.buffers[{value.storage}], {value.offset}"
        self.to.emit(f"r{dst} = DeviceTensor({place}, {dims}, {value.dtype!r})")

    def view(self, at: int, instr: View, dims: str) -> None:
        """A tensor over the memory of another one, which has an object."""
        self.to.emit(f"r{instr.dst} = r{instr.src}.view({dims}, {instr.dtype!r})")

    def constant(self, index: int) -> str:
        """The object of a constant."""
        return f"c{index}_{self.slot}"

    def is_tensor(self, src: str) -> str:
        """A test that holds where `src` is no tensor of this slot."""
        return f"{src}.__class__ is not DeviceTensor or {src}.queue is not queue{self.slot}"

    def matched(self, at: int, src: str, sizes: Sequence[str]) -> None:
        """A tensor of these sizes was matched."""

    def copy(self, dst: int, src: int) -> None:
        """A tensor's numbers, wherever they are, in this slot's memory."""
        self.to.emit(f"r{dst} = copy_to{self.slot}(r{src})")

    # Kernels

    def kernel(self, at: int, instr: Kernel, scope: Scope) -> None:
        """Launch a kernel."""
        info = self.to.kernels[instr.index]
        reads = iter(self.to.info.reads[at])
        args: list[str] = []
        tensors: list[str] = []
        for arg in instr.args:
            if not isinstance(arg, Reg):
                args.append(self.to.operand(arg))
                continue
            value = next(reads)
            args.append(self.constant(value.constant) if value.constant >= 0 else f"r{arg.index}")
            if not value.scalar:
                tensors.append(args[-1])
        sizes = kernel_sizes(
            info, [self.dims_of(at, position) for position in range(len(args))], args
        )
        launch = [self.to.formulas.over(expr, sizes) for expr in info.image.launch]
        ordered = [sizes[number] for number in sorted(sizes)]
        self.to.launch(
            [Launch(at, f"launch{instr.index}", [_tuple(launch), _tuple(ordered), *args], tensors)]
        )

    def dims_of(self, at: int, position: int) -> list[str] | None:
        """The sizes of a kernel's argument as expressions; None: it is no register."""
        instr = self.to.code.code[at]
        assert isinstance(instr, Kernel)
        arg = instr.args[position]
        if not isinstance(arg, Reg):
            return None
        number = sum(isinstance(each, Reg) for each in instr.args[:position])
        value = self.to.info.reads[at][number]
        if value.shape >= 0:
            return [self.to.expr(Heap(s)) for s in range(value.shape, value.shape + value.ndim)]
        info = self.to.kernels[instr.index]
        shape = None if info.params is None else info.params[position].shape
        name = self.constant(value.constant) if value.constant >= 0 else f"r{arg.index}"
        return [f"{name}.shape[{axis}]" for axis in range(len(shape or ()))]

    def may_precede(self, at: int, instr: Instr) -> bool:
        """Whether kernels that are not written yet may as well run after this instruction, or it is one more of
        them."""
        return True

    def flush(self) -> None:
        """Write the kernels that are not written yet."""

    def stale(self, slot: int, scope: Scope) -> None:
        """A slot of the heap may be written again: what was computed from it does not hold any more."""

    def names(self, program: BoundProgram) -> Mapping[str, Any]:
        """Names of the function's own that its lines use."""
        return {}

    @classmethod
    def position(cls, code: CodeType, local: Mapping[str, Any]) -> int:
        """Which of several launches on lines of their own was running, counted from 0, in a frame that one line called;
        -1: that frame is of something else."""
        del code, local
        return -1


def kernel_sizes(
    info: KernelInfo, dims: Sequence[Sequence[str] | None], args: Sequence[str]
) -> dict[int, str]:
    """Each size of a kernel as an expression: a dimension of an argument, or a scalar."""
    sizes: dict[int, str] = {}
    for param, shape, arg in zip(info.params or (), dims, args, strict=False):
        if param.shape is None:
            if param.size >= 0:
                sizes.setdefault(param.size, arg)
            continue
        for dim, size in zip(param.shape, shape or (), strict=False):
            if isinstance(dim, Heap):
                sizes.setdefault(dim.index, size)
    return sizes


def slots_of(expr: IntExpr) -> set[int]:
    """The numbers of the sizes in a formula."""
    if isinstance(expr, Heap):
        return {expr.index}
    return set[int]().union(*map(slots_of, expr.args)) if isinstance(expr, IntOp) else set()


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)},)" if items else "()"
