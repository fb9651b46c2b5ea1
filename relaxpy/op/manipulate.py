"""The same elements in another arrangement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim, dim_op, maximum, product
from relaxpy.op import te
from relaxpy.op.base import Deduction, Op, Requirement, Sample, define_op, rand, sample, wrong
from relaxpy.shape.lattice import Verdict
from relaxpy.shape.prove import equal


def reindexed(out: TensorType, x: te.Tensor, name: str) -> te.Tensor:
    """The elements of x in row-major order, under the shape of `out`.

    Axes are matched in groups of the same number of elements, so that (n, 4, 8) as (n, 32) divides by 8 and never by a symbol.
    """
    assert out.dims is not None
    source = te.dims(x)
    groups = axis_groups(source, out.dims)

    def element(*index: Any) -> Any:
        if any(size == 0 for size in source):  # there are no elements, and no remainder by a constant 0
            return te.const(0, str(out.dtype))
        read: list[Any] = []
        for ours, theirs in groups:
            read += _unravel(_ravel(index, theirs, out.dims or ()), [source[a] for a in ours], index, theirs)
        return x(*read)

    return te.compute(out.dims, element, name)


def axis_groups(source: Sequence[Dim], target: Sequence[Dim]) -> list[tuple[list[int], list[int]]]:
    """Pairs of axes (of source, of target), in order, that hold the same number of elements; the last takes what is left."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    if any(size == 0 for size in (*source, *target)):
        return [(list(range(len(source))), list(range(len(target))))]
    while i < len(source) and j < len(target):
        ours, theirs = [i], [j]
        left, right = source[i], target[j]
        while left != right:
            more_source = right.divide_exact(left) is not None and ours[-1] + 1 < len(source)
            more_target = left.divide_exact(right) is not None and theirs[-1] + 1 < len(target)
            if more_source:
                ours.append(ours[-1] + 1)
                left = left * source[ours[-1]]
            elif more_target:
                theirs.append(theirs[-1] + 1)
                right = right * target[theirs[-1]]
            else:
                break
        if left != right:
            break
        groups.append((ours, theirs))
        i, j = ours[-1] + 1, theirs[-1] + 1
    if i < len(source) or j < len(target):
        groups.append((list(range(i, len(source))), list(range(j, len(target)))))
    return groups


def _ravel(index: Sequence[Any], axes: Sequence[int], sizes: Sequence[Dim]) -> Any:
    position: Any = te.dim(0)
    for a in axes:
        position = index[a] if a == axes[0] else position * te.dim(sizes[a]) + index[a]
    return position


def _unravel(position: Any, sizes: Sequence[Dim], index: Sequence[Any], axes: Sequence[int]) -> list[Any]:
    if len(sizes) == len(axes) == 1:
        return [index[axes[0]]]
    found: list[Any] = []
    for size in reversed(sizes[1:]):
        found.append(position % te.dim(size))
        position = position // te.dim(size)
    return [position, *reversed(found)] if sizes else []


