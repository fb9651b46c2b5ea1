"""Determine which loops of a contraction are the rows, columns and depth of a matrix product.

The roles follow from where a loop variable appears. In both factors and the output, it counts the products of a batch.
In the output and one factor, it is a row or a column. In both factors only, it is the depth (the reduction axis).
Neighbouring loops of one role with compatible strides are merged (`(batch, tokens, k) @ (k, n)` has `batch * tokens`
rows).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from relaxpy.tir.analyzer import equal
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Expr, PrimFunc
from relaxpy.tir.recognise.contraction import (
    Axis,
    Contraction,
    Epilogue,
    Operand,
    Panels,
    ReadFactors,
    computed_factor,
    read_contraction,
)

BITS = {"float32": 32, "float64": 64, "int32": 32, "int64": 64}
"""Accumulator types, and their bits."""


class _Role(Enum):
    BATCH = auto()
    ROW = auto()
    COLUMN = auto()
    DEPTH = auto()


@dataclass(frozen=True, eq=False)
class Dimension:
    """One or several loops that together have a constant stride in each buffer."""

    extent: Expr
    out: Expr
    lhs: Expr
    rhs: Expr
    """Strides in elements; 0 if the buffer does not depend on the dimension."""
    axes: tuple[Axis, ...] = ()
    """The loops, outermost first."""


@dataclass(frozen=True, eq=False)
class MatmulForm:
    """`out[b, i, j] = sum_k lhs[b, i, k] * rhs[b, k, j]`, with `j` the contiguous index of the output, and perhaps an
    epilogue applied to the sum."""

    out: Operand
    lhs: Operand
    rhs: Operand
    batch: tuple[Dimension, ...]
    row: Dimension
    column: Dimension
    depth: Dimension
    dtype: str
    epilogue: Epilogue | None

    @property
    def panels(self) -> Panels | None:
        """The packing of the right-hand factor's columns, if any; `column.rhs` is the stride inside a panel."""
        return self.rhs.panels


def place_of(dim: Dimension, number: Expr) -> dict[Expr, Expr]:
    """The values of a dimension's loop variables at a flat number along it."""
    place: dict[Expr, Expr] = {}
    for axis in reversed(dim.axes[1:]):
        place[axis.var] = loops.floormod(number, axis.extent)
        number = loops.floordiv(number, axis.extent)
    if dim.axes:
        place[dim.axes[0].var] = number
    return place


def matmul_of(func: PrimFunc, *, one_row: bool = False) -> MatmulForm | None:
    """Recognise a matrix product whose products can be summed in its type (`is_summable`); None for other programs.
    With `one_row` also where one vector meets rows that are contiguous along the depth."""
    contraction = read_contraction(func)
    form = read_matmul(contraction, one_row=one_row) if contraction is not None else None
    if form is None:
        return None
    factors = (str(o.buffer.dtype) for o in (form.lhs, form.rhs))
    return form if all(is_summable(factor, form.dtype) for factor in factors) else None


def computed_matmul_of(func: PrimFunc) -> MatmulForm | None:
    """Recognise a matrix product whose right-hand factor is computed from parameters, element by element: a weight of
    small integers with scales (`Operand.formula`). Its columns and its depth are one loop each. None for other
    programs."""
    form = read_computed_matmul(func, computed_factor)
    if form is None:
        return None
    return form if is_summable(str(form.lhs.buffer.dtype), form.dtype) else None


def read_computed_matmul(func: PrimFunc, read: ReadFactors) -> MatmulForm | None:
    """The contraction with these factors as a matrix product, whose columns and depth are one loop each."""
    contraction = read_contraction(func, read)
    if contraction is None or contraction.dtype not in BITS:
        return None
    form = _read(contraction, contraction.lhs, contraction.rhs)
    if form is None or len(form.column.axes) != 1 or len(form.depth.axes) != 1:
        return None
    return form


def read_matmul(contraction: Contraction, *, one_row: bool = False) -> MatmulForm | None:
    """The contraction as a (batched) matrix product, with its factors swapped if that makes columns contiguous.

    None if the output's contiguous index walks both factors or none, if the depth does not merge into one loop, and,
    without `one_row`, if one vector meets rows that are contiguous along the depth, which is a row reduction.
    """
    form = _read(contraction, contraction.lhs, contraction.rhs, one_row)
    return form or _read(contraction, contraction.rhs, contraction.lhs, one_row)


