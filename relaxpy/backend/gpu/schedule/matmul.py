"""Matrix products of any extents, in one launch with what follows them (a bias, an activation, a residual).

Two programs, of which the number of rows chooses one, if it is known, or when the kernel runs; on devices that have no
barriers in branches (`GpuTarget.barriers_in_branches`) an unknown number counts as many:

* *tiles*, for many rows: a group of threads computes a tile of the output. Blocks of both factors go through shared
  memory, where each element is read once for a whole tile; a thread keeps a square of sums in registers. A factor that
  the program computes, such as a weight of 4 bits with scales, is computed on its way into shared memory.
* *columns*, for a few rows, unless their sums must be those of many (`GpuTarget.batch_invariant`): a group computes
  some columns of all rows, its threads divide the depth between them, and combine their sums in shared memory. Each
  element of the right-hand factor is read, or computed, once, neighbours in memory by neighbouring threads.

An element is the sum of its products in an order that depends neither on the device nor on other rows, within one
program. Rows, columns and depth may have any size, 0 and 1 included: what is outside of a factor is 0 in shared memory,
and is not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.gpu.schedule.group import (
    SHARED_BYTES,
    blocks,
    launched,
    meet,
    registers,
    shared,
    shares,
)
from relaxpy.backend.gpu.schedule.vectors import read_vector, vector_elements
from relaxpy.backend.gpu.target import GpuTarget
from relaxpy.backend.knobs import knob
from relaxpy.tir.forms.contraction import Operand
from relaxpy.tir.forms.matmul import (
    BITS,
    Dimension,
    MatmulForm,
    computed_matmul_of,
    matmul_of,
    place_of,
)
from relaxpy.tir.forms.stages import loads_of, map_loads, substitute, uses
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer.loops import (
    Buffer,
    Expr,
    Program,
    both,
    ceildiv,
    constant,
    floordiv,
    floormod,
    guarded,
    index_of,
    int64,
    minimum,
    select,
)

Values = Mapping[Any, Expr]
_COMPUTED = 8
"""Neighbours of a computed factor that a thread takes at once: codes of 4 bits in a word."""


def arrange_matmul(func: tirx.PrimFunc, target: GpuTarget) -> Arrangement | None:
    """The schedule of a matrix product; None for other programs."""
    form = matmul_of(func, one_row=True) or computed_matmul_of(func)
    if form is None:
        return None
    return Arrangement(lambda: _Product(func, form, target).write())


class _Product:
    """Writes the launch of a product."""

    def __init__(self, func: tirx.PrimFunc, form: MatmulForm, target: GpuTarget) -> None:
        self.func, self.form, self.dtype = func, form, form.dtype
        self.threads = target.group_size
        self.has_both = target.barriers_in_branches and not target.batch_invariant
        self.vector_bytes = target.vector_bytes
        self.rows, self.columns = int64(form.row.extent), int64(form.column.extent)
        self.depth = int64(form.depth.extent)
        self.p = Program()
        self.group, self.thread = tirx.Var("group", "int64"), tirx.Var("thread", "int64")
        self.batch: dict[Any, Expr] = {}
        """The place of the group's product in the batch."""
        self.few = knob("few", 4, (1, 2, 8))
        """The most rows for which columns are computed, not tiles."""

    def write(self) -> tirx.PrimFunc:
        """The function with its loops bound to threads."""
        p, products = self.p, int64(1)
        for dim in self.form.batch:
            products = products * dim.extent
        known = constant(self.rows)
        tiles = _Tiles(self) if known is None or known > self.few else None
        is_few = self.has_both if known is None else known <= self.few
        columns = _Columns(self, self.few if known is None else max(known, 1)) if is_few else None
        if tiles is None or columns is None:
            only = tiles or columns
            assert only is not None
            only.allocate()
            only.write()
            groups = only.groups
        else:
            tiles.allocate()
            columns.allocate()
            with p.when(self.rows <= self.few):
                columns.write()
            with p.when(self.rows > self.few):
                tiles.write()
            groups = select(self.rows <= self.few, columns.groups, tiles.groups)
        grid = (self.group, products * groups)
        return launched(self.func, p.body(), grid, (self.thread, self.threads))

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

    def element(self, operand: Operand, values: Values) -> Expr:
        """An element of a factor, read or computed, in the type of the sums."""
        value = operand.formula
        if value is None:
            value = tirx.BufferLoad(operand.buffer, list(operand.indices))
        return self.summed(substitute(value, {**self.batch, **values}))

    def summed(self, value: Expr) -> Expr:
        """The value in the type of the sums."""
        return value if str(value.ty.dtype) == self.dtype else tirx.Cast(self.dtype, value)

    def left(self, row: Expr, k: Expr) -> Expr:
        """An element of the left-hand factor."""
        form = self.form
        return self.element(form.lhs, {**place_of(form.row, row), **place_of(form.depth, k)})

    def right(self, k: Expr, column: Expr) -> Expr:
        """An element of the right-hand factor."""
        form = self.form
        return self.element(form.rhs, {**place_of(form.depth, k), **place_of(form.column, column)})

    def vector(self, operand: Operand) -> int:
        """How many neighbours of a factor along the depth one load reads."""
        side, own = self._side(operand)
        strides = [getattr(dim, side) for dim in (own, *self.form.batch)]
        depth = getattr(self.form.depth, side)
        return vector_elements(operand, self.func, depth, strides, self.vector_bytes)

    def neighbours(self, operand: Operand, place: Expr, first: Expr, count: int) -> list[Expr]:
        """So many elements of a factor's row or column, from `first` along the depth on, in the type of the sums."""
        form, width = self.form, self.vector(operand)
        own = place_of(self._side(operand)[1], place)
        if width == 1 or count % width:
            places = [{**own, **place_of(form.depth, first + n)} for n in range(count)]
            return [self.element(operand, values) for values in places]
        found: list[Expr] = []
        for start in range(0, count, width):
            values = {**self.batch, **own, **place_of(form.depth, first + start)}
            indices = [substitute(index, values) for index in operand.indices]
            element = read_vector(self.p, operand.buffer, indices, width)
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


