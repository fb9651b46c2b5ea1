"""Reshaping: the elements in row-major order, under another shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from relaxpy.errors import DeduceError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, ShapeType, TensorType
from relaxpy.ir.dim import Dim, dim_op, maximum, product
from relaxpy.ir.expr import Call, ShapeExpr
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction, Requirement
from relaxpy.op.rule import INTEGERS, Cotangent, Rule
from relaxpy.shape.lattice import Verdict
from relaxpy.shape.prove import equal


def reindexed(out: KnownTensor, x: te.Tensor, name: str) -> te.Tensor:
    """The elements of x in row-major order, with the shape of `out`.

    Axes are matched in groups with the same number of elements. So reshaping (n, 4, 8) to (n, 32) divides by 8, and
    never by a symbol.
    """
    source = te.dims(x)
    groups = axis_groups(source, out.dims)

    def element(*index: Any) -> Any:
        if any(
            size == 0 for size in source
        ):  # there are no elements, and no remainder by a constant 0
            return te.const(0, str(out.dtype))
        read: list[Any] = []
        for ours, theirs in groups:
            read += _unravel(
                _ravel(index, theirs, out.dims), [source[a] for a in ours], index, theirs
            )
        return x(*read)

    return te.compute(out.dims, element, name)


def axis_groups(source: Sequence[Dim], target: Sequence[Dim]) -> list[tuple[list[int], list[int]]]:
    """Pairs of axes (of source, of target), in order, with the same number of elements; the last pair takes the
    remaining axes."""
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


def ravel(index: Sequence[Any], sizes: Sequence[Dim]) -> Any:
    """The number of an element in row-major order."""
    return _ravel(index, range(len(sizes)), sizes)


def _ravel(index: Sequence[Any], axes: Sequence[int], sizes: Sequence[Dim]) -> Any:
    position: Any = te.dim(0)
    for a in axes:
        position = index[a] if a == axes[0] else position * te.dim(sizes[a]) + index[a]
    return position


def _unravel(
    position: Any, sizes: Sequence[Dim], index: Sequence[Any], axes: Sequence[int]
) -> list[Any]:
    if len(sizes) == len(axes) == 1:
        return [index[axes[0]]]
    found: list[Any] = []
    for size in reversed(sizes[1:]):
        # If a dimension is 0 nothing is read, but LLVM may hoist the division above the check.
        divisor = te.dim(size if size.value is not None else maximum(size, 1))
        found.append(position % divisor)
        position = position // divisor
    return [position, *reversed(found)] if sizes else []


@define_op
class Reshape(Op):
    """Reshape, in row-major order, as `numpy.reshape`. One dimension may be -1, and is inferred from the others; 0 is a
    size of 0."""

    name = "reshape"
    mixed = "follow"

    def deduce(self, d: Deduction, x: KnownTensor, shape: KnownShape) -> TensorType:
        total, dims = product(x.dims), list(shape.dims)
        for size in dims:
            d.require(
                size.value is None or size.value >= -1,
                f"a dimension cannot be {size}", arg="shape", code="shape-mismatch",
            )  # fmt: skip
        holes = [i for i, size in enumerate(dims) if size == -1]
        d.require(
            len(holes) < 2, "only one dimension can be -1", arg="shape", code="shape-mismatch"
        )
        if holes:
            rest = product(tuple(size for size in dims if size != -1))
            if rest == 0:
                d.fail(
                    "the size of the dimension -1 is ambiguous beside a dimension of 0",
                    arg="shape",
                    code="shape-mismatch",
                )
            dims[holes[0]] = self._left(d, total, rest)
        if not holes and equal(total, product(tuple(dims))) is not Verdict.YES:
            self._same_size(d, total, product(tuple(dims)))
        return TensorType(tuple(dims), x.dtype)

    def _left(self, d: Deduction, total: Dim, rest: Dim) -> Dim:
        exact = total.divide_exact(rest)
        if exact is not None:
            return exact
        if rest.value is None:
            message = (
                f"{self.name}: the size of the dimension -1 is ambiguous beside a dimension of 0"
            )
            d.requirements.append(Requirement(dim_op("ne", rest, 0), message))
        size = total // (rest if rest.value is not None else maximum(rest, 1))
        self._same_size(d, total, size * rest)
        return size

    def normal(self, call: Call) -> Call:
        """The call with -1 replaced by the inferred size, if that is known. It follows from the symbols: at run
        time a size beside a dimension of 0 could not be inferred."""
        if (
            len(call.args) != 2
            or not isinstance(shape := call.args[1], ShapeExpr)
            or -1 not in shape.dims
        ):
            return call
        try:
            x = deduce(call.args[0])
        except DeduceError:
            return call
        rest = product(tuple(size for size in shape.dims if size != -1))
        if (
            not isinstance(x, TensorType)
            or x.dims is None
            or rest == 0
            or shape.dims.count(Dim.of(-1)) > 1
        ):
            return call
        left = product(x.dims).divide_exact(rest)
        if left is None:
            return call
        dims = [left if size == -1 else size for size in shape.dims]
        return replace(call, args=(call.args[0], ShapeExpr(dims, span=shape.span)))

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
        x = expect(TensorType, x)
        shape = expect(ShapeType, shape)
        known = shape.dims if shape.dims is not None and all(s != -1 for s in shape.dims) else None
        return TensorType(known, x.dtype, shape.ndim)

    def legalize(self, out: KnownTensor, x: te.Tensor, shape: Any) -> te.Tensor:
        return reindexed(out, x, "reshape")

    def reference(self, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return np.reshape(x, shape)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.reshape(ct, b.dims(args[0])), None]

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
    """Flatten all elements into one axis."""

    name = "flatten"
    mixed = "follow"

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        return TensorType((product(x.dims),), x.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (x,) = args
        return TensorType(None, x.dtype if isinstance(x, TensorType) else None, 1)

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        return reindexed(out, x, "flatten")

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.reshape(x, (-1,))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.reshape(ct, b.dims(args[0]))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 4), dims="n 4")
        yield sample(cls(), rand(2, 3, 4), dims="n 3 m")
        yield sample(cls(), rand(0, 4), dims="n 4")
        yield sample(cls(), rand())
        yield sample(cls(), rand(5), dims="n")


@define_op
class Size(Op):
    """The number of elements of x, a 0-d int64 tensor."""

    name = "size"
    no_vjp = INTEGERS
    mixed = "follow"

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        return TensorType((), "int64")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType((), "int64")

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        return te.compute((), lambda: te.dim(product(te.dims(x))), "size")

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.array(x.size, np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 4), dims="n m")
        yield sample(cls(), rand(2, 0, dtype="bool"), dims="2 n")
        yield sample(cls(), rand())
        yield wrong(cls(), (3, 4), code="op-arguments", match="must be a tensor")
