"""The pattern kind of a tensor program, from an analysis of its loops (paper §4.2, algorithm 1; TVM's
`AnalyzeOpPatternKind`).

There are two corrections to the printed algorithm. First, the kind of a block is the least upper bound over all its
reads, whatever their order; as printed the last read decides, and `B[j, i] + A[i, j]` would be element-wise. Second, a
read that is none of the three kinds is not skipped: it makes the block a reduction, a contraction or opaque.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

from relaxpy.ir.module import CHECK_INDICES
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.loops import constant
from relaxpy.tir.recognise.contraction import linear_part
from relaxpy.tir.recognise.stages import equal_indices, loads_of, same_extents, uses
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.types import Buffer
from relaxpy.tir.walk import walk

Var = tvm.ir.Var


class PatternKind(IntEnum):
    """The fusion kind of a tensor program, from the most to the least fusible. The numbers are TVM's (`op_pattern`)."""

    ELEMENT_WISE = 0
    """`C[i, j]` from `A[i, j]`, and perhaps from `B[j]`."""
    BROADCAST = 1
    """`C[i, j]` from `B[j]` alone, or from nothing."""
    INJECTIVE = 2
    """`C[i, j]` from elements that i and j determine: `A[j, i]`, `A[i // 8, j]`, `A[ids[i], j]`."""
    REDUCTION = 3
    """Sums, maxima, and programs built from them: softmax."""
    OUTPUT_EWISE_FUSIBLE = 4
    """Matrix products, convolutions: element-wise programs can be fused after them."""
    OPAQUE = 8
    """Anything else: never fused."""

    def __str__(self) -> str:
        """The name in the paper."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True)
class Pattern:
    """The result of the analysis of a tensor program's loops."""

    kind: PatternKind
    reads: tuple[PatternKind, ...]
    """For each buffer parameter, outputs included: how the index written determines the index read. `OPAQUE` if it does
    not (a reduction reads many elements), `BROADCAST` if nothing is read."""
    windows: tuple[bool, ...] = ()
    """For each buffer parameter of a reduction: is it read through windows, as by a pooling? Then a program before it
    would be computed anew for every window that an element is in."""


def pattern_kind(program: PrimFunc) -> PatternKind:
    """The kind of a tensor program: the least upper bound over its blocks. Opaque unless all outputs are written at the
    same indices."""
    return analyse_pattern(program).kind


def analyse_pattern(program: PrimFunc) -> Pattern:
    """The kind of a tensor program, and how it reads each of its parameters."""
    return _analyse(program.func)


@lru_cache(maxsize=4096)
def _analyse(func: Any) -> Pattern:
    buffers = [p for p in func.params if isinstance(p.ty, tirx.BufferType)]
    opaque = Pattern(PatternKind.OPAQUE, (PatternKind.OPAQUE,) * len(buffers))
    if func.attrs is not None and CHECK_INDICES in func.attrs:
        return opaque  # its checks come first, and concern its arguments
    blocks = _leaf_blocks(func.body)
    if not blocks:
        return opaque
    outputs = [w for block in blocks for w in block.writes if _among(w.buffer, buffers)]
    if not outputs or not all(_same_place(outputs[0], other) for other in outputs[1:]):
        return opaque
    kinds = [_block_kind(block) for block in blocks]
    kind = max(kinds)
    if kind is PatternKind.OPAQUE:
        return opaque
    windows = tuple(any(_is_windowed(buffer, block) for block in blocks) for buffer in buffers)
    reads = tuple(_read_of(buffer, blocks, kinds) for buffer in buffers)
    return Pattern(kind, reads, windows if kind is PatternKind.REDUCTION else ())


@dataclass(frozen=True, slots=True)
class _Block:
    """An innermost block: its axes with their extents, its writes and reads."""

    spatial: dict[Any, Any]
    reduce: dict[Any, Any]
    writes: list[Any]
    reads: list[Any]
    regular: bool
    """It contains only stores, without loops or conditions of its own."""


def _leaf_blocks(body: Any) -> list[_Block] | None:
    """The innermost blocks of a program in order; None if something is written outside them."""
    found: list[_Block] = []

    def visit(stmt: Any) -> bool:
        match stmt:
            case tirx.For():
                return visit(stmt.body)
            case tirx.SeqStmt():
                return all(map(visit, stmt.seq))
            case s_tir.SBlockRealize() if _has_blocks(stmt.block.body):
                return not stmt.block.match_buffers and visit(stmt.block.body)
            case s_tir.SBlockRealize():
                found.append(_read_block(stmt))
                return True
            case _:
                return False

    return found if visit(body) else None


def _has_blocks(stmt: Any) -> bool:
    found: list[Any] = []
    walk(stmt, (s_tir.SBlockRealize, found.append))
    return bool(found)


def _read_block(realize: Any) -> _Block:
    block = realize.block
    kinds: dict[int, dict[Any, Any]] = {tirx.IterVar.DataPar: {}, tirx.IterVar.CommReduce: {}}
    regular = not block.match_buffers and not block.alloc_buffers
    regular = regular and constant(realize.predicate) == 1
    for axis in block.iter_vars:
        regular = regular and axis.iter_type in kinds
        kinds.setdefault(axis.iter_type, {})[axis.var] = axis.dom.extent
    stmts = list(block.body.seq) if isinstance(block.body, tirx.SeqStmt) else [block.body]
    writes = [stmt for stmt in stmts if isinstance(stmt, tirx.BufferStore)]
    reads = [read for stmt in stmts for read in loads_of(stmt)]
    spatial, reduce = kinds[tirx.IterVar.DataPar], kinds[tirx.IterVar.CommReduce]
    return _Block(spatial, reduce, writes, reads, regular and len(writes) == len(stmts))