class _Tiles:
    """The program for many rows."""

    def __init__(self, product: _Product) -> None:
        self.of = product
        side = 1 << ((product.threads.bit_length() - 1) // 2)
        self.across, self.down = product.threads // side, side
        """Threads along the columns and along the rows of a tile."""
        square = knob("tile", 4, (2, 8))
        self.height, self.width = square * self.down, square * self.across
        """Rows and columns of a tile."""
        self.square = square
        self.block = knob("depth", 16, (8, 32))
        """The depth of a block in shared memory."""
        bits = BITS[product.dtype]
        while self.block > 1 and self._shared_elements * bits // 8 > SHARED_BYTES // 2:
            self.block //= 2
        self.along = blocks(product.columns, self.width)

    @property
    def _shared_elements(self) -> int:
        return (self._line + self.width) * self.block

    @property
    def _line(self) -> int:
        """The stride of the left-hand block along the depth: odd, so that threads which write a row of the factor use
        different banks."""
        return self.height + 1

    @property
    def groups(self) -> Expr:
        """The number of groups of a product."""
        return blocks(self.of.rows, self.height) * self.along

    def allocate(self) -> None:
        """Allocate shared memory, which is outside of all conditions."""
        p, dtype = self.of.p, self.of.dtype
        self.left = shared(p, "left", self._line * self.block, dtype)
        self.right = shared(p, "right", self.width * self.block, dtype)

    def write(self) -> None:
        """One tile."""
        of, p, n = self.of, self.of.p, self.square
        number = of.own_product(self.groups)
        along = p.let("along", index_of(self.along))
        first_row = p.let("first_row", floordiv(number, along) * self.height)
        first_column = p.let("first_column", floormod(number, along) * self.width)
        x = p.let("x", floormod(of.thread, self.across))
        y = p.let("y", floordiv(of.thread, self.across))
        sums = registers(p, "sums", n * n, of.dtype)
        zero = tirx.const(0, of.dtype)
        for at in range(n * n):
            p.add(tirx.BufferStore(sums, zero, [int64(at)]))
        with p.loop("block", ceildiv(of.depth, self.block)) as block:
            start = p.let("start", block * self.block)
            meet(p)
            self._fill_left(first_row, start)
            self._fill_right(first_column, start)
            meet(p)
            with p.loop("k", self.block) as k:
                rows = [self._read(self.left, k * self._line + y + i * self.down) for i in range(n)]
                row = k * self.width + x
                columns = [self._read(self.right, row + j * self.across) for j in range(n)]
                for i in range(n):
                    for j in range(n):
                        at = [int64(i * n + j)]
                        total = tirx.BufferLoad(sums, at) + rows[i] * columns[j]
                        p.add(tirx.BufferStore(sums, total, at))
        # A copy, whose indices are no constants: the sums stay in registers.
        finished = registers(p, "finished", n * n, of.dtype)
        for at in range(n * n):
            place = [int64(at)]
            p.add(tirx.BufferStore(finished, tirx.BufferLoad(sums, place), place))
        with p.loop("i", n) as i, p.loop("j", n) as j:
            row = p.let("row", first_row + y + i * self.down)
            column = p.let("column", first_column + x + j * self.across)
            with p.when(both(row < of.rows, column < of.columns)):
                of.store(tirx.BufferLoad(finished, [i * n + j]), row, column)

    def _read(self, memory: Buffer, at: Expr) -> Expr:
        return self.of.p.let(str(memory.name), tirx.BufferLoad(memory, [at]))

    def _fill_left(self, first: Expr, start: Expr) -> None:
        """Read rows from `first` on, a block of the depth from `start` on."""
        of, p = self.of, self.of.p
        is_along = constant(of.form.depth.lhs) == 1
        with self._shares(self.height * self.block) as number:
            if is_along:
                k, i = floormod(number, self.block), floordiv(number, self.block)
            else:
                k, i = floordiv(number, self.height), floormod(number, self.height)
            row, at = p.let("row", first + i), p.let("at", start + k)
            exists = both(row < of.rows, at < of.depth)
            value = guarded(exists, of.left(row, at))
            p.add(tirx.BufferStore(self.left, value, [k * self._line + i]))

    def _fill_right(self, first: Expr, start: Expr) -> None:
        """Read columns from `first` on."""
        of, p = self.of, self.of.p
        with self._shares(self.width * self.block) as number:
            if is_along_depth(of.form):
                k, j = floormod(number, self.block), floordiv(number, self.block)
            else:
                k, j = floordiv(number, self.width), floormod(number, self.width)
            column, at = p.let("column", first + j), p.let("at", start + k)
            exists = both(column < of.columns, at < of.depth)
            value = guarded(exists, of.right(at, column))
            p.add(tirx.BufferStore(self.right, value, [k * self.width + j]))

    def _shares(self, count: int) -> AbstractContextManager[Expr]:
        return shares(self.of.p, count, self.of.thread, self.of.threads)


class _Columns:
    """The program for a few rows."""

    def __init__(self, product: _Product, height: int) -> None:
        self.of, self.height = product, height
        self.is_along = is_along_depth(product.form)
        width = knob("columns", 4, (1, 2, 8)) if self.is_along else knob("columns", 16, (8, 32))
        self.width = min(width, product.threads)
        """Columns of a group."""
        self.lanes = product.threads // self.width
        """Threads that divide the depth of a column between them."""
        self.along = blocks(product.columns, self.width)
        self.vector = self._vector()
        """Neighbours along the depth that a thread takes at once."""

    def _vector(self) -> int:
        """As many as one load of the right-hand factor reads. Of a factor that is computed several share what they are
        computed from: a word of small integers, a scale."""
        rhs = self.of.form.rhs
        count = self.of.vector(rhs)
        if rhs.formula is not None and self.is_along and self.of.vector_bytes:
            count = _COMPUTED
        depth = constant(self.of.depth)
        return count if depth is not None and depth % count == 0 else 1

    @property
    def groups(self) -> Expr:
        """The number of groups of a product; 0 without rows."""
        return tirx.min(self.of.rows, int64(1)) * self.along

    def allocate(self) -> None:
        """Allocate shared memory, which is outside of all conditions."""
        self.partial = shared(self.of.p, "partial", self.height * self.of.threads, self.of.dtype)

    def write(self) -> None:
        """Some columns of all rows."""
        of, p, threads = self.of, self.of.p, self.of.threads
        number = of.own_product(self.groups)
        first = p.let("first_column", number * self.width)
        if self.is_along:
            lane, own = floormod(of.thread, self.lanes), floordiv(of.thread, self.lanes)
        else:
            lane, own = floordiv(of.thread, self.width), floormod(of.thread, self.width)
        lane, column = p.let("lane", lane), p.let("column", first + own)
        sums = registers(p, "sums", self.height, of.dtype)
        for row in range(self.height):
            p.add(tirx.BufferStore(sums, tirx.const(0, of.dtype), [int64(row)]))
        # A row that does not exist repeats the last one.
        rows = [minimum(row, of.rows - 1) for row in range(self.height)]
        with p.loop("step", ceildiv(of.depth, self.lanes * self.vector)) as step:
            at = p.let("at", (step * self.lanes + lane) * self.vector)
            with p.when(both(column < of.columns, at < of.depth)):
                weights = of.neighbours(of.form.rhs, column, at, self.vector)
                weights = [p.let("weight", weight) for weight in weights]
                for row, place in enumerate(rows):
                    left = of.neighbours(of.form.lhs, place, at, self.vector)
                    for value, weight in zip(left, weights, strict=True):
                        total = tirx.BufferLoad(sums, [int64(row)]) + value * weight
                        p.add(tirx.BufferStore(sums, total, [int64(row)]))
        for row in range(self.height):
            total = tirx.BufferLoad(sums, [int64(row)])
            p.add(tirx.BufferStore(self.partial, total, [of.thread + row * threads]))
        half = self.lanes // 2
        while half:
            meet(p)
            with p.when(lane < int64(half)):
                for row in range(self.height):
                    mine = of.thread + row * threads
                    other = mine + half * (1 if self.is_along else self.width)
                    pair = [tirx.BufferLoad(self.partial, [place]) for place in (mine, other)]
                    p.add(tirx.BufferStore(self.partial, pair[0] + pair[1], [mine]))
            half //= 2
        meet(p)
        with shares(p, self.height * self.width, of.thread, threads) as number:
            row = p.let("row", floordiv(number, self.width))
            own = p.let("own_column", floormod(number, self.width))
            column = p.let("column", first + own)
            with p.when(both(row < of.rows, column < of.columns)):
                at = row * threads + own * (self.lanes if self.is_along else 1)
                of.store(tirx.BufferLoad(self.partial, [at]), row, column)


def is_along_depth(form: MatmulForm) -> bool:
    """Are elements of the right-hand factor neighbours along the depth, not along the columns? Of a factor that is
    computed, those of the largest tensor that it is computed from."""
    formula = form.rhs.formula
    if formula is None:
        return constant(form.depth.rhs) == 1
    for load in loads_of(formula):
        used = [[uses(i, axis.var) for axis in form.depth.axes] for i in load.indices]
        across = [uses(i, axis.var) for axis in form.column.axes for i in load.indices]
        if any(across) and any(map(any, used)):
            return any(used[-1])
    return False
