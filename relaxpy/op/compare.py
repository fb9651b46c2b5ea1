"""Elementwise comparisons of two tensors; the result is bool. A NaN is unequal to everything."""

from __future__ import annotations

from functools import partial

import numpy as np

from relaxpy.ir.dim import Dim, dim_op
from relaxpy.op.base import define_op
from relaxpy.op.elementwise import Comparison


def _swapped(op: str, x1: Dim, x2: Dim) -> Dim:
    return dim_op(op, x2, x1)


@define_op
class Equal(Comparison):
    """x1 == x2."""

    name = "equal"
    size = partial(dim_op, "eq")
    takes = "anything"
    ufunc = np.equal


@define_op
class NotEqual(Comparison):
    """x1 != x2."""

    name = "not_equal"
    size = partial(dim_op, "ne")
    takes = "anything"
    ufunc = np.not_equal


@define_op
class Less(Comparison):
    """x1 < x2."""

    name = "less"
    takes = "anything"
    size = partial(dim_op, "lt")
    ufunc = np.less


@define_op
class LessEqual(Comparison):
    """x1 <= x2."""

    name = "less_equal"
    takes = "anything"
    size = partial(dim_op, "le")
    ufunc = np.less_equal


@define_op
class Greater(Comparison):
    """x1 > x2."""

    name = "greater"
    takes = "anything"
    size = partial(_swapped, "lt")
    ufunc = np.greater


@define_op
class GreaterEqual(Comparison):
    """x1 >= x2."""

    name = "greater_equal"
    takes = "anything"
    size = partial(_swapped, "le")
    ufunc = np.greater_equal
