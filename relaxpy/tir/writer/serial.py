"""Tensors that are filled by loops written out, in a given order: for what is no formula of one element (scatter,
where a later update may meet an earlier one).

    def fill(p: Serial, out: Buffer, x: Buffer) -> None:
        with p.loop("i", x.shape[0]) as i:
            p.write(out, i, value=p.read(x, i))

    y = serial(((n,), "float32"), [x], fill, "copy")

The loops run as they are written: one block. What may run in any order is said by a block of its own with spatial axes
(`Serial.block`, `relaxpy.tir.writer.rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from relaxpy.ir.dim import Dim, DimLike
from relaxpy.tir.analyzer import to_tvm
from relaxpy.tir.extents import whole
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.tvm import te as _te
from relaxpy.tir.writer.loops import Buffer, Expr, Index, Program, int64, sequence


class Serial(Program):
    """A program on buffers of any rank; statements go where the innermost open `with` is."""

    def read(self, buffer: Buffer, *index: Index) -> Expr:
        """An element."""
        return tirx.BufferLoad(buffer, list(map(int64, index)))

    def write(self, buffer: Buffer, *index: Index, value: Expr) -> None:
        """Store an element."""
        self.add(tirx.BufferStore(buffer, value, list(map(int64, index))))

    @contextmanager
    def loops(self, extents: Sequence[Index], name: str = "i") -> Iterator[list[Expr]]:
        """One loop in the other, the last the innermost: gives their variables."""
        with ExitStack() as opened:
            yield [
                opened.enter_context(self.loop(f"{name}{a}", extent))
                for a, extent in enumerate(extents)
            ]

    @contextmanager
    def block(self, name: str, extents: Sequence[Expr]) -> Iterator[list[Expr]]:
        """Loops over all places of `extents`, in no order, and in them a block of statements: gives its axes. Without
        extents the statements stay by themselves."""
        if not extents:
            yield []
            return
        names = [f"{name}{a}" if len(extents) > 1 else name for a in range(len(extents))]
        axes = [tirx.Var(f"v_{of}", "int64") for of in names]
        self._open.append([])
        yield list(axes)
        # What the block reads and writes is found out at the end (`with_regions`).
        made = s_tir.SBlock(
            [
                tirx.IterVar(tvm.ir.Range.from_min_extent(int64(0), extent), axis, _SPATIAL, "")
                for axis, extent in zip(axes, extents, strict=True)
            ],
            [], [], name, sequence(self._open.pop()),
        )  # fmt: skip
        loops = [tirx.Var(of, "int64") for of in names]
        nest: Any = s_tir.SBlockRealize(loops, tirx.const(True, "bool"), made)
        for var, extent in zip(reversed(loops), reversed(extents), strict=True):
            nest = tirx.For(var, int64(0), extent, tirx.ForKind.SERIAL, nest)
        self.add(nest)


_SPATIAL = tirx.IterVar.DataPar


def serial(
    out: tuple[Sequence[DimLike], str] | Sequence[tuple[Sequence[DimLike], str]],
    inputs: Sequence[Any],
    fill: Callable[..., None],
    name: str,
) -> Any:
    """The tensor (a list of them for several) of shape and dtype `out` that `fill(program, *outputs, *inputs)`
    writes, buffers in place of tensors. It must write every element before it reads it."""
    single = len(out) == 2 and isinstance(out[1], str)
    outs: Sequence[Any] = [out] if single else out

    def body(ins: Sequence[Buffer], results: Sequence[Buffer]) -> Any:
        p = Serial()
        fill(p, *results, *ins)
        return p.body()

    shapes = [[to_tvm(Dim.of(size)) for size in shape] for shape, _ in outs]
    dtypes = [str(dtype) for _, dtype in outs]
    made = _te.extern(
        shapes,
        list(inputs),
        body,
        name,
        dtype=dtypes,
        in_buffers=[_compact(x.shape, x.dtype, x.op.name) for x in inputs],
        out_buffers=[_compact(*out, name) for out in zip(shapes, dtypes, strict=True)],
    )
    return made if single or not isinstance(made, _te.Tensor) else [made]


def _compact(shape: Sequence[Expr], dtype: str, name: str) -> Buffer:
    return tirx.decl_buffer(list(shape), str(dtype), name, layout=None)


def with_regions(func: Any) -> Any:
    """The function with what the blocks of `serial` read and write, which te leaves out; without the block that te puts
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
            block.iter_vars, reads, writes, block.name_hint, sequence(rest), block.init,
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


def _region(buffer: Buffer, accesses: Sequence[Sequence[Expr]], axes: Sequence[Any]) -> Any:
    """The part of a buffer in which these accesses are."""
    parts = []
    for size, first, *others in zip(buffer.shape, *accesses, strict=True):
        same = all(tvm_ffi.structural_equal(first, other) for other in others)
        fixed = same and bool(axes) and _is_made_of(first, axes)
        parts.append(tvm.ir.Range.from_min_extent(first, int64(1)) if fixed else whole(size))
    return tirx.BufferRegion(buffer, parts)


def _is_made_of(index: Expr, known: Sequence[Any]) -> bool:
    """Is the index arithmetic of these variables and of numbers?"""
    found: list[Any] = []
    walk = [(tvm.ir.Var, found.append), (tvm.ir.TensorLoad, found.append)]
    tvm_ffi.structural_walk(index, walk)
    return all(any(var.same_as(axis) for axis in known) for var in found)
