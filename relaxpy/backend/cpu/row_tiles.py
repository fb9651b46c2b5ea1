"""Weights of convolutions packed into tiles of rows: their layout if they are known at build time.

A convolution multiplies a tile of channels by a panel of pixels. At each position of the depth it reads one number of
every row of the tile. A weight (O, ...) in tiles is the tensor (ceil(O / height), ..., height), with the last tile
padded with zeros: a tile is contiguous, in the order in which it is read. If the target multiplies groups of
neighbours along the last dimension (`relaxpy.backend.cpu.arithmetic`), the tensor is (ceil(O / height), ..., ceil(I /
group), height, group).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs import loops
from relaxpy.tir.recognise.contraction import Operand
from relaxpy.tir.recognise.convolution import (
    SUMMED_IN,
    ChannelForm,
    prefers_channels,
    read_channel_convolution,
    read_convolution,
)
from relaxpy.tir.schedule import is_scheduled
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi

Each = TypeVar("Each")
TILE_HEIGHTS = (6, 8)
"""Rows of a tile, for 16 vector registers and for 32."""


@dataclass(frozen=True, slots=True)
class RowTiles:
    """The packing of a convolution's weight."""

    param: int
    """Number of the program's parameter that is the weight."""
    axis: int
    """The weight's dimension that counts the rows."""
    height: int
    """Rows of a tile."""
    lead: int = 0
    """The number of first dimensions, before that of the rows, that stay outside of the tiles: experts, say."""
    group: int = 1
    """Length of the groups along the last dimension, which is not that of the rows, that are contiguous."""

    def packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a weight of this shape in tiles."""
        tiles, others = -(-shape[self.axis] // self.height), self._others(shape)
        if self.group == 1:
            return *shape[: self.lead], tiles, *others, self.height
        groups = -(-others[-1] // self.group)
        return *shape[: self.lead], tiles, *others[:-1], groups, self.height, self.group

    def source(
        self, shape: tuple[int, ...], at: Sequence[loops.Expr]
    ) -> tuple[list[loops.Expr], list[loops.Expr]]:
        """The indices in a weight of this shape of the element at these indices of the tiles, and the conditions under
        which it is there; padding otherwise."""
        lead, tile, others, lane = at[: self.lead], at[self.lead], at[self.lead + 1 : -1], at[-1]
        inside: list[loops.Expr] = []
        if self.group > 1:
            *others, part, lane = others
            others = [*others, part * loops.int64(self.group) + at[-1]]
            if shape[-1] % self.group:
                inside.append(others[-1] < loops.int64(shape[-1]))
        rows, before = shape[self.axis], self.axis - self.lead
        row = tile * loops.int64(self.height) + lane
        inside += [] if rows % self.height == 0 else [row < loops.int64(rows)]
        return [*lead, *others[:before], row, *others[before:]], inside

    def pack(self, weight: np.ndarray) -> np.ndarray:
        """Pack the weight into tiles."""
        lead = self.lead
        rows = np.moveaxis(weight, self.axis, lead)
        shape = self.packed_shape(weight.shape)
        tiles, height = shape[lead], self.height
        more = tiles * height - rows.shape[lead]
        padded = np.pad(rows, [(0, more if n == lead else 0) for n in range(rows.ndim)])
        if self.group > 1:
            last = -padded.shape[-1] % self.group
            padded = np.pad(padded, [(0, 0)] * (padded.ndim - 1) + [(0, last)])
            cut = padded.reshape(*shape[:lead], tiles, height, *shape[lead + 1 : -2], self.group)
            return np.ascontiguousarray(np.moveaxis(cut, lead + 1, -2))
        cut = padded.reshape(*shape[:lead], tiles, height, *shape[lead + 1 : -1])
        return np.ascontiguousarray(np.moveaxis(cut, lead + 1, -1))

    def place(self, indices: list[loops.Expr]) -> list[loops.Expr]:
        """The indices in the tiles of the element at these indices of the weight."""
        row, height = indices[self.axis], loops.int64(self.height)
        tile, lane = tirx.floordiv(row, height), tirx.floormod(row, height)
        lead, others = indices[: self.lead], self._others(indices)
        if self.group == 1:
            return [*lead, tile, *others, lane]
        *others, k = others
        group = loops.int64(self.group)
        part, member = tirx.floordiv(k, group), tirx.floormod(k, group)
        return [*lead, tile, *others, part, lane, member]

    def _others(self, each: Sequence[Each]) -> list[Each]:
        """The items of all dimensions but the first ones and that of the rows."""
        return [*each[self.lead : self.axis], *each[self.axis + 1 :]]


def tile_height(target: CpuTarget) -> int:
    """Rows of a tile such that all sums, two vectors across, fit into the registers of each of the target's
    alternatives."""
    return min(TILE_HEIGHTS[each.vector_registers >= 32] for each in target.alternatives)


def wanted_tiles(program: PrimFunc, target: CpuTarget) -> RowTiles | None:
    """The packing of a convolution's weight, if its extents are known and padding does not double it. None for other
    programs, for a weight that is packed already, and for grouped convolutions."""
    if target.kind != "llvm" or is_scheduled(program.func):
        return None
    form = read_convolution(program.func)
    if form is None or form.batch or prefers_channels(program.func):
        return None
    rows, height = loops.constant(form.axes[form.row].extent) or 0, tile_height(target)
    if -(-rows // height) * height >= 2 * rows:
        return None
    return _tiles(program, form.weight, form.row, rows, height)


def wanted_channel_tiles(program: PrimFunc, target: CpuTarget) -> RowTiles | None:
    """The packing of the weight of a convolution with contiguous channels: tiles of a vector of channels, if its
    extents are known. Those of bytes are in groups along the channels of data, if all alternatives of the target
    multiply groups of one length. None for a product."""
    if target.kind != "llvm" or is_scheduled(program.func):
        return None
    form = read_channel_convolution(program.func)
    if form is None or form.blocks is not None or not form.is_window:
        return None
    lanes = max(each.lanes(SUMMED_IN[form.dtype]) for each in target.alternatives)
    rows = loops.constant(form.axes[form.lane].extent) or 0
    found = _tiles(program, form.weight, form.lane, rows, lanes)
    if found is None or not form.is_narrow:
        return found
    groups = {group_of(form, each) for each in target.alternatives}
    last = len(form.weight.buffer.shape) - 1
    if len(groups) > 1 or found.axis == last or form.channel_walk is None:
        return None
    return replace(found, group=groups.pop())


def group_of(form: ChannelForm, target: CpuTarget) -> int:
    """How many factors of a convolution the target multiplies at a time."""
    data, weight = str(form.data.dtype), str(form.weight.buffer.dtype)
    return Arithmetic.of(data, weight, form.dtype, target).group


def _tiles(
    program: PrimFunc, weight: Operand, axis: int, rows: int, height: int
) -> RowTiles | None:
    """The packing of a weight into tiles of this height along an axis of so many rows; None if it is packed already, or
    its extents are not known."""
    shape = tuple(loops.constant(dim) for dim in weight.buffer.shape)
    if weight.panels is not None or None in shape:
        return None
    along = _axis_of_rows(weight, axis)
    if along is None or shape[along] != rows:
        return None
    param = next(i for i, p in enumerate(program.func.params) if p.same_as(weight.buffer))
    return RowTiles(param, along, height)


def _axis_of_rows(weight: Operand, number: int) -> int | None:
    """The dimension of the weight whose stride is that of the rows, and which is longer than 1."""
    stride, step = weight.strides[number], loops.int64(1)
    shape = list(weight.buffer.shape)
    for axis in reversed(range(len(shape))):
        own = loops.constant(step)
        if (
            stride is not None
            and own == loops.constant(stride)
            and loops.constant(shape[axis]) != 1
        ):
            return axis
        step = loops.simplify(step * loops.int64(shape[axis]))
    return None


def with_tiles(program: PrimFunc, tiles: RowTiles) -> PrimFunc:
    """Return the program with its weight in tiles: it reads `tiles[o // height, ..., o % height]` for `weight[o,
    ...]`."""
    func = s_tir.renew_defs(program.func.without_attr("global_symbol"))
    old = func.params[tiles.param]
    shape = tiles.packed_shape(tuple(int(dim) for dim in old.shape))
    dims = [loops.int64(dim) for dim in shape]
    new = tirx.decl_buffer(dims, str(old.dtype), str(old.name), layout=None)

    def load(node: tvm.ir.TensorLoad) -> loops.Expr:
        if not node.source.same_as(old):
            return node
        return tirx.BufferLoad(new, tiles.place(list(node.indices)))

    def region(node: tvm.ir.TensorRegion) -> tvm.ir.TensorRegion:
        if not node.source.same_as(old):
            return node
        if any(loops.constant(r.extent) != 1 for r in node.region):
            whole = [tvm.ir.Range.from_min_extent(loops.int64(0), dim) for dim in dims]
            return tirx.BufferRegion(new, whole)
        at = tiles.place([r.min for r in node.region])
        one = loops.int64(1)
        return tirx.BufferRegion(new, [tvm.ir.Range.from_min_extent(index, one) for index in at])

    changes = ((tvm.ir.TensorLoad, load), (tvm.ir.TensorRegion, region))
    body = tvm_ffi.structural_map(func.body, changes)
    params = [new if param.same_as(old) else param for param in func.params]
    return PrimFunc(tirx.PrimFunc(params, body, attrs=func.attrs), program.span)
