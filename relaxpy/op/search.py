"""Selection by a condition, and binary search in a sorted vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import widened
from relaxpy.op.rule import Cotangent, Rule


@define_op
class Where(Op):
    """x1 where the condition is true, else x2; all three are broadcast together."""

    name = "where"
    mixed = "follow"
    scalar_args = True

    def _number_dtype(self, args: Sequence[Any]) -> DType | None:
        """The dtype of the numbers: that of the selected values, not of the condition."""
        values = args[1:]
        found = super()._number_dtype(values)
        if found is None and any(isinstance(value, float) for value in values):
            return DType("float32")
        return found

    def deduce(
        self, d: Deduction, condition: KnownTensor, x1: KnownTensor, x2: KnownTensor
    ) -> TensorType:
        d.require(
            condition.dtype == "bool",
            f"condition must be bool, got {condition.dtype}", arg="condition", code="op-dtype",
            help='cast it: R.astype(condition, "bool")',
        )  # fmt: skip
        dtype = d.same_dtype(x1, x2)
        shape = d.broadcast(condition.dims, x1.dims, x2.dims)
        return TensorType(shape, dtype, max(condition.ndim, x1.ndim, x2.ndim))

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        known = [a.dtype for a in args[1:] if isinstance(a, TensorType) and a.dtype is not None]
        return TensorType(None, known[0] if known else None)

    def legalize(
        self, out: KnownTensor, condition: te.Tensor, x1: te.Tensor, x2: te.Tensor
    ) -> te.Tensor:
        def element(*i: Any) -> Any:
            c, a, b = (te.element(te.broadcast(x, out.dims, i)) for x in (condition, x1, x2))
            return te.select(c, a, b)

        return te.compute(out.dims, element, "where")

    def reference(self, condition: np.ndarray, x1: np.ndarray, x2: np.ndarray) -> np.ndarray:
        return np.where(condition, x1, x2)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        condition, x1, x2 = args
        return [
            None,
            b.sum_to(b.where(condition, ct, 0.0), x1),
            b.sum_to(b.where_not(condition, ct), x2),
        ]

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


@define_op
class Bucketize(Op):
    """The bucket of each element, as `numpy.searchsorted`: the number of boundaries (a vector in ascending order) below
    it, or with `right` below or equal to it. NaN is above all. The result is int64, or int32 with `out_int32`. If the
    boundaries are not sorted, it is some number from 0 to their count."""

    name = "bucketize"
    no_vjp = "its result is of integers"
    out_int32: bool = False
    right: bool = False

    def deduce(
        self, d: Deduction, input_tensor: KnownTensor, boundaries: KnownTensor
    ) -> TensorType:
        d.same_dtype(input_tensor, boundaries)
        d.require(
            input_tensor.dtype != "bool", "input_tensor must be numbers, got bool",
            arg="input_tensor", code="op-dtype",
        )  # fmt: skip
        d.require(
            boundaries.ndim == 1,
            f"boundaries must have one dimension, got {boundaries.ndim}", arg="boundaries",
            code="op-rank",
        )  # fmt: skip
        return TensorType(input_tensor.shape, self._dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        x = args[0]
        return TensorType(x.shape if isinstance(x, TensorType) else None, self._dtype)

    @property
    def _dtype(self) -> str:
        return "int32" if self.out_int32 else "int64"

    def legalize(
        self, out: KnownTensor, input_tensor: te.Tensor, boundaries: te.Tensor
    ) -> te.Tensor:
        (size,) = te.dims(boundaries)
        # Binary search takes this many steps; for an unknown size, the maximum of any size.
        steps = _ADDRESS_BITS if size.value is None else size.value.bit_length()

        def fill(p: Any, result: Any, values: Any, edges: Any) -> None:
            with te.rows(p, te.dims(input_tensor)) as at:
                value = p.read(values, *at)
                low: Any = te.cell(p, "low", te.dim(0))
                high: Any = te.cell(p, "high", te.dim(size))
                with p.loop("step", steps), p.when(low.get() < high.get()):
                    middle = p.let("middle", (low.get() + high.get()) // 2)
                    below = self._below(p.read(edges, middle), value)
                    low.set(te.select(below, middle + 1, low.get()))
                    high.set(te.select(below, high.get(), middle))
                p.write(result, *at, value=te.cast(low.get(), self._dtype))

        return te.serial((out.dims, self._dtype), [input_tensor, boundaries], fill, "bucketize")

    def _below(self, edge: Any, value: Any) -> Any:
        """Whether a boundary is below a value."""
        below = te.less_equal(edge, value) if self.right else te.less(edge, value)
        return te.logical_or(below, te.isnan(value)) if te.dtype_of(value).is_float else below

    def reference(self, input_tensor: np.ndarray, boundaries: np.ndarray) -> np.ndarray:
        side = "right" if self.right else "left"
        found = np.searchsorted(widened(boundaries), widened(input_tensor), side)
        above = np.isnan(widened(input_tensor)) if DType(input_tensor.dtype).is_float else False
        return np.where(above, boundaries.size, found).astype(self._dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        edges = np.array([-1.5, 0, 0.25, 1], np.float32)
        x = np.array([[-2, -1.5, 0], [0.3, 5, np.nan]], np.float32)
        yield sample(cls(), x, edges, dims="n m, k")
        yield sample(cls(right=True), x, edges, dims="n 3, 4")
        yield sample(cls(out_int32=True), x, edges[:0], dims="n m, k")
        ints = np.array([3, 7, 7, 9], np.int32)
        yield sample(
            cls(right=True), rand(3, 5, dtype="int32", low=0, high=12), ints, dims="n m, k"
        )
        yield sample(cls(), rand(dtype="int32"), ints[:1], dims=", k")
        yield wrong(cls(), x, edges.reshape(2, 2), code="op-rank", match="one dimension")
        yield wrong(cls(), x, ints, code="op-dtype", match="int32")
        bools = rand(2, dtype="bool")
        yield wrong(cls(), bools, bools, code="op-dtype", match="bool")


_ADDRESS_BITS = 40
"""No tensor has more than 2**40 elements."""
