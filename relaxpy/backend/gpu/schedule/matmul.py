"""Matrix products of any extents, in one launch with what follows them (a bias, an activation, a residual).

Programs of which the number of rows chooses one, if it is known, or when the kernel runs; on devices that have no
barriers in branches (`GpuTarget.barriers_in_branches`) an unknown number counts as many:

* *tiles*, for many rows: a group of threads computes a tile of the output. Blocks of both factors go through shared
  memory, where each element is read once for a whole tile; a thread keeps a square of sums in registers. A factor that
  the program computes, such as a weight of 4 bits with scales, is computed on its way into shared memory.
* *columns*, for a few rows, unless their sums must be those of many (`GpuTarget.batch_invariant`): a group computes
  some columns of all rows, its threads divide the depth between them, and combine their sums in shared memory. Each
  element of the right-hand factor is read, or computed, once, neighbours in memory by neighbouring threads.
* *tensor cores*, for more rows of narrow numbers, on devices that have them
  (`relaxpy.backend.gpu.schedule.tensor_cores`).

An element is the sum of its products in an order that depends neither on the device nor on other rows, within one
program. Rows, columns and depth may have any size, 0 and 1 included: what is outside of a factor is 0 in shared memory,
and is not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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
from relaxpy.backend.gpu.schedule.product import Product
from relaxpy.backend.gpu.schedule.tensor_cores import ALL_ROWS, factor_type, tensor_core_programs
from relaxpy.backend.gpu.target import GpuTarget
from relaxpy.backend.knobs import knob
from relaxpy.tir.programs.loops import (
    Buffer,
    Expr,
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
from relaxpy.tir.recognise.matmul import (
    BITS,
    MatmulForm,
    computed_matmul_of,
    matmul_of,
)
from relaxpy.tir.recognise.stages import loads_of, uses
from relaxpy.tir.tvm import tirx

_AHEAD = 4
"""Reads of the right-hand factor that a thread has on their way at the same time, where the depth is known to have so
many."""
_COMPUTED = 8
"""Neighbours of a computed factor that a thread takes at once, unless it is tuned: codes of 4 bits in a word."""


class _Program(Protocol):
    """A program of the group."""

    @property
    def groups(self) -> Expr:
        """The number of groups of a product; 0 without rows."""
        ...

    def allocate(self) -> None:
        """Allocate shared memory, which is outside of all conditions."""
        ...

    def write(self) -> None:
        """The part of the output that a group computes."""
        ...


def arrange_matmul(func: tirx.PrimFunc, target: GpuTarget) -> Arrangement | None:
    """The schedule of a matrix product; None for other programs."""
    form = matmul_of(func, one_row=True) or computed_matmul_of(func)
    if form is None:
        return None
    return Arrangement(
        lambda: _written(Product(func, form, target), target), family=family_of(form)
    )


def family_of(form: MatmulForm) -> str:
    """The family of a product (`Arrangement.family`), for example `matmul float16 float16 float32 rows=any depth=4096
    columns=14336 along=depth`: the types of the factors and of the sums, the extents, what neighbours of the right-hand
    factor are along, and where there are: the products of the batch, the types that the right-hand factor is computed
    from, and how many tensors the epilogue reads."""
    rhs, epilogue = form.rhs.formula, form.epilogue
    parts = ["matmul", *(factor_type(each) for each in (form.lhs, form.rhs)), form.dtype]
    for name, dim in (("rows", form.row), ("depth", form.depth), ("columns", form.column)):
        parts.append(f"{name}={_extent(dim.extent)}")
    parts.append(f"along={'depth' if is_along_depth(form) else 'columns'}")
    if form.batch:
        parts.append(f"batch={'x'.join(_extent(dim.extent) for dim in form.batch)}")
    if rhs is not None:
        parts.append(f"from={','.join(sorted({str(load.source.dtype) for load in loads_of(rhs)}))}")
    if epilogue is not None:
        read: list[Buffer] = [epilogue.total]
        for load in loads_of(epilogue.value):
            if not any(load.source.same_as(buffer) for buffer in read):
                read.append(load.source)
        parts.append(f"epilogue={len(read) - 1}")
    return " ".join(parts)


def _extent(extent: Expr) -> str:
    known = constant(extent)
    return "any" if known is None else str(known)


def _written(product: Product, target: GpuTarget) -> tirx.PrimFunc:
    """The function with its loops bound to threads: the program for its number of rows, or a choice of several."""
    p, rows = product.p, product.rows
    programs = _programs(product, target)
    for _, program in programs:
        program.allocate()
    *chosen, (_, last) = programs
    groups = last.groups
    done = 0
    """The most rows of the programs before."""
    for most, program in chosen:
        with p.when(both(rows > done, rows <= most) if done else rows <= most):
            program.write()
        done = most
    with p.when(rows > done if chosen else True):
        last.write()
    for most, program in reversed(chosen):
        groups = select(rows <= most, program.groups, groups)
    for dim in product.form.batch:
        groups = groups * dim.extent
    thread = (product.thread, product.threads)
    group = (product.group, groups)
    return launched(product.func, p.body(), group, thread, is_whole=product.is_whole)


def _programs(product: Product, target: GpuTarget) -> list[tuple[int, _Program]]:
    """The programs for a known number of rows (one), or for any, each with the most rows that it is for."""
    few, known = knob("few", 4, (1, 2, 8)), constant(product.rows)
    many = tensor_core_programs(product, target, known)
    if not many:
        many = [(ALL_ROWS, _Tiles(product))]
    if known is not None:
        if known <= few:
            return [(few, _Columns(product, max(known, 1), max(known, 1)))]
        return many
    if not target.barriers_in_branches:
        return many[-1:]
    if target.batch_invariant:
        return many
    # Most calls for few rows have one, as a step of one sequence: other sums would only take time there.
    heights = sorted({1, few})
    return [*((height, _Columns(product, height, few)) for height in heights), *many]


class _Tiles:
    """The program for many rows."""

    def __init__(self, product: Product) -> None:
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
        while self.block > 1 and self._shared_elements * bits // 8 > SHARED_BYTES * 5 // 8:
            self.block //= 2
        self.along = blocks(product.columns, self.width)

    @property
    def _shared_elements(self) -> int:
        return (self._line + self._row) * self.block

    @property
    def _line(self) -> int:
        """The stride of the left-hand block along the depth: odd, so that threads which write a row of the factor use
        different banks."""
        return self.height + 1

    @property
    def _row(self) -> int:
        """The same of the right-hand block."""
        return self.width + is_along_depth(self.of.form)

    @property
    def groups(self) -> Expr:
        """The number of groups of a product."""
        return blocks(self.of.rows, self.height) * self.along

    def allocate(self) -> None:
        """Allocate shared memory, which is outside of all conditions."""
        p, dtype = self.of.p, self.of.dtype
        self.left = shared(p, "left", self._line * self.block, dtype)
        self.right = shared(p, "right", self._row * self.block, dtype)

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
        firsts, fetched = (first_row, first_column), self._fetched()
        self._fetch(fetched, firsts, int64(0))
        with p.loop("block", ceildiv(of.depth, self.block)) as block:
            start = p.let("start", block * self.block)
            meet(p)
            self._keep(fetched, firsts, start)
            meet(p)
            self._fetch(fetched, firsts, start + self.block)
            with p.loop("k", self.block) as k:
                rows = [self._read(self.left, k * self._line + y + i * self.down) for i in range(n)]
                row = k * self._row + x
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

    def _fetched(self) -> list[Buffer | None]:
        """Registers for a thread's part of the next block of each factor: it is read while this one is multiplied. None
        where threads have different parts, which are read when they are needed."""
        sides = (("left", self.height), ("right", self.width))
        return [
            registers(
                self.of.p, f"next_{name}", size * self.block // self.of.threads, self.of.dtype
            )
            if size * self.block % self.of.threads == 0
            else None
            for name, size in sides
        ]

    def _fetch(self, into: Sequence[Buffer | None], firsts: Sequence[Expr], start: Expr) -> None:
        """Read a thread's part of the blocks from this depth on."""
        of = self.of
        for buffer, element, first in zip(into, (self._left, self._right), firsts, strict=True):
            for at in range(_size(buffer) if buffer is not None else 0):
                value = element(of.thread + at * of.threads, first, start)
                of.p.add(tirx.BufferStore(buffer, value, [int64(at)]))

    def _keep(self, fetched: Sequence[Buffer | None], firsts: Sequence[Expr], start: Expr) -> None:
        """Store the blocks from this depth on in shared memory."""
        of, p = self.of, self.of.p
        for buffer, memory, element, first, size in zip(
            fetched, (self.left, self.right), (self._left, self._right), firsts,
            (self.height, self.width), strict=True,
        ):  # fmt: skip
            if buffer is None:
                with shares(p, size * self.block, of.thread, of.threads) as number:
                    value, place = element(number, first, start), self._place(memory, number)
                    p.add(tirx.BufferStore(memory, value, [place]))
                continue
            for at in range(_size(buffer)):
                value = tirx.BufferLoad(buffer, [int64(at)])
                place = self._place(memory, of.thread + at * of.threads)
                p.add(tirx.BufferStore(memory, value, [place]))

    def _place(self, memory: Buffer, number: Expr) -> Expr:
        """Where an element of a block, by its number, is in shared memory."""
        is_left = memory.same_as(self.left)
        k, place = self._split(number, is_left)
        return k * (self._line if is_left else self._row) + place

    def _split(self, number: Expr, is_left: bool) -> tuple[Expr, Expr]:
        """The depth in a block, and the row or column, of an element by its number. Neighbours are next to each other
        in memory."""
        form, size = self.of.form, self.height if is_left else self.width
        if constant(form.depth.lhs) == 1 if is_left else is_along_depth(form):
            return floormod(number, self.block), floordiv(number, self.block)
        return floordiv(number, size), floormod(number, size)

    def _left(self, number: Expr, first: Expr, start: Expr) -> Expr:
        """An element of the left-hand factor, of the rows from `first` on."""
        of, p = self.of, self.of.p
        k, i = self._split(number, is_left=True)
        row, at = p.let("row", first + i), p.let("at", start + k)
        return guarded(both(row < of.rows, at < of.depth), of.left(row, at))

    def _right(self, number: Expr, first: Expr, start: Expr) -> Expr:
        """An element of the right-hand factor, of the columns from `first` on."""
        of, p = self.of, self.of.p
        k, j = self._split(number, is_left=False)
        column, at = p.let("column", first + j), p.let("at", start + k)
        return guarded(both(column < of.columns, at < of.depth), of.right(at, column))


