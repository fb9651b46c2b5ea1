"""Operators whose result's size depends on the data: no tensor program allocates that, so the
runtime has them as functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.op.base import Deduction, Op, Sample, define_op, rand, sample


@define_op
class Unique(Op):
    """The different values of x, sorted, as one axis (figure 3 of the paper)."""

    name = "unique"
    legalize = None
    packed: ClassVar[str] = "relaxpy.unique"
    """The runtime's function."""

    def deduce(self, d: Deduction, x: TensorType) -> TensorType:
        return TensorType(None, x.dtype, 1)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (x,) = args
        return TensorType(None, x.dtype if isinstance(x, TensorType) else None, 1)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.unique(x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5, dtype="int32"), dims="n 5")
        yield sample(cls(), rand(7), dims="n")
        yield sample(cls(), rand(0), dims="n")
        yield sample(cls(), np.array(3, np.int64))
