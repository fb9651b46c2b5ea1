"""Sums over broadcast axes: the inverse of broadcasting for gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, ShapeType, TensorType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import narrowed, widened
from relaxpy.op.rule import Cotangent, Rule
from relaxpy.shape.lattice import Verdict
from relaxpy.shape.prove import equal


def collapsed(d: Deduction, data: KnownTensor, target: Sequence[Dim], arg: str) -> TensorType:
    """The annotation of data summed to the shape `target`, which must be broadcastable to the shape of data."""
    d.require(
        not data.dtype.is_bool, "data must be numbers, got bool", arg="data",
        code="op-dtype",
    )  # fmt: skip
    new = data.ndim - len(target)
    d.require(
        new >= 0, f"{data.ndim} dimensions cannot be summed to {len(target)}", arg=arg,
        code="op-rank",
    )  # fmt: skip
    for size, goal in zip(data.dims[new:], target, strict=True):
        if goal != 1 and equal(size, goal) is not Verdict.YES:
            fits = dim_op("or", dim_op("eq", size, goal), dim_op("eq", goal, 1))
            d.ensure(fits, f"a dimension of {size} cannot be summed to {goal}", arg=arg)
    return TensorType(tuple(target), data.dtype)


def collapse(out: KnownTensor, data: te.Tensor) -> te.Tensor:
    """The tensor program: one loop for each reduced axis; at run time the loop has one iteration if the axis turns out
    to be kept."""
    sizes, target = te.dims(data), out.dims
    new = len(sizes) - len(target)
    loops: dict[int, Any] = {}
    for a, size in enumerate(sizes):
        goal = target[a - new] if a >= new else Dim.of(1)
        if a < new or equal(size, goal) is not Verdict.YES:
            turns = dim_op("select", dim_op("eq", goal, 1), size, Dim.of(1))
            loops[a] = te.reduce_axis(turns, f"k{a}")

    def element(*i: Any) -> Any:
        index = []
        for a in range(len(sizes)):
            if a in loops and (a < new or target[a - new] == 1):
                index.append(loops[a])
            else:
                index.append(i[a - new] + loops[a] if a in loops else i[a - new])
        read = te.widen(data(*index))
        return te.sum(read, list(loops.values())) if loops else read

    total = te.compute(target, element, "collapse_sum")
    if str(total.dtype) == str(out.dtype):
        return total
    return te.compute(target, lambda *i: te.cast(total(*i), out.dtype), "narrowed")


def collapse_numpy(data: np.ndarray, target: tuple[int, ...]) -> np.ndarray:
    """The same as `collapse` on numpy."""
    wide, new = widened(data), data.ndim - len(target)
    axes = tuple(a for a in range(data.ndim) if a < new or target[a - new] == 1)
    return narrowed(np.sum(wide, axes, dtype=wide.dtype, keepdims=True).reshape(target), data)


@define_op
class CollapseSumTo(Op):
    """Sum data to `shape` over the axes that broadcasting a tensor of that shape would repeat: the gradient of
    `broadcast_to`. Integers modulo 2**bits."""

    name = "collapse_sum_to"

    def deduce(self, d: Deduction, data: KnownTensor, shape: KnownShape) -> TensorType:
        return collapsed(d, data, shape.dims, "shape")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        data, shape = args
        data = expect(TensorType, data)
        shape = expect(ShapeType, shape)
        return TensorType(shape.dims, data.dtype, shape.ndim)

    def legalize(self, out: KnownTensor, data: te.Tensor, shape: Any) -> te.Tensor:
        return collapse(out, data)

    def reference(self, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return collapse_numpy(data, shape)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.broadcast_to(ct, b.dims(args[0])), None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(2, 3, 4), (3, 1), dims="2 n m, n 1")
        yield sample(cls(), rand(2, 3, 4), (1, 1, 4), dims="n m 4, 1 1 4")
        yield sample(cls(), rand(2, 3), (2, 3), dims="n m, n m")
        yield sample(cls(), rand(2, 3), (1, 3), dims="n m, k l")
        yield sample(cls(), rand(2, 3), (), dims="n m,")
        yield sample(cls(), rand(0, 3, dtype="int32"), (3,), dims="n 3, 3")
        yield sample(cls(), rand(3, 9, dtype="float16"), (3, 1), dims="n m, n 1", rtol=2e-3)
        yield wrong(cls(), rand(2, 3), (2,), code="shape-mismatch", match="3 cannot be summed to 2")
        yield wrong(cls(), rand(3), (1, 3), code="op-rank", match="1 dimensions")
        yield wrong(cls(), rand(3, dtype="bool"), (1,), code="op-dtype", match="bool")


@define_op
class CollapseSumLike(Op):
    """`collapse_sum_to` with the shape of another tensor."""

    name = "collapse_sum_like"

    def deduce(self, d: Deduction, data: KnownTensor, collapse_target: KnownTensor) -> TensorType:
        return collapsed(d, data, collapse_target.dims, "collapse_target")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        data, target = args
        data = expect(TensorType, data)
        target = expect(TensorType, target)
        return TensorType(target.shape, data.dtype, target.ndim)

    def legalize(self, out: KnownTensor, data: te.Tensor, collapse_target: te.Tensor) -> te.Tensor:
        return collapse(out, data)

    def reference(self, data: np.ndarray, collapse_target: np.ndarray) -> np.ndarray:
        return collapse_numpy(data, collapse_target.shape)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.broadcast_to(ct, b.dims(args[0])), None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(2, 3, 4), rand(3, 1), dims="2 n m, n 1")
        yield sample(cls(), rand(2, 3), rand(2, 3), dims="n m, n m")
        yield sample(cls(), rand(2, 3), rand(2, 1, dtype="int32"), dims="n m, n k")
        yield wrong(cls(), rand(2, 3), rand(2), code="shape-mismatch", match="3 cannot")
        yield wrong(cls(), rand(3), rand(1, 3), code="op-rank", match="1 dimensions")
