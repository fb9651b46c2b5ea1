"""Matrix products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, product
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.pair import ROW, Pair
from relaxpy.op.precision import widened
from relaxpy.op.reduce import rounded
from relaxpy.op.rule import Cotangent, Rule


@define_op
class Matmul(Op):
    """The matrix product over the last two axes, as `numpy.matmul`. The axes before are broadcast; a vector is a row on
    the left and a column on the right. Accumulated in `out_dtype`; narrower floats in float32."""

    name = "matmul"
    mixed = "always"
    out_dtype: DType | None = None
    """Dtype of the result; None: the dtype of the arguments."""

    def pairs(self) -> Mapping[str, Pair]:
        return {"x1": Pair(axis=ROW), "x2": Pair(axis=-1, weight=True)}

    def deduce(self, d: Deduction, x1: KnownTensor, x2: KnownTensor) -> TensorType:
        dtype = result_dtype(d, self.out_dtype, x1=x1, x2=x2)
        shape = product_shape(d, x1.dims, x2.dims, "x1", "x2")
        ndim = max(x1.ndim - 2, x2.ndim - 2, 0) + (x1.ndim > 1) + (x2.ndim > 1)
        return TensorType(shape, dtype, ndim)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        known = [a.dtype for a in args if isinstance(a, TensorType) and a.dtype is not None]
        return TensorType(None, self.out_dtype or (known[0] if known else None))

    def legalize(self, out: KnownTensor, x1: te.Tensor, x2: te.Tensor) -> te.Tensor:
        return rounded(out, matrix_product(out, x1, te.dims(x1), x2, te.dims(x2)))

    def reference(self, x1: np.ndarray, x2: np.ndarray) -> np.ndarray:
        dtype = self.out_dtype or DType(x1.dtype)
        wide = wide_dtype(dtype).numpy
        return np.asarray(np.matmul(x1.astype(wide), x2.astype(wide))).astype(dtype.numpy)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        x1, x2 = args
        return list(product_cotangents(b, x1, x2, ct))

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
        yield wrong(cls(), rand(2, 2, dtype="bool"), rand(2, 2), code="op-dtype", match="bool")
        yield wrong(cls(DType("int32")), rand(2, 2), rand(2, 2), code="op-dtype", match="float")


@define_op
class Linear(Op):
    """`data @ weight.T + bias`, the linear layer of torch. The weight is (out, in), or (in,) for a single output.
    Accumulated as in `matmul`; the bias is broadcast and added before rounding. This is a single operator, so the
    weight is not transposed in memory."""

    name = "linear"
    mixed = "always"
    out_dtype: DType | None = None
    """Dtype of the result; None: the dtype of the arguments."""

    def pairs(self) -> Mapping[str, Pair]:
        return {"data": Pair(axis=ROW), "weight": Pair(axis=0, weight=True)}

    def deduce(
        self, d: Deduction, data: KnownTensor, weight: KnownTensor, bias: KnownTensor | None = None
    ) -> TensorType:
        dtype = result_dtype(d, self.out_dtype, data=data, weight=weight)
        d.require(
            weight.ndim < 3,
            f"weight must have 1 or 2 dimensions, got {weight.ndim}",
            arg="weight",
            code="op-rank",
        )
        shape = product_shape(d, data.dims, weight.dims[::-1], "data", "weight")
        if bias is None or shape is None:
            ndim = data.ndim - 1 + weight.ndim - 1
            return TensorType(shape, dtype, max(ndim, bias.ndim if bias else 0))
        d.require(
            bias.dtype == dtype,
            f"bias must have the dtype of the result, {dtype}, got {bias.dtype}",
            arg="bias",
            code="op-dtype",
        )
        return TensorType(d.broadcast(shape, bias.dims), dtype, max(len(shape), bias.ndim))

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        known = [a.dtype for a in args[:2] if isinstance(a, TensorType) and a.dtype is not None]
        return TensorType(None, self.out_dtype or (known[0] if known else None))

    def legalize(
        self, out: KnownTensor, data: te.Tensor, weight: te.Tensor, bias: te.Tensor | None = None
    ) -> te.Tensor:
        rows, columns = te.dims(data)[:-1], te.dims(weight)[::-1][1:]
        before = KnownTensor((*rows, *columns), out.dtype)
        product = matrix_product(
            before, data, te.dims(data), lambda *i: weight(*reversed(i)), te.dims(weight)[::-1]
        )
        if bias is None:
            return rounded(out, product)

        def element(*i: Any) -> Any:
            found = te.element(te.broadcast(product, out.dims, i))
            added = te.element(te.broadcast(bias, out.dims, i))
            return te.cast(found + te.widen(added), out.dtype)

        return te.compute(out.dims, element, "linear")

    def reference(
        self, data: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None
    ) -> np.ndarray:
        dtype = self.out_dtype or DType(data.dtype)
        wide = wide_dtype(dtype).numpy
        found = np.matmul(data.astype(wide), weight.astype(wide).T)
        if bias is not None:
            found = found + bias.astype(wide)
        return np.asarray(found).astype(dtype.numpy)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, weight, bias = args
        shape = (*b.dims(data)[:-1], *b.dims(weight)[:-1])
        product = b.summed(ct, shape)
        if b.rank(weight) == 1:
            found = product_cotangents(b, data, weight, product)
        else:
            wide = b.dtype(ct)
            rows, columns = flat_rows(b, product), flat_rows(b, data)
            of_data = b.matmul(product, b.astype(weight, wide))
            of_weight = b.matmul(b.permute_dims(rows), b.astype(columns, wide))
            found = b.astype(of_data, b.dtype(data)), b.astype(of_weight, b.dtype(weight))
        return [*found, None if bias is None else b.sum_to(ct, bias)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), rand(4, 5), dims="n k, m k")
        yield sample(cls(), rand(2, 3, 8), rand(16, 8), rand(16), dims="b n 8, 16 8, 16")
        yield sample(cls(), rand(3, 5), rand(5), dims="n k, k")
        yield sample(cls(), rand(5), rand(4, 5), rand(4), dims="k, m k, m")
        yield sample(cls(), rand(2, 3), rand(4, 3), rand(2, 1), dims="n 3, 4 3, n 1")
        half = [a.astype(np.float16) for a in (rand(3, 8), rand(4, 8), rand(4))]
        yield sample(cls(), *half, dims="n 8, 4 8, 4", rtol=2e-3, atol=2e-3)
        yield sample(cls(DType("float32")), half[0], half[1], rand(4), dims="n 8, 4 8, 4")
        few = rand(3, 8, dtype="int8", low=-9, high=9)
        yield sample(cls(DType("int32")), few, few, dims="n 8, 3 8")
        yield wrong(cls(), rand(3, 5), rand(5, 4), code="shape-mismatch", match="5 and 4")
        yield wrong(cls(), rand(3, 5), rand(4, 5), rand(3), code="shape-mismatch", match="4 and 3")
        yield wrong(cls(), rand(3, 5), rand(2, 4, 5), code="op-rank", match="weight")
        yield wrong(
            cls(), rand(3, 5), rand(4, 5), rand(4, dtype="int32"), code="op-dtype", match="bias"
        )


@define_op
class Outer(Op):
    """The outer product of two vectors: (n,) and (m,) give (n, m)."""

    name = "outer"
    mixed = "follow"
    of_data = True

    def deduce(self, d: Deduction, x1: KnownTensor, x2: KnownTensor) -> TensorType:
        dtype = result_dtype(d, None, x1=x1, x2=x2)
        for name, x in (("x1", x1), ("x2", x2)):
            d.require(
                x.ndim == 1,
                f"{name} must have one dimension, got {x.ndim}",
                arg=name,
                code="op-rank",
            )
        return TensorType(x1.dims + x2.dims, dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        known = [a.dtype for a in args if isinstance(a, TensorType) and a.dtype is not None]
        return TensorType(None, known[0] if known else None, 2)

    def legalize(self, out: KnownTensor, x1: te.Tensor, x2: te.Tensor) -> te.Tensor:
        def element(i: Any, j: Any) -> Any:
            return te.cast(te.widen(x1(i)) * te.widen(x2(j)), out.dtype)

        return te.compute(out.dims, element, "outer")

    def reference(self, x1: np.ndarray, x2: np.ndarray) -> np.ndarray:
        return np.outer(widened(x1), widened(x2)).astype(x1.dtype)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        x1, x2 = args
        return [b.matmul(ct, x2), b.matmul(x1, ct)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3), rand(5), dims="n, m")
        yield sample(cls(), rand(4, dtype="int32"), rand(2, dtype="int32"), dims="n, 2")
        yield sample(cls(), rand(0), rand(5), dims="n, m")
        yield wrong(cls(), rand(3, 2), rand(5), code="op-rank", match="x1")
        yield wrong(cls(), rand(3), rand(5, dtype="int32"), code="op-dtype", match="int32")


def result_dtype(d: Deduction, out_dtype: DType | None, **factors: KnownTensor) -> DType:
    """The dtype of a product: `out_dtype`, or the common dtype of the factors. Refused for bool, and if floats would
    become integers."""
    for name, x in factors.items():
        d.require(x.dtype != "bool", f"{name} must be numbers, got bool", arg=name, code="op-dtype")
    if out_dtype is None:
        return d.same_dtype(*factors.values())
    for name, x in factors.items():
        d.require(
            out_dtype.is_float or (out_dtype.is_int and not x.dtype.is_float),
            f"a product with {name} of dtype {x.dtype} cannot be {out_dtype}",
            arg="out_dtype",
            code="op-dtype",
        )
    return out_dtype


def wide_dtype(dtype: DType) -> DType:
    """The accumulation dtype of products of `dtype`."""
    return DType("float32") if dtype.is_narrow else dtype


def product_shape(
    d: Deduction, a: tuple[Dim, ...], b: tuple[Dim, ...], a_name: str, b_name: str
) -> tuple[Dim, ...] | None:
    """The shape of the matrix product of arguments of shapes `a` and `b`; None if it is known only at run time."""
    for name, dims in ((a_name, a), (b_name, b)):
        d.require(
            len(dims) > 0, f"{name} must have at least one dimension", arg=name, code="op-rank"
        )
    d.same_dim(a[-1], b[-2 if len(b) > 1 else 0], "inner dimensions differ", arg=b_name)
    batch = d.broadcast(a[:-2], b[:-2])
    return None if batch is None else batch + a[-2:-1] + (b[-1:] if len(b) > 1 else ())


def matrix_product(
    out: KnownTensor, a: Any, a_dims: Sequence[Dim], b: Any, b_dims: Sequence[Dim]
) -> te.Tensor:
    """The matrix product in the accumulation dtype, with the shape of `out`. `a` and `b` are tensors, or functions from
    an index to an element, of shapes `a_dims` and `b_dims`."""
    row, column = len(a_dims) > 1, len(b_dims) > 1
    wide = wide_dtype(out.dtype)
    k = te.reduce_axis(a_dims[-1])
    batch = out.dims[: len(out.dims) - row - column]

    def element(*index: Any) -> Any:
        outer, inner = list(index[: len(batch)]), list(index[len(batch) :])
        left = te.broadcast_index(a_dims[:-2], batch, outer)
        right = te.broadcast_index(b_dims[:-2], batch, outer)
        x = a(*left, *inner[:row], k)
        y = b(*right, k, *inner[row:])
        return te.sum(te.cast(x, wide) * te.cast(y, wide), k)

    return te.compute(out.dims, element, "matmul")


def product_cotangents(b: Rule, x1: Expr, x2: Expr, ct: Expr) -> tuple[Expr, Expr]:
    """The cotangents of the factors of a matrix product, given that of the product."""
    dims1, dims2, wide = b.dims(x1), b.dims(x2), b.dtype(ct)
    left, right = b.astype(x1, wide), b.astype(x2, wide)
    left = left if len(dims1) > 1 else b.reshape(left, (1, *dims1))
    right = right if len(dims2) > 1 else b.reshape(right, (*dims2, 1))
    batch = b.dims(ct)[: b.rank(ct) - (len(dims1) > 1) - (len(dims2) > 1)]
    whole = b.reshape(ct, (*batch, b.dims(left)[-2], b.dims(right)[-1]))
    of_left = b.matmul(whole, swapped(b, right))
    if len(dims2) == 2:  # of one matrix: the sum over the batch is part of the product
        of_right = b.matmul(swapped(b, flat_rows(b, left)), flat_rows(b, whole))
    else:
        of_right = b.matmul(swapped(b, left), whole)
    found = [
        b.astype(b.reshape(b.summed(each, b.dims(factor)), b.dims(x)), b.dtype(x))
        for each, factor, x in ((of_left, left, x1), (of_right, right, x2))
    ]
    return found[0], found[1]


def swapped(b: Rule, x: Expr) -> Expr:
    """X with its last two axes swapped."""
    rank = b.rank(x)
    return b.permute_dims(x, (*range(rank - 2), rank - 1, rank - 2))


def flat_rows(b: Rule, x: Expr) -> Expr:
    """X as a matrix: all axes but the last are joined."""
    *rows, columns = b.dims(x)
    return x if len(rows) == 1 else b.reshape(x, (product(tuple(rows)), columns))
