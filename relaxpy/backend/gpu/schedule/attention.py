"""Attention in one launch that never stores the scores, for any lengths: what `relaxpy.tir.recognise.attention`
recognises, of float16 or bfloat16, with heads of a multiple of 16, at most 128, on devices with tensor cores
(`relaxpy.backend.gpu.schedule.attention_tile`). Other attention is a program of rows.

A group computes 64 rows, neighbours among the queries of a batch and the heads that share a key head. A mask that
leaves each query neighbouring keys also says which blocks of keys a group reads at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.gpu.schedule.attention_tile import (
    CHUNK,
    MOST_ROWS,
    ROWS,
    AttentionTile,
    Matrix,
    fits,
)
from relaxpy.backend.gpu.schedule.group import blocks, meet, registers, shared
from relaxpy.backend.gpu.target import GpuTarget
from relaxpy.tir.programs.loops import (
    Expr,
    both,
    constant,
    equals,
    floordiv,
    floormod,
    index_of,
    int64,
    load,
    minimum,
    select,
    simplify,
)
from relaxpy.tir.recognise.attention import AttentionForm, attention_of, heads_of_a_key
from relaxpy.tir.recognise.contraction import Operand
from relaxpy.tir.recognise.stages import substitute
from relaxpy.tir.tvm import tirx


def arrange_attention(func: tirx.PrimFunc, target: GpuTarget) -> Arrangement | None:
    """The schedule of attention by tensor cores; None for other programs."""
    if target.warp_functions is None:
        return None
    form = attention_of(func)
    if (
        form is None
        or not form.is_rounded
        or not fits(target, form.dtype, form.depth, form.columns)
    ):
        return None
    inner = ((form.query, "depth", 2), (form.key, "depth", CHUNK), (form.value, "column", CHUNK))
    if not all(_is_aligned(form, *each) for each in inner):
        return None
    return Arrangement(lambda: _Attention(func, form, target).written())


def _is_aligned(form: AttentionForm, operand: Operand, axis: str, count: int) -> bool:
    """Are neighbours along an axis neighbours in memory, and do each so many begin at a multiple of that?"""
    return constant(form.stride(operand, axis)) == 1 and form.alignment(operand) % count == 0


@dataclass(frozen=True, eq=False)
class _Row:
    """A query and a head."""

    query: Expr
    head: Expr


class _Attention(AttentionTile[_Row]):
    """The program of all groups."""

    def __init__(self, func: tirx.PrimFunc, form: AttentionForm, target: GpuTarget) -> None:
        super().__init__(target, form.dtype, form.depth, form.columns, keys_turned=False)
        self.func, self.form, self.invariant = func, form, target.batch_invariant
        self.sharing = heads_of_a_key(form)
        extents = form.axes.extents
        self.all_keys = extents["key"]
        self.rows = index_of(extents["row"] * self.sharing)
        """Rows that share a key head."""
        for operand in (form.query, form.key, form.value):
            self.reads(operand.buffer)
        self.out = self.p.flat_view(form.out.buffer)

    def written(self) -> tirx.PrimFunc:
        """The function with its loops bound to threads."""
        p, extents = self.p, self.form.axes.extents
        pieces = blocks(extents["row"] * self.sharing, MOST_ROWS)
        own_pieces = p.let("pieces", index_of(pieces))
        # Later queries may see more keys, so they come first.
        piece = own_pieces - 1 - floormod(self.group, own_pieces)
        self.first = p.let("first_row", piece * MOST_ROWS)
        rest = p.let("rest", floordiv(self.group, own_pieces))
        heads = index_of(tirx.floordiv(extents["head"], int64(self.sharing)))
        self.head = p.let("first_head", floormod(rest, heads) * self.sharing)
        self.batch = p.let("batch", floordiv(rest, heads))
        self._find_keys()
        low, high = self._keys()
        rows = p.let("rows", self.rows - self.first)
        are_few = False if self.invariant else self.rows <= ROWS
        with p.when(are_few):
            self.write(low, high, rows, is_few=True)
        with p.otherwise(are_few):
            self.write(low, high, rows, is_few=False)
        groups = tirx.floordiv(extents["head"], int64(self.sharing)) * extents["batch"] * pieces
        return self.launched(self.func, groups)

    def _find_keys(self) -> None:
        """Find the keys that each row, and that any row of the group sees."""
        p = self.p
        self.share_bounds()
        if self.form.seen is None:
            return
        found = registers(p, "found", 2, "int64")
        p.store(found, 0, self.all_keys)
        p.store(found, 1, int64(0))
        with p.loop("n", MOST_ROWS) as n:
            low, high = self.limits(n)
            # A row without keys has no part in the range.
            with p.when(low < high):
                p.store(found, 0, tirx.Min(load(found, 0), low))
                p.store(found, 1, tirx.Max(load(found, 1), high))
        self._range = shared(p, "range", 2, "int64")
        with p.when(self.thread < 2):
            p.store(
                self._range,
                self.thread,
                select(equals(self.thread, 0), load(found, 0), load(found, 1)),
            )
        meet(p)

    def _keys(self) -> tuple[Expr, Expr]:
        """The keys that some row of the group sees: a range that has all of them, in shared memory."""
        if self.form.seen is None:
            return int64(0), self.all_keys
        return load(self._range, 0), load(self._range, 1)

    # What a tile asks for

    def row(self, number: Expr) -> _Row:
        p = self.p
        number = p.let("row", minimum(self.first + number, self.rows - 1))
        query, head = number, self.head
        if self.sharing > 1:
            query = p.let("query", floordiv(number, self.sharing))
            head = p.let("head", self.head + floormod(number, self.sharing))
        return _Row(query, head)

    def _place(self, row: _Row, **more: Expr) -> dict[Expr, Expr]:
        return self.form.place(batch=self.batch, head=row.head, row=row.query, **more)

    def bounds(self, row: _Row) -> tuple[Expr, Expr]:
        seen, place = self.form.seen, self._place(row)
        if seen is None:
            return int64(0), self.all_keys
        return simplify(substitute(seen.low, place)), simplify(substitute(seen.high, place))

    def query_word(self, row: _Row, at: Expr) -> Expr:
        query = self.form.query
        return self.word(query.buffer, self.form.offset(query, self._place(row, depth=at)))

    def score(self, row: _Row, key: Expr, place: Expr, product: Expr) -> Expr:
        axes = self._place(row, key=key)
        return substitute(self.form.score, {**axes, self.form.product: product})

    def copy_keys(self, start: Expr) -> None:
        self._copy(self.keys, self.form.key, "depth", start)

    def copy_values(self, start: Expr) -> None:
        self._copy(self.values, self.form.value, "column", start)

    def _copy(self, matrix: Matrix, operand: Operand, along: str, start: Expr) -> None:
        """Copy the block that begins at a key; a row of it is a key."""
        low, high = (self.p.let("seen", self.in_block(each - start)) for each in self._keys())
        place = self._place(_Row(int64(0), self.head))

        def offset(row: Expr, column: Expr) -> Expr:
            own = self.form.place(key=start + row, **{along: column})
            return self.form.offset(operand, {**place, **own})

        def exists(row: Expr, _: Expr) -> Expr:
            key = tirx.Cast("int32", row)
            return both(low <= key, key < high)

        self.copy(matrix, operand.buffer, offset, exists, self.form.stride(operand, "key"))

    def store(self, row: _Row, column: Expr, quotient: Expr) -> None:
        place = self._place(row, column=column)
        form = self.form
        value = substitute(form.result, {**place, form.quotient: quotient})
        self.p.store(self.out, form.offset(form.out, place), value)
