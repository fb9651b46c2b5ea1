"""Comparisons of two tensors, element by element; the result is bool. A NaN is unequal to everything."""

from __future__ import annotations

import numpy as np

from relaxpy.op.base import define_op
from relaxpy.op.elementwise import Comparison


@define_op
class Equal(Comparison):
    """x1 == x2."""

    name = "equal"
    takes = "anything"
    ufunc = np.equal


@define_op
class NotEqual(Comparison):
    """x1 != x2."""

    name = "not_equal"
    takes = "anything"
    ufunc = np.not_equal


@define_op
class Less(Comparison):
    """x1 < x2."""

    name = "less"
    ufunc = np.less


@define_op
class LessEqual(Comparison):
    """x1 <= x2."""

    name = "less_equal"
    ufunc = np.less_equal


@define_op
class Greater(Comparison):
    """x1 > x2."""

    name = "greater"
    ufunc = np.greater


@define_op
class GreaterEqual(Comparison):
    """x1 >= x2."""

    name = "greater_equal"
    ufunc = np.greater_equal
