"""A matrix product as the programs for GPUs write it: its elements, its place in a batch, and the storing of sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relaxpy.backend.gpu.schedule.group import shared
from relaxpy.backend.gpu.schedule.vectors import read_vector, vector_elements
from relaxpy.backend.gpu.target import GpuTarget
from relaxpy.tir.programs.loops import Buffer, Expr, Program, floordiv, floormod, index_of, int64
from relaxpy.tir.recognise.contraction import Operand
from relaxpy.tir.recognise.matmul import Dimension, MatmulForm, place_of
from relaxpy.tir.recognise.stages import map_loads, substitute
from relaxpy.tir.tvm import tirx

Values = Mapping[Any, Expr]


class Product:
    """Writes the launch of a product."""

    def __init__(self, func: tirx.PrimFunc, form: MatmulForm, target: GpuTarget) -> None:
        self.func, self.form, self.dtype = func, form, form.dtype
        self.threads = target.group_size
        self.vector_bytes = target.vector_bytes
        self.rows, self.columns = int64(form.row.extent), int64(form.column.extent)
        self.depth = int64(form.depth.extent)
        self.p = Program()
        self.group, self.thread = tirx.Var("group", "int64"), tirx.Var("thread", "int64")
        self.is_whole = False
        """Do functions of the device use elements of buffers that no statement indexes?"""
        self._shared: dict[str, Buffer] = {}
        self.batch: dict[Any, Expr] = {}
        """The place of the group's product in the batch."""

    def shared(self, name: str, size: int, dtype: str) -> Buffer:
        """Memory that the threads of a group share, and all programs of the product."""
        if name not in self._shared:
            self._shared[name] = shared(self.p, name, size, dtype)
        return self._shared[name]

    def own_product(self, groups: Expr) -> Expr:
        """Determine the group's product of the batch, where each has this many groups. Returns its number there."""
        p = self.p
        if not self.form.batch:
            return self.group
        groups = p.let("groups", index_of(groups))
        rest = p.let("product", floordiv(self.group, groups))
        for dim in reversed(self.form.batch[1:]):
            self.batch |= self._named(place_of(dim, floormod(rest, dim.extent)))
            rest = p.let("rest", floordiv(rest, dim.extent))
        self.batch |= self._named(place_of(self.form.batch[0], rest))
        return p.let("own", floormod(self.group, groups))

    def _named(self, place: Values) -> dict[Any, Expr]:
        return {axis: self.p.let(str(axis.name), value) for axis, value in place.items()}

    def index(self, operand: Operand, place: Expr, k: Expr) -> list[Expr]:
        """The index of a factor's element: of a row of the left-hand one, or of a column of the other, and of a place
        along the depth."""
        values = self._values(operand, place, k)
        return [substitute(index, values) for index in operand.indices]

    def raw(self, operand: Operand, place: Expr, k: Expr) -> Expr:
        """An element of a factor, read or computed."""
        if operand.formula is None:
            return tirx.BufferLoad(operand.buffer, self.index(operand, place, k))
        return substitute(operand.formula, self._values(operand, place, k))

    def _values(self, operand: Operand, place: Expr, k: Expr) -> dict[Any, Expr]:
        _, own = self._side(operand)
        return {**self.batch, **place_of(own, place), **place_of(self.form.depth, k)}

    def summed(self, value: Expr) -> Expr:
        """The value in the type of the sums."""
        return value if str(value.ty.dtype) == self.dtype else tirx.Cast(self.dtype, value)

    def left(self, row: Expr, k: Expr) -> Expr:
        """An element of the left-hand factor, in the type of the sums."""
        return self.summed(self.raw(self.form.lhs, row, k))

    def right(self, k: Expr, column: Expr) -> Expr:
        """An element of the right-hand factor, in the type of the sums."""
        return self.summed(self.raw(self.form.rhs, column, k))

    def vector(self, operand: Operand) -> int:
        """How many neighbours of a factor along the depth one load reads."""
        side, own = self._side(operand)
        strides = [getattr(dim, side) for dim in (own, *self.form.batch)]
        depth = getattr(self.form.depth, side)
        return vector_elements(operand, self.func, depth, strides, self.vector_bytes)

    def neighbours(self, operand: Operand, place: Expr, first: Expr, count: int) -> list[Expr]:
        """So many elements of a factor's row or column, from `first` along the depth on, in the type of the sums."""
        width = self.vector(operand)
        if width == 1 or count % width:
            return [self.summed(self.raw(operand, place, first + n)) for n in range(count)]
        found: list[Expr] = []
        for start in range(0, count, width):
            element = read_vector(
                self.p, operand.buffer, self.index(operand, place, first + start), width
            )
            found += [self.summed(element(number)) for number in range(width)]
        return found

    def _side(self, operand: Operand) -> tuple[str, Dimension]:
        """The name of a factor's strides, and the dimension that it has beside the depth."""
        form = self.form
        return ("lhs", form.row) if operand is form.lhs else ("rhs", form.column)

    def store(self, total: Expr, row: Expr, column: Expr) -> None:
        """Store a finished sum, with the epilogue applied."""
        form, value = self.form, total
        values = {**self.batch, **place_of(form.row, row), **place_of(form.column, column)}
        if form.epilogue is not None:
            own = form.epilogue.total
            value = map_loads(
                form.epilogue.value, lambda node: total if node.source.same_as(own) else node
            )
            value = substitute(value, values)
        out = form.out
        indices = [substitute(index, values) for index in out.indices]
        self.p.add(tirx.BufferStore(out.buffer, value, indices))