@define_op
class Reshape(Op):
    """The elements in row-major order under another shape. One dimension may be -1: it is what the others leave."""

    name = "reshape"

    def deduce(self, d: Deduction, x: TensorType, shape: ShapeType) -> TensorType:
        assert x.dims is not None
        assert shape.dims is not None
        total, dims = product(x.dims), list(shape.dims)
        for size in dims:
            d.require(
                size.value is None or size.value >= -1,
                f"a dimension cannot be {size}", arg="shape", code="shape-mismatch",
            )  # fmt: skip
        holes = [i for i, size in enumerate(dims) if size == -1]
        d.require(len(holes) < 2, "only one dimension can be -1", arg="shape", code="shape-mismatch")
        if holes:
            rest = product(tuple(size for size in dims if size != -1))
            if rest == 0:
                d.fail("what -1 stands for is not known beside a dimension of 0", arg="shape", code="shape-mismatch")
            dims[holes[0]] = self._left(d, total, rest)
        if not holes and equal(total, product(tuple(dims))) is not Verdict.YES:
            self._same_size(d, total, product(tuple(dims)))
        return TensorType(tuple(dims), x.dtype)

    def _left(self, d: Deduction, total: Dim, rest: Dim) -> Dim:
        exact = total.divide_exact(rest)
        if exact is not None:
            return exact
        divisor = rest if rest.value is not None else maximum(rest, 1)
        size = total // divisor
        self._same_size(d, total, size * rest)
        return size

    def _same_size(self, d: Deduction, total: Dim, wanted: Dim) -> None:
        verdict = equal(total, wanted)
        message = f"cannot hold {total} elements"
        if verdict is Verdict.NO:
            d.fail(f"a shape of {wanted} elements {message}", arg="shape", code="shape-mismatch")
        if verdict is Verdict.MAYBE:
            text = f"{self.name}: a shape of {wanted} elements {message}"
            d.requirements.append(Requirement(dim_op("eq", total, wanted), text))

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        x, shape = args
        assert isinstance(x, TensorType)
        assert isinstance(shape, ShapeType)
        known = shape.dims if shape.dims is not None and all(s != -1 for s in shape.dims) else None
        return TensorType(known, x.dtype, shape.ndim)

    def legalize(self, out: TensorType, x: te.Tensor, shape: Any) -> te.Tensor:
        return reindexed(out, x, "reshape")

    def reference(self, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return np.reshape(x, shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 2, 2), (3, 4), dims="n 2 2, n 4")
        yield sample(cls(), rand(3, 4), (12,), dims="n 4, n*4")
        yield sample(cls(), rand(12), (3, 4), dims="n*4, n 4")
        yield sample(cls(), rand(2, 3, 8), (2, 3, 2, 4), dims="n m 8, n m 2 4")
        yield sample(cls(), rand(2, 6, 5), (3, 2, 2, 5), dims="n 6 m, 3 n 2 m")
        yield sample(cls(), rand(2, 3, 4), (-1, 4), dims="n m 4, -1 4")
        yield sample(cls(), rand(6, 4), (2, -1), dims="6 n, 2 -1")
        yield sample(cls(), rand(0, 4), (0, 2, 2), dims="n 4, n 2 2")
        yield sample(cls(), rand(3, 0), (0, 5), dims="3 0, 0 5")
        yield sample(cls(), rand(1, 1), (), dims="1 1,")
        yield sample(cls(), rand(), (1, 1), dims=", 1 1")
        yield wrong(cls(), rand(3, 4), (5, 2), code="shape-mismatch", match="12 elements")
        yield wrong(cls(), rand(3, 4), (5, -1), code="shape-mismatch", match="12 elements")
        yield wrong(cls(), rand(3, 4), (-1, -1), code="shape-mismatch", match="only one")
        yield wrong(cls(), rand(3, 4), (-3, 4), code="shape-mismatch", match="-3")


