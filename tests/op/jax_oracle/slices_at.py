"""What jax says of `relaxpy/op/slices_at.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax


def _gather(op: Any, x: Any, indices: Any, slice_sizes: Any) -> Any:
    numbers = lax.GatherDimensionNumbers(
        op.offset_dims, op.collapsed_slice_dims, op.start_index_map, op.operand_batching_dims,
        op.start_indices_batching_dims,
    )  # fmt: skip
    return lax.gather(x, indices, numbers, slice_sizes, mode=op.mode, fill_value=op.fill_value)


def _scatter(op: Any, data: Any, indices: Any, updates: Any) -> Any:
    numbers = lax.ScatterDimensionNumbers(
        op.update_window_dims, op.inserted_window_dims, op.scatter_dims_to_operand_dims,
        op.operand_batching_dims, op.scatter_indices_batching_dims,
    )  # fmt: skip
    scatter = {
        "update": lax.scatter, "add": lax.scatter_add, "mul": lax.scatter_mul, "min": lax.scatter_min,
        "max": lax.scatter_max,
    }[op.reduction]  # fmt: skip
    return scatter(data, indices, updates, numbers, mode=op.mode)


JAX: dict[str, Callable[..., Any]] = {"gather": _gather, "scatter": _scatter}
