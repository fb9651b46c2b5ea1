"""Tensors that are filled by explicit loops in a given order, for operators whose elements are not independent
(scatter, where a later update may overwrite an earlier one).

    def fill(p: Serial, out: Buffer, x: Buffer) -> None:
        with p.loop("i", x.shape[0]) as i:
            p.write(out, i, value=p.read(x, i))

    y = serial(((n,), "float32"), [x], fill, "copy")

The loops run as they are written: one block. What may run in any order is said by a block of its own with spatial axes
(`Serial.block`, `relaxpy.tir.programs.rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from relaxpy.ir.dim import Dim, DimLike
from relaxpy.ir.module import APART
from relaxpy.tir.analyzer import to_tvm
from relaxpy.tir.programs.loops import Buffer, Expr, Index, Program, int64, sequence
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.tvm import te as _te


class Serial(Program):
    """A program on buffers of any rank. Statements are added to the innermost open `with`."""

    def read(self, buffer: Buffer, *index: Index) -> Expr:
        """Read an element."""
        return tirx.BufferLoad(buffer, list(map(int64, index)))

    def write(self, buffer: Buffer, *index: Index, value: Expr) -> None:
        """Store an element."""
        self.add(tirx.BufferStore(buffer, value, list(map(int64, index))))

    @contextmanager
    def loops(self, extents: Sequence[Index], name: str = "i") -> Iterator[list[Expr]]:
        """Nested loops, the last one innermost. Yields their variables."""
        with ExitStack() as opened:
            yield [
                opened.enter_context(self.loop(f"{name}{a}", extent))
                for a, extent in enumerate(extents)
            ]

    @contextmanager
    def block(
        self,
        name: str,
        extents: Sequence[Expr],
        apart: bool = False,
        attrs: Mapping[str, Any] | None = None,
    ) -> Iterator[list[Expr]]:
        """Loops over all indices of `extents`, in no fixed order, around a block of statements. Yields its axes.
        Without extents the statements are not put in a block. `apart` says that no two of them use one place, where
        that cannot be proved. `attrs` are annotations of the block."""
        if not extents:
            yield []
            return
        names = [f"{name}{a}" if len(extents) > 1 else name for a in range(len(extents))]
        axes = [tirx.Var(f"v_{of}", "int64") for of in names]
        self._open.append([])
        yield list(axes)
        notes = {**(attrs or {}), **({APART: 1} if apart else {})}
        # The read and write regions of the block are computed at the end (`relaxpy.tir.regions`).
        made = s_tir.SBlock(
            [
                tirx.IterVar(tvm.ir.Range.from_min_extent(int64(0), extent), axis, _SPATIAL, "")
                for axis, extent in zip(axes, extents, strict=True)
            ],
            [], [], name, sequence(self._open.pop()), annotations=notes,
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
    """The tensor (or a list of several) of shape and dtype `out` that `fill(program, *outputs, *inputs)` writes, with
    buffers in place of tensors. It must write every element before it reads it."""
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