class _Columns:
    """The program for a few rows."""

    def __init__(self, product: Product, height: int, most: int) -> None:
        """For up to `height` rows; shared memory is for `most`, of all such programs of the product."""
        self.of, self.height, self.most = product, height, most
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
            count = knob("neighbours", _COMPUTED, (16, 32))
        depth = constant(self.of.depth)
        return count if depth is not None and depth % count == 0 else 1

    @property
    def groups(self) -> Expr:
        """The number of groups of a product; 0 without rows."""
        return tirx.min(self.of.rows, int64(1)) * self.along

    @property
    def _ahead(self) -> int:
        """How many vectors a thread takes in one turn. All exist then: the depth and the columns are known to be
        multiples of what a turn, and a group, has. 0: some may not exist."""
        depth, columns = constant(self.of.depth), constant(self.of.columns)
        if depth is None or columns is None or columns % self.width or self.vector == 1:
            return 0
        turns, rest = divmod(depth, self.lanes * self.vector)
        most = knob("ahead", _AHEAD, (1, 2, 8))
        return (
            0 if rest else max((n for n in (1, 2, 4, 8) if n <= most and turns % n == 0), default=0)
        )

    def allocate(self) -> None:
        """Allocate shared memory, which is outside of all conditions."""
        self.partial = self.of.shared("partial", self.most * self.of.threads, self.of.dtype)

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
        turn, ahead = self.lanes * self.vector, self._ahead
        with p.loop("step", ceildiv(of.depth, turn * max(ahead, 1))) as step:
            starts = [
                p.let("at", ((step * max(ahead, 1) + n) * self.lanes + lane) * self.vector)
                for n in range(max(ahead, 1))
            ]
            if ahead:
                self._add_up(sums, rows, column, starts)
            else:
                with p.when(both(column < of.columns, starts[0] < of.depth)):
                    self._add_up(sums, rows, column, starts)
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

    def _add_up(
        self, sums: Buffer, rows: Sequence[Expr], column: Expr, starts: Sequence[Expr]
    ) -> None:
        """Add the products of a column's vectors that begin here. All are read before the first is used."""
        of, p = self.of, self.of.p
        read = [of.neighbours(of.form.rhs, column, at, self.vector) for at in starts]
        for at, vector in zip(starts, read, strict=True):
            weights = [p.let("weight", weight) for weight in vector]
            for row, place in enumerate(rows):
                left = of.neighbours(of.form.lhs, place, at, self.vector)
                for value, weight in zip(left, weights, strict=True):
                    total = tirx.BufferLoad(sums, [int64(row)]) + value * weight
                    p.add(tirx.BufferStore(sums, total, [int64(row)]))


def _size(buffer: Buffer) -> int:
    """The number of elements of a thread's memory."""
    return constant(buffer.shape[0]) or 0


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
