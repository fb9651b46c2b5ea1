"""Comparisons of two tensors, with numpy's broadcasting; the result is bool. A NaN is unequal to
everything."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxpy.op import te
from relaxpy.op.base import define_op
from relaxpy.op.binary import Binary


class Comparison(Binary):
    """A binary function whose result is bool."""

    gives_bool = True


@define_op
class Equal(Comparison):
    """x1 == x2."""

    name = "equal"
    takes = "anything"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return te.equal(x1, x2)

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.equal(x1, x2)


@define_op
class NotEqual(Comparison):
    """x1 != x2."""

    name = "not_equal"
    takes = "anything"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return te.not_equal(x1, x2)

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.not_equal(x1, x2)


@define_op
class Less(Comparison):
    """x1 < x2."""

    name = "less"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return te.less(x1, x2)

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.less(x1, x2)


@define_op
class LessEqual(Comparison):
    """x1 <= x2."""

    name = "less_equal"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return te.less_equal(x1, x2)

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.less_equal(x1, x2)


@define_op
class Greater(Comparison):
    """x1 > x2."""

    name = "greater"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return te.greater(x1, x2)

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.greater(x1, x2)


@define_op
class GreaterEqual(Comparison):
    """x1 >= x2."""

    name = "greater_equal"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return te.greater_equal(x1, x2)

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.greater_equal(x1, x2)
