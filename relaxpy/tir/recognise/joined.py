"""Programs of matrices that are joined: one program for all columns, if each is that program for its own ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.loops import Buffer, Expr, constant
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Load, Stage
from relaxpy.tir.tvm import tvm_ffi


@dataclass(frozen=True)
class JoinedProgram:
    """The program of a matrix of so many columns, of which several programs compute parts."""

    program: PrimFunc
    axes: tuple[int, ...]
    """For each input: the axis along which it is joined."""


def joined_program(programs: Sequence[PrimFunc], axis: int) -> JoinedProgram | None:
    """The program that computes the results of all these, each an element-wise program of one result, concatenated
    along `axis`, from their inputs, concatenated too. None if they are not the same program up to that extent, or if an
    input has no axis that is indexed by it alone."""
    sizes = [columns_of(program, axis) for program in programs]
    total = sum(size or 0 for size in sizes)
    first, *others = (_widened(program.func, axis, total) for program in programs)
    if first is None or None in sizes:
        return None
    for other in others:
        if other is None or other.axes != first.axes:
            return None
        if not tvm_ffi.structural_equal(other.program.func, first.program.func):
            return None
    return first


def columns_of(program: PrimFunc, axis: int) -> int | None:
    """The extent of the result along the axis; None if it is not known."""
    shape = program.func.params[-1].shape
    return constant(shape[axis]) if axis < len(shape) else None


@lru_cache(maxsize=256)
def _widened(func: Any, axis: int, columns: int) -> JoinedProgram | None:
    stage = _only_stage(func)
    if stage is None:
        return None
    index, place = stage.index[axis], list(func.params)
    axes: dict[Buffer, int] = {}
    for load in stage.loads:
        uses = [n for n, each in enumerate(load.indices) if s.uses(each, index)]
        if len(uses) != 1 or not load.indices[uses[0]].same_as(index):
            return None
        own = constant(load.source.shape[uses[0]])
        if own is None or own != constant(stage.buffer.shape[axis]):
            return None
        if axes.setdefault(load.source, uses[0]) != uses[0]:
            return None
    inputs = place[:-1]
    if not all(each in axes for each in inputs):
        return None

    def shape(buffer: Buffer, dimension: int) -> list[int] | None:
        known = [constant(extent) for extent in buffer.shape]
        known[dimension] = columns
        return None if None in known else [size for size in known if size is not None]

    shapes = [shape(each, axes[each]) for each in inputs]
    out = shape(stage.buffer, axis)
    if out is None or None in shapes:
        return None
    made = {
        each: te.placeholder(own or [], str(each.dtype), str(each.name))
        for each, own in zip(inputs, shapes, strict=True)
    }

    def element(*at: Any) -> Expr:
        value = s.map_loads(stage.value, lambda load: _read(load, made))
        own = dict(zip(stage.index, at, strict=True))
        return s.substitute(value, {var: own[var] for var in stage.axes})

    result = te.compute(out, element, stage.name)
    program = PrimFunc.from_te(list(made.values()), [result])
    return JoinedProgram(program, tuple(axes[each] for each in inputs))


def _read(load: Load, made: dict[Buffer, Any]) -> Expr:
    return made[load.source](*load.indices)


def _only_stage(func: Any) -> Stage | None:
    """The stage of a program that has one, without a reduction, over all axes of its last parameter."""
    stages = s.stages_of(func)
    if stages is None or len(stages) != 1 or stages[0].combiner is not None:
        return None
    (stage,) = stages
    whole = len(stage.axes) == len(stage.index) and stage.buffer.same_as(func.params[-1])
    return stage if whole else None
