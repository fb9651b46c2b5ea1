"""Linear maps that are chosen by index, of activations in int8 and weights of 4 bits, on bytes (W4A8):
`relaxpy.tir.recognise.expert_linear`.

The weight of each expert is in tiles of columns, and multiplied as that of a product of matrices
(`relaxpy.backend.cpu.rules.quantized_tiles`) with the rows that chose it. A task makes a panel of columns of all
experts: whatever the choices are, the tasks are alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.dots import Dots
from relaxpy.backend.cpu.panels import PANEL_VECTORS
from relaxpy.backend.cpu.row_tiles import RowTiles
from relaxpy.backend.cpu.rules.expert_pairs import ExpertWriter, fits
from relaxpy.backend.cpu.rules.matmul_finish import Total
from relaxpy.backend.cpu.rules.matmul_formula import Formula
from relaxpy.backend.cpu.rules.quantized_tiles import (
    CHUNK,
    Activations,
    ByteTiles,
    Rows,
    height_of,
)
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir import prim_func
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Expr, PrimFunc, Program, Stmt
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.contraction import Axis
from relaxpy.tir.recognise.expert_linear import ExpertLinearForm, expert_linear_of
from relaxpy.tir.recognise.matmul import Dimension
from relaxpy.tir.recognise.quantized_matmul import QuantizedFactors, quantized_factors
from relaxpy.tir.schedule import is_scheduled


@dataclass(frozen=True, eq=False)
class _Bytes:
    """A map of codes by codes."""

    form: ExpertLinearForm
    factors: QuantizedFactors

    @property
    def column(self) -> Dimension:
        """The columns of an expert."""
        return _loop(self.form.place[2], self.form.extents[2])

    @property
    def depth(self) -> Dimension:
        """The loop of the sums."""
        return _loop(self.form.depth, loops.int64(self.form.depth_extent))


def _loop(var: Expr, extent: Expr) -> Dimension:
    zero = loops.int64(0)
    return Dimension(extent, zero, zero, zero, (Axis(var, extent, False, False),))


def expert_bytes_program(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """The function with its loops rewritten if it is such a map of a weight in tiles, and the target has the
    instructions; or None."""
    dots = Dots.of(target) if target.kind == "llvm" else None
    found = _bytes_of(func) if dots is not None else None
    if dots is None or found is None:
        return None
    if not Formula(Program(), found, dots.lanes, found.form.weight).is_padded:
        return None
    height = height_of(target)

    def write() -> PrimFunc:
        body = _Writer(found, dots, height).body()
        return loops.finished(func, dots.around(body))

    return Arrangement(write)


def wanted_expert_tiles(program: prim_func.PrimFunc, target: CpuTarget) -> tuple[RowTiles, ...]:
    """The tiles that the parameters of such a map's weight are packed into: along the columns of each expert, as wide
    as a panel. Empty for other programs, for parameters that are packed already, where an alternative of the target
    lacks the instructions, and if padding would double them."""
    if target.kind != "llvm" or is_scheduled(program.func):
        return ()
    if any(Dots.of(each) is None for each in target.alternatives):
        return ()
    found = _bytes_of(program.func)
    columns = None if found is None else loops.constant(found.form.extents[2])
    if found is None or not columns:
        return ()
    lanes = [each.lanes(32) for each in target.alternatives]
    width = max(PANEL_VECTORS * min(lanes), *lanes)
    if -(-columns // width) * width >= 2 * columns:
        return ()
    params, tiles = list(program.func.params), dict[int, RowTiles]()
    for load in s.loads_of(found.form.weight):
        expert, column, *others = load.indices
        is_plain = expert.same_as(found.form.expert) and column.same_as(found.form.place[2])
        if not is_plain or any(s.uses(index, column) for index in others):
            return ()
        number = next(n for n, param in enumerate(params) if param.same_as(load.source))
        tiles[number] = RowTiles(number, axis=1, height=width, lead=1)
    return tuple(tiles.values())


def _bytes_of(func: PrimFunc) -> _Bytes | None:
    form = expert_linear_of(func)
    if form is None or not fits(form):
        return None
    factors = quantized_factors(form.data, form.weight, form.depth)
    if factors is None or factors.shared % CHUNK or form.depth_extent % factors.group:
        return None
    is_dense = loops.constant(factors.lhs.source.shape[-1]) == form.depth_extent
    return _Bytes(form, factors) if is_dense else None


class _Writer(ExpertWriter):
    """Writes the program of one map."""

    def __init__(self, found: _Bytes, dots: Dots, height: int) -> None:
        super().__init__(found.form)
        factors = found.factors
        self.lines = factors.lhs
        *outer, _ = factors.lhs.source.shape
        rows = loops.int64(1)
        for extent in outer:
            rows = loops.simplify(rows * extent)
        codes, scales = (self.views[each.source] for each in (factors.lhs, factors.scale))
        activations = Activations(codes, scales, rows, factors.group)
        self.tiles = ByteTiles(
            self.program, dots, height, found, factors.weight, factors.nibbles, activations
        )

    def body(self) -> Stmt:
        """The pairs by expert, the activations in order, then the parallel loop over all panels."""
        p, width = self.program, self.tiles.width
        self.sort()
        self.tiles.order()
        with p.loop("panel", -(-self.columns // width), parallel=True) as panel:
            start = p.let("start", panel * width)
            with self.each_expert() as (expert, first, count):
                self.tiles.place({self.form.expert: expert})
                self.tiles.panel(start, self._rows(first, count))
        return p.body()

    def _rows(self, first: Expr, count: Expr) -> Rows:
        """The sorted pairs from one on."""
        p, width, lanes = self.program, self.tiles.width, self.tiles.lanes
        done = p.allocate("done", width, "float32")
        *outer, _ = self.lines.source.shape

        def pair_of(row: Expr) -> Expr:
            return p.let("pair", loops.load(self.order, first + row))

        def line(row: Expr) -> Expr:
            at = s.flat_index(self.lines.indices[:-1], outer)
            return p.let("line", loops.index_of(s.substitute(at, self.places(pair_of(row)))))

        def store(row: Expr, start: Expr, own: Total) -> None:
            pair = pair_of(row)
            for at in range(0, width, lanes):
                p.store(done, at, loops.load(own.buffer, own.start + at, lanes), lanes)
            with p.loop("lane", loops.minimum(self.columns - start, width)) as lane:
                self.store(pair, start + lane, done, lane)

        return Rows(count, line, store)
