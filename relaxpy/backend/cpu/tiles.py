"""Registers that are tiles: the matrix instructions of Intel's server processors (AMX), for products of bfloat16 and of
bytes that are summed in 32 bits.

There are eight tiles of 16 rows of 64 bytes. One instruction adds the product of two tiles to a third, whose elements
are sums of 32 bits: 16 × 16 sums, over a depth of 32 bfloat16 or of 64 bytes. The right-hand tile has groups of two or
four neighbours along the depth side by side, as the panels of `relaxpy.backend.cpu.panels` have them.

bfloat16 is added up in an order of its own: the products of a tile's even and of its odd positions, each one after the
other, then both sums, then the sum so far. Subnormal numbers are zeros. Every row is computed by itself, so its bits do
not depend on the rows beside it, nor on how many there are; they differ from those of other instructions. Sums of bytes
are exact.

The number of rows that a tile has is not in the instructions: `configure` sets it for all of them, and `release` gives
the registers back, so that the system need not save them. Products are of blocks of up to two by two tiles, whose
numbers are chosen here, or of tiles that the caller numbers. The system gives a process these registers when it asks
for them (`relaxpy.runtime.host.tile_registers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.lowering.definitions import with_definitions
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, Index, Program, Stmt
from relaxpy.tir.tvm import tirx

ROWS = 16
"""Rows of a tile, and sums in a row of it."""
ROW_BYTES = 64
CONFIGURATION = 64
"""Bytes that `configure` needs."""
_PALETTE = 1
TILES = 8
_LEFT, _RIGHT = (4, 5), (6, 7)
"""The tiles of the factors; tiles 0 to 3 are sums, by rows of tiles."""

_INSTRUCTIONS = {
    ("bfloat16", "bfloat16", "float32"): ("amx-bf16", "tdpbf16ps", 2),
    ("int8", "int8", "int32"): ("amx-int8", "tdpbssd", 1),
    ("uint8", "int8", "int32"): ("amx-int8", "tdpbusd", 1),
    ("int8", "uint8", "int32"): ("amx-int8", "tdpbsud", 1),
}
"""The feature, the instruction, and the bytes of an element, by the types of both factors and of the sums."""


@dataclass(frozen=True)
class Tiles:
    """The instructions for products of two types."""

    instruction: str
    """LLVM's name of it."""
    size: int
    """Bytes of an element of both factors."""
    total: str
    """The type of the sums."""

    @classmethod
    def of(cls, lhs: str, rhs: str, total: str, target: CpuTarget) -> Tiles | None:
        """Those of the target; None if it has none for these types."""
        found = _INSTRUCTIONS.get((lhs, rhs, total))
        if found is None or not (target.has("amx-tile") and target.has(found[0])):
            return None
        return cls(*found[1:], total)

    @property
    def group(self) -> int:
        """Elements along the depth that are side by side in a right-hand tile."""
        return 4 // self.size

    @property
    def depth(self) -> int:
        """Elements along the depth of a tile."""
        return ROW_BYTES // self.size

    def configure(self, p: Program, rows: tuple[Expr, Expr]) -> None:
        """Take the registers, with so many rows (from 1 to 16) in the first and in the second row of tiles."""
        memory = p.allocate("tile_rows", CONFIGURATION, "uint8")
        for n in range(CONFIGURATION):
            p.store(memory, n, tirx.const(_PALETTE if n == 0 else 0, "uint8"))
        counts = [*(rows[n // 2] for n in range(4)), *rows, loops.int64(ROWS), loops.int64(ROWS)]
        for n, count in enumerate(counts):
            p.store(memory, 16 + 2 * n, tirx.const(ROW_BYTES, "uint8"))
            p.store(memory, 48 + n, count.astype("uint8"))
        self._call(p, "configure", address(memory, 0))

    def release(self, p: Program) -> None:
        """Give the registers back."""
        self._call(p, "release")

    def begin(self, p: Program, rows: int) -> None:
        """Set the sums of so many rows of tiles to zero."""
        self._call(p, f"zero{rows}")

    def load(self, p: Program, rows: int, sums: Buffer, at: Expr) -> None:
        """Load the sums, two tiles beside each other; rows of sums are contiguous."""
        self._call(p, f"load{rows}", address(sums, at))

    def store(self, p: Program, rows: int, sums: Buffer, at: Expr) -> None:
        """Store the sums as `load` loads them."""
        self._call(p, f"store{rows}", address(sums, at))

    def multiply(
        self, p: Program, rows: int, left: Expr, stride: Expr, right: Expr, right_stride: int
    ) -> None:
        """Add the product of `rows` (1 or 2) tiles of the left-hand factor, below each other, by two of the right-hand
        one, beside each other. `left` and `right` are addresses; strides of rows are in bytes."""
        self._call(p, f"multiply{rows}", left, stride, right, loops.int64(right_stride))

    def clear_tile(self, p: Program, tile: int) -> None:
        """Set a tile to zero."""
        self._call(p, f"clear_{tile}")

    def load_tile(self, p: Program, tile: int, at: Expr, stride: Index) -> None:
        """Load a tile from an address; strides of rows are in bytes."""
        self._call(p, f"load_{tile}", at, loops.int64(stride))

    def store_tile(self, p: Program, tile: int, at: Expr) -> None:
        """Store a tile, whose rows are contiguous, at an address."""
        self._call(p, f"store_{tile}", at, loops.int64(ROW_BYTES))

    def multiply_tiles(self, p: Program, sums: int, left: int, right: int) -> None:
        """Add the product of two tiles to a third one; the three are in the order of their numbers."""
        self._call(p, f"multiply_{sums}_{left}_{right}")

    def prefetch(self, p: Program, at: Expr) -> None:
        """Prefetch two tiles that are side by side, and contiguous, from an address on, which need not exist."""
        self._call(p, "prefetch", at)

    def around(self, body: Stmt) -> Stmt:
        """Return the body with the definitions that it needs."""
        return with_definitions(self.definitions(), body)

    def _call(self, p: Program, name: str, *args: Expr) -> None:
        p.add(tirx.Evaluate(tirx.call_extern("void", self._name(name), *args)))

    def _name(self, name: str) -> str:
        return f"relaxpy_{self.instruction}_{name}"

    def definitions(self) -> str:
        """The functions in LLVM IR; numbers of tiles are in the instructions."""
        own = [f"declare void @llvm.x86.{self.instruction}(i8, i8, i8)"]
        own += [
            f"declare void @llvm.x86.{name}"
            for name in (
                "ldtilecfg(ptr)", "tilerelease()", "tilezero(i8)", "tileloadd64(i8, ptr, i64)",
                "tilestored64(i8, ptr, i64)",
            )
        ]  # fmt: skip
        own.append("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        own.append(self._prefetch_function())
        own.append(self._function("configure", "ptr %at", ["x86.ldtilecfg(ptr %at)"]))
        own.append(self._function("release", "", ["x86.tilerelease()"]))
        for rows in (1, 2):
            sums = range(2 * rows)
            own.append(self._function(f"zero{rows}", "", [f"x86.tilezero(i8 {n})" for n in sums]))
            for name, instruction in (("load", "tileloadd64"), ("store", "tilestored64")):
                own.append(self._sums_function(f"{name}{rows}", instruction, rows))
            own.append(self._multiply_function(rows))
        own += self._tile_functions()
        return "\n".join(own)

    def _function(self, name: str, parameters: str, calls: list[str], before: str = "") -> str:
        lines = "".join(f"  call void @llvm.{call}\n" for call in calls)
        return (
            f"define linkonce_odr void @{self._name(name)}({parameters}) alwaysinline nounwind {{\n"
            f"{before}{lines}  ret void\n}}"
        )

    def _sums_function(self, name: str, instruction: str, rows: int) -> str:
        stride = 2 * ROW_BYTES
        before, calls = "", []
        for n in range(2 * rows):
            row, column = divmod(n, 2)
            offset = row * ROWS * stride + column * ROW_BYTES
            before += f"  %at{n} = getelementptr i8, ptr %at, i64 {offset}\n"
            calls.append(f"x86.{instruction}(i8 {n}, ptr %at{n}, i64 {stride})")
        return self._function(name, "ptr %at", calls, before)

    def _tile_functions(self) -> list[str]:
        """One for each instruction with each tile."""
        own: list[str] = []
        for n in range(TILES):
            own.append(self._function(f"clear_{n}", "", [f"x86.tilezero(i8 {n})"]))
            for name, instruction in (("load", "tileloadd64"), ("store", "tilestored64")):
                call = f"x86.{instruction}(i8 {n}, ptr %at, i64 %step)"
                own.append(self._function(f"{name}_{n}", "ptr %at, i64 %step", [call]))
        for three in combinations(range(TILES), 3):
            operands = ", ".join(f"i8 {n}" for n in three)
            name = "_".join(map(str, ("multiply", *three)))
            own.append(self._function(name, "", [f"x86.{self.instruction}({operands})"]))
        return own

    def _prefetch_function(self) -> str:
        places = range(2 * ROWS)
        before = "".join(
            f"  %at{n} = getelementptr i8, ptr %at, i64 {n * ROW_BYTES}\n" for n in places
        )
        calls = [f"prefetch.p0(ptr %at{n}, i32 0, i32 3, i32 1)" for n in places]
        return self._function("prefetch", "ptr %at", calls, before)

    def _multiply_function(self, rows: int) -> str:
        left, right = _LEFT[:rows], _RIGHT
        before = (
            f"  %down = mul i64 %stride, {ROWS}\n"
            "  %a1 = getelementptr i8, ptr %a0, i64 %down\n"
            f"  %b1 = getelementptr i8, ptr %b0, i64 {ROW_BYTES}\n"
        )
        calls = [f"x86.tileloadd64(i8 {t}, ptr %b{n}, i64 %step)" for n, t in enumerate(right)]
        for row, a in enumerate(left):
            calls.append(f"x86.tileloadd64(i8 {a}, ptr %a{row}, i64 %stride)")
            calls += [
                f"x86.{self.instruction}(i8 {2 * row + column}, i8 {a}, i8 {b})"
                for column, b in enumerate(right)
            ]
        return self._function(
            f"multiply{rows}", "ptr %a0, i64 %stride, ptr %b0, i64 %step", calls, before
        )


def address(buffer: Buffer, at: Index) -> Expr:
    """The address of an element of a flat buffer."""
    return tirx.address_of(tirx.BufferLoad(buffer, [loops.int64(at)]))
