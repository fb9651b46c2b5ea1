"""Choosing by a condition, and looking values up in a sorted vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.op import te
from relaxpy.op.base import Deduction, Op, Sample, define_op, rand, sample, wrong


@define_op
class Where(Op):
    """x1 where the condition is true, else x2; all three are broadcast."""

    name = "where"
    scalar_args = True

    def deduce(
        self, d: Deduction, condition: TensorType, x1: TensorType, x2: TensorType
    ) -> TensorType:
        d.require(
            condition.dtype == "bool",
            f"condition must be bool, got {condition.dtype}", arg="condition", code="op-dtype",
            help='cast it: R.astype(condition, "bool")',
        )  # fmt: skip
        dtype = d.same_dtype(x1, x2)
        assert condition.dims is not None
        assert x1.dims is not None
        assert x2.dims is not None
        shape = d.broadcast(condition.dims, x1.dims, x2.dims)
        return TensorType(shape, dtype, max(condition.ndim, x1.ndim, x2.ndim))

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        known = [a.dtype for a in args[1:] if isinstance(a, TensorType) and a.dtype is not None]
        return TensorType(None, known[0] if known else None)

    def legalize(
        self, out: TensorType, condition: te.Tensor, x1: te.Tensor, x2: te.Tensor
    ) -> te.Tensor:
        def element(*i: Any) -> Any:
            c, a, b = (te.element(te.broadcast(x, out.dims or (), i)) for x in (condition, x1, x2))
            return te.select(c, a, b)

        return te.compute(out.dims, element, "where")

    def reference(self, condition: np.ndarray, x1: np.ndarray, x2: np.ndarray) -> np.ndarray:
        return np.where(condition, x1, x2)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        flags = rand(3, 1, dtype="bool")
        yield sample(cls(), flags, rand(3, 5), rand(5), dims="n 1, n m, m")
        yield sample(
            cls(), rand(4, dtype="bool"), rand(4, dtype="int32"), rand(dtype="int32"), dims="n, n,"
        )
        yield sample(cls(), rand(0, dtype="bool"), rand(0), rand(1), dims="n, n, 1")
        yield wrong(
            cls(), rand(3), rand(3), rand(3), code="op-dtype", match="condition must be bool"
        )
        yield wrong(
            cls(), flags, rand(3, 2), rand(3, dtype="int32"), code="op-dtype", match="int32"
        )
        yield wrong(cls(), flags, rand(3, 2), rand(3), code="shape-mismatch", match="2 and 3")
