"""Concatenating, stacking and splitting tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import (
    Annotation,
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim, dim_op, product
from relaxpy.ir.expr import Call, Expr, PrimValue, ShapeExpr
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.row_major import reindexed
from relaxpy.op.rule import Cotangent, Rule


@define_op
class Concat(Op):
    """Concatenate tensors along `axis`."""

    name = "concat"
    mixed = "follow"
    axis: int | None = 0
    """None: each tensor is flattened first, in row-major order."""

    def deduce(self, d: Deduction, tensors: TupleType) -> TensorType:
        parts = [part for part in tensors.fields if isinstance(part, KnownTensor)]
        d.require(bool(parts), "there are no tensors to concatenate", arg="tensors")
        d.require(len(parts) == len(tensors.fields), "tensors must all be tensors", arg="tensors")
        dtype = d.same_dtype(*parts)
        first = parts[0]
        if self.axis is None:
            sizes = (product(part.dims) for part in parts)
            return TensorType((sum(sizes, Dim.of(0)),), dtype)
        axis = d.axis(self.axis, first.ndim)
        dims = list(first.dims)
        for part in parts[1:]:
            d.require(
                part.ndim == first.ndim,
                f"ranks differ: {first.ndim} and {part.ndim}",
                arg="tensors",
                code="op-rank",
            )
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
        ndim = max((part.ndim for part in parts), default=-1) if self.axis is not None else 1
        return TensorType(None, next((p.dtype for p in parts if p.dtype is not None), None), ndim)

    def in_groups(self) -> tuple[Op, Op]:
        return self, Concat(self.axis or 0)

    def legalize(self, out: KnownTensor, tensors: Sequence[te.Tensor]) -> te.Tensor:
        if self.axis is None:
            tensors = [_flat(part, out) for part in tensors]
        axis = (self.axis or 0) % out.ndim
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

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (tensors,) = args
        if self.axis is None:
            flat = [product(b.dims(x)) for x in tensors]
            return [
                [
                    b.reshape(part, b.dims(x))
                    for part, x in zip(pieces(b, ct, 0, flat), tensors, strict=True)
                ]
            ]
        axis = self.axis % b.rank(ct)
        return [pieces(b, ct, axis, [b.dims(x)[axis] for x in tensors])]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), (rand(3, 5), rand(2, 5)), dims="n 5, m 5")
        yield sample(cls(-1), (rand(3, 2), rand(3, 0), rand(3, 4)), dims="n 2, n m, n 4")
        yield sample(cls(), (rand(3),), dims="n")
        yield sample(cls(None), (rand(3, 2), rand(), rand(1, 0, 4), rand(3)), dims="n 2,, 1 m 4, k")
        yield sample(cls(1), (rand(1, 2, 3), rand(1, 2, 3)), dims="n m 3, n m 3")
        yield wrong(cls(), (rand(3, 5), rand(2, 4)), code="shape-mismatch", match="5 and 4")
        yield wrong(cls(), (rand(3), rand(3, 1)), code="op-rank", match="1 and 2")
        yield wrong(cls(), (rand(3), rand(3, dtype="int32")), code="op-dtype", match="int32")
        yield wrong(cls(2), (rand(3, 5), rand(3, 5)), code="op-axis", match="2")


def _flat(x: te.Tensor, out: KnownTensor) -> te.Tensor:
    """The elements of x as a vector."""
    return reindexed(KnownTensor((product(te.dims(x)),), out.dtype), x, "flat")


@define_op
class Stack(Op):
    """Join tensors of one shape along a new axis, which is axis `axis` of the result."""

    name = "stack"
    mixed = "follow"
    axis: int = 0

    def deduce(self, d: Deduction, tensors: TupleType) -> TensorType:
        parts = [part for part in tensors.fields if isinstance(part, KnownTensor)]
        d.require(bool(parts), "there are no tensors to stack", arg="tensors")
        d.require(len(parts) == len(tensors.fields), "tensors must all be tensors", arg="tensors")
        dtype, first = d.same_dtype(*parts), parts[0]
        dims = list(first.dims)
        for part in parts[1:]:
            d.require(
                part.ndim == first.ndim, f"ranks differ: {first.ndim} and {part.ndim}",
                arg="tensors", code="op-rank",
            )  # fmt: skip
            for a, size in enumerate(part.dims):
                dims[a] = d.same_dim(dims[a], size, f"sizes of axis {a} differ", arg="tensors")
        axis = d.axis(self.axis, first.ndim + 1)
        return TensorType((*dims[:axis], len(parts), *dims[axis:]), dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (tensors,) = args
        fields = tensors.fields if isinstance(tensors, TupleType) else ()
        parts = [part for part in fields if isinstance(part, TensorType)]
        ndim = max((part.ndim for part in parts), default=-1)
        dtype = next((p.dtype for p in parts if p.dtype is not None), None)
        return TensorType(None, dtype, ndim if ndim < 0 else ndim + 1)

    def in_groups(self) -> tuple[Op, Op]:
        return self, Concat(self.axis)

    def legalize(self, out: KnownTensor, tensors: Sequence[te.Tensor]) -> te.Tensor:
        axis = self.axis % out.ndim

        def element(*i: Any) -> Any:
            *first, value = (te.element(part(*i[:axis], *i[axis + 1 :])) for part in tensors)
            for number, read in reversed(list(enumerate(first))):
                value = te.if_then_else(te.equal(i[axis], te.dim(number)), read, value)
            return value

        return te.compute(out.dims, element, "stack")

    def reference(self, tensors: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(tensors, self.axis)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (tensors,) = args
        axis = self.axis % b.rank(ct)
        parts = pieces(b, ct, axis, [Dim.of(1)] * len(tensors))
        return [[b.reshape(part, b.dims(x)) for part, x in zip(parts, tensors, strict=True)]]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), (rand(3, 5), rand(3, 5)), dims="n 5, n 5")
        yield sample(cls(-1), (rand(3, 2), rand(3, 2), rand(3, 2)), dims="n m, n m, n m")
        yield sample(cls(1), (rand(3, dtype="int32"),), dims="n")
        yield sample(cls(), (rand(), rand()))
        yield sample(cls(1), (rand(0, 2), rand(0, 2)), dims="n 2, n 2")
        yield wrong(cls(), (rand(3, 5), rand(3, 4)), code="shape-mismatch", match="5 and 4")
        yield wrong(cls(), (rand(3), rand(3, 1)), code="op-rank", match="1 and 2")
        yield wrong(cls(), (rand(3), rand(3, dtype="int32")), code="op-dtype", match="int32")
        yield wrong(cls(2), (rand(3), rand(3)), code="op-axis", match="2")


@define_op
class Meshgrid(Op):
    """Coordinate grids, as `numpy.meshgrid`: a tuple in which grid k has the values of vector k along axis k and is
    constant along the others. With indexing "xy" the first two axes are swapped. A 0-d tensor is a vector of one
    element."""

    name = "meshgrid"
    mixed = "follow"
    indexing: str = "ij"

    def axis_of(self, k: int, count: int) -> int:
        """The axis along which grid number `k` of `count` varies."""
        return 1 - k if self.indexing == "xy" and k < 2 <= count else k

    def deduce(self, d: Deduction, tensors: TupleType) -> TupleType:
        parts = [part for part in tensors.fields if isinstance(part, KnownTensor)]
        d.require(
            self.indexing in ("ij", "xy"),
            f'indexing {self.indexing!r} is neither "ij" nor "xy"', arg="indexing",
        )  # fmt: skip
        d.require(len(parts) == len(tensors.fields), "tensors must all be tensors", arg="tensors")
        d.require(bool(parts), "there are no tensors for a grid", arg="tensors")
        dims = [Dim.of(1)] * len(parts)
        for k, part in enumerate(parts):
            d.require(
                part.ndim < 2, f"tensor {k} must have at most 1 dimension, got {part.ndim}",
                arg="tensors", code="op-rank",
            )  # fmt: skip
            dims[self.axis_of(k, len(parts))] = (part.dims or (Dim.of(1),))[0]
        return TupleType(TensorType(tuple(dims), part.dtype) for part in parts)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (tensors,) = args
        if not isinstance(tensors, TupleType):
            return TupleType()
        parts = [part for part in tensors.fields if isinstance(part, TensorType)]
        return TupleType(TensorType(None, part.dtype, len(parts)) for part in parts)

    def legalize(self, out: TupleType, tensors: Sequence[te.Tensor]) -> list[te.Tensor]:
        def grid(k: int, part: te.Tensor, kind: Annotation) -> te.Tensor:
            kind = expect(KnownTensor, kind)
            axis = self.axis_of(k, len(tensors))
            return te.compute(
                kind.dims, lambda *i: part(i[axis]) if part.shape else part(), "meshgrid"
            )

        pairs = zip(tensors, out.fields, strict=True)
        return [grid(k, part, kind) for k, (part, kind) in enumerate(pairs)]

    def reference(self, tensors: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        grids = np.meshgrid(*tensors, indexing="xy" if self.indexing == "xy" else "ij")
        return tuple(map(np.ascontiguousarray, grids))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (tensors,) = args
        found: list[Cotangent] = []
        for k, x in enumerate(tensors):
            shape = [Dim.of(1)] * len(tensors)
            shape[self.axis_of(k, len(tensors))] = product(b.dims(x))
            part = ct[k]
            found.append(None if part is None else b.reshape(b.summed(part, shape), b.dims(x)))
        return [found]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), (rand(3), rand(2)), dims="n, m")
        yield sample(cls("xy"), (rand(3), rand(2), rand(4)), dims="n, m, 4")
        yield sample(cls(), (rand(3, dtype="int32"), rand(dtype="int32")), dims="n,")
        yield sample(cls("xy"), (rand(3),), dims="n")
        yield sample(cls(), (rand(0), rand(2)), dims="n, 2")
        yield wrong(cls(), (rand(3), rand(2, 2)), code="op-rank", match="tensor 1")
        yield wrong(cls("yx"), (rand(3),), code="op-arguments", match="yx")


MOST_PARTS = 4096
"""Limit on the parts of a split: each is a value of the program."""


def _require_few(d: Deduction, count: int) -> None:
    d.require(
        count <= MOST_PARTS,
        f"the number of parts must be at most {MOST_PARTS}, got {count}",
        arg="indices_or_sections",
    )


@define_op
class Split(Op):
    """Split x along `axis` into a tuple of parts: a number of parts of equal size, the last of which may be smaller; or
    the parts between given indices, which may be symbolic. One part is returned as a tensor, not a tuple, as in TVM. A
    size that cannot be split in this way is refused, or is an error at run time."""

    name = "split"
    mixed = "follow"
    axis: int = 0

    def deduce(self, d: Deduction, x: KnownTensor, indices_or_sections: Annotation) -> Annotation:
        axis = d.axis(self.axis, x.ndim)
        size = x.dims[axis]
        match indices_or_sections:
            case PrimType(value=Dim(value=int(count))):
                d.require(count > 0, f"cannot split into {count} parts", arg="indices_or_sections")
                _require_few(d, count)
                step = _step(size, count)
                d.ensure(
                    dim_op("le", step * (count - 1), size),
                    f"{size} cannot be split into {count} parts: {count - 1} of {step} are more",
                    arg="x",
                )
            case ShapeType(dims=dims) if dims is not None:
                _require_few(d, len(dims))
                self._check_places(d, dims, size)
            case ShapeType() | ObjectType():
                return ObjectType()
            case TupleType(fields=()):
                pass
            case other:
                d.fail(
                    f"indices_or_sections must be a constant or a list of indices, got {other}",
                    arg="indices_or_sections",
                )
        cuts = _cuts(indices_or_sections, size)
        before, after = x.dims[:axis], x.dims[axis + 1 :]
        return _several(
            [TensorType((*before, end - begin, *after), x.dtype) for begin, end in cuts], TupleType
        )

    def _check_places(self, d: Deduction, given: Sequence[Dim], size: Dim) -> None:
        message = f"the indices {list(given)} must be non-negative and increasing"
        for first, second in pairwise((Dim.of(0), *given)):
            increase = dim_op("le", first, second)
            d.ensure(increase, message, arg="indices_or_sections", code="op-arguments")
        for last in given[-1:]:
            message = f"the index {last} is out of range for size {size}"
            d.ensure(dim_op("le", last, size), message, arg="indices_or_sections")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        x, given = args
        dtype = x.dtype if isinstance(x, TensorType) else None
        ndim = x.ndim if isinstance(x, TensorType) else -1
        match given:
            case PrimType(value=Dim(value=int(count))) if count > 0:
                pass
            case ShapeType(ndim=cuts) if cuts >= 0:
                count = cuts + 1
            case TupleType(fields=()):
                count = 1
            case _:
                return ObjectType()
        _require_few(d, count)
        return _several([TensorType(None, dtype, ndim)] * count, TupleType)

    def print_args(self, call: Call, arg: Callable[[Expr], str]) -> list[str]:
        """Print the argument as TVM does: a number, or a list."""
        shown = super().print_args(call, arg)
        text = shown[1]
        if isinstance(call.args[1], (PrimValue, ShapeExpr)):
            text = text[text.index("(") + 1 : -1]
        return [shown[0], f"indices_or_sections={text}", *shown[2:]]

    def legalize(self, out: Annotation, x: te.Tensor, indices_or_sections: Any) -> list[te.Tensor]:
        axis = self.axis % len(x.shape)
        given = indices_or_sections
        kind = ShapeType(given) if isinstance(given, tuple) else PrimType("int64", given)
        cuts = _cuts(kind, te.dims(x)[axis])

        def part(kind: Annotation, begin: Dim) -> te.Tensor:
            kind = expect(KnownTensor, kind)
            return te.compute(
                kind.dims,
                lambda *i: x(*i[:axis], i[axis] + te.dim(begin), *i[axis + 1 :]),
                "split",
            )

        kinds = out.fields if isinstance(out, TupleType) else (out,)
        return [part(kind, begin) for kind, (begin, _) in zip(kinds, cuts, strict=True)]

    def reference(self, x: np.ndarray, indices_or_sections: int | tuple[int, ...]) -> Any:
        cuts: Sequence[int]
        if isinstance(indices_or_sections, int):
            step = -(-x.shape[self.axis] // indices_or_sections)
            cuts = [step * i for i in range(1, indices_or_sections)]
        else:
            cuts = indices_or_sections
        return _several(list(map(np.ascontiguousarray, np.split(x, cuts, self.axis))), tuple)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        parts = out if isinstance(out, list) else [out]
        given = ct if isinstance(ct, list) else [ct]
        known = [
            b.zeros_like(x) if each is None else each for x, each in zip(parts, given, strict=True)
        ]
        return [b.concat(known, self.axis) if len(known) > 1 else known[0]]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(axis=1), rand(2, 6), 3, dims="n 6, 3")
        yield sample(cls(), rand(4, 3), 2, dims="n*2 3, 2")
        yield sample(cls(), rand(5, 3), 2, dims="n 3, 2")
        yield sample(cls(axis=1), rand(2, 7), 3, dims="n 7, 3")
        yield sample(cls(), rand(4, 3), 1, dims="n 3, 1")
        yield sample(cls(axis=-1), rand(3, 8), (2, 5), dims="n 8, 2 5")
        yield sample(cls(), rand(8), (2, 5), dims="8, n m")
        yield sample(cls(), rand(4), (1,), dims="n, m")
        yield sample(cls(), rand(4), (), dims="n,")
        yield wrong(cls(), rand(5), 4, code="shape-mismatch", match="5 cannot be split into 4")
        yield wrong(cls(), rand(6), (3, 1), code="op-arguments", match="increasing")
        yield wrong(
            cls(), rand(6), (3, 7), code="shape-mismatch", match="7 is out of range for size 6"
        )
        yield wrong(cls(axis=3), rand(6), 2, code="op-axis", match="3")
        yield wrong(cls(), rand(6), 0, code="op-arguments", match="0 parts")
        yield wrong(cls(), rand(6), rand(2), code="op-arguments", match="list of indices")


def _several(parts: list[Any], several: Any) -> Any:
    """A single part as it is, several as `several`."""
    return parts[0] if len(parts) == 1 else several(parts)


def _step(size: Dim, count: int) -> Dim:
    """The size of each part of an axis, except the last."""
    exact = size.divide_exact(count)
    return (size + (count - 1)) // count if exact is None else exact


def _cuts(given: Annotation, size: Dim) -> list[tuple[Dim, Dim]]:
    """(begin, end) of each part of an axis of `size`."""
    if isinstance(given, PrimType):
        count = given.value.value if given.value is not None else None
        assert count is not None
        step = _step(size, count)
        return list(pairwise([*(step * i for i in range(count)), size]))
    places = given.dims if isinstance(given, ShapeType) else None
    return list(pairwise([Dim.of(0), *(places or ()), size]))


def pieces(b: Rule, x: Expr, axis: int, sizes: Sequence[Dim]) -> list[Expr]:
    """X cut along an axis into parts of these sizes."""
    if len(sizes) == 1:
        return [x]
    ends = list(itertools.accumulate(sizes, initial=Dim.of(0)))
    return [
        b.strided_slice(x, (axis,), (begin,), (end,)) for begin, end in itertools.pairwise(ends)
    ]