@define_op
class Flatten(Op):
    """All elements as one axis."""

    name = "flatten"

    def deduce(self, d: Deduction, x: TensorType) -> TensorType:
        assert x.dims is not None
        return TensorType((product(x.dims),), x.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (x,) = args
        return TensorType(None, x.dtype if isinstance(x, TensorType) else None, 1)

    def legalize(self, out: TensorType, x: te.Tensor) -> te.Tensor:
        return reindexed(out, x, "flatten")

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.reshape(x, (-1,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 4), dims="n 4")
        yield sample(cls(), rand(2, 3, 4), dims="n 3 m")
        yield sample(cls(), rand(0, 4), dims="n 4")
        yield sample(cls(), rand())
        yield sample(cls(), rand(5), dims="n")


@define_op
class PermuteDims(Op):
    """The axes in another order; reversed without `axes`."""

    name = "permute_dims"
    axes: tuple[int, ...] | None = None

    def order(self, ndim: int) -> tuple[int, ...]:
        """Where each axis of the result comes from."""
        return tuple(reversed(range(ndim))) if self.axes is None else tuple(a % ndim for a in self.axes)

    def deduce(self, d: Deduction, x: TensorType) -> TensorType:
        assert x.dims is not None
        if self.axes is not None:
            d.require(
                len(self.axes) == x.ndim,
                f"axes names {len(self.axes)} axes of {x.ndim}", arg="axes", code="op-axis",
            )  # fmt: skip
            d.axes(self.axes, x.ndim, "axes")
        dims = x.dims
        return TensorType(tuple(dims[a] for a in self.order(x.ndim)), x.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (x,) = args
        ndim = -1 if self.axes is None else len(self.axes)
        return TensorType(None, x.dtype if isinstance(x, TensorType) else None, ndim)

    def legalize(self, out: TensorType, x: te.Tensor) -> te.Tensor:
        order = self.order(len(x.shape))
        place = [order.index(a) for a in range(len(order))]
        return te.compute(out.dims, lambda *i: x(*(i[p] for p in place)), "permute_dims")

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.transpose(x, self.axes))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), dims="n m")
        yield sample(cls((0, 2, 1, 3)), rand(2, 3, 4, 5), dims="b s 4 5")
        yield sample(cls((0, -1, 1)), rand(2, 0, 4), dims="n m 4")
        yield sample(cls(), rand(4), dims="n")
        yield wrong(cls((0, 1)), rand(2, 3, 4), code="op-axis", match="2 axes of 3")
        yield wrong(cls((0, 0)), rand(2, 3), code="op-axis", match="twice")
        yield wrong(cls((0, 2)), rand(2, 3), code="op-axis", match="2")


@define_op
class ExpandDims(Op):
    """New axes of size 1, at the places that they have in the result."""

    name = "expand_dims"
    axis: tuple[int, ...] | int

    def places(self, ndim: int) -> list[int]:
        """The new axes from the front of a result of `ndim` axes."""
        axes = (self.axis,) if isinstance(self.axis, int) else self.axis
        return sorted(a % ndim for a in axes)

    def deduce(self, d: Deduction, x: TensorType) -> TensorType:
        assert x.dims is not None
        added = 1 if isinstance(self.axis, int) else len(self.axis)
        new = d.axes(self.axis, x.ndim + added)
        old = iter(x.dims)
        return TensorType(tuple(1 if a in new else next(old) for a in range(x.ndim + added)), x.dtype)

    def legalize(self, out: TensorType, x: te.Tensor) -> te.Tensor:
        new = self.places(out.ndim)
        return te.compute(out.dims, lambda *i: x(*(v for a, v in enumerate(i) if a not in new)), "expand_dims")

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.expand_dims(x, self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0), rand(3, 5), dims="n m")
        yield sample(cls((1, -1)), rand(3, 5), dims="n m")
        yield sample(cls(-1), rand())
        yield sample(cls((1,)), rand(0), dims="n")
        yield wrong(cls(4), rand(3, 5), code="op-axis", match="4")
        yield wrong(cls((1, 1)), rand(3, 5), code="op-axis", match="twice")


