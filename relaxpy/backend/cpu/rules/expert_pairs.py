"""Pairs of a row and an expert, sorted by expert: shared by the rules for linear maps that are chosen by index.

A counting sort keeps the order of pairs. So a task reads the weight of an expert once for all rows that chose it, and
weights that no row chose are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, Program, int64
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.expert_linear import ExpertLinearForm
from relaxpy.tir.tvm import tirx
from relaxpy.tir.walk import rewritten


def fits(form: ExpertLinearForm) -> bool:
    """Are the numbers of choices and columns known?"""
    return None not in map(loops.constant, form.extents[1:])


class ExpertWriter:
    """Writes the program of one map: sorts the pairs, and reads elements at a pair."""

    def __init__(self, form: ExpertLinearForm) -> None:
        self.form, self.program = form, Program()
        self.rows = form.extents[0]
        choices, columns = map(loops.constant, form.extents[1:])
        assert choices is not None
        assert columns is not None, "checked by the rules"
        self.choices, self.columns, self.depth = choices, columns, form.depth_extent
        self.pairs = loops.simplify(self.rows * choices)
        self.views: dict[Buffer, Buffer] = {}
        for value in (form.number, form.data, form.weight, form.value):
            for load in s.loads_of(value):
                if load.source not in self.views and not load.source.same_as(form.total):
                    self.views[load.source] = self.program.flat_view(load.source)
        self.out = self.program.flat_view(form.out)

    def sort(self) -> None:
        """The pairs in the order of their experts, and where those of an expert begin."""
        p, form, experts = self.program, self.form, self.form.experts
        allocate = p.allocate
        self.order = order = allocate("order", self.pairs, "int64")
        self.starts = starts = allocate("starts", experts + 1, "int64")
        self.active = active = allocate("active", experts, "int64")
        """The experts that have a row."""
        cursor = allocate("cursor", experts, "int64")
        found = allocate("found", 1, "int64")
        p.store(found, 0, int64(0))
        with p.loop("e", experts + 1) as e:
            p.store(starts, e, int64(0))

        def own(pair: Expr) -> Expr:
            return p.let("own", self.at(form.number, self.places(pair)))

        with p.loop("pair", self.pairs) as pair:
            after = p.let("after", own(pair) + 1)
            p.store(starts, after, loops.load(starts, after) + 1)
        with p.loop("e", experts) as e:
            with p.when(loops.load(starts, e + 1) > 0):
                p.store(active, loops.load(found, 0), e)
                p.store(found, 0, loops.load(found, 0) + 1)
            p.store(starts, e + 1, loops.load(starts, e + 1) + loops.load(starts, e))
            p.store(cursor, e, loops.load(starts, e))
        with p.loop("pair", self.pairs) as pair:
            expert = own(pair)
            at = p.let("at", loops.load(cursor, expert))
            p.store(order, at, pair)
            p.store(cursor, expert, at + 1)
        self.chosen = p.let("chosen", loops.load(found, 0))

    @contextmanager
    def each_expert(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        """A loop over the experts that have a row: the number of each, that of its first pair among the sorted ones,
        and of how many."""
        p = self.program
        about = loops.minimum(self.pairs, self.form.experts)
        with p.loop("n", self.chosen, about=about) as n:
            expert = p.let("expert", loops.load(self.active, n))
            first = p.let("first", loops.load(self.starts, expert))
            count = p.let("count", loops.load(self.starts, expert + 1) - first)
            yield expert, first, count

    # Elements

    def store(self, pair: Expr, column: Expr, totals: Buffer, at: Expr) -> None:
        """Store an element of the output, given its sum: a number of `totals`."""
        form, values = self.form, self.places(pair)
        assert isinstance(form.place[2], s.Var), "checked by expert_linear_of"
        values[form.place[2]] = column

        def load(node: s.Load) -> Expr:
            if node.source.same_as(form.total):
                return tirx.BufferLoad(totals, [at])
            return self._flat(node)

        value = s.substitute(s.map_loads(form.value, load), values)
        target = s.substitute(s.flat_index(form.target, form.out.shape), values)
        self.program.store(self.out, loops.index_of(target), value)

    def at(self, value: Expr, values: Mapping[Expr, Expr]) -> Expr:
        """A value for these values of its variables."""

        def cast(node: tirx.Cast) -> Expr:
            if str(node.value.ty.dtype) != "int64" or s.loads_of(node.value):
                return node
            return loops.index_of(node.value).astype(str(node.ty.dtype))

        found = s.substitute(s.map_loads(value, self._flat), values)
        return loops.truncating(rewritten(found, (tirx.Cast, cast), (s.Load, _simplified)))

    def offset(self, load: s.Load, values: Mapping[Expr, Expr]) -> Expr:
        """The place of an element in the flat view of its buffer."""
        return loops.index_of(s.substitute(s.flat_index(load.indices, load.source.shape), values))

    def _flat(self, node: s.Load) -> Expr:
        view = self.views.get(node.source)
        if view is None:  # an index of another one, which is flat already
            return node
        return tirx.BufferLoad(view, [s.flat_index(node.indices, node.source.shape)])

    def places(self, pair: Expr) -> dict[Expr, Expr]:
        """The values of the variables of row and choice for a pair."""
        row, choice, _ = self.form.place
        found = loops.floordiv(pair, self.choices), loops.floormod(pair, self.choices)
        return {v: at for v, at in zip((row, choice), found, strict=True) if isinstance(v, s.Var)}


def _simplified(load: s.Load) -> Expr:
    return tirx.BufferLoad(load.source, [loops.index_of(index) for index in load.indices])
