"""The memory of an executable by purpose, computed from its bytecode before anything is allocated.

    plan = exe.memory_plan(n=2048)
    print(plan)                                  a table
    Path("plan.svg").write_text(plan.svg())      which tensor lies where, from when to when

Tensors that live inside a call are planned: they are placed in storages of the function's frames. Results, and other
tensors that may leave a call, own their memory. Kernels allocate workspaces on each thread that runs them; these are
counted separately, since the threads' pools keep them. Sizes that depend on the data (`R.unique`) are unknown here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from relaxpy.errors import UsageError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.bytecode import (
    Alloc,
    Call,
    Closure,
    FunctionCode,
    Heap,
    Invoke,
    Kernel,
    KernelInfo,
    Location,
    MakeTuple,
    Match,
    Move,
    Packed,
    Reg,
    Return,
    TensorPattern,
    View,
)
from relaxpy.runtime.effects import sets
from relaxpy.runtime.host.threads import num_threads
from relaxpy.runtime.inspect.heap_values import heap_at, known_sizes, symbol_slots, value_of
from relaxpy.runtime.inspect.timeline import timeline
from relaxpy.runtime.inspect.units import shown
from relaxpy.runtime.lifetimes import Lifetimes

_NAMED = 4
"""The most kernels that are named."""
WORKSPACE = "workspace"
"""The prefix of the names of workspace tensors, which a tensor program needs beside its inputs and outputs (paper
§4.4)."""


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor that a function allocates."""

    name: str
    nbytes: int
    storage: int
    """Its storage; -1: it owns its memory."""
    offset: int
    """Offset in bytes in the storage."""
    begin: int
    """The instruction that allocates it."""
    end: int
    """The last instruction that uses it."""
    place: Location

    @property
    def is_workspace(self) -> bool:
        return self.name.startswith(WORKSPACE)


@dataclass(frozen=True, slots=True)
class InsideKernel:
    """The most memory in bytes that a call of a kernel allocates, beside its arguments."""

    name: str
    known: bool
    shared: int = 0
    """Allocated once."""
    each: int = 0
    """Allocated by each thread."""

    def nbytes(self, threads: int) -> int:
        """The total with this number of threads."""
        return self.shared + threads * self.each


