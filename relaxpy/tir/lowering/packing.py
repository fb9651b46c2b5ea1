"""Programs that use more buffers than a launch may take: buffers of one dtype become parts of one buffer.

Allocations of the same rows are parts of the rows of one allocation. Inputs that are only read are copied behind one
another into a new allocation, those of the fewest dimensions first: the options of rows, a bias.

    for i in range(n):                      for i in range(n):
        z[i] = x[i] + y[i] * w[i]               parts[i] = x[i]
                                            for i in range(n):
                                                parts[n + i] = y[i]
                                            for i in range(n):
                                                z[i] = parts[i] + parts[n + i] * w[i]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.ir.module import APART
from relaxpy.tir.extents import whole, with_parsed_extents
from relaxpy.tir.lowering.workspace import is_shared
from relaxpy.tir.programs.loops import int64
from relaxpy.tir.recognise.stages import same_extents
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.types import Buffer, Expr, Stmt
from relaxpy.tir.walk import rewritten, walk


@dataclass(frozen=True)
class _Part:
    """Where a buffer is in another one."""

    buffer: Buffer
    first: Expr
    """Of its elements, or of those of each row."""
    shape: tuple[Expr, ...]
    rows: int
    """The number of dimensions that both have."""

    def index(self, indices: Sequence[Expr]) -> list[Expr]:
        """The place of an element."""
        place = int64(0)
        for extent, index in zip(self.shape[self.rows :], indices[self.rows :], strict=True):
            place = place * extent + index
        return [*indices[: self.rows], self.first + place]


def with_fewer_buffers(func: tirx.PrimFunc, most: int) -> tirx.PrimFunc:
    """The function, whose root block has a statement for each launch, with as few more of its buffers in one as make no
    statement use more than `most`; as many as possible, if that is not enough."""
    if not isinstance(func.body, s_tir.SBlockRealize) or len(func.body.iter_values):
        root = s_tir.SBlock([], [], [], "root", func.body)
        func = func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), root))
    for step in (_with_joined_allocations, _with_joined_inputs):
        if _excess(func, most) > 0:
            func = step(func, most)
    return with_parsed_extents(func)


def _statements(func: tirx.PrimFunc) -> list[Stmt]:
    body = func.body.block.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _taken(stmt: Stmt, buffers: Iterable[Buffer]) -> list[Buffer]:
    """Those of the buffers that a statement uses."""
    found: list[Any] = []
    walk(stmt, (tvm.ir.Var, found.append))
    used = set(found)
    return [buffer for buffer in buffers if buffer in used]


def _given(func: tirx.PrimFunc) -> list[Buffer]:
    """The buffers that launches take."""
    shared = [buffer for buffer in func.body.block.alloc_buffers if is_shared(buffer)]
    return [*(param for param in func.params if tirx.buffer.is_buffer_var(param)), *shared]


def _excess(func: tirx.PrimFunc, most: int) -> int:
    """How many buffers too many a statement uses."""
    given = _given(func)
    return max(len(_taken(stmt, given)) for stmt in _statements(func)) - most


def _with_joined_allocations(func: tirx.PrimFunc, most: int) -> tirx.PrimFunc:
    del most  # nothing is copied
    groups: list[list[Buffer]] = []
    for buffer in func.body.block.alloc_buffers:
        if not is_shared(buffer):
            continue
        for group in groups:
            if buffer.dtype == group[0].dtype and _rows_are_same(buffer, group[0]):
                group.append(buffer)
                break
        else:
            groups.append([buffer])
    parts: dict[Buffer, _Part] = {}
    made: list[Buffer] = []
    for group in groups:
        if len(group) > 1:
            rows = list(group[0].shape)[:-1]
            first = [int64(0)]
            for buffer in group:
                first.append(first[-1] + int64(buffer.shape[-1]))
            joined = _allocation([*rows, first[-1]], str(group[0].dtype), str(group[0].name))
            made.append(joined)
            for buffer, start in zip(group, first, strict=False):
                parts[buffer] = _Part(joined, start, tuple(buffer.shape), len(rows))
    return _rebuilt(func, made, parts, [])


def _rows_are_same(a: Buffer, b: Buffer) -> bool:
    return len(a.shape) == len(b.shape) and same_extents(list(a.shape)[:-1], list(b.shape)[:-1])


def _with_joined_inputs(func: tirx.PrimFunc, most: int) -> tirx.PrimFunc:
    stored: list[Buffer] = []
    walk(func.body, (tirx.BufferStore, lambda store: stored.append(store.buffer)))
    params = [param for param in func.params if tirx.buffer.is_buffer_var(param)]
    read = [param for param in params if param not in set(stored)]
    read.sort(key=lambda param: len(param.shape))
    chosen: dict[str, list[Buffer]] = {}
    for buffer in read:
        if _joined_excess(func, chosen.values(), most) <= 0:
            break
        chosen.setdefault(str(buffer.dtype), []).append(buffer)
    parts: dict[Buffer, _Part] = {}
    made: list[Buffer] = []
    copies: list[Stmt] = []
    for dtype, group in chosen.items():
        if len(group) < 2:
            continue
        first = int64(0)
        own: list[tuple[Buffer, Expr]] = []
        for buffer in group:
            own.append((buffer, first))
            count = int64(1)
            for extent in buffer.shape:
                count = count * extent
            first = first + count
        joined = _allocation([first], dtype, "parts")
        made.append(joined)
        for buffer, start in own:
            parts[buffer] = _Part(joined, start, tuple(buffer.shape), 0)
            copies.append(_copy(buffer, parts[buffer]))
    return _rebuilt(func, made, parts, copies)


def _joined_excess(func: tirx.PrimFunc, groups: Iterable[Sequence[Buffer]], most: int) -> int:
    """The excess if each group were one buffer."""
    given, worst = _given(func), 0
    for stmt in _statements(func):
        taken = _taken(stmt, given)
        among = [sum(buffer in taken for buffer in group) for group in groups]
        worst = max(worst, len(taken) - sum(max(count - 1, 0) for count in among))
    return worst - most


def _allocation(shape: Sequence[Expr], dtype: str, name: str) -> Buffer:
    return tirx.decl_buffer(list(shape), dtype, name, layout=None)


def _copy(source: Buffer, part: _Part) -> Stmt:
    """A nest that copies a buffer to its part."""
    axes = [tirx.Var(f"v{n}", "int64") for n in range(len(source.shape))]
    loops = [tirx.Var(f"i{n}", "int64") for n in range(len(source.shape))]
    iters = [
        tirx.IterVar(tvm.ir.Range.from_min_extent(int64(0), extent), axis, tirx.IterVar.DataPar)
        for extent, axis in zip(source.shape, axes, strict=True)
    ]
    store = tirx.BufferStore(part.buffer, tirx.BufferLoad(source, axes), part.index(axes))
    regions = [
        tirx.BufferRegion(each, list(map(whole, each.shape))) for each in (source, part.buffer)
    ]
    block = s_tir.SBlock(iters, regions[:1], regions[1:], "part", store, annotations={APART: 1})
    nest: Any = s_tir.SBlockRealize(loops, tirx.const(True, "bool"), block)
    for loop, extent in zip(loops[::-1], list(source.shape)[::-1], strict=True):
        nest = tirx.For(loop, int64(0), extent, tirx.ForKind.SERIAL, nest)
    return nest


def _rebuilt(
    func: tirx.PrimFunc,
    made: Sequence[Buffer],
    parts: Mapping[Buffer, _Part],
    before: Sequence[Stmt],
) -> tirx.PrimFunc:
    """The function with its buffers in the place of which there are parts of others."""
    if not parts:
        return func
    root = func.body.block
    stmts = [_moved(stmt, parts) for stmt in _statements(func)]
    kept = [buffer for buffer in root.alloc_buffers if buffer not in parts]
    body = tirx.SeqStmt([*before, *stmts]) if len(before) + len(stmts) > 1 else stmts[0]
    block = s_tir.SBlock([], [], [], root.name_hint, body, None, [*made, *kept])
    return func.with_body(s_tir.SBlockRealize([], func.body.predicate, block))


def _moved(stmt: Stmt, parts: Mapping[Buffer, _Part]) -> Stmt:
    def load(node: Any) -> Any:
        part = parts.get(node.source)
        return (
            node if part is None else tirx.BufferLoad(part.buffer, part.index(list(node.indices)))
        )

    def store(node: Any) -> Any:
        part = parts.get(node.buffer)
        if part is None:
            return node
        return tirx.BufferStore(part.buffer, node.value, part.index(list(node.indices)))

    def region(node: Any) -> Any:
        part = parts.get(node.source)
        if part is None:
            return node
        rows = list(node.region)[: part.rows]
        return tirx.BufferRegion(
            part.buffer, [*rows, *map(whole, list(part.buffer.shape)[part.rows :])]
        )

    return rewritten(
        stmt, (tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (tvm.ir.TensorRegion, region)
    )
