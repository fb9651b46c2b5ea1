"""Diagonals and triangles of matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import PrimType, TensorType
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.create import check_sizes
from relaxpy.op.deduction import Deduction
from relaxpy.op.rule import SIZES, Cotangent, Rule


@define_op
class Eye(Op):
    """A matrix of n rows and `m` columns (default n) with ones on a diagonal and zeros elsewhere. The diagonal is `k`
    places to the right of the main one (to the left for a negative k)."""

    name = "eye"
    no_vjp = SIZES
    dtype: DType = DType("float32")

    def deduce(
        self, d: Deduction, n: PrimType, m: PrimType | None = None, k: PrimType | None = None
    ) -> TensorType:
        offset(d, k)
        columns = n if m is None else m
        if n.value is None or columns.value is None:
            return TensorType(None, self.dtype, 2)
        check_sizes(d, KnownShape((n.value, columns.value)), "n")
        return TensorType((n.value, columns.value), self.dtype)

    def legalize(self, out: KnownTensor, n: Any, m: Any = None, k: Any = None) -> te.Tensor:
        return diagonal(out, k, self.name)

    def reference(self, n: int, m: int | None = None, k: int | None = None) -> np.ndarray:
        return np.eye(n, m, k or 0, dtype=self.dtype.numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), 4, dims="n")
        yield sample(cls(DType("int32")), 3, 5, 1, dims="n, m, k")
        yield sample(cls(DType("bool")), 4, 2, -1, dims="n, m, -1")
        yield sample(cls(DType("float16")), 0, 2, dims="n, m")
        yield wrong(cls(), -1, code="shape-mismatch", match="-1")


@define_op
class EyeLike(Op):
    """`eye` with the shape of the matrix x; the dtype is `dtype`, or that of x."""

    name = "eye_like"
    dtype: DType | None = None

    def deduce(self, d: Deduction, x: KnownTensor, k: PrimType | None = None) -> TensorType:
        offset(d, k)
        d.require(x.ndim == 2, f"x must have 2 dimensions, got {x.ndim}", arg="x", code="op-rank")
        return TensorType(x.shape, self.dtype or x.dtype, vdevice=x.vdevice)

    def deduce_unranked(self, d: Deduction, args: Any) -> TensorType:
        return TensorType(None, self.dtype or args[0].dtype, 2)

    def legalize(self, out: KnownTensor, x: te.Tensor, k: Any = None) -> te.Tensor:
        return diagonal(out, k, self.name)

    def reference(self, x: np.ndarray, k: int | None = None) -> np.ndarray:
        return np.eye(
            x.shape[0], x.shape[1], k or 0, dtype=self.dtype.numpy if self.dtype else x.dtype
        )

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [None, None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(4, 3), dims="n m")
        yield sample(cls(DType("int64")), rand(2, 5), 2, dims="n 5, k")
        yield sample(cls(), rand(3, 3, dtype="bool"), -1, dims="n n, -1")
        yield wrong(cls(), rand(3), code="op-rank", match="2 dimensions")


class Triangle(Op):
    """A triangle of each matrix in the last two dimensions of x."""

    mixed = "follow"

    def keeps(self, row: Any, column: Any) -> Any:
        """Is an element kept? `row` counts from the diagonal."""
        raise NotImplementedError

    def deduce(self, d: Deduction, x: KnownTensor, k: PrimType | None = None) -> TensorType:
        offset(d, k)
        d.require(
            x.ndim >= 2, f"x must be a matrix, got {x.ndim} dimensions", arg="x", code="op-rank"
        )
        return TensorType(x.shape, x.dtype, vdevice=x.vdevice)

    def legalize(self, out: KnownTensor, x: te.Tensor, k: Any = None) -> te.Tensor:
        by = te.dim(0) if k is None else te.scalar_dim(k)
        zero = te.const(0, str(out.dtype))

        def element(*i: Any) -> Any:
            return te.select(self.keeps(i[-2] + by, i[-1]), x(*i), zero)

        return te.compute(out.dims, element, self.name)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.emit(self(ct, args[1])), None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        special = np.array([[np.nan, np.inf], [-np.inf, -0.0]], np.float32)
        yield sample(cls(), rand(3, 5), dims="n m")
        yield sample(cls(), rand(2, 4, 3, dtype="int32"), 1, dims="b n m, 1")
        yield sample(cls(), rand(4, 4, dtype="float16"), -2, dims="n n, k")
        yield sample(cls(), rand(3, 2, dtype="bool"), 7, dims="n m, k")
        yield sample(cls(), special, dims="n n")
        yield wrong(cls(), rand(3), code="op-rank", match="matrix")


@define_op
class Triu(Triangle):
    """The upper triangle of each matrix in x, from the diagonal `k` places to the right of the main one; 0 below it."""

    name = "triu"

    def keeps(self, row: Any, column: Any) -> Any:
        return column >= row

    def reference(self, x: np.ndarray, k: int | None = None) -> np.ndarray:
        return np.triu(x, k or 0)


@define_op
class Tril(Triangle):
    """The lower triangle of each matrix in x, up to the diagonal `k` places to the right of the main one; 0 above
    it."""

    name = "tril"

    def keeps(self, row: Any, column: Any) -> Any:
        return column <= row

    def reference(self, x: np.ndarray, k: int | None = None) -> np.ndarray:
        return np.tril(x, k or 0)


def offset(d: Deduction, k: PrimType | None) -> None:
    """Refuse a diagonal offset that is not known at compile time, as a number or symbolically."""
    d.require(
        k is None or k.value is not None,
        "k must be an integer or an expression of dimensions",
        arg="k",
    )


def diagonal(out: KnownTensor, k: Any, name: str) -> te.Tensor:
    """Ones where column - row = k, else zeros."""
    by = te.dim(0) if k is None else te.scalar_dim(k)
    one, zero = (te.const(value, str(out.dtype)) for value in (1, 0))
    return te.compute(out.dims, lambda i, j: te.select(te.equal(j, i + by), one, zero), name)
