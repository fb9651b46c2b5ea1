"""Products of activations in int8 with weights of 4 bits, on bytes (W4A8): `relaxpy.tir.forms.quantized_matmul`.

The weight is in tiles of columns (`relaxpy.backend.cpu.row_tiles`): a vector of words has eight neighbours along the
depth of each of its columns. The low nibbles of its four bytes are the codes at even places, the high ones those at odd
places, so two instructions of `relaxpy.backend.cpu.dots` multiply them with two words of activations: nothing is
unpacked to memory. A first loop brings the bytes of the activations into that order, and sums them by groups.

Every `CHUNK` places of the depth the sums of integers become floats, are scaled, and are added to those of the row in
order. So a row's result does not depend on other rows, nor on the number of threads.
"""

from __future__ import annotations

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.dots import Dots
from relaxpy.backend.cpu.rules.matmul_finish import Finish, Total
from relaxpy.backend.cpu.rules.matmul_formula import Formula
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.forms.matmul import MatmulForm
from relaxpy.tir.forms.quantized_matmul import QuantizedMatmul, quantized_matmul_of
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer import loops
from relaxpy.tir.writer.loops import Buffer, Expr, PrimFunc, Program, Stmt

CHUNK = 32
"""Places of the depth whose products are summed as integers: `relaxpy.backend.cpu.dots.MOST` words of even places and
of odd ones."""
VECTORS = 2
"""Vectors across a panel."""
_WORDS = CHUNK // 4
_PLACES = [8 * byte + at for byte in range(4) for at in (0, 2, 4, 6, 1, 3, 5, 7)]
"""The order of the bytes of a chunk: of each eight, those at even places, then those at odd places."""


