"""Products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend.jax.importer import Site
from relaxpy.frontend.jax.operators_elementwise import constant
from relaxpy.frontend.jax.operators_shape import bordered, spread, turned
from relaxpy.frontend.jax.table import primitive
from relaxpy.ir import Dim, DType, Expr
from relaxpy.ir.dim import product


@primitive("dot_general")
def dot_general(at: Site, x: Expr, y: Expr, dimension_numbers: Any, **_: Any) -> Any:
    """A product of matrices: batch axes first, then the free ones as one, then the contracted ones as one."""
    if _turns_less(at, x, y, dimension_numbers):
        (left_sums, right_sums), (left_batch, right_batch) = dimension_numbers
        batch, sums = len(left_batch), len(left_sums)
        swapped = (right_sums, left_sums), (right_batch, left_batch)
        found = at.emit(_product(at, y, x, swapped))
        first = at.ndim(y) - sums
        order = [*range(batch), *range(first, at.ndim(found)), *range(batch, first)]
        return turned(found, order)
    return _product(at, x, y, dimension_numbers)


def _turns_less(at: Site, x: Expr, y: Expr, dimension_numbers: Any) -> bool:
    """Are the operands nearer to matrices the other way round? Attention that multiplies values by weights, and layers
    that multiply a weight by rows, would turn both, or the larger one."""
    (left_sums, right_sums), (left_batch, right_batch) = dimension_numbers
    count, other = at.ndim(x), at.ndim(y)
    if not left_sums or count <= len((*left_sums, *left_batch)):
        return False

    def is_left(operand: Expr, sums: Sequence[int], batch: Sequence[int]) -> bool:
        """Does an operand lie as a left one: batch axes, free ones, then those that are summed?"""
        free = [a for a in range(at.ndim(operand)) if a not in (*sums, *batch)]
        sizes = at.shape_of(operand)
        order = [a for a in (*batch, *free, *sums) if sizes[a] != 1]
        return order == sorted(order)

    if not is_left(y, right_sums, right_batch) or other <= len((*right_sums, *right_batch)):
        return False
    is_weight = not left_batch and count == 2 and other > 2
    return is_weight or not is_left(x, left_sums, left_batch)


def _product(at: Site, x: Expr, y: Expr, dimension_numbers: Any) -> Any:
    (left_sums, right_sums), (left_batch, right_batch) = dimension_numbers
    dtype = at.dtype
    x, y = (_widened(at, each, dtype) for each in (x, y))
    left = [a for a in range(at.ndim(x)) if a not in (*left_sums, *left_batch)]
    right = [a for a in range(at.ndim(y)) if a not in (*right_sums, *right_batch)]
    batch = len(left_batch)
    x = at.emit(turned(x, [*left_batch, *left, *left_sums]))
    y = at.emit(turned(y, [*right_batch, *right_sums, *right]))
    sizes, others = at.shape_of(x), at.shape_of(y)
    lead, rows = sizes[:batch], sizes[batch : batch + len(left)]
    columns, sums = others[batch + len(right_sums) :], others[batch : batch + len(right_sums)]
    if not left_sums:  # an outer product
        x = at.emit(op.reshape(x, [*lead, *rows, *[1] * len(columns)]))
        y = at.emit(op.reshape(y, [*lead, *[1] * len(rows), *columns]))
        return op.multiply(x, y)
    if len(right_sums) != 1 or len(right) != 1:
        y = at.emit(op.reshape(y, [*lead, product(tuple(sums)), product(tuple(columns))]))
    merged = batch > 0 and len(left) != 1
    if merged or len(left_sums) != 1 or not left:
        kept = [product(tuple(rows))] if merged or not left else rows
        x = at.emit(op.reshape(x, [*lead, *kept, product(tuple(sums))]))
    out = None if at.dtype_of(x) == dtype else dtype
    found = op.matmul(x, y, out_dtype=out)
    if len(right) == 1 and left and not merged:
        return found
    return op.reshape(at.emit(found), [*lead, *rows, *columns])


def _widened(at: Site, x: Expr, dtype: DType) -> Expr:
    """An operand in the dtype of the sum, unless the product itself widens it."""
    own = at.dtype_of(x)
    return x if own == dtype or (own.is_narrow and dtype == "float32") else at.cast(x, dtype)


@primitive("conv_general_dilated")
def conv_general_dilated(
    at: Site, x: Expr, weight: Expr, window_strides: Sequence[int], padding: Sequence[Any],
    lhs_dilation: Sequence[int], rhs_dilation: Sequence[int], dimension_numbers: Any,
    feature_group_count: int, batch_group_count: int, preferred_element_type: Any = None, **_: Any,
) -> Any:  # fmt: skip
    data_spec, kernel_spec, out_spec = dimension_numbers
    count = len(window_strides)
    dtype = at.dtype
    x, weight = (_widened(at, each, dtype) for each in (x, weight))
    x = at.emit(turned(x, data_spec))
    weight = at.emit(turned(weight, kernel_spec))
    zero = constant(0, at.dtype_of(x))
    pads = [tuple(at.dims(pair)) for pair in padding]
    for axis, apart in enumerate(lhs_dilation):
        x = spread(at, x, 2 + axis, Dim.of(apart - 1), zero)
    plain = all(each.value is not None and each.value >= 0 for pair in pads for each in pair)
    if not plain:
        for axis, (before, after) in enumerate(pads):
            x = bordered(at, x, 2 + axis, before, after, zero)
        pads = [(Dim.of(0), Dim.of(0))] * count
    if batch_group_count > 1:  # groups of the batch as groups of features
        batch, features, *space = at.shape_of(x)
        x = op.reshape(x, [batch_group_count, batch // batch_group_count, features, *space])
        x = at.emit(op.permute_dims(at.emit(x), [1, 0, *range(2, at.ndim(x))]))
        x = at.emit(op.reshape(x, [*at.shape_of(x)[:1], features * batch_group_count, *space]))
        feature_group_count = batch_group_count
    if count == 0:
        x, weight = at.emit(op.expand_dims(x, 2)), at.emit(op.expand_dims(weight, 2))
    if count > 3:
        raise at.fail("jax-operator", f"a convolution over {count} axes is not supported")
    function = (op.nn.conv1d, op.nn.conv1d, op.nn.conv2d, op.nn.conv3d)[count]
    widths = [int(pair[k].value or 0) for k in (0, 1) for pair in pads] or [0, 0]
    out = None if at.dtype_of(x) == dtype else dtype
    found = function(
        x, weight, strides=list(window_strides) or [1], padding=widths, out_dtype=out,
        dilation=list(rhs_dilation) or [1], groups=feature_group_count,
    )  # fmt: skip
    if count == 0:
        found = op.squeeze(at.emit(found), [2])
    return turned(at.emit(found), [int(a) for a in np.argsort(out_spec)])
