"""Linear maps chosen by index, which mixtures of experts are made of (Shazeer et al., 2017)."""

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
from relaxpy.op.gather import nearest, position, position_numpy, unless_empty
from relaxpy.op.linear_algebra import wide_dtype
from relaxpy.op.rule import Cotangent, Rule


@define_op
class ExpertLinear(Op):
    """A linear map of each row by several of many weights: result[i, r] = weight[experts[i, r]] @ data[i] +
    bias[experts[i, r]]. `data` is (rows, in), `weight` (experts, out, in), `experts` (rows, choices), `bias` (experts,
    out); the result is (rows, choices, out). A number of an expert out of range is clamped. Accumulated as in `matmul`.
    The work is that of the chosen experts, and a row's result is the same to the bit whatever the other rows are."""

    name = "nn.expert_linear"
    mixed = "always"

    def deduce(
        self, d: Deduction, data: KnownTensor, weight: KnownTensor, experts: KnownTensor,
        bias: KnownTensor | None = None,
    ) -> TensorType:  # fmt: skip
        ranks = {
            "data": (data, "rows, in"),
            "weight": (weight, "experts, out, in"),
            "experts": (experts, "rows, choices"),
            "bias": (bias, "experts, out"),
        }
        for name, (x, axes) in ranks.items():
            wanted = axes.count(",") + 1
            if x is not None and x.ndim != wanted:
                d.fail(
                    f"{name} must have {wanted} dimensions ({axes}), got {x.ndim}",
                    arg=name, code="op-rank",
                )  # fmt: skip
        d.need_float(data, "data")
        d.need_int(experts, "experts")
        dtype = d.same_dtype(data, weight)
        d.same_dim(data.dims[1], weight.dims[2], "inner dimensions differ", arg="weight")
        d.same_dim(data.dims[0], experts.dims[0], "numbers of rows differ", arg="experts")
        if bias is not None:
            d.same_dtype(data, bias)
            d.same_dim(weight.dims[0], bias.dims[0], "numbers of experts differ", arg="bias")
            d.same_dim(weight.dims[1], bias.dims[1], "widths of weight and bias differ", arg="bias")
        return TensorType((*experts.dims, weight.dims[1]), dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        known = [a.dtype for a in args[:2] if isinstance(a, TensorType) and a.dtype is not None]
        return TensorType(None, known[0] if known else None, 3)

    def legalize(
        self, out: KnownTensor, data: te.Tensor, weight: te.Tensor, experts: te.Tensor,
        bias: te.Tensor | None = None,
    ) -> te.Tensor:  # fmt: skip
        count, _, depth = te.dims(weight)
        wide, k = str(wide_dtype(out.dtype)), te.reduce_axis(depth)

        def own(i: Any, r: Any) -> Any:
            return nearest(position(experts(i, r)), count)

        def term(i: Any, r: Any, j: Any) -> Any:
            factor = unless_empty([count], weight(own(i, r), j, k))
            return te.sum(te.cast(data(i, k), wide) * te.cast(factor, wide), k)

        total = te.compute(out.dims, term, "expert_linear")
        if bias is None and wide == str(out.dtype):
            return total

        def element(i: Any, r: Any, j: Any) -> Any:
            found = te.element(total(i, r, j))
            if bias is not None:
                found = found + te.cast(unless_empty([count], bias(own(i, r), j)), wide)
            return te.cast(found, out.dtype)

        return te.compute(out.dims, element, "with_bias")

    def reference(
        self, data: np.ndarray, weight: np.ndarray, experts: np.ndarray,
        bias: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        wide = wide_dtype(DType(data.dtype)).numpy
        if not len(weight):
            return np.zeros((*experts.shape, weight.shape[1]), data.dtype)
        own = np.clip(position_numpy(experts), 0, len(weight) - 1)
        found = np.einsum("ik,irjk->irj", data.astype(wide), weight[own].astype(wide))
        if bias is not None:
            found = found + bias[own].astype(wide)
        return np.asarray(found).astype(data.dtype)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, weight, experts, bias = args
        (rows, depth), (_, choices, width) = b.dims(data), b.dims(ct)
        one = b.reshape(ct, [rows * choices, width])
        own = b.reshape(experts, [rows * choices, 1])
        back = b.nn.expert_linear(one, b.permute_dims(weight, [0, 2, 1]), own)
        of_data = b.sum(b.reshape(back, [rows, choices, depth]), axis=[1])
        # rows that chose the same expert are added up, as rows of a table that take reads
        factors = b.expand_dims(ct, -1), b.expand_dims(b.expand_dims(data, 1), 1)
        of_weight = b.grad.take_backward(b.multiply(*factors), weight, experts, 0)
        found = [of_data, of_weight, None]
        return found if bias is None else [*found, b.grad.take_backward(ct, bias, experts, 0)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, w, b = rand(5, 8), rand(4, 6, 8), rand(4, 6)
        chosen = np.array([[0, 3], [2, 1], [3, 3], [9, -1], [1, 0]])
        yield sample(cls(), x, w, chosen, b, dims="n 8, 4 6 8, n 2, 4 6")
        yield sample(cls(), x, w, chosen.astype(np.int32), dims="n 8, 4 6 8, n 2")
        yield sample(cls(), x, w, chosen, dims="n k, e m k, n r")
        yield sample(cls(), rand(0, 8), w, rand(0, 2, dtype="int64"), dims="n 8, 4 6 8, n 2")
        wide = rand(7, 72), rand(3, 37, 72), np.array([[2], [0], [0], [1], [0], [0], [2]])
        yield sample(cls(), *wide, dims="n 72, 3 37 72, n 1", atol=1e-5)
        half = [each.astype(np.float16) for each in (x, w)]
        yield sample(cls(), *half, chosen, dims="n 8, 4 6 8, n 2", rtol=2e-3, atol=2e-3)
        yield wrong(cls(), x, w[..., 1:], chosen, code="shape-mismatch", match="inner")
        yield wrong(cls(), x[1:], w, chosen, code="shape-mismatch", match="rows")
        yield wrong(cls(), x, w, chosen, b[1:], code="shape-mismatch", match="experts")
        yield wrong(cls(), x, w[0], chosen, code="op-rank", match="weight")
        yield wrong(cls(), x, w, rand(5, 2), code="op-dtype", match="experts")
        yield wrong(cls(), x, half[1], chosen, code="op-dtype")
