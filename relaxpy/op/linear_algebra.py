"""Matrix products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dtype import DType
from relaxpy.op import te
from relaxpy.op.base import Deduction, Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.precision import widened


@define_op
class Matmul(Op):
    """The matrix product over the last two axes, as `numpy.matmul`: the axes before are
    broadcast, a vector is a row on the left and a column on the right. Accumulated in
    `out_dtype`, in float32 for narrower floats."""

    name = "matmul"
    out_dtype: DType | None = None
    """Dtype of the result; None: that of the arguments."""

    def deduce(self, d: Deduction, x1: TensorType, x2: TensorType) -> TensorType:
        dtype = self.out_dtype or d.same_dtype(x1, x2)
        assert x1.dims is not None
        assert x2.dims is not None
        for name, x in (("x1", x1), ("x2", x2)):
            d.require(
                x.ndim > 0, f"{name} must have at least one dimension", arg=name, code="op-rank"
            )
            d.require(
                x.dtype != "bool", f"{name} must be numbers, got bool", arg=name, code="op-dtype"
            )
        d.same_dim(
            x1.dims[-1], x2.dims[-2 if x2.ndim > 1 else 0], "inner dimensions differ", arg="x2"
        )
        batch = d.broadcast(x1.dims[:-2], x2.dims[:-2])
        rows, columns = x1.dims[-2:-1], x2.dims[-1:] if x2.ndim > 1 else ()
        ndim = max(x1.ndim - 2, x2.ndim - 2, 0) + len(rows) + len(columns)
        return TensorType(None if batch is None else batch + rows + columns, dtype, ndim)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        known = [a.dtype for a in args if isinstance(a, TensorType) and a.dtype is not None]
        return TensorType(None, self.out_dtype or (known[0] if known else None))

    def legalize(self, out: TensorType, x1: te.Tensor, x2: te.Tensor) -> te.Tensor:
        assert out.dims is not None
        assert out.dtype is not None
        row, column = len(x1.shape) > 1, len(x2.shape) > 1
        wide = "float32" if out.dtype in ("float16", "bfloat16") else out.dtype
        k = te.reduce_axis(te.dims(x1)[-1])
        batch = out.dims[: len(out.dims) - row - column]

        def element(*index: Any) -> Any:
            outer, inner = list(index[: len(batch)]), list(index[len(batch) :])
            left = te.broadcast_index(te.dims(x1)[:-2], batch, outer)
            right = te.broadcast_index(te.dims(x2)[:-2], batch, outer)
            a = x1(*left, *inner[:row], k)
            b = x2(*right, k, *inner[row:])
            return te.sum(te.cast(a, wide) * te.cast(b, wide), k)

        product = te.compute(out.dims, element, "matmul")
        if wide == out.dtype:
            return product
        return te.compute(out.dims, lambda *i: te.cast(product(*i), out.dtype), "narrowed")

    def reference(self, x1: np.ndarray, x2: np.ndarray) -> np.ndarray:
        dtype = (self.out_dtype or DType(x1.dtype)).numpy
        wide = widened(np.empty(0, dtype)).dtype
        return np.asarray(np.matmul(x1.astype(wide), x2.astype(wide))).astype(dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), rand(5, 4), dims="n k, k m")
        yield sample(cls(), rand(3, 8), rand(8, 16), dims="n 8, 8 16")
        yield sample(cls(), rand(2, 3, 5), rand(5, 4), dims="b n 5, 5 4")
        yield sample(cls(), rand(2, 3, 4, 5), rand(2, 3, 5, 4), dims="b 3 n k, b 3 k n")
        yield sample(cls(), rand(2, 1, 4, 5), rand(3, 5, 2), dims="b 1 n 5, 3 5 2")
        yield sample(cls(), rand(5), rand(5), dims="k, k")
        yield sample(cls(), rand(5), rand(2, 5, 3), dims="k, b k 3")
        yield sample(cls(), rand(2, 3, 5), rand(5), dims="b 3 k, k")
        yield sample(cls(), rand(3, 0), rand(0, 4), dims="n k, k 4")
        yield sample(cls(), rand(0, 5), rand(5, 4), dims="n 5, 5 4")
        yield sample(cls(), rand(1, 1), rand(1, 1), dims="n k, k m")
        yield sample(
            cls(),
            rand(3, 64, dtype="float16"),
            rand(64, 4, dtype="float16"),
            dims="n 64, 64 4",
            rtol=2e-3,
            atol=2e-3,
        )
        yield sample(
            cls(DType("float32")),
            rand(3, 8, dtype="float16"),
            rand(8, 4, dtype="float16"),
            dims="n 8, 8 4",
        )
        yield sample(
            cls(DType("int32")),
            rand(3, 8, dtype="int8", low=-9, high=9),
            rand(8, 4, dtype="int8"),
            dims="n 8, 8 4",
        )
        yield wrong(
            cls(),
            rand(3, 5),
            rand(4, 5),
            code="shape-mismatch",
            match="inner dimensions differ: 5 and 4",
        )
        yield wrong(cls(), rand(2, 3, 5), rand(3, 5, 4), code="shape-mismatch", match="2 and 3")
        yield wrong(
            cls(), rand(3, 5), rand(5, 4, dtype="float16"), code="op-dtype", match="float16"
        )
        yield wrong(cls(), rand(), rand(5), code="op-rank", match="dimension")