def quantized_matmul_program(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """The function with its loops rewritten if it is such a product of a weight in tiles, and the target has the
    instructions; or None."""
    dots = Dots.of(target) if target.kind == "llvm" else None
    found = quantized_matmul_of(func) if dots is not None else None
    if dots is None or found is None or not _is_readable(found, dots.lanes):
        return None
    height = 4 if target.vector_registers < 32 else 6

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
    return Formula(Program(), form, lanes).is_padded


def _own_memory(form: MatmulForm) -> tuple[Buffer, Buffer]:
    """The activations in order, as words, and the sums of their chunks."""
    rows, depth = form.row.extent, form.depth.extent

    def memory(name: str, every: int, dtype: str) -> Buffer:
        size = loops.simplify(rows * loops.floordiv(depth, every))
        return tirx.decl_buffer([size], dtype, name, scope="global", layout=None)

    return memory("ordered", 4, "int32"), memory("sums", CHUNK, "float32")


class _Writer:
    """Writes the program of one product."""

    def __init__(self, product: QuantizedMatmul, dots: Dots, height: int) -> None:
        self.form, self.dots, self.height = product.form, dots, height
        self.program = p = Program()
        self.rows, self.columns = self.form.row.extent, self.form.column.extent
        depth = loops.constant(self.form.depth.extent)
        assert depth is not None, "checked by quantized_matmul_of"
        self.chunks = depth // CHUNK
        self.out = p.flat_view(self.form.out.buffer)
        self.codes = p.flat_view(self.form.lhs.buffer)
        self.scales = p.flat_view(product.scale)
        self.chunks_per_scale = product.group // CHUNK
        self.ordered, self.sums = _own_memory(self.form)
        lanes = dots.lanes
        self.word = Formula(p, self.form, lanes, product.nibbles.word)
        weight = product.weight
        self.slope, self.shift, self.offset = (
            None if value is None else Formula(p, self.form, lanes, value)
            for value in (weight.slope, weight.shift, weight.offset)
        )
        self.finish = None
        if self.form.epilogue is not None:
            self.finish = Finish(p, self.form, self.out)

    def write(self) -> Stmt:
        """Write the whole body."""
        p = self.program
        for memory in (self.ordered, self.sums):
            p.add(tirx.AllocBuffer(memory))
        with p.loop("row", self.rows, parallel=True) as row:
            self._order(row)
        width = VECTORS * self.dots.lanes
        with p.loop("panel", loops.ceildiv(self.columns, width), parallel=True) as panel:
            start = p.let("start", loops.simplify(panel * width))
            whole = p.let("whole", loops.floordiv(self.rows, self.height))
            with p.loop("tile", whole) as tile:
                self._tile(p.let("row", tile * self.height), self.height, start)
            done = p.let("done", loops.simplify(whole * self.height))
            for height in range(1, self.height):
                with p.when(loops.equals(self.rows - done, height)):
                    self._tile(done, height, start)
        return p.body()

    def _order(self, row: Expr) -> None:
        """Bring a row of activations into order, and sum each chunk."""
        p = self.program
        places = [tirx.const(place, "int32") for place in _PLACES]
        with p.loop("chunk", self.chunks) as chunk:
            at = p.let("at", row * (self.chunks * CHUNK) + chunk * CHUNK)
            codes = p.let("codes", loops.load(self.codes, at, CHUNK))
            words = tirx.reinterpret(f"int32x{_WORDS}", tirx.Shuffle([codes], places))
            to = (row * self.chunks + chunk) * _WORDS
            p.store(self.ordered, to, words, _WORDS)
            total = p.allocate("total", 1, "int32")
            p.store(total, 0, loops.zero("int32"))
            with p.loop("k", CHUNK) as k:
                code = loops.load(self.codes, at + k).astype("int32")
                p.store(total, 0, loops.load(total, 0) + code)
            value = loops.load(total, 0).astype("float32")
            p.store(self.sums, row * self.chunks + chunk, value)

    def _tile(self, row: Expr, height: int, start: Expr) -> None:
        """The sums of some rows in the panel from column `start` on."""
        p, lanes = self.program, self.dots.lanes
        across = [n * lanes for n in range(VECTORS)]
        sums = [p.allocate(f"sums{r}", VECTORS * lanes, "float32") for r in range(height)]
        for own in sums:
            for at in across:
                p.store(own, at, loops.zero("float32", lanes), lanes)
        firsts = [p.let(f"first{r}", (row + r) * self.chunks) for r in range(height)]
        with p.loop("chunk", self.chunks) as chunk:
            totals = self._integers(firsts, chunk, start, across)
            self._scaled(totals, sums, firsts, chunk, start, across)
        self._store(row, start, sums)

    def _integers(
        self, firsts: list[Expr], chunk: Expr, start: Expr, across: list[int]
    ) -> list[list[Expr]]:
        """The sums of a chunk as integers, by row and vector."""
        p, dots, lanes = self.program, self.dots, self.dots.lanes
        kept = [
            [p.allocate(f"total{r}_{n}", lanes, "int32") for n in range(VECTORS)]
            for r in range(len(firsts))
        ]
        for total in (each for own in kept for each in own):
            p.store(total, 0, loops.zero("int32", lanes), lanes)
        low = loops.broadcast(tirx.const(0x0F0F0F0F, "int32"), lanes)
        words, width = f"int32x{lanes}", VECTORS * lanes
        four = loops.broadcast(tirx.const(4, "uint32"), lanes)
        for word in range(CHUNK // 8):
            place = chunk * CHUNK + word * 8
            raw = [p.let("raw", self.word.vector(place, start, width, at, None)) for at in across]
            parts = [
                [p.let("even", tirx.reinterpret(words, each) & low) for each in raw],
                [p.let("odd", tirx.reinterpret(words, each >> four) & low) for each in raw],
            ]
            for half, codes in enumerate(parts):
                for first, own in zip(firsts, kept, strict=True):
                    at = (first + chunk) * _WORDS + (2 * word + half)
                    signed = loops.broadcast(loops.load(self.ordered, at), lanes)
                    signed = p.let("signed", signed)
                    for total, code in zip(own, codes, strict=True):
                        before = loops.load(total, 0, lanes)
                        p.store(total, 0, dots.add(before, code, signed), lanes)
        return [
            [p.let("joined", dots.joined(loops.load(total, 0, lanes))) for total in own]
            for own in kept
        ]

    def _scaled(
        self,
        totals: list[list[Expr]],
        sums: list[Buffer],
        firsts: list[Expr],
        chunk: Expr,
        start: Expr,
        across: list[int],
    ) -> None:
        """Add the sums of a chunk, made floats and scaled, to those of the rows."""
        p, lanes = self.program, self.dots.lanes
        place = chunk * CHUNK

        def shared(formula: Formula | None, at: int) -> Expr | None:
            return (
                None
                if formula is None
                else p.let("by", formula.vector(place, start, VECTORS * lanes, at, None))
            )

        numbers = [
            [shared(formula, at) for formula in (self.slope, self.shift, self.offset)]
            for at in across
        ]
        for first, own, out in zip(firsts, totals, sums, strict=True):
            scale_at = loops.floordiv(first + chunk, self.chunks_per_scale)
            scale = p.let("scale", loops.broadcast(loops.load(self.scales, scale_at), lanes))
            all_codes = loops.load(self.sums, first + chunk)
            total_of_codes = p.let("codes", loops.broadcast(all_codes, lanes))
            for at, total, (slope, shift, offset) in zip(across, own, numbers, strict=True):
                value = total.astype(f"float32x{lanes}")
                if shift is not None:
                    value = value + shift * total_of_codes
                if slope is not None:
                    value = slope * value
                if offset is not None:
                    value = value + offset * total_of_codes
                before = loops.load(out, at, lanes)
                p.store(out, at, before + scale * value, lanes)

    def _store(self, row: Expr, start: Expr, sums: list[Buffer]) -> None:
        """Finish the sums of some rows and write them to the output."""
        p, lanes = self.program, self.dots.lanes
        width = VECTORS * lanes
        exact = loops.constant(loops.floormod(self.columns, width)) == 0
        left = None if exact else p.let("left", loops.clamped_int32(self.columns - start, width))
        for r, own in enumerate(sums):
            target = p.let("target", (row + r) * self.form.row.out + start + self.form.out.base)
            place = {} if self.finish is None else self.finish.row_place(row + r)
            for at in range(0, width, lanes):
                mask = None if left is None else loops.first_lanes(left - at, lanes)
                if self.finish is not None:
                    total = Total(own, loops.int64(at))
                    self.finish.store(total, place, start + at, target + at, lanes, mask)
                else:
                    value = loops.load(own, at, lanes)
                    p.store(self.out, target + at, value, lanes, mask)
