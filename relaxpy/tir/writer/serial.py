"""Tensors that are filled by loops written out, in a given order: for what is no formula of one element (scatter,
where a later update may meet an earlier one).

    def fill(p: Serial, out: Buffer, x: Buffer) -> None:
        with p.loop("i", x.shape[0]) as i:
            p.write(out, i, value=p.read(x, i))

    y = serial(((n,), "float32"), [x], fill, "copy")

The loops run as they are written: one block that no schedule rule looks into. What is to run in parallel is marked so
(`p.loop(…, parallel=True)`, `relaxpy.tir.writer.rows`), and then the program counts as arranged by its author.
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
from relaxpy.tir.writer.loops import Buffer, Expr, Index, Program, int64


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
    """The function with what its opaque blocks read and write: te leaves that out of the blocks of `serial`, and
    leaves out the root block where there is only one."""

    def complete(block: Any) -> Any:
        if block.iter_vars or block.reads or block.writes or str(block.name_hint) == "root":
            return block
        reads, writes = _accessed(block)
        # What the outermost statements allocate belongs to the block: the parser reads the text so.
        stmts = list(block.body.seq) if isinstance(block.body, tirx.SeqStmt) else [block.body]
        own = [stmt.buffer for stmt in stmts if isinstance(stmt, tirx.AllocBuffer)]
        rest = [stmt for stmt in stmts if not isinstance(stmt, tirx.AllocBuffer)]
        return s_tir.SBlock(
            [], reads, writes, block.name_hint, rest[0] if len(rest) == 1 else tirx.SeqStmt(rest),
            block.init, [*block.alloc_buffers, *own], block.match_buffers, block.annotations,
        )  # fmt: skip

    body = tvm_ffi.structural_map(func.body, (s_tir.SBlock, complete))
    if body.same_as(func.body):
        return func
    if str(body.block.name_hint) != "root":
        root = s_tir.SBlock([], [], [], "root", body)
        body = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
    return func.with_body(body)


def _accessed(block: Any) -> tuple[list[Any], list[Any]]:
    """The whole of each buffer that the block reads, and writes, but for those that it allocates."""
    read: dict[Any, None] = {}
    written: dict[Any, None] = {}
    own: list[Any] = []
    tvm_ffi.structural_walk(
        block.body,
        [
            (tvm.ir.TensorLoad, lambda load: read.setdefault(load.source)),
            (tirx.BufferStore, lambda store: written.setdefault(store.buffer)),
            (tirx.AllocBuffer, lambda allocation: own.append(allocation.buffer)),
        ],
    )
    reads, writes = (
        [_whole(b) for b in buffers if not any(b.same_as(o) for o in own)]
        for buffers in (read, written)
    )
    return reads, writes


def _whole(buffer: Buffer) -> Any:
    """All of a buffer."""
    return tirx.BufferRegion(buffer, list(map(whole, buffer.shape)))
