"""Streaming stores: results that are larger than the caches are written past them.

An ordinary store to a cache line that no cache holds first reads the line from memory, and a later eviction writes it
back. A non-temporal store of a whole line only writes: a copy moves two thirds of the bytes. On two cores of an Emerald
Rapids copies with results of 8 to 64 MiB take 0.53 to 0.74 of the time, sums of two tensors 0.76 to 0.86, and 0.80 to
0.93 together with a kernel that reads the result next. Results of 1 MiB, which stay in a cache, take 1.5 times as long,
on a Zen 4 three times. So a kernel decides by what it reads and writes, when it runs: by whether the caches hold that,
which is a fact of the target (`CpuTarget.streamed_bytes`).

Processors may write these stores late. Another thread sees them after a locked instruction of the thread that wrote,
and each thread ends its part of a parallel loop with one (`relaxpy.backend.cpu.launchers`, and TVM's thread pool).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relaxpy.backend.cpu.rules.places import product
from relaxpy.backend.cpu.target import CACHE_LINE, CpuTarget
from relaxpy.backend.knobs import knob
from relaxpy.tir.lowering.definitions import with_definitions
from relaxpy.tir.programs.loops import (
    Buffer,
    Expr,
    Program,
    Stmt,
    both,
    constant,
    int64,
    minimum,
    simplify,
)
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Stage, Var
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import walk

_OTHERS = (1 << 20, 16 << 20, 32 << 20, 64 << 20)
"""Other limits than `CpuTarget.streamed_bytes`, for tuning."""
_INTEGERS = (f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
_DTYPES = frozenset(("float64", "float32", "float16", "bfloat16", *_INTEGERS))
"""Others are no vectors in memory (bool), or integers there that TVM puts in their place later (float8)."""
_STORE = "relaxpy_stream"
_BEHIND = "relaxpy_bytes_behind_line"
_HEAD = f"""
!0 = !{{i32 1}}

define i64 @{_BEHIND}(ptr %place) alwaysinline nounwind {{
  %number = ptrtoint ptr %place to i64
  %behind = and i64 %number, {CACHE_LINE - 1}
  ret i64 %behind
}}"""


@dataclass(frozen=True)
class Stream:
    """The result of an element-wise stage, or of a product, that may be large."""

    program: Program
    bits: int
    """Those of an element."""
    words: Buffer | None
    """A bfloat16 result as the integers of its bits: the address of an element would become that of its float32."""
    is_large: Expr
    """The condition that it is large, and begins with a cache line."""

    @classmethod
    def of(
        cls,
        p: Program,
        target: CpuTarget,
        stage: Stage,
        params: Sequence[Var],
        most: int | None = None,
    ) -> Stream | None:
        """Write the condition here, outside of the stage's loops; `params` is what the program reads and writes, and
        `most` the bytes that no cache holds well, if fewer than the target says. None if that is known to be little,
        if the result takes longer to compute than to write, or if the target has no such stores."""
        if stage.combiner is not None or not stage.axes:
            return None
        if s.is_expensive(stage.value, stage.axes[-1]) and not s.has_choice(stage.value):
            return None
        least = target.streamed_bytes if most is None else min(most, target.streamed_bytes)
        least = knob("large", least, _OTHERS)
        nbytes = _moved_bytes(params, product(stage.extents))
        return cls.to(p, target, stage.buffer, nbytes, least)

    @classmethod
    def to(
        cls, p: Program, target: CpuTarget, buffer: Buffer, nbytes: Expr, least: int
    ) -> Stream | None:
        """As `of`, to a buffer that is large where `nbytes`, which it is written with, are at least so many."""
        dtype = str(buffer.dtype)
        if target.kind != "llvm" or target.arch != "x86_64" or dtype not in _DTYPES:
            return None
        bits = int(tvm.DataType(dtype).bits)
        known = constant(nbytes)
        if known is not None and known < least:
            return None
        words = p.flat_view(buffer, "uint16") if dtype == "bfloat16" else None
        stream = cls(p, bits, words, nbytes >= int64(least))
        origin = tirx.BufferStore(buffer, tirx.const(0, dtype), [int64(0) for _ in buffer.shape])
        is_large = both(stream.is_large, _begins_line(stream.address(origin)))
        return replace(stream, is_large=p.let("is_large", is_large))

    @property
    def line(self) -> int:
        """The elements of a cache line."""
        return CACHE_LINE * 8 // self.bits

    def begins(self, first: tirx.BufferStore) -> Expr:
        """The condition that a run of elements streams: the result is large, and the one that is stored here is the
        first of a cache line."""
        flat = s.flat_index(_first_index(first), first.buffer.shape)
        if constant(simplify(tirx.floormod(flat, int64(self.line)))) == 0:
            return self.is_large
        return self.program.let("streams", both(self.is_large, _begins_line(self.address(first))))

    def add(self, store: tirx.BufferStore) -> None:
        """Write the store of a vector that fills whole cache lines, as one that streams."""
        value, lanes = store.value, int(tvm.DataType(str(store.value.ty.dtype)).lanes)
        if self.words is not None:
            value = tirx.reinterpret(f"uint16x{lanes}", value)
        count = lanes * self.bits // 32
        value = tirx.reinterpret(f"uint32x{count}", value)
        call = tirx.call_extern("void", f"{_STORE}{count}", self.address(store), value)
        self.program.add(tirx.Evaluate(call))

    def address(self, store: tirx.BufferStore) -> Expr:
        """The address of the first element of a store."""
        index = _first_index(store)
        if self.words is None:
            return tirx.address_of(tirx.BufferLoad(store.buffer, index))
        flat = simplify(s.flat_index(index, store.buffer.shape))
        return tirx.address_of(tirx.BufferLoad(self.words, [flat]))


def _moved_bytes(params: Sequence[Var], elements: Expr) -> Expr:
    """The bytes of the tensors among these that a result of so many elements takes: at most as many elements of
    each."""
    moved: Expr = int64(0)
    for param in filter(tirx.buffer.is_buffer_var, params):
        size = max(8, int(tvm.DataType(str(param.dtype)).bits)) // 8
        moved = moved + minimum(product(param.shape), elements) * int64(size)
    return simplify(moved)


def _first_index(store: tirx.BufferStore) -> list[Expr]:
    """The index of the first element of a store."""
    *outer, last = store.indices
    return [*outer, last.base if isinstance(last, tirx.Ramp) else last]


def _begins_line(address: Expr) -> Expr:
    """The condition that a cache line begins at an address."""
    return tirx.EQ(tirx.call_pure_extern("int64", _BEHIND, address), int64(0))


def with_streams(body: Stmt) -> Stmt:
    """The body with the definitions of the streaming stores in it."""
    found: set[str] = set()

    def note(call: tvm.ir.Call) -> None:
        if str(getattr(call.op, "name", "")).endswith("_extern"):
            found.add(str(call.args[0].value))

    walk(body, (tvm.ir.Call, note))
    widths = sorted(int(name.removeprefix(_STORE)) for name in found if name.startswith(_STORE))
    if _BEHIND not in found and not widths:
        return body
    text = "\n".join([_HEAD, *(_definition(words) for words in widths)])
    return with_definitions(text, body)


def _definition(words: int) -> str:
    """The store of so many words of 32 bits to whole lines, in LLVM IR."""
    return f"""
define void @{_STORE}{words}(ptr %place, <{words} x i32> %words) alwaysinline nounwind {{
  store <{words} x i32> %words, ptr %place, align {CACHE_LINE}, !nontemporal !0
  ret void
}}"""
