"""May a tensor program write its output over an input? It may if, for each element, it reads only the same element of
the input: an element-wise program, recognised by its index maps."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.tvm import tvm

NO_ALIAS = "tirx.noalias"
"""Attribute of a PrimFunc: LLVM may assume that its buffers do not alias."""


def overwritable(program: PrimFunc) -> frozenset[tuple[int, int]]:
    """The pairs (input, output) of positions in `params` that may share memory in a call.

    The program must reduce to one stage without a reduction, which the schedule rules compute element by element, each
    once. The input must have the output's shape and item size, and every read of it must be at the place that is
    written. The kernel must be compiled for aliasing: see `with_shared_memory`.
    """
    return _overwritable(program.func)


def with_shared_memory(program: PrimFunc) -> PrimFunc:
    """Return the program for calls in which buffers may share memory: LLVM is not told that they do not alias."""
    if NO_ALIAS not in program.attrs:
        return program
    return PrimFunc(program.func.without_attr(NO_ALIAS), program.span)


@lru_cache(maxsize=4096)
def _overwritable(func: Any) -> frozenset[tuple[int, int]]:
    stages = s.stages_of(func)
    if stages is None:
        return frozenset()
    if len(stages) != 1 or stages[0].combiner is not None or not s.is_output(stages[0], func):
        return frozenset()
    stage = stages[0]
    output = next(i for i, param in enumerate(func.params) if param.same_as(stage.buffer))
    return frozenset(
        (i, output)
        for i, param in enumerate(func.params)
        if i != output and isinstance(param.ty, s.tirx.BufferType) and _same_places(stage, param)
    )


def _same_places(stage: s.Stage, buffer: Any) -> bool:
    """Is the buffer read, and only at the place where the stage writes?"""
    reads = stage.reads(buffer)
    return (
        bool(reads)
        and _width(buffer) == _width(stage.buffer)
        and s.same_extents(buffer.shape, stage.buffer.shape)
        and all(s.equal_indices(read.indices, stage.index) for read in reads)
    )


def _width(buffer: Any) -> int:
    """Bytes of an item in memory."""
    return (tvm.DataType(str(buffer.dtype)).bits + 7) // 8
