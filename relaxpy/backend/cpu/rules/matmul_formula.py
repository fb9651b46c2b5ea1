"""A matrix product's right-hand factor that is computed from parameters: a weight of small integers with scales.

The element at row k and column j is a formula (`relaxpy.tir.recognise.contraction.Operand.formula`). Vectors across
columns are computed in registers, from loads of these kinds:

* of neighbours: the last index is j (a weight with its depth first)
* of a tile: the indices are j // width, ..., j % width (`relaxpy.backend.cpu.row_tiles`, which a weight that is known
  ahead is packed into). Tiles are padded, so nothing is masked.
* of one element for all lanes: no index has j, or j // n where n is a multiple of the lanes

Other formulas are computed element by element, into the memory of a task.

Codes are packed along the depth, several to a word, so that `unroll` rows are written out one after the other: they
share the loads of words and scales, and shift by constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from relaxpy.backend.cpu.panels import PANEL_VECTORS
from relaxpy.backend.cpu.row_tiles import RowTiles
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.nodes import address_of
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Expr, Program
from relaxpy.tir.programs.vectors import masked_value, vector_value
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.matmul import BITS, Dimension, computed_matmul_of
from relaxpy.tir.recognise.quantized_matmul import quantized_matmul_of
from relaxpy.tir.schedule import is_scheduled
from relaxpy.tir.tvm import tirx
from relaxpy.tir.walk import rewritten, walk

_UNROLLED = (8, 4, 2)
"""Rows that may be written out together: codes in a word of 32 or 16 bits, or in a byte."""


def wanted_formula_tiles(program: PrimFunc, target: CpuTarget) -> tuple[RowTiles, ...]:
    """The tiles that the parameters of a computed factor are packed into: along its columns, as wide as a panel. Empty
    for other programs, for parameters that are packed already or have no dimension that is the column, and if padding
    would double them."""
    if target.kind != "llvm" or is_scheduled(program.func):
        return ()
    form = computed_matmul_of(program.func)
    if form is None and (quantized := quantized_matmul_of(program.func)) is not None:
        form = quantized.form
    columns = None if form is None else loops.constant(form.column.extent)
    if form is None or columns is None:
        return ()
    lanes = [each.lanes(BITS[form.dtype]) for each in target.alternatives]
    width = max(PANEL_VECTORS * min(lanes), *lanes)
    if -(-columns // width) * width >= 2 * columns:
        return ()
    found: dict[int, RowTiles] = {}
    params = list(program.func.params)
    for load in s.loads_of(form.rhs.formula):
        number = next(n for n, param in enumerate(params) if param.same_as(load.source))
        uses = [n for n, i in enumerate(load.indices) if s.uses(i, form.column.axes[0].var)]
        if not uses:
            continue
        (axis, *more) = uses
        own = load.indices[axis].same_as(form.column.axes[0].var) and not more
        known = [loops.constant(dim) for dim in load.source.shape]
        if not own or None in known or known[axis] != columns:
            return ()
        tiles = RowTiles(number, axis, width)
        if found.setdefault(number, tiles) != tiles:
            return ()
    return tuple(found.values())


class _Kind(Enum):
    NEIGHBOURS = auto()
    TILE = auto()
    ONE = auto()
    OTHER = auto()


@dataclass(frozen=True, eq=False)
class _Access:
    """How a load of the formula reads across columns."""

    kind: _Kind
    width: int = 1
    """Columns of a tile."""
    at: int = 0
    """The index that is the number of the tile."""


_TILE, _INSIDE = tirx.Var("tile", "int64"), tirx.Var("inside", "int64")
"""Stand for the number of a tile and the place in it."""


class OfColumns(Protocol):
    """A product whose second factor has columns and a depth: one loop each."""

    @property
    def column(self) -> Dimension: ...
    @property
    def depth(self) -> Dimension: ...


class Formula:
    """Writes the elements of one product's computed factor, or those of another value over its rows and columns."""

    def __init__(self, program: Program, form: OfColumns, lanes: int, value: Expr | None) -> None:
        assert value is not None, "a product with a computed factor"
        self.program, self.value, self.lanes = program, value, lanes
        self.columns = form.column.extent
        self.place: Mapping[Expr, Expr] = {}
        """The values of the loop variables of the batch, or of others."""
        self.row_var, self.column_var = form.depth.axes[0].var, form.column.axes[0].var
        loads = s.loads_of(value)
        self._accesses: dict[Expr, _Access] = {}
        """By the loads of the formula."""
        # Each is asked for again at every row and vector that is written out.
        self._offsets: dict[tuple[Expr, bool], Expr] = {}
        """Offsets of the loads as functions of the row and column; or of the tile and the place in it."""
        self._tiles: dict[tuple[int, int, int, int], tuple[Expr, Expr, Expr]] = {}
        """Panels with the tiles of their columns, by their addresses and the numbers given to `_tile`."""
        self.views = {load.source: program.flat_view(load.source) for load in loads}
        kinds = [self._access(load).kind for load in loads]
        self.is_vector = _Kind.OTHER not in kinds and self._vectorises()
        """Are vectors across columns computed in registers?"""
        self.is_padded = self.is_vector and _Kind.NEIGHBOURS not in kinds
        """Is each column up to the end of a panel computed without masks?"""
        self.unroll = self._unroll(form)
        """Rows that are written out together. It divides the depth."""

    def vector(self, row: Expr, panel: Expr, step: int, at: int, mask: Expr | None) -> Expr:
        """The elements of a row, from column `at` of a panel on; `at` is a multiple of the lanes. The panel begins at
        column `panel`, a multiple of `step`, which is one of the lanes. Columns that do not exist are undefined."""
        found = self._vector(row, panel, step, at)
        assert found is not None, "vectorises, as was checked"
        if mask is None:
            return found
        masked = masked_value(found, mask)
        assert masked is not None, "neighbours are contiguous"
        return masked

    def prefetch(self, row: Expr, panel: Expr, step: int, at: int) -> None:
        """Prefetch what `vector` reads; the row need not exist."""
        for load in s.loads_of(self.value):
            offset, _ = self._across(load, row, panel, step, at)
            self.program.prefetch(self.views[load.source], offset)

    def element(self, row: Expr, column: Expr) -> Expr:
        """One element."""

        def load(node: s.Load) -> Expr:
            return tirx.BufferLoad(self.views[node.source], [self._flat(node, row, column)])

        return self._substituted(s.map_loads(self.value, load), row, column)

    def _vectorises(self) -> bool:
        row, panel = tirx.Var("row", "int64"), tirx.Var("panel", "int64")
        return self._vector(row, panel, self.lanes, 0) is not None

    def _vector(self, row: Expr, panel: Expr, step: int, at: int) -> Expr | None:
        first = loops.simplify(panel + at)

        def value(lane: Expr) -> Expr:
            def load(node: s.Load) -> Expr:
                offset, moves = self._across(node, row, panel, step, at)
                return tirx.BufferLoad(
                    self.views[node.source], [offset + lane if moves else offset]
                )

            return self._substituted(s.map_loads(self.value, load), row, first + lane)

        return vector_value(value, self.lanes)

    def _across(
        self, node: s.Load, row: Expr, panel: Expr, step: int, at: int
    ) -> tuple[Expr, bool]:
        """The offset that a load reads in the first lane, and whether it moves on with the lanes."""
        access, first = self._access(node), loops.simplify(panel + at)
        if access.kind is not _Kind.TILE:
            return self._flat(node, row, first), access.kind is _Kind.NEIGHBOURS
        own = access.width
        key = address_of(panel), step, at, own
        if key not in self._tiles:
            self._tiles[key] = (panel, *self._tile(panel, first, step, at, own))
        _, tile, inside = self._tiles[key]
        return self._flat(node, row, first, {_TILE: tile, _INSIDE: inside}), True

    def _tile(self, panel: Expr, first: Expr, step: int, at: int, own: int) -> tuple[Expr, Expr]:
        """The tile of `own` columns that has column `at` of a panel, and the place in it."""
        if step % own == 0:
            tile, inside = loops.floordiv(panel, own) + at // own, loops.int64(at % own)
        else:
            tile, inside = loops.floordiv(first, own), loops.floormod(first, own)
        return loops.minimum(tile, loops.floordiv(self.columns - 1, own)), inside

    def _flat(
        self, node: s.Load, row: Expr, column: Expr, tile: Mapping[Expr, Expr] | None = None
    ) -> Expr:
        """The offset that a load reads; of a given tile and place in it, or of the column's own."""
        key = node, tile is not None
        if key not in self._offsets:
            indices = list(node.indices)
            if tile is not None:
                indices[self._access(node).at], indices[-1] = _TILE, _INSIDE
            self._offsets[key] = s.flat_index(indices, node.source.shape)
        values = {**self.place, self.row_var: row, self.column_var: column, **(tile or {})}
        return loops.index_of(s.substitute(self._offsets[key], values))

    def _substituted(self, value: Expr, row: Expr, column: Expr) -> Expr:
        """The value at a row and column. Only numbers made of these are simplified, such as the distance of a shift:
        the arithmetic on floats stays as it is."""
        values = {**self.place, self.row_var: row, self.column_var: column}

        def cast(node: tirx.Cast) -> Expr:
            if str(node.value.ty.dtype) != "int64":
                return node
            return loops.index_of(node.value).astype(str(node.ty.dtype))

        return loops.truncating(rewritten(s.substitute(value, values), (tirx.Cast, cast)))

    def _access(self, load: s.Load) -> _Access:
        if load not in self._accesses:
            self._accesses[load] = self._access_of(load)
        return self._accesses[load]

    def _access_of(self, load: s.Load) -> _Access:
        column = self.column_var
        indices = list(load.indices)
        uses = [n for n, index in enumerate(indices) if s.uses(index, column)]
        last = len(indices) - 1
        if not uses:
            return _Access(_Kind.ONE)
        if uses == [last] and indices[last].same_as(column):
            return _Access(_Kind.NEIGHBOURS)
        width = loops.constant(load.source.shape[-1])
        if len(uses) == 2 and uses[1] == last and width and width % self.lanes == 0:
            piece, inside = indices[uses[0]], indices[last]
            if (
                _is_cut(piece, tirx.FloorDiv, column, width)
                and _is_cut(inside, tirx.FloorMod, column, width)
            ):  # fmt: skip
                return _Access(_Kind.TILE, width, uses[0])
        if len(uses) == 1:
            index = indices[uses[0]]
            every = loops.constant(index.b) if isinstance(index, tirx.FloorDiv) else None
            if every and every % self.lanes == 0 and _is_cut(index, tirx.FloorDiv, column, every):
                return _Access(_Kind.ONE)
        return _Access(_Kind.OTHER)

    def _unroll(self, form: OfColumns) -> int:
        """The rows that share a word: as many as the formula divides the row's number by."""
        depth = loops.constant(form.depth.extent)
        found: list[int] = []

        def visit(node: Expr) -> None:
            if node.a.same_as(self.row_var):
                found.append(loops.constant(node.b) or 0)

        walk(self.value, ((tirx.FloorDiv, tirx.FloorMod), visit))
        wanted = min((n for n in found if n > 1), default=1)
        if depth is None:
            return 1
        return next((n for n in _UNROLLED if wanted % n == 0 and depth % n == 0), 1)


def _is_cut(index: Expr, kind: type, column: Expr, width: int) -> bool:
    """Is an index the column divided by a width, or the remainder?"""
    return isinstance(index, kind) and index.a.same_as(column) and loops.constant(index.b) == width
