"""Matrices packed into panels of columns: the layout of a product's right-hand factor that is known at build time.

A product reads its right-hand factor one panel of columns at a time, row after row. A matrix (K, N) in panels is the
tensor (ceil(N / width), K, width), with the last panel padded with zeros. A panel is contiguous, so nothing has to be
copied at run time. If the target multiplies groups of neighbours along the depth at a time
(`relaxpy.backend.cpu.arithmetic`), the tensor is (ceil(N / width), ceil(K / group), width, group). Several matrices (B,
K, N), one for each product of a batch, are (ceil(N / width), B, K, width).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.cpu.tiles import ROWS
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs import loops
from relaxpy.tir.recognise.matmul import matmul_of
from relaxpy.tir.schedule import is_scheduled
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi

Each = TypeVar("Each")
PANEL_VECTORS = 2
"""Vector registers across a panel (`relaxpy.backend.cpu.rules.matmul` gives the reason)."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The packing of a tensor program's factor."""

    param: int
    """Number of the parameter."""
    width: int
    """Columns of a panel."""
    transposed: bool
    """Is the parameter stored as (N, K) instead of (K, N)?"""
    group: int = 1
    """Length of the groups along the depth that are contiguous."""
    axes: tuple[int, int] = (0, 1)
    """The parameter's dimensions that are those of the matrix. The others have extent 1, as a convolution's window that
    is one position."""
    batch: tuple[int, ...] = ()
    """The parameter's dimension that counts matrices, if there is one; without groups."""

    def packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a parameter of this shape in panels."""
        depth, columns = self._matrix(shape)
        panels, groups = -(-columns // self.width), -(-depth // self.group)
        inside = (self.width,) if self.group == 1 else (self.width, self.group)
        return panels, *(shape[axis] for axis in self.batch), groups, *inside

    def source(
        self, shape: tuple[int, ...], at: Sequence[loops.Expr]
    ) -> tuple[list[loops.Expr], list[loops.Expr]]:
        """The indices in a parameter of this shape of the element at these indices of the panels, and the conditions
        under which it is there; padding otherwise."""
        depth, columns = self._matrix(shape)
        panel, *matrices = at[: 1 + len(self.batch)]
        row, lane, *member = at[1 + len(self.batch) :]
        j = panel * loops.int64(self.width) + lane
        k = row * loops.int64(self.group) + member[0] if member else row
        inside = [] if columns % self.width == 0 else [j < loops.int64(columns)]
        inside += [] if depth % self.group == 0 else [k < loops.int64(depth)]
        indices: list[loops.Expr] = [loops.int64(0) for _ in shape]
        for axis, index in zip(self.batch, matrices, strict=True):
            indices[axis] = index
        for axis, index in zip(self.axes, (j, k) if self.transposed else (k, j), strict=True):
            indices[axis] = index
        return indices, inside

    def pack(self, weight: np.ndarray) -> np.ndarray:
        """Pack the parameter into panels."""
        depth, columns = self._matrix(weight.shape)
        matrices = weight.reshape(-1, *((columns, depth) if self.transposed else (depth, columns)))
        matrices = matrices.swapaxes(1, 2) if self.transposed else matrices
        shape = self.packed_shape(weight.shape)
        panels, groups = shape[0], shape[1 + len(self.batch)]
        padded = np.zeros((len(matrices), groups * self.group, panels * self.width), weight.dtype)
        padded[:, :depth, :columns] = matrices
        packed = np.empty((panels, len(matrices), groups, self.width, self.group), weight.dtype)
        split = padded.reshape(len(matrices), groups, self.group, panels, self.width)
        packed[...] = split.transpose(3, 0, 1, 4, 2)
        return packed.reshape(shape)

    def place(self, indices: Sequence[loops.Expr]) -> list[loops.Expr]:
        """The indices in the panels of the element at these indices of the parameter."""
        k, j = self._matrix(indices)
        width, group = loops.int64(self.width), loops.int64(self.group)
        panel, column = tirx.floordiv(j, width), tirx.floormod(j, width)
        if self.group == 1:
            return [panel, *(indices[axis] for axis in self.batch), k, column]
        return [panel, tirx.floordiv(k, group), column, tirx.floormod(k, group)]

    def _matrix(self, each: Sequence[Each]) -> tuple[Each, Each]:
        """What there is for the depth and for the columns, of something for each dimension of the parameter."""
        first, second = (each[axis] for axis in self.axes)
        return (second, first) if self.transposed else (first, second)


def panel_width(arithmetics: Sequence[Arithmetic], columns: int) -> int:
    """The width of the panels of so many columns that kernels of all these arithmetics can read: the narrowest in which
    each has whole vectors, and in which the one with the shortest vectors has its preferred number of them, if there
    are more columns than in one; two tiles for those that multiply by tiles."""
    lanes = [each.lanes for each in arithmetics]
    tiles = [PANEL_VECTORS * ROWS for each in arithmetics if each.tiles is not None]
    if columns <= max(lanes) and not tiles:
        return max(lanes)
    return max(PANEL_VECTORS * min(lanes), *lanes, *tiles)


def reads_panels(arithmetic: Arithmetic, width: int, group: int) -> bool:
    """Can kernels of this arithmetic read panels of this width in these groups? A panel must be a power of two of their
    vectors, so that a tile is several panels or a part of one."""
    vectors, rest = divmod(width, arithmetic.lanes)
    return group == arithmetic.group and not rest and vectors in (1, 2, 4, 8, 16)


def wanted_packing(program: PrimFunc, target: CpuTarget) -> Packing | None:
    """The parameter of a matrix product to pack: its right-hand factor, if that is a matrix of known extents (and of
    dimensions of 1), or one for each product, possibly transposed, and wide enough that padding does not double it.
    None for everything else.

    All alternatives of a target read the same panels. If they multiply groups of different lengths, nothing is packed:
    each reads the factor unpacked, with its best instructions.
    """
    if target.kind != "llvm" or is_scheduled(program.func):
        return None
    form = matmul_of(program.func)
    if form is None or form.panels is not None or form.lhs.buffer.same_as(form.rhs.buffer):
        return None
    shape = tuple(loops.constant(dim) for dim in form.rhs.buffer.shape)
    column, depth = form.column, form.depth
    columns, rows = loops.constant(column.extent), loops.constant(depth.extent)
    if columns is None or not rows or len(column.axes) != 1 or len(depth.axes) != 1:
        return None
    if loops.constant(form.rhs.base) != 0:
        return None
    counts = [dim for dim in form.batch if loops.constant(dim.rhs) != 0]
    if len(counts) > 1 or any(len(dim.axes) != 1 for dim in counts):
        return None
    counted = [(loops.constant(dim.rhs), loops.constant(dim.extent)) for dim in counts]
    strides = loops.constant(depth.rhs), loops.constant(column.rhs)
    arithmetics = [Arithmetic.of_packed(form, each) for each in target.alternatives]
    if len({each.group for each in arithmetics}) > 1:
        return None
    width = panel_width(arithmetics, columns)
    if -(-columns // width) * width >= 2 * columns:
        return None
    param = next(i for i, p in enumerate(program.func.params) if p.same_as(form.rhs.buffer))
    axes = tuple(axis for axis, dim in enumerate(shape) if dim != 1 or len(shape) == 2)
    if len(axes) != len(counts) + 2:
        return None
    *batch, first, second = axes
    group = arithmetics[0].group
    if counts and (group > 1 or counted != [(rows * columns, shape[axis]) for axis in batch]):
        return None
    shape = shape[first], shape[second]
    for transposed in (False, True):
        wanted = (columns, rows) if transposed else (rows, columns)
        if shape == wanted and strides == ((1, rows) if transposed else (columns, 1)):
            return Packing(param, width, transposed, group, (first, second), tuple(batch))
    return None


def with_packed(program: PrimFunc, packing: Packing) -> PrimFunc:
    """Return the program with the parameter in panels: it reads `packed[j // width, k, j % width]` for `matrix[k, j]`,
    or `packed[j // width, k // group, j % width, k % group]`."""
    func = s_tir.renew_defs(program.func.without_attr("global_symbol"))
    old = func.params[packing.param]
    shape = tuple(int(dim) for dim in old.shape)
    packed = tirx.decl_buffer(
        [loops.int64(dim) for dim in packing.packed_shape(shape)],
        str(old.dtype),
        str(old.name),
        layout=None,
    )

    def load(node: tvm.ir.TensorLoad) -> loops.Expr:
        if not node.source.same_as(old):
            return node
        return tirx.BufferLoad(packed, packing.place(node.indices))

    def region(node: tvm.ir.TensorRegion) -> tvm.ir.TensorRegion:
        if not node.source.same_as(old):
            return node
        if any(loops.constant(r.extent) != 1 for r in node.region):
            return tirx.BufferRegion(
                packed, [tvm.ir.Range.from_min_extent(loops.int64(0), dim) for dim in packed.shape]
            )
        at = packing.place([r.min for r in node.region])
        return tirx.BufferRegion(
            packed, [tvm.ir.Range.from_min_extent(index, loops.int64(1)) for index in at]
        )

    changes = ((tvm.ir.TensorLoad, load), (tvm.ir.TensorRegion, region))
    body = tvm_ffi.structural_map(func.body, changes)
    params = [packed if param.same_as(old) else param for param in func.params]
    return PrimFunc(tirx.PrimFunc(params, body, attrs=func.attrs), program.span)
