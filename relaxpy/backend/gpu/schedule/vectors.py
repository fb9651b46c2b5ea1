"""Reads of neighbours in memory at once, on devices that have such loads (`GpuTarget.vector_bytes`).

A device's compiler joins reads only where it can prove that the first one is aligned. Here that follows from the form
of a product: the depth is contiguous, all other strides are multiples of a vector, and so are the addresses of
parameters (`DeviceRuntime.offset_alignment`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from relaxpy.tir.programs.loops import Buffer, Expr, Program, constant, int64
from relaxpy.tir.recognise.contraction import Operand
from relaxpy.tir.tvm import tirx, tvm

WORD = 32
"""Bits of the words that a vector consists of."""
_NARROW = ("float32", "int32", "uint32", "float16", "bfloat16", "int16", "uint16", "int8", "uint8")
"""Types of elements that are a word or part of one."""


def vector_elements(
    operand: Operand, func: tirx.PrimFunc, depth: Expr, others: Iterable[Expr], nbytes: int
) -> int:
    """The number of a factor's neighbours along the depth in a vector of this many bytes; 1 where they are no
    neighbours, or may be unaligned. `depth` is the stride along the depth, `others` all other strides."""
    dtype = str(operand.buffer.dtype)
    is_parameter = any(operand.buffer.same_as(param) for param in func.params)
    if not nbytes or not is_parameter or operand.formula is not None or dtype not in _NARROW:
        return 1
    count = nbytes * 8 // tvm.DataType(dtype).bits
    starts = [constant(each) for each in (operand.base, *others)]
    is_aligned = all(start is not None and start % count == 0 for start in starts)
    return count if constant(depth) == 1 and is_aligned else 1


def read_vector(p: Program, buffer: Buffer, index: list[Expr], count: int) -> Callable[[int], Expr]:
    """Read the `count` elements from an index on, which must be aligned. Returns the element of each number."""
    dtype = str(buffer.dtype)
    bits = tvm.DataType(dtype).bits
    word_of = read_words(p, buffer, index, count * bits // WORD)

    def element(number: int) -> Expr:
        at, part = divmod(number * bits, WORD)
        word = word_of(at)
        if bits < WORD:
            shifted = tirx.shift_right(word, tirx.const(part, "uint32"))
            own = tirx.bitwise_and(shifted, tirx.const((1 << bits) - 1, "uint32"))
            word = tirx.Cast(f"uint{bits}", own)
        return word if str(word.ty.dtype) == dtype else tirx.reinterpret(dtype, word)

    return element


def read_words(p: Program, buffer: Buffer, index: list[Expr], words: int) -> Callable[[int], Expr]:
    """Read so many words of 32 bits from the element of an index on, which must be aligned to them. Returns the word of
    each number."""
    memory = p.flat_view(buffer, f"uint32x{words}")
    flat = flat_index(buffer, index)
    per_vector = words * WORD // tvm.DataType(str(buffer.dtype)).bits
    place = tirx.truncdiv(flat, int64(per_vector))
    vector = p.let(f"{buffer.name}_words", tirx.BufferLoad(memory, [place]))
    return lambda number: tirx.Shuffle([vector], [tirx.const(number, "int32")])


def flat_index(buffer: Buffer, index: list[Expr]) -> Expr:
    """The place of an element in a compact buffer."""
    flat: Expr = int64(0)
    for each, extent in zip(index, buffer.shape, strict=True):
        flat = flat * int64(extent) + each
    return flat
