"""The heap memory that a scheduled program allocates while it runs, beside its parameters.

An allocation of small, constant size is on the stack or in registers (`relaxpy.tir.lowering.workspace.SMALL`). Larger
buffers are allocated when they are reached (`TVMBackendAllocWorkspace`), from a pool of the current thread; those in a
parallel loop are allocated by each thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from relaxpy.errors import PassError, UsageError
from relaxpy.ir.dim import Dim, DimOp, maximum
from relaxpy.tir.lowering.workspace import SMALL
from relaxpy.tir.recognise.cost import Extents
from relaxpy.tir.tvm import tirx, tvm


@dataclass(frozen=True, slots=True)
class HeapUse:
    """Bytes in use at the busiest moment, over the symbols of the program's parameters."""

    shared: Dim
    """Outside of parallel loops, allocated once."""
    each: Dim
    """Inside parallel loops, allocated by each thread."""

    def beside(self, other: HeapUse) -> HeapUse:
        """The use if both are in use at a time."""
        return HeapUse(self.shared + other.shared, self.each + other.each)

    def instead(self, other: HeapUse) -> HeapUse:
        """The use if only one of them is: the maximum."""
        return HeapUse(_larger(self.shared, other.shared), _larger(self.each, other.each))


def _larger(a: Dim, b: Dim) -> Dim:
    """The maximum of two numbers of bytes, which are not negative. In a nested maximum each size occurs once."""
    known = dict.fromkeys(_alternatives(a))
    more = [size for size in _alternatives(b) if size.value != 0 and size not in known]
    if not more:
        return a
    found = [size for size in known if size.value != 0] + more
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2], strict=False)
        found = [maximum(one, other) for one, other in pairs] + found[len(found) // 2 * 2 :]
    return found[0]


def _alternatives(size: Dim) -> Iterator[Dim]:
    """The sizes of which a size is the maximum."""
    atom = size.atom
    if isinstance(atom, DimOp) and atom.op == "max":
        for arg in atom.args:
            yield from _alternatives(arg)
    else:
        yield size


NONE = HeapUse(Dim.of(0), Dim.of(0))


def heap_use(func: Any) -> HeapUse | None:
    """The most heap memory that a run of a scheduled program allocates; None if that depends on more than its
    symbols."""
    try:
        return _Walk(func).stmt(func.body, parallel=False)
    except (
        PassError,
        UsageError,
    ):  # the latter for a formula that grows beyond the size of a dimension
        return None


class _Walk:
    def __init__(self, func: Any) -> None:
        self.func = func
        self.entered: list[Any] = []
        """Statements that define variables. They are needed rarely, since most sizes are constants."""

    @cached_property
    def extents(self) -> Extents:
        return Extents(self.func)

    def enter(self, node: Any) -> None:
        self.entered.append(node)

    def dim(self, extent: Any) -> Dim:
        """The size of a buffer. One that depends on unknown variables has no bound (PassError)."""
        if isinstance(extent, tirx.IntImm):
            return Dim.of(int(extent.value))
        for node in self.entered:
            with suppress(PassError):
                self.extents.enter(node)
        self.entered.clear()
        return self.extents.dim(extent)

    def stmt(self, node: Any, parallel: bool) -> HeapUse:
        """The memory in use during a statement, and the memory that it leaves allocated for the statements after it."""
        match type(node).__name__:
            case "BufferStore" | "Evaluate":
                return NONE
            case "For":
                self.enter(node)
                return self.stmt(node.body, parallel or node.kind == tirx.ForKind.PARALLEL)
            case "SBlockRealize":
                self.enter(node)
                used = self.stmt(node.block.body, parallel)
                for buffer in node.block.alloc_buffers:
                    used = used.beside(self.buffer(buffer, parallel))
                return used
            case "SeqStmt":
                return self.sequence(node.seq, parallel)
            case "IfThenElse":
                then = self.stmt(node.then_case, parallel)
                other = node.else_case
                return then if other is None else then.instead(self.stmt(other, parallel))
            case "AllocBuffer":
                used = self.buffer(node.buffer, parallel)
                body = getattr(node, "body", None)
                return used if body is None else used.beside(self.stmt(body, parallel))
            case _:
                self.enter(node)
                body = getattr(node, "body", None)
                return NONE if body is None else self.stmt(body, parallel)

    def sequence(self, steps: Any, parallel: bool) -> HeapUse:
        """Buffers live until the sequence ends; other statements run one at a time."""
        kept = busiest = NONE
        for step in steps:
            used = self.stmt(step, parallel)
            if used is NONE:
                continue
            if type(step).__name__ == "AllocBuffer":
                kept = kept.beside(used)
            else:
                busiest = busiest.instead(used)
        return kept.beside(busiest)

    def buffer(self, buffer: Any, parallel: bool) -> HeapUse:
        size = Dim.of(max(1, tvm.DataType(str(buffer.ty.dtype)).bits // 8))
        for extent in buffer.ty.shape:
            size = size * self.dim(extent)
        if size.value is not None and size.value < SMALL:
            return NONE
        return HeapUse(Dim.of(0), size) if parallel else HeapUse(size, Dim.of(0))
