"""bfloat16 in pairs: vectors of 32-bit words that hold two neighbours each.

To widen a part of a vector takes a move across lanes and a shift. In a vector of words, a shift widens the numbers at
even positions, and a mask those at odd ones; the results for both are joined in the same way. Of float32 beside them,
those at even and at odd positions are picked. Every element is computed by the same arithmetic as in a vector of its
own.
"""

from __future__ import annotations

from relaxpy.tir.programs.loops import Expr, broadcast, int64
from relaxpy.tir.programs.vectors import every_second, vector_value, vectorise
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Load, Stage, Var
from relaxpy.tir.tvm import tirx, tvm_ffi

_BITS = 16


def has_pairs(stage: Stage, axis: Var) -> bool:
    """Is the value a function of contiguous bfloat16 along the axis, perhaps of contiguous float32, and of nothing else
    that changes with it?"""
    moving = _moving(stage, axis)
    others = s.map_loads(stage.value, lambda node: tirx.const(0, node.ty.dtype))
    dtypes = {str(read.source.dtype) for read in moving}
    return (
        "bfloat16" in dtypes
        and dtypes <= {"bfloat16", "float32"}
        and all(s.step(read.indices, read.source.shape, axis) == 1 for read in moving)
        and not s.uses(others, axis)
    )


def paired_values(stage: Stage, axis: Var, start: Expr, lanes: int) -> tuple[Expr, Expr] | None:
    """The values at the even and at the odd ones of `2 * lanes` positions from `start` on; None where these are no
    vectors."""
    reads: list[Load] = []
    for read in _moving(stage, axis):
        if not any(tvm_ffi.structural_equal(read, other) for other in reads):
            reads.append(read)
    halves = [
        tirx.decl_buffer([int64(lanes)], str(read.source.dtype), "half", layout=None)
        for read in reads
    ]
    parts = [_parts(read, axis, start, lanes) for read in reads]

    def element(node: Load) -> Expr:
        for read, half in zip(reads, halves, strict=True):
            if tvm_ffi.structural_equal(node, read):
                return tirx.BufferLoad(half, [axis])
        return node

    value = s.map_loads(stage.value, element)
    vector = vector_value(lambda lane: s.substitute(value, {axis: lane}), lanes)
    if vector is None or None in parts:
        return None

    def of(which: int) -> Expr:
        def half(node: Load) -> Expr:
            for buffer, part in zip(halves, parts, strict=True):
                if node.source.same_as(buffer) and part is not None:
                    return part[which]
            return node

        return s.map_loads(vector, half)

    return of(0), of(1)


def paired_store(stage: Stage, axis: Var, start: Expr, lanes: int) -> tirx.BufferStore | None:
    """The store of `2 * lanes` bfloat16 from position `start` of the axis on; None where that is no vector."""
    values = paired_values(stage, axis, start, lanes)
    value = tirx.const(0, "bfloat16")  # only the place is used
    place = vectorise(
        lambda lane: tirx.BufferStore(
            stage.buffer, value, [s.substitute(i, {axis: start + lane}) for i in stage.index]
        ),
        2 * lanes,
    )
    if values is None or place is None:
        return None
    even, odd = (
        tirx.reinterpret(f"uint16x{lanes}", each).astype(f"uint32x{lanes}") for each in values
    )
    words = even | (odd << broadcast(tirx.const(_BITS, "uint32"), lanes))
    joined = tirx.reinterpret(f"uint16x{2 * lanes}", words)
    stored = tirx.reinterpret(f"bfloat16x{2 * lanes}", joined)
    return tirx.BufferStore(place.buffer, stored, list(place.indices))


def _moving(stage: Stage, axis: Var) -> list[Load]:
    return [read for read in stage.loads if any(s.uses(index, axis) for index in read.indices)]


def _parts(read: Load, axis: Var, start: Expr, lanes: int) -> tuple[Expr, Expr] | None:
    """The elements at even and at odd distances from `start`; None where they are no vectors."""

    def vector(first: Expr, count: int) -> Expr | None:
        return vector_value(lambda lane: s.substitute(read, {axis: first + lane}), count)

    if str(read.source.dtype) == "float32":
        low, high = vector(start, lanes), vector(start + int64(lanes), lanes)
        if low is None or high is None:
            return None
        return every_second(low, high, lanes), every_second(low, high, lanes, first=1)
    pairs = vector(start, 2 * lanes)
    if pairs is None:
        return None
    words = tirx.reinterpret(f"uint32x{lanes}", tirx.reinterpret(f"uint16x{2 * lanes}", pairs))
    return _half(words, lanes, upper=False), _half(words, lanes, upper=True)


def _half(words: Expr, lanes: int, *, upper: bool) -> Expr:
    """The bfloat16 in one half of each word."""
    if upper:
        words = words >> broadcast(tirx.const(_BITS, "uint32"), lanes)
    return tirx.reinterpret(f"bfloat16x{lanes}", words.astype(f"uint16x{lanes}"))
