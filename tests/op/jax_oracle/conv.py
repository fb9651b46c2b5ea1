"""Convolutions in jax: `jax.lax.conv_general_dilated`, which takes the same layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from relaxpy.op.data_layout import padding_pairs, per_axis


def convolution(op: Any, data: Any, weight: Any) -> Any:
    count = len(op.spatial)
    dtype = op.out_dtype.numpy if op.out_dtype else data.dtype
    return jax.lax.conv_general_dilated(
        data.astype(dtype),
        weight.astype(dtype),
        per_axis(op.strides, count),
        padding_pairs(op.padding, count),
        rhs_dilation=per_axis(op.dilation, count),
        dimension_numbers=(op.data_layout, op.kernel_layout, op.out_layout or op.data_layout),
        feature_group_count=op.groups,
    )


JAX: dict[str, Callable[..., Any]] = {f"nn.conv{n}d": convolution for n in (1, 2, 3)}
