"""Products of activations in int8 with weights of 4 bits, on bytes (W4A8): `relaxpy.tir.recognise.quantized_matmul`.

A task makes all rows of a panel of columns (`relaxpy.backend.cpu.rules.quantized_tiles`).
"""

from __future__ import annotations

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.dots import Dots
from relaxpy.backend.cpu.rules.matmul_finish import Finish, Total
from relaxpy.backend.cpu.rules.matmul_formula import Formula
from relaxpy.backend.cpu.rules.quantized_tiles import (
    CHUNK,
    Activations,
    ByteTiles,
    Rows,
    height_of,
)
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Expr, PrimFunc, Program, Stmt
from relaxpy.tir.recognise.quantized_matmul import QuantizedMatmul, quantized_matmul_of


def quantized_matmul_program(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """The function with its loops rewritten if it is such a product of a weight in tiles, and the target has the
    instructions; or None."""
    dots = Dots.of(target) if target.kind == "llvm" else None
    found = quantized_matmul_of(func) if dots is not None else None
    if dots is None or found is None or not _is_readable(found, dots.lanes):
        return None
    height = height_of(target)

    def write() -> PrimFunc:
        body = _Writer(found, dots, height).write()
        return loops.finished(func, dots.around(body))

    return Arrangement(write)


def _is_readable(product: QuantizedMatmul, lanes: int) -> bool:
    """Are vectors of the weight read from tiles, and rows of activations one after the other?"""
    form = product.form
    depth = loops.constant(form.depth.extent)
    dense = loops.constant(form.row.extent) == 1 or loops.constant(form.row.lhs) == depth
    if product.shared % CHUNK or not dense or loops.constant(form.lhs.base) != 0:
        return False
    return Formula(Program(), form, lanes, form.rhs.formula).is_padded


class _Writer:
    """Writes the program of one product."""

    def __init__(self, product: QuantizedMatmul, dots: Dots, height: int) -> None:
        self.form = product.form
        self.program = p = Program()
        self.columns = self.form.column.extent
        self.out = p.flat_view(self.form.out.buffer)
        codes, scales = p.flat_view(self.form.lhs.buffer), p.flat_view(product.scale)
        activations = Activations(codes, scales, self.form.row.extent, product.group)
        self.tiles = ByteTiles(
            p, dots, height, self.form, product.weight, product.nibbles, activations
        )
        self.finish = None
        if self.form.epilogue is not None:
            self.finish = Finish(p, self.form, self.out)

    def write(self) -> Stmt:
        """Write the whole body."""
        p, width = self.program, self.tiles.width
        self.tiles.order()
        rows = Rows(self.form.row.extent, lambda row: row, self._store)
        with p.loop("panel", loops.ceildiv(self.columns, width), parallel=True) as panel:
            self.tiles.panel(p.let("start", loops.simplify(panel * width)), rows)
        return p.body()

    def _store(self, row: Expr, start: Expr, own: Total) -> None:
        """Finish the sums of a row in the panel from column `start` on, and write them to the output."""
        p, lanes, width = self.program, self.tiles.lanes, self.tiles.width
        left = None
        if loops.constant(loops.floormod(self.columns, width)) != 0:
            left = p.let("left", loops.clamped_int32(self.columns - start, width))
        target = p.let("target", row * self.form.row.out + start + self.form.out.base)
        place = {} if self.finish is None else self.finish.row_place(row)
        for at in range(0, width, lanes):
            mask = None if left is None else loops.first_lanes(left - at, lanes)
            if self.finish is not None:
                total = Total(own.buffer, own.start + at)
                self.finish.store(total, place, start + at, target + at, lanes, mask)
            else:
                value = loops.load(own.buffer, own.start + at, lanes)
                p.store(self.out, target + at, value, lanes, mask)
