"""Fill in the read and write regions of blocks in programs that te made from statements, which te leaves empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy.tir.analyzer import int64
from relaxpy.tir.extents import whole
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi


def with_regions(func: Any) -> Any:
    """Return the function with the regions of blocks made by `relaxpy.tir.programs.serial`, without te's extra block
    around nested blocks, and with the root block that te omits if there is only one block."""

    def complete(block: Any) -> Any:
        if block.reads or block.writes or str(block.name_hint) == "root":
            return block
        stmts = list(block.body.seq) if isinstance(block.body, tirx.SeqStmt) else [block.body]
        if all(map(_is_nest, stmts)):
            return block
        own, rest = _allocations(block.body)
        reads, writes = _accessed(block)
        return s_tir.SBlock(
            block.iter_vars, reads, writes, block.name_hint, rest, block.init,
            [*block.alloc_buffers, *own], block.match_buffers, block.annotations,
        )  # fmt: skip

    def bare(realize: Any) -> Any:
        """Rename blocks to their output, and unwrap blocks that te nested in another one."""
        block = realize.block
        if block.iter_vars or block.reads or block.writes or str(block.name_hint) == "root":
            return realize
        named = (s_tir.SBlock, lambda inner: _renamed(inner, block.name_hint))
        return tvm_ffi.structural_map(block.body, named)

    body = tvm_ffi.structural_map(
        func.body, [(s_tir.SBlock, complete), (s_tir.SBlockRealize, bare)]
    )
    if body.same_as(func.body):
        return func
    if not isinstance(body, s_tir.SBlockRealize) or str(body.block.name_hint) != "root":
        root = s_tir.SBlock([], [], [], "root", body)
        body = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
    return func.with_body(body)


def _allocations(stmt: Any) -> tuple[list[Any], Any]:
    """The buffers that belong to the block, and the statement without their allocations: those of the outermost
    statements and of their branches, as TVM's parser reads them."""
    if isinstance(stmt, tirx.AllocBuffer):
        return [stmt.buffer], _sequence([])
    if isinstance(stmt, tirx.SeqStmt):
        parts = [_allocations(each) for each in stmt.seq]
        kept = [
            rest for each, (_, rest) in zip(stmt.seq, parts, strict=True)
            if not isinstance(each, tirx.AllocBuffer)
        ]  # fmt: skip
        return [buffer for own, _ in parts for buffer in own], _sequence(kept)
    if isinstance(stmt, tirx.IfThenElse):
        own, then = _allocations(stmt.then_case)
        more, otherwise = _allocations(stmt.else_case) if stmt.else_case is not None else ([], None)
        if own or more:
            return [*own, *more], tirx.IfThenElse(stmt.condition, then, otherwise)
    return [], stmt


def _sequence(stmts: Sequence[Any]) -> Any:
    if not stmts:
        return tirx.Evaluate(tirx.IntImm("int32", 0))
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(stmts)


def _is_nest(stmt: Any) -> bool:
    """Is it loops around a block, and nothing else?"""
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    return isinstance(stmt, s_tir.SBlockRealize)


def _renamed(block: Any, name: str) -> Any:
    return s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, name, block.body, block.init,
        block.alloc_buffers, block.match_buffers, block.annotations,
    )  # fmt: skip


def _accessed(block: Any) -> tuple[list[Any], list[Any]]:
    """The regions that the block reads and writes, for each buffer that it does not allocate. Along each dimension: the
    one index that all accesses express by the block's axes, else the whole dimension."""
    read: dict[Any, list[Any]] = {}
    written: dict[Any, list[Any]] = {}
    own: list[Any] = []
    tvm_ffi.structural_walk(
        block.body,
        [
            (tvm.ir.TensorLoad, lambda load: read.setdefault(load.source, []).append(load.indices)),
            (
                tirx.BufferStore,
                lambda store: written.setdefault(store.buffer, []).append(store.indices),
            ),
            (tirx.AllocBuffer, lambda allocation: own.append(allocation.buffer)),
        ],
    )
    axes = [axis.var for axis in block.iter_vars]
    reads, writes = (
        [_region(b, at, axes) for b, at in found.items() if not any(b.same_as(o) for o in own)]
        for found in (read, written)
    )
    return reads, writes


def _region(buffer: Any, accesses: Sequence[Sequence[Any]], axes: Sequence[Any]) -> Any:
    """The region of a buffer that contains these accesses."""
    parts = []
    for size, first, *others in zip(buffer.shape, *accesses, strict=True):
        same = all(tvm_ffi.structural_equal(first, other) for other in others)
        fixed = same and bool(axes) and _is_made_of(first, axes)
        parts.append(tvm.ir.Range.from_min_extent(first, int64(1)) if fixed else whole(size))
    return tirx.BufferRegion(buffer, parts)


def _is_made_of(index: Any, known: Sequence[Any]) -> bool:
    """Is the index arithmetic on these variables and on constants?"""
    found: list[Any] = []
    walk = [(tvm.ir.Var, found.append), (tvm.ir.TensorLoad, found.append)]
    tvm_ffi.structural_walk(index, walk)
    return all(any(var.same_as(axis) for axis in known) for var in found)
