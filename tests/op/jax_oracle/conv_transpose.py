"""Transposed convolutions in jax: the gradient of `jax.lax.conv_general_dilated` with respect to data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from relaxpy.op.data_layout import padding_pairs, per_axis


def transposed(op: Any, data: Any, weight: Any) -> Any:
    """With zeros between the elements of data, and the weight turned around."""
    count, spatial = len(op.spatial), op.spatial
    if 0 in data.shape:
        return NotImplemented
    dtype = op.out_dtype.numpy if op.out_dtype else data.dtype
    w = weight.transpose([op.kernel_layout.index(s) for s in f"IO{spatial}"]).astype(dtype)
    w = jnp.flip(w, range(2, 2 + count))
    # (groups * I, O) is, for the convolution, (groups * O, I)
    inputs, outputs = w.shape[0] // op.groups, w.shape[1]
    w = w.reshape(op.groups, inputs, outputs, *w.shape[2:]).swapaxes(1, 2)
    w = w.reshape(op.groups * outputs, inputs, *w.shape[3:])
    dilation, extra = per_axis(op.dilation, count), per_axis(op.output_padding, count)
    reach = [(k - 1) * step for k, step in zip(w.shape[2:], dilation, strict=True)]
    padding = [
        (r - before, r - after + more)
        for r, (before, after), more in zip(reach, padding_pairs(op.padding, count), extra, strict=True)
    ]  # fmt: skip
    return jax.lax.conv_general_dilated(
        data.astype(dtype), w, (1,) * count, padding, lhs_dilation=per_axis(op.strides, count),
        rhs_dilation=dilation, feature_group_count=op.groups,
        dimension_numbers=(op.data_layout, f"OI{spatial}", op.out_layout or op.data_layout),
    )  # fmt: skip


JAX: dict[str, Callable[..., Any]] = {f"nn.conv{n}d_transpose": transposed for n in (1, 2, 3)}
