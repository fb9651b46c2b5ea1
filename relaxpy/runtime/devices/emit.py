"""The code of linked functions that accesses a device's memory.

`relaxpy.runtime.link` writes the Python source of a function once, when it is linked. For an instruction that allocates
a tensor in a slot, views or matches one, or launches a kernel, it asks the `DeviceLines` of that slot. So the device
decides at link time which code to write, and at run time only that code runs.

The defaults of `DeviceLines` are correct for every device: tensors are objects
(`relaxpy.runtime.devices.tensor.DeviceTensor`), and a launch calls the device's launcher of the kernel. A device may
name a faster subclass (`DeviceRuntime.lines`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

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
from relaxpy.runtime.devices.line_names import LineNames
from relaxpy.runtime.operands import Value

if TYPE_CHECKING:
    from relaxpy.runtime.link import Emitter, Scope


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel launch that is to be written."""

    at: int
    handle: str
    args: list[str]
    """The arguments of the handle."""
    tensors: list[str]
    """The arguments that are tensors whose memory the kernel accesses."""
    group: int = -1
    """The number of its `KernelGroup` on the CPU; -1: the work is always small."""


class DeviceLines:
    """Writes the code of one slot of a function."""

    shared: ClassVar[bool] = False
    """Whether all slots of this kind share memory and are treated as one."""

    def __init__(self, emitter: Emitter, slot: int) -> None:
        self.to = emitter
        self.slot = slot
        self.queue = "" if self.shared else f", queue{slot}"
        """The slot's queue as a last argument; empty for the host."""

    # Tensors

    def own(self, at: int, instr: Alloc, dims: str) -> None:
        """Allocate a tensor that owns its memory."""
        self.to.emit(f"r{instr.dst} = empty{self.slot}({dims}, {instr.dtype!r})")

    def stored(self, dst: int, value: Value, dims: str) -> None:
        """Make the object of a tensor in planned storage."""
        place = f"f.buffers[{value.storage}], {value.offset}"
        self.to.emit(f"r{dst} = DeviceTensor({place}, {dims}, {value.dtype!r})")

    def view(self, at: int, instr: View, dims: str) -> None:
        """Make a view of another tensor, which has an object."""
        self.to.emit(f"r{instr.dst} = r{instr.src}.view({dims}, {instr.dtype!r})")

    def constant(self, index: int) -> str:
        """The object of a constant, as an expression."""
        return f"c{index}_{self.slot}"

    def is_tensor(self, src: str) -> str:
        """A condition that is true if `src` is not a tensor of this slot."""
        return f"{src}.__class__ is not DeviceTensor or {src}.queue is not queue{self.slot}"

    def matched(self, at: int, src: str, sizes: Sequence[str]) -> None:
        """Called after a tensor of these sizes was matched."""

    def pointed(self, at: int, src: str) -> None:
        """Called when another tensor takes the place of one that was matched, which had the same sizes."""

    def copy(self, dst: int, src: int) -> None:
        """Copy a tensor from any device to this slot's memory."""
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
            [
                Launch(
                    at, self.handle(instr.index), [_tuple(launch), _tuple(ordered), *args], tensors
                )
            ]
        )

    def handle(self, index: int) -> str:
        """The launcher of a kernel, as an expression: of the slot's queue, or in a graph of the queue that records
        it."""
        return f"{'launch[{}]' if self.to.in_graph else 'launch{}'}".format(index)

    def dims_of(self, at: int, position: int) -> list[str] | None:
        """The sizes of a kernel's argument as expressions; None if it is not a register."""
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
        """Whether the pending kernels may run after this instruction instead of before it, or it is a kernel that joins
        them."""
        return True

    def flush(self) -> None:
        """Write the pending kernels."""

    def stale(self, slot: int, scope: Scope) -> None:
        """Called before a heap slot may be written again: expressions that were computed from it are stale."""

    def names(self) -> LineNames:
        """The names in the code that was written."""
        return LineNames()


def kernel_sizes(
    info: KernelInfo, dims: Sequence[Sequence[str] | None], args: Sequence[str]
) -> dict[int, str]:
    """The expression of each size of a kernel: a dimension of an argument, or a scalar argument."""
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
    """The indices of the sizes in a formula."""
    if isinstance(expr, Heap):
        return {expr.index}
    return set[int]().union(*map(slots_of, expr.args)) if isinstance(expr, IntOp) else set()


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)},)" if items else "()"
