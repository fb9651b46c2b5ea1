"""Recognise linear maps that are chosen by index: the program of `nn.expert_linear`, with what fusion adds to it.

The weight may be computed from its codes and scales, the rows by element-wise programs, and an element-wise stage may
follow: a bias, a conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc, constant
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.contraction import is_zero, places_behind
from relaxpy.tir.recognise.stages import Load, Stage, Var
from relaxpy.tir.tvm import tirx, tvm_ffi


@dataclass(frozen=True, eq=False)
class ExpertLinearForm:
    """`out[row, choice, column] = sum(data * weight)` over the depth, in float32, and a stage after it."""

    place: tuple[Expr, Expr, Expr]
    """The variables of row, choice and column; 0 for those of extent 1."""
    extents: tuple[Expr, Expr, Expr]
    depth: Var
    depth_extent: int
    number: Expr
    """The number of a row's expert, over row and choice."""
    expert: Var
    """In `weight`, in place of that number."""
    experts: int
    data: Expr
    """Over row, choice and depth."""
    weight: Expr
    """Over expert, column and depth."""
    total: Buffer
    """The sum, in `value`."""
    value: Expr
    """The element that is stored, over the variables of `place`."""
    out: Buffer
    target: tuple[Expr, ...]
    """Its index in the output."""


def expert_linear_of(func: PrimFunc) -> ExpertLinearForm | None:
    """The form of a program; None for others."""
    stages = s.read_stages(func)
    found = None if stages is None else _product_and_last(stages, func)
    if found is None:
        return None
    product, last = found
    if not isinstance(product.value, tirx.Mul):
        return None
    target, value = last.index, last.value
    if last is not product:
        moved = places_behind(product, last)
        if moved is None:
            return None
        target = tuple(s.substitute(index, moved) for index in last.index)
        value = s.substitute(last.value, moved)
    else:
        value = tirx.BufferLoad(product.buffer, list(product.index))
    for data, weight in (_pair(product.value), _pair(product.value)[::-1]):
        form = _read(product, data, weight, (value, last.buffer, target))
        if form is not None:
            return form
    return None


def _pair(value: Any) -> tuple[Expr, Expr]:
    return value.a, value.b


def _product_and_last(stages: Sequence[Stage], func: PrimFunc) -> tuple[Stage, Stage] | None:
    """The only reduction, a sum of floats over one axis for each of three, with all that is before it, and the stage
    after it with all in between."""
    at = [n for n, stage in enumerate(stages) if stage.combiner is not None]
    if len(at) != 1 or any(s.is_output(stage, func) for stage in stages[:-1]):
        return None
    product = stages[at[0]]
    # Before anything is put into it, which takes long: nearly all programs have another sum.
    combiner = product.combiner
    if combiner is None or combiner.kind != "add" or not is_zero(combiner.init):
        return None
    if str(product.buffer.dtype) != "float32" or len(product.index) != 3:
        return None
    if len(product.reduce_axes) != 1:
        return None
    for stage in reversed(stages[: at[0]]):
        if any(after.reads(stage.buffer) for after in stages[at[0] + 1 :]):
            return None
        product = s.inlined_into(stage, product)
    *between, last = [product, *stages[at[0] + 1 :]]
    for stage in reversed(between[1:]):
        last = s.inlined_into(stage, last)
    return (product, last) if s.is_output(last, func) else None


def _read(
    product: Stage, data: Expr, weight: Expr, end: tuple[Expr, Buffer, tuple[Expr, ...]]
) -> ExpertLinearForm | None:
    """The form with these factors."""
    row, choice, column = product.index
    (depth,), (depth_extent,) = product.reduce_axes, map(constant, product.reduce_extents)
    chosen = _number(weight)
    if chosen is None or depth_extent is None or not isinstance(column, Var):
        return None
    number, count = chosen
    if not count or any(s.uses(number, axis) for axis in (column, depth)):
        return None
    expert = tirx.Var("expert", "int64")

    def load(node: Load) -> Expr:
        indices = [expert if _same(index, number) else index for index in node.indices]
        return tirx.BufferLoad(node.source, indices)

    weight = s.map_loads(weight, load)
    outer = [axis for axis in (row, choice) if isinstance(axis, Var)]
    if any(s.uses(weight, axis) for axis in outer) or s.uses(data, column):
        return None
    if not s.uses(weight, expert):
        return None
    value, out, target = end
    extents = iter(product.extents)
    sizes = tuple(next(extents) if isinstance(axis, Var) else axis + 1 for axis in product.index)
    return ExpertLinearForm(
        (row, choice, column), (sizes[0], sizes[1], sizes[2]), depth, depth_extent, number, expert,
        count, data, weight, product.buffer, value, out, target,
    )  # fmt: skip


def _number(weight: Expr) -> tuple[Expr, int] | None:
    """The index into the weight that is read from memory, and the number of experts."""
    for load in s.loads_of(weight):
        for index, size in zip(load.indices, load.source.shape, strict=True):
            if s.loads_of(index):
                return index, constant(size) or 0
    return None


def _same(a: Expr, b: Expr) -> bool:
    return a.same_as(b) or bool(tvm_ffi.structural_equal(a, b, map_free_vars=False))
