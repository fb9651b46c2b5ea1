"""What the launches of a graph depend on, and may differ between calls.

Two calls in one frame launch the same kernels with the same arguments if two things are equal: *sizes* (integers of the
heap, scalars, shapes of arguments) and *places* (addresses of tensors outside of planned storage). These are the key of
a recording. Planned storage and constants are no part of it: recordings belong to a frame, and are dropped when its
storage grows.

Some tensors may be moved to a fixed place for the launches: arguments that are only read, which are copied there
before, and results, which are copied back afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from relaxpy.runtime.bytecode import (
    Alloc,
    FunctionCode,
    Graph,
    Heap,
    Instr,
    Kernel,
    KernelInfo,
    KernelParam,
    Reg,
    View,
)
from relaxpy.runtime.operands import Analysis, Value


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """A graph of a function, for its recordings."""

    slot: int
    kernels: tuple[int, ...]
    """The kernels that it launches, as indices of the executable's kernels."""
    launches: int
    inputs: int
    """How many of the movable tensors are arguments; the others are results."""


@dataclass
class GraphKey:
    """The key of a graph, as Python expressions, and the registers of its movable tensors."""

    sizes: dict[str, None] = field(default_factory=dict[str, None])
    places: dict[str, None] = field(default_factory=dict[str, None])
    inputs: list[int] = field(default_factory=list[int])
    """Arguments of the function that the graph only reads."""
    outputs: list[int] = field(default_factory=list[int])
    """Tensors that the function has allocated outside of the plan and not used before."""
    updated: list[int] = field(default_factory=list[int])
    """Other tensors that the graph writes to. An input that shares memory with one of them is not moved."""


def graph_key(
    code: FunctionCode, analysis: Analysis, kernels: Sequence[KernelInfo], at: int
) -> GraphKey:
    """The key of the graph that the instruction `at` begins."""
    return _KeyWriter(code, analysis, kernels, at).key


class _KeyWriter:
    def __init__(
        self, code: FunctionCode, analysis: Analysis, kernels: Sequence[KernelInfo], at: int
    ) -> None:
        graph = code.code[at]
        assert isinstance(graph, Graph)
        body = range(at + 1, at + 1 + graph.length)
        self.key = GraphKey()
        self.analysis = analysis
        self.own = {analysis.defines[inner] for inner in body if inner in analysis.defines}
        """The values that the graph itself defines."""
        self.regs: dict[Value, set[int]] = {}
        """The other tensors in memory that is not planned, with the registers that hold them."""
        self.written: set[Value] = set()
        for inner in body:
            self.instr(inner, code.code[inner], kernels)
        self.classify(code, at)

    def instr(self, at: int, instr: Instr, kernels: Sequence[KernelInfo]) -> None:
        if isinstance(instr, (Alloc, View)):
            self.slots(instr.shape, instr.ndim)
        if isinstance(instr, View):
            self.tensor(instr.src, self.analysis.reads[at][0], told=False)
        if isinstance(instr, Kernel):
            self.kernel(instr, self.analysis.reads[at], kernels[instr.index].params or ())

    def kernel(self, instr: Kernel, reads: Sequence[Value], params: Sequence[KernelParam]) -> None:
        values = iter(reads)
        for param, arg in zip(params, instr.args, strict=True):
            if isinstance(arg, Heap):
                self.slots(arg.index, 1)
            if not isinstance(arg, Reg):
                continue
            value = next(values)
            if param.shape is None:
                self.key.sizes[f"repr(r{arg.index})"] = (
                    None  # 0.0 and -0.0 are equal, 1 and True too
                )
                continue
            # The launch is told the dimensions that are no constants.
            self.tensor(arg.index, value, any(not isinstance(dim, int) for dim in param.shape))
            if param.written:
                self.written.add(value)

    def tensor(self, reg: int, value: Value, told: bool) -> None:
        """Adds a tensor that the graph uses. `told`: whether a launch is told its shape."""
        if value in self.own or value.constant >= 0:
            return
        if value.shape >= 0:
            self.slots(value.shape, value.ndim)
        elif told:
            self.key.sizes[f"r{reg}.shape"] = None
        if value.storage < 0:
            self.key.places |= dict.fromkeys((f"r{reg}.buffer.handle", f"r{reg}.offset"))
            self.regs.setdefault(value, set()).add(reg)

    def slots(self, start: int, count: int) -> None:
        """Adds heap slots, without those that are constant."""
        slots = range(start, start + count)
        self.key.sizes |= {f"s{slot}": None for slot in slots if slot in self.analysis.written}

    def classify(self, code: FunctionCode, at: int) -> None:
        """Decides which tensors may be moved."""
        before = range(at)
        made = {
            self.analysis.defines[i]: code.code[i] for i in before if i in self.analysis.defines
        }
        used = {value for i in before for value in self.analysis.reads.get(i, ())}
        params = set(self.analysis.params)
        views = {
            self.analysis.reads[i][0]
            for i in range(at, len(code.code))
            if isinstance(code.code[i], View) and self.analysis.defines[i] in self.own
        }
        for value, regs in self.regs.items():
            reg, *others = sorted(regs)
            is_view = value in views
            if value in params and value not in self.written and not others and not is_view:
                self.key.inputs.append(reg)
            elif isinstance(made.get(value), Alloc) and value not in used and not others:
                if value in self.written or is_view:
                    self.key.outputs.append(reg)
            elif value in self.written or is_view:
                self.key.updated.append(reg)
