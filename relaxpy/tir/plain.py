"""Buffers without strides and offsets of their own.

Tensors are contiguous and begin at their first element, so that a stride or `elem_offset` of a parameter says nothing
new. One that is a variable of its own is replaced by what it is, everywhere; others must be that (`unlike`). The layout
of a view of a region (`T.match_buffer` in a block) is computed by TVM, into variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from relaxpy.tir.analyzer import equal, int64
from relaxpy.tir.nodes import with_body
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.types import Buffer, Expr
from relaxpy.tir.walk import rewritten, walk


@dataclass(frozen=True)
class Unlike:
    """A stride or offset that a buffer does not have."""

    buffer: Buffer
    what: str
    """"strides" or "elem_offset"."""
    is_view: bool
    """Is the buffer a view of a region?"""


def unlike(func: Any) -> Iterator[Unlike]:
    """The buffers of a function with strides or offsets that are not those of contiguous tensors. Those of views must
    be variables of their own."""
    yield from _Layouts(func).unlike()


def plain(func: Any) -> Any:
    """Return the function with its buffers' strides and offsets left out, and the variables that stood for them
    replaced; those of views are variables of their own. For functions without anything `unlike`."""
    layouts = _Layouts(func)
    if not layouts.strided:
        return func
    values = layouts.values()
    func = with_body(func, rewritten(func.body, (tvm.ir.Var, lambda var: values.get(var, var))))
    made = _Layouts(func)
    new = {
        buffer: _view(buffer) if buffer in made.views else _bare(buffer) for buffer in made.strided
    }
    return tvm_ffi.structural_map(func, (tvm.ir.Var, lambda var: new.get(var, var)))


class _Layouts:
    """The buffers of a function that have strides or offsets."""

    def __init__(self, func: Any) -> None:
        self.params = [p for p in func.params if isinstance(p.ty, tirx.BufferType)]
        self.views: list[Buffer] = []
        found: list[Buffer] = list(self.params)
        self.defined = {p for p in func.params if p not in self.params}
        """Variables that are defined elsewhere."""
        for buffer in self.params:
            for size in buffer.shape:
                walk(size, (tvm.ir.Var, self.defined.add))
        self.walk(func.body, found)
        self.strided = [b for b in dict.fromkeys(found) if _is_strided(b) or b in self.views]
        uses: list[Expr] = []
        for buffer in self.strided:
            for part in (*(buffer.strides or ()), buffer.elem_offset):
                if part is not None:
                    walk(part, (tvm.ir.Var, uses.append))
        self.own = {var for var in uses if uses.count(var) == 1} - self.defined
        """Variables that stand for one stride or offset, and for nothing else."""

    def walk(self, body: Any, found: list[Buffer]) -> None:
        def match(region: Any) -> None:
            self.views.append(region.buffer)
            found.append(region.buffer)
            self.defined.update(
                size for size in region.buffer.shape if isinstance(size, tvm.ir.Var)
            )

        def block(node: Any) -> None:
            found.extend(node.alloc_buffers)
            self.defined.update(axis.var for axis in node.iter_vars)

        walk(
            body,
            (s_tir.MatchBufferRegion, match),
            (s_tir.SBlock, block),
            ((tirx.AllocBuffer, tirx.DeclBuffer), lambda stmt: found.append(stmt.buffer)),
            (tirx.For, lambda loop: self.defined.add(loop.loop_var)),
            ((tirx.Bind, tirx.Let), lambda node: self.defined.add(node.var)),
        )

    def unlike(self) -> Iterator[Unlike]:
        for buffer in self.strided:
            is_view, is_param = buffer in self.views, buffer in self.params
            expected = compact(buffer)
            strides, free = list(buffer.strides or ()), is_param or is_view
            fits = len(strides) in (0, len(expected)) and all(
                (free and stride in self.own) or (not is_view and equal(int64(stride), step))
                for stride, step in zip(strides, expected, strict=False)
            )
            if not fits:
                yield Unlike(buffer, "strides", is_view)
            if not (_is_zero(buffer.elem_offset) or (free and buffer.elem_offset in self.own)):
                yield Unlike(buffer, "elem_offset", is_view)

    def values(self) -> dict[Expr, Expr]:
        """What the variables of parameters' strides and offsets are."""
        found: dict[Expr, Expr] = {}
        for buffer in self.params:
            layout = [*zip(buffer.strides or (), compact(buffer), strict=False)]
            for part, value in [*layout, (buffer.elem_offset, int64(0))]:
                if part in self.own:
                    found[part] = value.astype(str(part.ty.dtype))
        return found


def _is_strided(buffer: Buffer) -> bool:
    return bool(list(buffer.strides or ())) or not _is_zero(buffer.elem_offset)


def _is_zero(offset: Expr) -> bool:
    return offset is None or (isinstance(offset, tirx.IntImm) and int(offset.value) == 0)


def compact(buffer: Buffer) -> list[Expr]:
    """The strides of a contiguous tensor of the buffer's shape."""
    found: list[Expr] = []
    step: Expr = int64(1)
    for size in reversed(list(buffer.shape)):
        found.append(step)
        step = step * int64(size)
    return found[::-1]


def _bare(buffer: Buffer) -> Buffer:
    return _declared(buffer, None, None, 0)


def _view(buffer: Buffer) -> Buffer:
    """A view whose layout is variables, so that any region fits it."""
    strides = list(buffer.strides or ())
    if not strides:
        strides = [tirx.Var(f"stride{i}", "int64") for i, _ in enumerate(buffer.shape)]
    offset = buffer.elem_offset
    if not isinstance(offset, tvm.ir.Var):
        offset = tirx.Var("offset", "int64")
    return _declared(buffer, strides, offset, 1)


def _declared(buffer: Buffer, strides: Any, offset: Any, factor: int) -> Buffer:
    return tirx.decl_buffer(
        buffer.shape, buffer.dtype, buffer.name, strides=strides, elem_offset=offset, scope=buffer.scope(),
        data_alignment=buffer.data_alignment, offset_factor=factor, layout=None,
    )  # fmt: skip