@define_op
class Squeeze(Op):
    """Without some axes of size 1; without `axis`, all that are (the rank of the result is
    unknown where a dimension is)."""

    name = "squeeze"
    axis: tuple[int, ...] | int | None = None

    def deduce(self, d: Deduction, x: TensorType) -> TensorType:
        assert x.dims is not None
        if self.axis is None:
            if any(size.value is None for size in x.dims):
                return TensorType(None, x.dtype)
            return TensorType(tuple(size for size in x.dims if size != 1), x.dtype)
        gone = d.axes(self.axis, x.ndim)
        for a in gone:
            d.same_dim(x.dims[a], Dim.of(1), f"axis {a} must have size 1", arg="x")
        return TensorType(tuple(size for a, size in enumerate(x.dims) if a not in gone), x.dtype)

    def legalize(self, out: TensorType, x: te.Tensor) -> te.Tensor:
        sizes = te.dims(x)
        axes = [self.axis] if isinstance(self.axis, int) else self.axis
        gone = [a for a, s in enumerate(sizes) if s == 1] if axes is None else [a % len(sizes) for a in axes]

        def element(*i: Any) -> Any:
            kept = iter(i)
            return x(*(te.dim(0) if a in gone else next(kept) for a in range(len(sizes))))

        return te.compute(out.dims, element, "squeeze")

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.squeeze(x, self.axis)

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
    """Repeated along axes of size 1 until it has `shape`."""

    name = "broadcast_to"

    def deduce(self, d: Deduction, x: TensorType, shape: ShapeType) -> TensorType:
        assert x.dims is not None
        assert shape.dims is not None
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
        assert isinstance(x, TensorType)
        assert isinstance(shape, ShapeType)
        return TensorType(shape.dims, x.dtype, shape.ndim)

    def legalize(self, out: TensorType, x: te.Tensor, shape: Any) -> te.Tensor:
        return te.compute(out.dims, lambda *i: te.broadcast(x, out.dims or (), i), "broadcast_to")

    def reference(self, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return np.ascontiguousarray(np.broadcast_to(x, shape)).reshape(shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 1), (2, 3, 4), dims="n 1, 2 n m")
        yield sample(cls(), rand(), (3,), dims=", n")
        yield sample(cls(), rand(1), (0,), dims="1, n")
        yield sample(cls(), rand(3), (3,), dims="n, n")
        yield wrong(cls(), rand(3), (4,), code="shape-mismatch", match="3 cannot be broadcast to 4")
        yield wrong(cls(), rand(3, 1), (3,), code="op-rank", match="2 dimensions")


