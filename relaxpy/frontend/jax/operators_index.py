"""Reading and writing at indices: XLA's operators are `op.gather` and `op.scatter`, by the same names of axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend.jax.importer import Site
from relaxpy.frontend.jax.table import primitive
from relaxpy.ir import Constant, Expr


@primitive("dynamic_slice")
def dynamic_slice(at: Site, x: Expr, *starts: Any, slice_sizes: Sequence[Any], **_: Any) -> Any:
    """A start that would pass the end is moved back."""
    sizes = at.shape_of(x)
    window = at.dims(slice_sizes)
    named = [a for a, size in enumerate(sizes) if size != window[a]]
    if not named:
        return x
    first = _vector(at, [starts[a] for a in named])
    return op.gather(x, first, window, offset_dims=list(range(len(sizes))), start_index_map=named)


@primitive("dynamic_update_slice")
def dynamic_update_slice(at: Site, x: Expr, update: Expr, *starts: Any, **_: Any) -> Any:
    if at.shape_of(x) == at.shape_of(update):
        return update
    return op.dynamic_update_slice(x, update, _vector(at, starts))


def _vector(at: Site, numbers: Sequence[Any]) -> Any:
    """Numbers of one dtype as a vector."""
    if all(isinstance(each, Constant) for each in numbers):
        return Constant(np.array([each.data for each in numbers]))
    return at.emit(op.stack(list(numbers)))


@primitive("gather")
def gather(
    at: Site, x: Expr, indices: Expr, dimension_numbers: Any, slice_sizes: Sequence[Any], mode: Any,
    fill_value: Any = None, **_: Any,
) -> Any:  # fmt: skip
    numbers = dimension_numbers
    return op.gather(
        x, indices, at.dims(slice_sizes), numbers.offset_dims, numbers.collapsed_slice_dims,
        numbers.start_index_map, numbers.operand_batching_dims, numbers.start_indices_batching_dims,
        mode="fill" if _is_checked(mode) else "clip",
        fill_value=None if fill_value is None else np.asarray(fill_value).item(),
    )  # fmt: skip


def _is_checked(mode: Any) -> bool:
    """Are windows outside of the array left out, rather than moved inside?"""
    return mode.name in ("FILL_OR_DROP", "ONE_HOT")


COMBINES = {"add": "add", "sub": "add", "mul": "mul", "min": "min", "max": "max"}
"""Suffix of a scatter's name → how it combines."""


@primitive("scatter", *(f"scatter{dash}{how}" for how in COMBINES for dash in "-_"))
def scatter(
    at: Site, x: Expr, indices: Expr, updates: Expr, dimension_numbers: Any, mode: Any, **_: Any
) -> Any:
    numbers = dimension_numbers
    how = at.eqn.primitive.name.replace("_", "-").partition("-")[2]
    reduction = COMBINES[how] if how else "update"
    if how == "sub":
        updates = at.emit(op.negative(updates))
    if at.dtype.is_bool and how:  # a sum of bools is their disjunction, a product their conjunction
        x, updates = at.cast(x, "int8"), at.cast(updates, "int8")
        reduction = {"add": "max", "mul": "min"}.get(reduction, reduction)
    return op.scatter(
        x, indices, updates, numbers.update_window_dims, numbers.inserted_window_dims,
        numbers.scatter_dims_to_operand_dims, numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims, mode="drop" if _is_checked(mode) else "clip",
        reduction=reduction,
    )  # fmt: skip