def _block_kind(block: _Block) -> PatternKind:
    if not block.regular or not block.writes or not _writes_each_place_once(block):
        return PatternKind.OPAQUE
    first = block.writes[0]
    own = [r for r in block.reads if any(r.source.same_as(w.buffer) for w in block.writes)]
    if block.reduce:
        if not all(equal_indices(read.indices, first.indices) for read in own):
            return PatternKind.OPAQUE
        products = [_product(write) for write in block.writes]
        if all(p is not None and _is_contraction(*p, block) for p in products):
            return PatternKind.OUTPUT_EWISE_FUSIBLE
        return PatternKind.REDUCTION
    if own:
        return PatternKind.OPAQUE
    kinds = {_read_kind(read, first, block) for read in block.reads}
    if kinds == {PatternKind.ELEMENT_WISE, PatternKind.BROADCAST}:
        return PatternKind.ELEMENT_WISE  # C[i, j] = A[i, j] + B[j]
    return max(kinds, default=PatternKind.BROADCAST)


def _writes_each_place_once(block: _Block) -> bool:
    """Do all writes have the same index, made of the block's spatial axes, each once, and zeros?"""
    first = block.writes[0]
    if not all(equal_indices(first.indices, write.indices) for write in block.writes[1:]):
        return False
    axes = [place for place in first.indices if constant(place) != 0]
    if not all(isinstance(axis, Var) and axis in block.spatial for axis in axes):
        return False
    left = [axis for axis in block.spatial if not _among(axis, axes)]
    distinct = len({axis.__hash__() for axis in axes}) == len(axes)
    return distinct and all(constant(block.spatial[axis]) == 1 for axis in left)


def _read_kind(read: Any, write: Any, block: _Block) -> PatternKind:
    """How the index written determines the index read."""
    if equal_indices(read.indices, write.indices):
        same = same_extents(read.source.shape, write.buffer.shape)
        return PatternKind.ELEMENT_WISE if same else PatternKind.INJECTIVE  # a slice
    if _is_subsequence(read.indices, write.indices):
        return PatternKind.BROADCAST
    if any(uses(index, axis) for index in read.indices for axis in block.reduce):
        return PatternKind.OPAQUE
    return PatternKind.INJECTIVE


def _is_subsequence(read: Sequence[Any], write: Sequence[Any]) -> bool:
    """Are the read's axes a subsequence of the write's? (Zeros are indices of dimensions of size 1.)"""
    rest = iter(write)
    return all(
        constant(index) == 0 or (isinstance(index, Var) and any(index.same_as(w) for w in rest))
        for index in read
    )


def _product(write: Any) -> tuple[Any, Any] | None:
    """The factors of `C[…] = C[…] + a * b`, below casts."""
    value = write.value
    if not isinstance(value, tirx.Add):
        return None
    for total, term in ((value.a, value.b), (value.b, value.a)):
        is_total = isinstance(total, tvm.ir.TensorLoad) and total.source.same_as(write.buffer)
        while isinstance(term, tirx.Cast):
            term = term.value
        if is_total and isinstance(term, tirx.Mul):
            return term.a, term.b
    return None


def _is_contraction(a: Any, b: Any, block: _Block) -> bool:
    """Does the product reuse its factors? One of them must not depend on an axis of the output (a matrix product; the
    sum of squares of a row is a reduction)."""
    return any(
        loads_of(factor) and not uses(factor, axis)
        for factor, other in ((a, b), (b, a))
        for axis, extent in block.spatial.items()
        if constant(extent) != 1 and loads_of(other)
    )


def _read_of(buffer: Buffer, blocks: Sequence[_Block], kinds: Sequence[PatternKind]) -> PatternKind:
    """How the outputs' indices determine those read in a parameter: exact for one block, else an upper bound."""
    found = [] if len(blocks) == 1 else [max(kinds)]
    for block, kind in zip(blocks, kinds, strict=True):
        for read in block.reads:
            if read.source.same_as(buffer):
                strict = kind <= PatternKind.INJECTIVE
                found.append(
                    _read_kind(read, block.writes[0], block) if strict else PatternKind.OPAQUE
                )
    return max(found, default=PatternKind.BROADCAST)


def _is_windowed(buffer: Buffer, block: _Block) -> bool:
    """Does the block reduce windows of this buffer: along several dimensions, or such that they overlap?"""
    return any(
        _is_window(read.indices, block) for read in block.reads if read.source.same_as(buffer)
    )


def _is_window(indices: Sequence[Any], block: _Block) -> bool:
    mixed, moving = 0, [a for a, extent in block.spatial.items() if constant(extent) != 1]
    for index in indices:
        along = [axis for axis in block.reduce if uses(index, axis)]
        if not along:
            continue
        if not any(uses(index, axis) for axis in moving):
            return False  # the whole of a dimension
        mixed += 1
        steps, _ = linear_part(index, {**block.spatial, **block.reduce})
        span = sum(
            (constant(block.reduce[axis]) or 0) * abs(constant(steps.get(axis)) or 0)
            for axis in along
        )
        between = [abs(constant(steps[axis]) or 0) for axis in block.spatial if axis in steps]
        if between and span > max(between):
            return True
    return mixed > 1


def _same_place(a: Any, b: Any) -> bool:
    """Do two writes, possibly of different blocks, cover the same indices? They do for buffers of one shape, each
    indexed by its block's axes in order."""
    return same_extents(a.buffer.shape, b.buffer.shape)


def _among(item: Any, items: Sequence[Any]) -> bool:
    return any(item.same_as(other) for other in items)