def _read(
    contraction: Contraction, lhs: Operand, rhs: Operand, one_row: bool = False
) -> MatmulForm | None:
    found: dict[_Role, list[Dimension]] = {role: [] for role in _Role}
    for n, axis in enumerate(contraction.axes):
        strides = (contraction.out.strides[n], lhs.strides[n], rhs.strides[n])
        role = _role(axis, *(stride is not None for stride in strides))
        if role is None:
            return None
        out, left, right = (loops.int64(0) if stride is None else stride for stride in strides)
        found[role].append(Dimension(axis.extent, out, left, right, (axis,)))
    rows, columns, depth = (_merged(found[role]) for role in (_Role.ROW, _Role.COLUMN, _Role.DEPTH))
    if len(depth) != 1 or not columns or loops.constant(columns[-1].out) != 1:
        return None
    row = rows[-1] if rows else _single()
    if loops.constant(columns[-1].extent) == 1:
        return None
    if contraction.out.panels or lhs.panels:
        return None
    if not _is_cut_along(columns[-1], depth[0], rhs, contraction):
        return None
    is_vector = loops.constant(row.extent) == 1 and not rhs.panels
    if is_vector and loops.constant(columns[-1].rhs) != 1 and not one_row:
        return None
    batch = (*found[_Role.BATCH], *rows[:-1], *columns[:-1])
    dtype, epilogue = contraction.dtype, contraction.epilogue
    return MatmulForm(contraction.out, lhs, rhs, batch, row, columns[-1], depth[0], dtype, epilogue)


def _role(axis: Axis, out: bool, lhs: bool, rhs: bool) -> _Role | None:
    if axis.is_reduction:
        return _Role.DEPTH if lhs and rhs and not out and not axis.is_opaque else None
    if axis.is_opaque or lhs == rhs:
        return _Role.BATCH if out else None
    if not out:
        return None
    return _Role.ROW if lhs else _Role.COLUMN


def _is_cut_along(
    column: Dimension, depth: Dimension, rhs: Operand, contraction: Contraction
) -> bool:
    """Is the right-hand factor packed into panels along the columns and groups along the depth only, or not packed at
    all?"""
    if rhs.panels is None:
        return True

    def is_only(dim: Dimension, number: int) -> bool:
        return [axis.var for axis in dim.axes] == [contraction.axes[number].var]

    grouped = rhs.panels.grouped
    return is_only(column, rhs.panels.axis) and (grouped is None or is_only(depth, grouped))


def _single() -> Dimension:
    """A dimension of extent 1, for a product without rows."""
    zero = loops.int64(0)
    return Dimension(loops.int64(1), zero, zero, zero)


def _merged(dims: list[Dimension]) -> list[Dimension]:
    """Merge every pair of dimensions that has compatible strides in all buffers; outermost first."""
    merged: list[Dimension] = []
    for inner in dims:
        if merged and _one_walk(merged[-1], inner):
            outer = merged.pop()
            extent = loops.simplify(outer.extent * inner.extent)
            axes = (*outer.axes, *inner.axes)
            inner = Dimension(extent, inner.out, inner.lhs, inner.rhs, axes)
        merged.append(inner)
    return merged


def _one_walk(outer: Dimension, inner: Dimension) -> bool:
    pairs = ((outer.out, inner.out), (outer.lhs, inner.lhs), (outer.rhs, inner.rhs))
    return all(equal(a, b * inner.extent) for a, b in pairs)


def is_summable(factor: str, total: str) -> bool:
    """May products of factors of this type be summed in the other? It must represent every value of the factors'
    type."""
    if total not in BITS:
        return False
    return factor == total or factor in _NARROWER[total]


_NARROWER: dict[str, tuple[str, ...]] = {
    "float32": ("float16", "bfloat16"),
    "float64": ("float32", "float16", "bfloat16"),
    "int32": ("int8", "uint8", "int16", "uint16"),
    "int64": ("int8", "uint8", "int16", "uint16", "int32", "uint32"),
}
