"""Layout transformation: moving elements to indices given by a formula."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Atom, Dim, DimOp, SymVar, dim_op, maximum
from relaxpy.ir.index_map import IndexMap, axis
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.pad import check_value, literal_value
from relaxpy.op.rule import LATER
from relaxpy.shape.prove import prove


@define_op
class LayoutTransform(Op):
    """Move each element of x to the index that `index_map` gives for its own, as in `T.index_map(lambda i, j: (j, i //
    4, i % 4))`. The result has the smallest shape that contains all indices (`i % 4` always needs 4). Elements of the
    result that none of x moves to are `pad_value`, or 0; if several move to one index, the last in row-major order
    wins. `axis_separators` are accepted and ignored: memory is flat."""

    name = "layout_transform"
    no_vjp = LATER
    mixed = "follow"
    index_map: IndexMap
    pad_value: float | None = None
    axis_separators: tuple[int, ...] | None = None
    input_axis_separators: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "index_map", IndexMap.of(self.index_map))

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        d.require(
            self.index_map.ndim == x.ndim,
            f"index_map takes {self.index_map.ndim} indices, but x has {x.ndim} dimensions",
            arg="index_map",
        )
        check_value(d, self.pad_value or 0.0, x)
        return TensorType(
            tuple(self._size(d, result, x.dims) for result in self.index_map.results), x.dtype
        )

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (x,) = args
        dtype = x.dtype if isinstance(x, TensorType) else None
        return TensorType(None, dtype, len(self.index_map.results))

    def _size(self, d: Deduction, result: Dim, sizes: Sequence[Dim]) -> Dim:
        """The size of a result axis that contains all values of its formula, which must not be negative."""
        span = reach(result, {axis(a): (Dim.of(0), size - 1) for a, size in enumerate(sizes)})
        if span is None:
            d.fail(
                f"the range of {result} is unknown: an index map consists of +, *, // and % by constants",
                arg="index_map",
            )
        d.ensure(
            dim_op("le", 0, span[0]), f"{result} may be negative", arg="index_map",
            code="op-arguments",
        )  # fmt: skip
        size = span[1] + 1
        return size if prove(dim_op("le", 0, size)) else maximum(size, 0)

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        fill_value = te.const(literal_value(self.pad_value or 0.0), str(out.dtype))

        def fill(p: Any, result: Any, source: Any) -> None:
            with p.loops(result.shape) as at:
                p.write(result, *at, value=fill_value)
            with p.loops(source.shape, "j") as i:
                values = {axis(a): v for a, v in enumerate(i)}
                places = [te.substituted(place, values) for place in self.index_map.results]
                p.write(result, *places, value=p.read(source, *i))

        return te.serial((out.dims, str(out.dtype)), [x], fill, "layout_transform")

    def reference(self, x: np.ndarray) -> np.ndarray:
        spans = {axis(a): (Dim.of(0), Dim.of(size - 1)) for a, size in enumerate(x.shape)}
        reached = [reach(result, spans) for result in self.index_map.results]
        shape = [max((span[1].value or 0) + 1, 0) for span in reached if span is not None]
        found = np.full(shape, literal_value(self.pad_value or 0.0)).astype(x.dtype)
        for index in np.ndindex(x.shape):
            found[self.index_map.at({axis(a): v for a, v in enumerate(index)})] = x[index]
        return found

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        def mapped(function: Any, **attrs: Any) -> LayoutTransform:
            return cls(IndexMap.of(function), **attrs)

        x = rand(6, 5)
        yield sample(mapped(lambda i, j: (j, i)), x, dims="n m")
        yield sample(mapped(lambda i, j: (j, i // 4, i % 4), pad_value=2.5), x, dims="n m")
        yield sample(mapped(lambda i, j: (i * 5 + j,)), x, dims="n 5")
        yield sample(mapped(lambda i: (i // 2, i % 2)), rand(7, dtype="int32"), dims="n")
        yield sample(mapped(lambda i, j: (i // 2, j, i % 2, 0)), x, dims="6 m")
        yield sample(mapped(lambda i: (i % 3,)), rand(8), dims="n")
        yield sample(mapped(lambda: ()), rand())
        yield wrong(mapped(lambda i: (i,)), x, code="op-arguments", match="takes 1 indices")
        yield wrong(mapped(lambda i, j: (i - j,)), x, code="op-arguments", match="negative")
        pad = mapped(lambda i: (i,), pad_value=0.5)
        yield wrong(pad, rand(3, dtype="int8"), code="op-dtype", match="0.5")


Span = tuple[Dim, Dim]
"""The minimum and maximum of a formula."""


def reach(formula: Dim, spans: Mapping[SymVar, Span]) -> Span | None:
    """The range of a formula whose variables are in the ranges `spans`, all non-negative. Other variables stay
    symbolic. None if the range is unknown."""
    low = high = Dim.of(0)
    for monomial, coefficient in formula.terms:
        least = most = Dim.of(1)
        for atom, power in monomial:
            found = _reach_atom(atom, spans)
            if found is None:
                return None
            for _ in range(power):
                least, most = least * found[0], most * found[1]
        if coefficient < 0:
            least, most = most, least
        low, high = low + least * coefficient, high + most * coefficient
    return low, high


def _reach_atom(atom: Atom, spans: Mapping[SymVar, Span]) -> Span | None:
    if isinstance(atom, SymVar):
        return spans.get(atom, (atom.dim, atom.dim))
    atom = expect(DimOp, atom)
    inner = reach(atom.args[0], spans)
    divisor = atom.args[1].value if len(atom.args) > 1 else None
    if inner is None or divisor is None or divisor <= 0:
        return None
    low, high = inner
    if atom.op == "floordiv":
        return low // divisor, high // divisor
    if atom.op == "floormod":
        return Dim.of(0), Dim.of(
            divisor - 1
        )  # also where fewer are reached: so it is for all sizes
    return None