@dataclass(frozen=True, slots=True)
class FunctionPlan:
    """The memory of one call of a function. Sizes in bytes."""

    name: str
    sizes: Mapping[str, int]
    """The values of the symbolic variables of this plan."""
    storages: tuple[int, ...]
    tensors: tuple[PlannedTensor, ...]
    length: int
    """The number of instructions."""
    kernels: tuple[InsideKernel, ...] = ()
    """The memory that its kernels allocate; empty if they were not scheduled."""

    @property
    def planned(self) -> int:
        """The total size of all storages, which a frame holds."""
        return sum(self.storages)

    @property
    def least(self) -> int:
        """The largest sum of live tensors: a lower bound for any plan of these tensors."""
        return max(self.demand(t for t in self.tensors if t.storage >= 0), default=0)

    @property
    def workspace(self) -> int:
        """The largest sum of workspaces that are live at the same time. It is part of `planned`."""
        return max(self.demand(t for t in self.tensors if t.is_workspace), default=0)

    @property
    def unplanned(self) -> int:
        """The largest sum of live tensors that own their memory, which are mostly results."""
        return max(self.demand(t for t in self.tensors if t.storage < 0), default=0)

    @property
    def unshared(self) -> int:
        """The memory of the planned tensors if each had its own for the whole call."""
        return sum(t.nbytes for t in self.tensors if t.storage >= 0)

    @property
    def peak(self) -> int:
        """Storages, plus results at their largest."""
        return self.planned + self.unplanned

    def apart(self) -> FunctionPlan:
        """The same function without planning: each planned tensor in a storage of its own, for the whole call."""
        planned = sorted((t for t in self.tensors if t.storage >= 0), key=lambda t: t.begin)
        own = [replace(t, storage=i, offset=0) for i, t in enumerate(planned)]
        others = [t for t in self.tensors if t.storage < 0]
        storages = tuple(t.nbytes for t in own)
        return replace(self, storages=storages, tensors=(*own, *others))

    def demand(self, tensors: Iterable[PlannedTensor]) -> list[int]:
        """The total size of the live tensors at each instruction."""
        change = [0] * (self.length + 1)
        for tensor in tensors:
            change[tensor.begin] += tensor.nbytes
            change[tensor.end + 1] -= tensor.nbytes
        total, found = 0, []
        for step in change[: self.length]:
            total += step
            found.append(total)
        return found


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of an executable. `print` shows it as a table, notebooks as a picture."""

    weights: int
    """Total size of the constants in bytes."""
    functions: tuple[FunctionPlan, ...]
    threads: int = 1
    """The number of threads that run parallel kernels."""
    packed: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """Function → parameter → size of a weight that the caller packs, in bytes. They are part of no other figure."""

    def __getitem__(self, name: str) -> FunctionPlan:
        """The function `name`. Raises KeyError if there is none."""
        return {function.name: function for function in self.functions}[name]

    @property
    def peak(self) -> int:
        """The weights, plus the function with the largest peak."""
        return self.weights + max((f.peak for f in self.functions), default=0)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("function", "at", "planned", "least", "unshared", "workspace", "results", "peak")
        ]
        for f in self.functions:
            at = ", ".join(f"{name}={size}" for name, size in f.sizes.items()) or "-"
            figures = (f.planned, f.least, f.unshared, f.workspace, f.unplanned, f.peak)
            rows.append((f.name, at, *map(shown, figures)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(w) if i < 2 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        total = f"weights {shown(self.weights)}, with the largest function {shown(self.peak)}"
        return "\n".join([*lines, "", total, *self._inside()])

    def _inside(self) -> list[str]:
        """The memory that kernels allocate."""
        kernels = [kernel for function in self.functions for kernel in function.kernels]
        known = [kernel for kernel in kernels if kernel.nbytes(self.threads)]
        lines: list[str] = []
        if known:
            most = max(known, key=lambda kernel: kernel.nbytes(self.threads))
            lines.append(
                f"inside kernels at most {shown(most.nbytes(self.threads))} more, on {self.threads} "
                f"thread{'s' * (self.threads != 1)}: {most.name}"
            )
        elif any(kernel.known for kernel in kernels):
            lines.append("inside kernels nothing more")
        if unknown := sorted({kernel.name for kernel in kernels if not kernel.known}):
            listed = ", ".join(unknown[:_NAMED]) + (", …" if len(unknown) > _NAMED else "")
            lines.append(f"the memory inside these kernels is unknown: {listed}")
        return lines

    def svg(self) -> str:
        """The plan as a picture: each function's storages as bands, and each tensor as a rectangle of its lifetime and
        address range."""
        return timeline(self)

    def apart(self) -> MemoryPlan:
        """The same functions without memory planning (`FunctionPlan.apart`), for comparison."""
        return replace(self, functions=tuple(function.apart() for function in self.functions))

    def _repr_svg_(self) -> str:
        return self.svg()


def plan_of(
    functions: Sequence[FunctionCode],
    weights: int,
    sizes: Mapping[str, int],
    kernels: Sequence[KernelInfo] = (),
) -> MemoryPlan:
    """The plan of these functions for the given values of symbolic variables, by name or by function and name
    (`"main.n"`). Variables without a value are taken at their upper bound. A private function is left out if its sizes
    remain unknown.

    Raises: UsageError (`plan-sizes`) for a name that no function has, and a variable without value and bound.
    """
    known = {code.name: symbol_slots(code) for code in functions}
    for name in sizes:
        owner, _, symbol = name.rpartition(".")
        if not any(symbol in slots for n, slots in known.items() if owner in ("", n)):
            has = ", ".join(f"{n} has {', '.join(s) or 'none'}" for n, s in known.items())
            raise UsageError("plan-sizes", f"no function has a size {name!r}", help=has)
    plans: list[FunctionPlan] = []
    for code in functions:
        values = known_sizes(code, sizes)
        heap = heap_at(code, values)
        unknown = _unknown(code, heap)
        if not unknown:
            given = {symbol: size for symbol, size in values.items() if size is not None}
            inside = _inside_kernels(code, heap, kernels)
            plans.append(replace(_function(code, given, heap), kernels=inside))
        elif code.public:
            missing = [s for s, v in values.items() if v is None]
            raise UsageError(
                "plan-sizes",
                f"{code.name}: the size of {unknown} depends on {', '.join(missing)}",
                help=f"give a value: {_options('--size', missing)}, in Python memory_plan({_arguments(missing)}); "
                f"or plan for an upper bound: {_options('--bound', missing)}",
            )
    return MemoryPlan(weights, tuple(plans), num_threads())


def plan_note(code: FunctionCode, sizes: Mapping[str, int]) -> list[str]:
    """The plan of one call as a note of an error, or none if it depends on other sizes."""
    try:
        plan = plan_of((code,), 0, sizes)
    except UsageError:
        return []
    given = ", ".join(f"{name}={size}" for name, size in sizes.items())
    return [
        f"a call of {code.name}({given}) takes {shown(each.peak)}: {shown(each.planned)} are planned, "
        f"and results are {shown(each.unplanned)}; memory_plan({given}) of the executable shows the tensors"
        for each in plan.functions
    ]


def nbytes_of(code: FunctionCode, param: int) -> int:
    """The size of a parameter that is a tensor of fixed shape, in bytes; 0 for others."""
    for instr in code.code:
        match instr:
            case Match(src=src, pattern=TensorPattern(shape=tuple(dims), dtype=dtype)) if (
                src == param
            ):
                sizes = [dim for dim in dims if isinstance(dim, int)]
                known = len(sizes) == len(dims) and bool(dtype)
                return dtypes.nbytes(dtype, sizes) if known else 0
            case _:
                continue
    return 0


def _options(option: str, names: Sequence[str]) -> str:
    return " ".join(f"{option} {name}=2048" for name in names)


def _arguments(names: Sequence[str]) -> str:
    return ", ".join(f"{name}=2048" for name in names)


def _unknown(code: FunctionCode, heap: Sequence[int | None]) -> str:
    """A tensor or storage whose size is unknown with this heap; "" if there is none."""
    for index, size in enumerate(code.storages):
        if value_of(size, heap) is None:
            return f"storage {index}"
    for instr in code.code:
        if isinstance(instr, Alloc) and None in heap[instr.shape : instr.shape + instr.ndim]:
            return code.place(instr).binding or f"register {instr.dst}"
    return ""


def _function(
    code: FunctionCode, sizes: Mapping[str, int], heap: Sequence[int | None]
) -> FunctionPlan:
    lifetimes = Lifetimes(code)
    kept = _kept(code, lifetimes)
    tensors: list[PlannedTensor] = []
    for at, instr in enumerate(code.code):
        if not isinstance(instr, Alloc):
            continue
        dims = [size or 0 for size in heap[instr.shape : instr.shape + instr.ndim]]
        nbytes = dtypes.nbytes(instr.dtype, dims)
        leaves = instr.storage < 0 and at in kept
        end = len(code.code) - 1 if leaves else lifetimes.last.get(at, at)
        place = code.place(instr)
        tensors.append(
            PlannedTensor(place.binding, nbytes, instr.storage, instr.offset, at, end, place)
        )
    storages = tuple(value_of(size, heap) or 0 for size in code.storages)
    return FunctionPlan(code.name, dict(sizes), storages, tuple(tensors), len(code.code))


def _inside_kernels(
    code: FunctionCode, heap: Sequence[int | None], kernels: Sequence[KernelInfo]
) -> tuple[InsideKernel, ...]:
    """The memory that each kernel of a function allocates, at its largest call."""
    if not kernels:
        return ()
    shapes: dict[int, Sequence[int | None]] = {}
    """Register → the shape of its tensor, where that is known."""
    found: dict[str, list[InsideKernel]] = {}
    for instr in code.code:
        match instr:
            case Alloc() | View():
                shapes[instr.dst] = heap[instr.shape : instr.shape + instr.ndim]
            case Match(src=src, pattern=TensorPattern(shape=tuple(dims))):
                shapes[src] = [heap[d.index] if isinstance(d, Heap) else d for d in dims]
            case Move(dst=dst, src=src) if src in shapes:
                shapes[dst] = shapes[src]
            case Kernel(index=index):
                info = kernels[index]
                found.setdefault(info.name, []).append(_inside(info, instr, shapes, heap))
            case _:
                shapes.pop(sets(instr), None)
    return tuple(
        max(calls, key=lambda call: (not call.known, call.each, call.shared))
        for calls in found.values()
    )


def _inside(
    info: KernelInfo,
    call: Kernel,
    shapes: Mapping[int, Sequence[int | None]],
    heap: Sequence[int | None],
) -> InsideKernel:
    memory = info.image.memory
    if memory is None:
        return InsideKernel(info.name, known=False)
    sizes: list[int | None] = []
    for position, axis in memory.sizes:
        arg = call.args[position]
        if isinstance(arg, Reg):
            shape = shapes.get(arg.index, ())
            sizes.append(shape[axis] if axis < len(shape) else None)
        else:
            sizes.append(value_of(arg, heap) if isinstance(arg, (Heap, int)) else None)
    shared, each = value_of(memory.shared, sizes), value_of(memory.each, sizes)
    if shared is None or each is None:
        return InsideKernel(info.name, known=False)
    return InsideKernel(info.name, True, shared, each)


def _kept(code: FunctionCode, lifetimes: Lifetimes) -> frozenset[int]:
    """Tensors that may stay referenced until the call ends, if they own their memory: returned ones, and those passed
    to calls."""
    keeping = (MakeTuple, Call, Invoke, Packed, Closure, Return)
    return frozenset[int]().union(
        *(
            taken
            for instr, taken in zip(code.code, lifetimes.taken, strict=True)
            if isinstance(instr, keeping)
        )
    )
