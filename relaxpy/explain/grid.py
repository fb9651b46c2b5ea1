"""The launch of a kernel on a device: groups, threads, and the memory that is bound. It is read from an executable, so
no device is needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from relaxpy.errors import ExecutableError
from relaxpy.ir.module import BufferParam, ScalarParam, TensorProgram
from relaxpy.runtime.bytecode import (
    Alloc,
    Heap,
    IntExpr,
    IntOp,
    Kernel,
    KernelInfo,
    KernelParam,
    Reg,
)
from relaxpy.runtime.devices.image import GRID, Image
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.inspect.memory_plan import WORKSPACE
from relaxpy.runtime.integers import python_op

_AXES = GRID // 2
_SHARED = ("max-compute-workgroup-storage-size", "shared")
"""The limits that are bytes of shared memory, by WebGPU's name and by CUDA's."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A tensor of a launch."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    """Formulas over the kernel's sizes."""
    access: str
    """`read`, `write` or `read-write`."""
    is_workspace: bool
    """Whether some call passes memory that only kernels use."""

    def __str__(self) -> str:
        kind = ", workspace" if self.is_workspace else ""
        return f"{self.name}: {self.dtype}[{', '.join(self.shape)}] ({self.access}{kind})"


@dataclass(frozen=True, slots=True)
class Grid:
    """The launch of a kernel. Sizes are formulas over the kernel's sizes, in Python."""

    device: str
    """The device of the kernel's slot."""
    groups: tuple[str, ...]
    """Groups of threads along x, y and z, without axes of one group at the end."""
    threads: tuple[str, ...]
    """Threads of a group, likewise."""
    numbers: tuple[str, ...]
    """The sizes that are passed beside the tensors."""
    bindings: tuple[Binding, ...]
    """The tensors that are bound; others of the program's parameters are not read."""
    shared: int | None
    """Bytes of memory that the threads of a group share; None if the image does not say."""
    resources: Mapping[str, int]
    """The resources of a thread, as the compiler reports them: `registers`, bytes of `stack` and of `spills`; empty if
    the device's driver compiles the kernel."""

    @property
    def workspaces(self) -> tuple[Binding, ...]:
        """The bindings that are workspaces."""
        return tuple(binding for binding in self.bindings if binding.is_workspace)

    def as_json(self) -> dict[str, Any]:
        """The launch as data for `json.dumps`."""
        return asdict(self)


def grid_of(exe: Executable, info: KernelInfo, program: TensorProgram | None = None) -> Grid | None:
    """The launch of a kernel; None for kernels that have no grid, such as those of processors. `program` has the names
    of its parameters and sizes; without it they are `argument0` … and `h0` …, as in `Executable.as_text`."""
    launch = info.image.launch
    if len(launch) < GRID:
        return None
    params = info.params or ()
    names = _size_names(params, program)
    titles = [f"argument{i}" for i in range(len(params))]
    if program is not None and len(program.params) == len(params):
        titles = [p.name for p in program.params]
    try:
        image = Image.of(info, exe.objects, "device")
    except ExecutableError:
        image = None
    bound = [n for n, param in enumerate(params) if param.shape is not None]
    if image is not None:
        bound = [n for arg in image.args if (n := arg.get("memory", -1)) in bound]
    own = _workspaces(exe, info)
    return Grid(
        exe.slots[info.slot].name,
        _axes([_text(count, names) for count in launch[:_AXES]]),
        _axes([_text(count, names) for count in launch[_AXES:GRID]]),
        tuple(_text(number, names) for number in launch[GRID:]),
        tuple(
            Binding(
                titles[n],
                params[n].dtype,
                tuple(_text(size, names) for size in params[n].shape or ()),
                params[n].access,
                n in own,
            )
            for n in dict.fromkeys(bound)
        ),
        None if image is None or not image.limits else sum(image.limits.get(s, 0) for s in _SHARED),
        {} if image is None else image.resources,
    )


def _axes(counts: Sequence[str]) -> tuple[str, ...]:
    """The counts along axes up to the last that is not 1; at least one."""
    used = [n for n, count in enumerate(counts) if count != "1"]
    return tuple(counts[: max(used, default=0) + 1])


def _size_names(params: Sequence[KernelParam], program: TensorProgram | None) -> dict[int, str]:
    """Size number of a kernel → its name in the program."""
    found: dict[int, str] = {}
    if program is None or len(program.params) != len(params):
        return found
    for param, own in zip(params, program.params, strict=True):
        if isinstance(own, ScalarParam) and param.size >= 0:
            found[param.size] = own.var.name
        elif isinstance(own, BufferParam):
            for size, dim in zip(param.shape or (), own.shape, strict=False):
                if isinstance(size, Heap):
                    found[size.index] = str(dim)
    return found


def _workspaces(exe: Executable, info: KernelInfo) -> Collection[int]:
    """The numbers of the arguments that are a workspace in some call of the kernel or one with the same code."""
    same = {n for n, k in enumerate(exe.kernels) if (k.slot, k.images) == (info.slot, info.images)}
    found: set[int] = set()
    for code in exe.functions:
        own: set[int] = set()
        """Registers that hold workspaces."""
        for instr in code.code:
            if isinstance(instr, Kernel) and instr.index in same:
                args = enumerate(instr.args)
                found |= {n for n, arg in args if isinstance(arg, Reg) and arg.index in own}
            elif isinstance(instr, Alloc) and code.place(instr).binding.startswith(WORKSPACE):
                own.add(instr.dst)
            else:
                own.discard(getattr(instr, "dst", -1))
    return found


def _text(expr: IntExpr, names: Mapping[int, str]) -> str:
    """A formula over the kernel's sizes in Python, without parentheses around all of it."""
    whole = _nested(expr, names)
    outer = isinstance(expr, IntOp) and whole.startswith("(") and whole.endswith(")")
    return whole[1:-1] if outer else whole


def _nested(expr: IntExpr, names: Mapping[int, str]) -> str:
    if isinstance(expr, Heap):
        return names.get(expr.index, f"h{expr.index}")
    if isinstance(expr, IntOp):
        return python_op(expr.op, [_nested(arg, names) for arg in expr.args])
    return str(expr)
