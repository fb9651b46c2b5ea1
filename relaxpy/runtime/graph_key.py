"""The key of a recording: values that the launches of a graph depend on, and that may differ between calls.

Two calls in one frame launch the same kernels with the same arguments if two things are equal: *sizes* (integers of the
heap, scalars, shapes of arguments) and *places* (addresses of tensors outside of planned storage). These are the key of
a recording. Planned storage and constants are no part of it: recordings belong to a frame, and are dropped when its
storage grows.

Some tensors may be moved to a fixed place for the launches: those that are only read, which are copied there before,
and results, which are copied back afterwards.
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


@dataclass
class GraphKey:
    """The key of a graph, as Python expressions, and the registers of its movable tensors."""

    sizes: dict[str, None] = field(default_factory=dict[str, None])
    places: dict[str, None] = field(default_factory=dict[str, None])
    inputs: list[int] = field(default_factory=list[int])
    """Tensors that the graph only reads."""
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
        self.viewed: dict[Value, Value] = {}
        """The views that the graph makes, and what they are views of."""
        for inner in body:
            self.instr(inner, code.code[inner], kernels)
        self.classify(code, at)

    def instr(self, at: int, instr: Instr, kernels: Sequence[KernelInfo]) -> None:
        if isinstance(instr, (Alloc, View)):
            self.slots(instr.shape, instr.ndim)
        if isinstance(instr, View):
            (source,) = self.analysis.reads[at]
            self.tensor(instr.src, source, told=False)
            self.viewed[self.analysis.defines[at]] = self.viewed.get(source, source)
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
                self.written.add(self.viewed.get(value, value))

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
        """Decides which tensors may be moved: those that one register holds, and that are only read here, or were made
        for a result and not used before."""
        made = {
            self.analysis.defines[i]
            for i in range(at)
            if i in self.analysis.defines and isinstance(code.code[i], Alloc)
        }
        made -= {value for i in range(at) for value in self.analysis.reads.get(i, ())}
        for value, regs in self.regs.items():
            if value not in self.written:
                self.key.inputs += regs if len(regs) == 1 else ()
            elif value in made and len(regs) == 1:
                self.key.outputs += regs
            else:
                self.key.updated.append(min(regs))
