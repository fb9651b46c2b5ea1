"""What the blocks of a program that te made of statements read and write, which te leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy.tir.analyzer import int64
from relaxpy.tir.extents import whole
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi


def with_regions(func: Any) -> Any:
    """The function with what the blocks of `relaxpy.tir.writer.serial` read and write; without the block that te puts
    around blocks of theirs, and with the root block that it leaves out where there is only one."""

    def complete(block: Any) -> Any:
        if block.reads or block.writes or str(block.name_hint) == "root":
            return block
        # What the outermost statements allocate belongs to the block: the parser reads the text so.
        stmts = list(block.body.seq) if isinstance(block.body, tirx.SeqStmt) else [block.body]
        if all(map(_is_nest, stmts)):
            return block
        own = [stmt.buffer for stmt in stmts if isinstance(stmt, tirx.AllocBuffer)]
        rest = [stmt for stmt in stmts if not isinstance(stmt, tirx.AllocBuffer)]
        reads, writes = _accessed(block)
        return s_tir.SBlock(
            block.iter_vars, reads, writes, block.name_hint, _sequence(rest), block.init,
            [*block.alloc_buffers, *own], block.match_buffers, block.annotations,
        )  # fmt: skip

    def bare(realize: Any) -> Any:
        """Blocks by the name of what they make, and not in a block of their own."""
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


def _sequence(stmts: Sequence[Any]) -> Any:
    if not stmts:
        return tirx.Evaluate(tirx.IntImm("int32", 0))
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(stmts)


def _is_nest(stmt: Any) -> bool:
    """Loops around a block, and nothing else."""
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    return isinstance(stmt, s_tir.SBlockRealize)


def _renamed(block: Any, name: str) -> Any:
    return s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, name, block.body, block.init,
        block.alloc_buffers, block.match_buffers, block.annotations,
    )  # fmt: skip


def _accessed(block: Any) -> tuple[list[Any], list[Any]]:
    """What the block reads, and writes, of each buffer that it does not allocate: along a dimension the one place that
    all accesses name by the block's axes, or all places."""
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
    """The part of a buffer in which these accesses are."""
    parts = []
    for size, first, *others in zip(buffer.shape, *accesses, strict=True):
        same = all(tvm_ffi.structural_equal(first, other) for other in others)
        fixed = same and bool(axes) and _is_made_of(first, axes)
        parts.append(tvm.ir.Range.from_min_extent(first, int64(1)) if fixed else whole(size))
    return tirx.BufferRegion(buffer, parts)


def _is_made_of(index: Any, known: Sequence[Any]) -> bool:
    """Is the index arithmetic of these variables and of numbers?"""
    found: list[Any] = []
    walk = [(tvm.ir.Var, found.append), (tvm.ir.TensorLoad, found.append)]
    tvm_ffi.structural_walk(index, walk)
    return all(any(var.same_as(axis) for axis in known) for var in found)
