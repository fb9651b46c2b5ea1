"""The symbolic variables that annotations define: parameters and `match_cast` bind them to the dimensions of actual
values.

A symbol is determined if it is a whole dimension. Then every dimension that is linear in one further symbol determines
that one (`n * 2` gives n, and `n + m` gives m once n is known).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from relaxpy.ir.annotation import (
    Annotation,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
    leaf_types,
)
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.shape.solve import solve_linear


def defined_symbols(
    annotations: Iterable[Annotation], known: AbstractSet[SymVar] = frozenset()
) -> set[SymVar]:
    """The symbols whose values follow from values of these annotations, in addition to those `known`."""
    leaves = (leaf for annotation in annotations for leaf in leaf_types(annotation))
    dims = [dim for leaf in leaves for dim in matched_dims(leaf)]
    found = {dim.symbol for dim in dims if dim.symbol is not None and dim.symbol not in known}
    waiting = [dim for dim in dims if dim.symbol is None]
    progress = True
    while progress:
        progress = False
        for dim in waiting:
            unknown = [var for var in dim.vars if var not in known and var not in found]
            if len(unknown) == 1 and solve_linear(dim, Dim.of(0), unknown[0]) is not None:
                found.add(unknown[0])
                progress = True
    return found


def matched_dims(annotation: Annotation) -> list[Dim]:
    """The dimensions matched against a value, in order. Those of a function type have their own scope and are left
    out."""
    match annotation:
        case TensorType(shape=tuple() as dims) | ShapeType(dims=tuple() as dims):
            return list(dims)
        case PrimType(value=Dim() as value):
            return [value]
        case TupleType(fields=fields):
            return [dim for item in fields for dim in matched_dims(item)]
        case _:
            return []
