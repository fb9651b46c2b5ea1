"""Operators that rearrange or broadcast axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import MOST_DIMENSIONS, Annotation, ShapeType, TensorType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction, Requirement
from relaxpy.op.rule import Cotangent, Rule
from relaxpy.shape.lattice import Verdict
from relaxpy.shape.prove import equal


@define_op
class PermuteDims(Op):
    """Permute the axes; without `axes`, reverse them."""

    name = "permute_dims"
    mixed = "follow"
    axes: tuple[int, ...] | None = None

    def order(self, ndim: int) -> tuple[int, ...]:
        """The axis of x that each axis of the result comes from."""
        return (
            tuple(reversed(range(ndim)))
            if self.axes is None
            else tuple(a % ndim for a in self.axes)
        )

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        if self.axes is not None:
            d.require(
                len(self.axes) == x.ndim,
                f"axes must have {x.ndim} entries, got {len(self.axes)}", arg="axes", code="op-axis",
            )  # fmt: skip
            d.axes(self.axes, x.ndim, "axes")
        dims = x.dims
        return TensorType(tuple(dims[a] for a in self.order(x.ndim)), x.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (x,) = args
        ndim = -1 if self.axes is None else len(self.axes)
        return TensorType(None, x.dtype if isinstance(x, TensorType) else None, ndim)

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        order = self.order(len(x.shape))
        place = [order.index(a) for a in range(len(order))]
        return te.compute(out.dims, lambda *i: x(*(i[p] for p in place)), "permute_dims")

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.transpose(x, self.axes))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        axes = self.axes if self.axes is not None else range(b.rank(ct))[::-1]
        order = [axis % b.rank(ct) for axis in axes]
        return [b.permute_dims(ct, tuple(order.index(i) for i in range(len(order))))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), dims="n m")
        yield sample(cls((0, 2, 1, 3)), rand(2, 3, 4, 5), dims="b s 4 5")
        yield sample(cls((0, -1, 1)), rand(2, 0, 4), dims="n m 4")
        yield sample(cls(), rand(4), dims="n")
        yield wrong(cls((0, 1)), rand(2, 3, 4), code="op-axis", match="3 entries, got 2")
        yield wrong(cls((0, 0)), rand(2, 3), code="op-axis", match="repeats an axis")
        yield wrong(cls((0, 2)), rand(2, 3), code="op-axis", match="2")


@define_op
class ExpandDims(Op):
    """Insert axes of size 1 at these positions of the result."""

    name = "expand_dims"
    mixed = "follow"
    axis: tuple[int, ...] | int

    def places(self, ndim: int) -> list[int]:
        """The new axes as non-negative positions in a result of `ndim` axes."""
        axes = (self.axis,) if isinstance(self.axis, int) else self.axis
        return sorted(a % ndim for a in axes)

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        added = 1 if isinstance(self.axis, int) else len(self.axis)
        problem = f"a tensor has at most {MOST_DIMENSIONS} dimensions"
        d.require(x.ndim + added <= MOST_DIMENSIONS, problem, arg="axis")
        new = d.axes(self.axis, x.ndim + added)
        old = iter(x.dims)
        return TensorType(
            tuple(1 if a in new else next(old) for a in range(x.ndim + added)), x.dtype
        )

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        new = self.places(out.ndim)
        return te.compute(
            out.dims, lambda *i: x(*(v for a, v in enumerate(i) if a not in new)), "expand_dims"
        )

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.expand_dims(x, self.axis)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.reshape(ct, b.dims(args[0]))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0), rand(3, 5), dims="n m")
        yield sample(cls((1, -1)), rand(3, 5), dims="n m")
        yield sample(cls(-1), rand())
        yield sample(cls((1,)), rand(0), dims="n")
        yield wrong(cls(4), rand(3, 5), code="op-axis", match="4")
        yield wrong(cls((1, 1)), rand(3, 5), code="op-axis", match="repeats an axis")


@define_op
class Squeeze(Op):
    """Remove axes of size 1; without `axis`, all of them. In that case the rank of the result is unknown if a dimension
    is symbolic, and determined at run time."""

    name = "squeeze"
    mixed = "follow"
    axis: tuple[int, ...] | int | None = None
    packed: ClassVar[str] = "relaxpy.squeeze"
    """The runtime function for a result of unknown rank."""

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        if self.axis is None:
            if any(size.value is None for size in x.dims):
                return TensorType(None, x.dtype)
            return TensorType(tuple(size for size in x.dims if size != 1), x.dtype)
        gone = d.axes(self.axis, x.ndim)
        for a in gone:
            d.same_dim(x.dims[a], Dim.of(1), f"axis {a} must have size 1", arg="x")
        return TensorType(tuple(size for a, size in enumerate(x.dims) if a not in gone), x.dtype)

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        sizes = te.dims(x)
        axes = [self.axis] if isinstance(self.axis, int) else self.axis
        gone = (
            [a for a, s in enumerate(sizes) if s == 1]
            if axes is None
            else [a % len(sizes) for a in axes]
        )

        def element(*i: Any) -> Any:
            kept = iter(i)
            return x(*(te.dim(0) if a in gone else next(kept) for a in range(len(sizes))))

        return te.compute(out.dims, element, "squeeze")

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.squeeze(x, self.axis)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.reshape(ct, b.dims(args[0]))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(1, 3, 1, 2))
        yield sample(cls(1), rand(3, 1, 5), dims="n 1 m")
        yield sample(cls((0, -1)), rand(1, 3, 1), dims="1 n 1")
        yield sample(cls(0), rand(1, 0), dims="m n")
        yield wrong(cls(0), rand(3, 1), code="shape-mismatch", match="size 1: 3 and 1")
        yield wrong(cls(2), rand(3, 1), code="op-axis", match="2")


@define_op
class BroadcastTo(Op):
    """Broadcast to `shape`: repeat along axes of size 1."""

    name = "broadcast_to"
    mixed = "follow"

    def deduce(self, d: Deduction, x: KnownTensor, shape: KnownShape) -> TensorType:
        d.require(
            x.ndim <= shape.ndim,
            f"{x.ndim} dimensions cannot be broadcast to {shape.ndim}", arg="shape", code="op-rank",
        )  # fmt: skip
        for size, target in zip(x.dims, shape.dims[shape.ndim - x.ndim :], strict=True):
            if size == 1 or equal(size, target) is Verdict.YES:
                continue
            message = f"a dimension of {size} cannot be broadcast to {target}"
            if size.value is not None and equal(size, target) is Verdict.NO:
                d.fail(message, arg="shape", code="shape-mismatch")
            fits = dim_op("or", dim_op("eq", size, target), dim_op("eq", size, 1))
            d.requirements.append(Requirement(fits, f"{self.name}: {message}"))
        return TensorType(shape.dims, x.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        x, shape = args
        x = expect(TensorType, x)
        shape = expect(ShapeType, shape)
        return TensorType(shape.dims, x.dtype, shape.ndim)

    def legalize(self, out: KnownTensor, x: te.Tensor, shape: Any) -> te.Tensor:
        return te.compute(out.dims, lambda *i: te.broadcast(x, out.dims, i), "broadcast_to")

    def reference(self, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return np.ascontiguousarray(np.broadcast_to(x, shape)).reshape(shape)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.summed(ct, b.dims(args[0])), None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 1), (2, 3, 4), dims="n 1, 2 n m")
        yield sample(cls(), rand(), (3,), dims=", n")
        yield sample(cls(), rand(1), (0,), dims="1, n")
        yield sample(cls(), rand(3), (3,), dims="n, n")
        yield wrong(cls(), rand(3), (4,), code="shape-mismatch", match="3 cannot be broadcast to 4")
        yield wrong(cls(), rand(3, 1), (3,), code="op-rank", match="2 dimensions")