@define_op
class Concat(Op):
    """The tensors one after the other along `axis`."""

    name = "concat"
    axis: int = 0

    def deduce(self, d: Deduction, tensors: TupleType) -> TensorType:
        parts = [part for part in tensors.fields if isinstance(part, TensorType)]
        d.require(bool(parts), "there is nothing to concatenate", arg="tensors")
        d.require(len(parts) == len(tensors.fields), "tensors must all be tensors", arg="tensors")
        dtype = d.same_dtype(*parts)
        first = parts[0]
        axis = d.axis(self.axis, first.ndim)
        assert first.dims is not None
        dims = list(first.dims)
        for part in parts[1:]:
            d.require(part.ndim == first.ndim, f"ranks differ: {first.ndim} and {part.ndim}", arg="tensors", code="op-rank")
            assert part.dims is not None
            for a, size in enumerate(part.dims):
                if a == axis:
                    dims[a] = dims[a] + size
                else:
                    dims[a] = d.same_dim(dims[a], size, f"sizes of axis {a} differ", arg="tensors")
        return TensorType(tuple(dims), dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (tensors,) = args
        fields = tensors.fields if isinstance(tensors, TupleType) else ()
        parts = [part for part in fields if isinstance(part, TensorType)]
        ndim = max((part.ndim for part in parts), default=-1)
        return TensorType(None, next((p.dtype for p in parts if p.dtype is not None), None), ndim)

    def legalize(self, out: TensorType, tensors: Sequence[te.Tensor]) -> te.Tensor:
        axis = self.axis % out.ndim
        sizes = [te.dims(part)[axis] for part in tensors]

        def element(*i: Any) -> Any:
            start = Dim.of(0)
            starts = []
            for size in sizes:
                starts.append(start)
                start = start + size
            reads = [
                part(*i[:axis], i[axis] - te.dim(begin), *i[axis + 1 :])
                for part, begin in zip(tensors, starts, strict=True)
            ]
            value = te.element(reads[-1])
            for begin, read in zip(reversed(starts[1:]), reversed(reads[:-1]), strict=True):
                value = te.if_then_else(i[axis] < te.dim(begin), te.element(read), value)
            return value

        return te.compute(out.dims, element, "concat")

    def reference(self, tensors: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(tensors, self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), (rand(3, 5), rand(2, 5)), dims="n 5, m 5")
        yield sample(cls(-1), (rand(3, 2), rand(3, 0), rand(3, 4)), dims="n 2, n m, n 4")
        yield sample(cls(), (rand(3),), dims="n")
        yield sample(cls(1), (rand(1, 2, 3), rand(1, 2, 3)), dims="n m 3, n m 3")
        yield wrong(cls(), (rand(3, 5), rand(2, 4)), code="shape-mismatch", match="5 and 4")
        yield wrong(cls(), (rand(3), rand(3, 1)), code="op-rank", match="1 and 2")
        yield wrong(cls(), (rand(3), rand(3, dtype="int32")), code="op-dtype", match="int32")
        yield wrong(cls(2), (rand(3, 5), rand(3, 5)), code="op-axis", match="2")


@define_op
class Split(Op):
    """A tuple of the parts of x along `axis`: as many of equal size as a number says, or cut at the given places."""

    name = "split"
    indices_or_sections: tuple[int, ...] | int
    axis: int = 0

    def cuts(self, size: Dim) -> list[tuple[Dim, Dim]]:
        """(begin, end) of each part of an axis of `size`."""
        given = self.indices_or_sections
        if isinstance(given, int):
            exact = size.divide_exact(given)
            step = size // given if exact is None else exact
            return [(step * i, step * (i + 1)) for i in range(given)]
        edges = [Dim.of(0), *map(Dim.of, given), size]
        if size.value is not None:
            edges = [Dim.of(min(edge.value or 0, size.value)) for edge in edges]
        return list(zip(edges, edges[1:], strict=False))

    def deduce(self, d: Deduction, x: TensorType) -> TupleType:
        assert x.dims is not None
        axis, given = d.axis(self.axis, x.ndim), self.indices_or_sections
        dims, size = x.dims, x.dims[axis]
        if isinstance(given, int):
            d.require(given > 0, f"cannot split into {given} parts", arg="indices_or_sections")
            d.same_dim(size % given, Dim.of(0), f"{size} cannot be split into {given} equal parts: remainder", arg="x")
        else:
            d.require(
                list(given) == sorted(set(given)) and all(g >= 0 for g in given),
                f"the places {list(given)} must increase", arg="indices_or_sections",
            )  # fmt: skip
            if given and size.value is None:
                d.requirements.append(
                    Requirement(dim_op("le", given[-1], size), f"split: a size of {size} has no place {given[-1]}")
                )
        return TupleType(
            TensorType((*dims[:axis], end - begin, *dims[axis + 1 :]), x.dtype)
            for begin, end in self.cuts(size)
        )

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (x,) = args
        given = self.indices_or_sections
        count = given if isinstance(given, int) else len(given) + 1
        return TupleType([TensorType(None, x.dtype if isinstance(x, TensorType) else None)] * count)

    def legalize(self, out: TupleType, x: te.Tensor) -> list[te.Tensor]:
        axis = self.axis % len(x.shape)
        cuts = self.cuts(te.dims(x)[axis])

        def part(kind: TensorType, begin: Dim) -> te.Tensor:
            return te.compute(kind.dims, lambda *i: x(*i[:axis], i[axis] + te.dim(begin), *i[axis + 1 :]), "split")

        return [part(kind, begin) for kind, (begin, _) in zip(out.fields, cuts, strict=True)]  # type: ignore[arg-type]

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        given = self.indices_or_sections
        return tuple(np.split(x, given if isinstance(given, int) else list(given), self.axis))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(3, axis=1), rand(2, 6), dims="n 6")
        yield sample(cls(2), rand(4, 3), dims="n*2 3")
        yield sample(cls((2, 5), axis=-1), rand(3, 8), dims="n 8")
        yield sample(cls((1,)), rand(4), dims="n")
        yield wrong(cls(4), rand(6), code="shape-mismatch", match="6 cannot be split into 4")
        yield wrong(cls((3, 1)), rand(6), code="op-arguments", match="increase")
        yield wrong(cls(2, axis=3), rand(6), code="op-axis", match="3")
