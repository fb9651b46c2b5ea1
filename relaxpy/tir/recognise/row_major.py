"""Does a tensor program copy a tensor element by element in row-major order? Then its output is a reshape of its input,
recognised by its loops (TVM's `HasReshapePattern`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from relaxpy.tir.analyzer import equal, unproved_beyond_64_bits
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.loops import int64
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi


def reshaped(program: PrimFunc) -> tuple[int, int] | None:
    """The positions in `params` of the input and the output of a program that only reshapes; None for other programs.

    The program must reduce to one stage without a reduction, whose n-th element is the n-th element of a buffer of the
    same dtype and number of elements.
    """
    return _reshaped(program.func)


@lru_cache(maxsize=4096)
def _reshaped(func: Any) -> tuple[int, int] | None:
    if not all(isinstance(param.ty, s.tirx.BufferType) for param in func.params):
        return None
    stages = s.stages_of(func)
    if stages is None:
        return None
    if len(stages) != 1 or stages[0].combiner is not None or not s.is_output(stages[0], func):
        return None
    stage = stages[0]
    read = stage.value
    if not isinstance(read, s.Load) or str(read.source.dtype) != str(stage.buffer.dtype):
        return None
    params = list(func.params)
    source = next((i for i, param in enumerate(params) if param.same_as(read.source)), None)
    output = next(i for i, param in enumerate(params) if param.same_as(stage.buffer))
    if source is None or not _in_order(stage, read):
        return None
    return source, output


def _in_order(stage: s.Stage, read: s.Load) -> bool:
    """Is the flat index of the read equal to that of the write, in buffers of equal size?"""
    analyzer = tvm.sym.Analyzer()
    for axis, extent in zip(stage.axes, stage.extents, strict=True):
        analyzer.bind(axis, tvm.ir.Range(int64(0), int64(extent)))
    source, output = list(read.source.shape), list(stage.buffer.shape)
    if not equal(_product(source), _product(output)):
        return False
    with unproved_beyond_64_bits():
        return _are_equal(stage, read, analyzer)
    return False


def _are_equal(stage: s.Stage, read: s.Load, analyzer: Any) -> bool:
    source, output = list(read.source.shape), list(stage.buffer.shape)
    sizes = [*output, *(_product(source[i:]) for i in range(len(source))), *source]

    def positive(node: Any) -> Any:
        """`max(size, 1)`, the form of divisors in indices: no size is 0 where an element is read."""
        one = s.constant(node.b) == 1
        return node.a if one and any(analyzer.can_prove_equal(node.a, z) for z in sizes) else node

    there = s.flat_index(read.indices, source)
    there = tvm_ffi.structural_map(there, (tirx.Max, positive))
    here = s.flat_index(stage.index, output)
    return bool(analyzer.can_prove_equal(there, here))


def _product(extents: Sequence[Any]) -> Any:
    """The number of elements of these extents."""
    total = int64(1)
    for extent in extents:
        total = total * int64(extent)
    return total
