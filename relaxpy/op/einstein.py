"""Einstein summation: subscripts name the axes of the operands; axes missing from the result are summed over."""

from __future__ import annotations

import itertools
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.linear_algebra import result_dtype, wide_dtype
from relaxpy.op.precision import narrowed, widened
from relaxpy.op.reduce import rounded
from relaxpy.op.rule import Cotangent, NoRule, Rule, same_dims


@define_op
class Einsum(Op):
    """Einstein summation, as `numpy.einsum`: "ij,jk->ik" is the matrix product, "ii->i" a diagonal, "...ij->...ji" a
    transpose (the dimensions of "..." are broadcast). Without "->" the result has the letters that occur once, in
    alphabetical order. Axes of one letter must have equal sizes, or size 1, which is broadcast. Several operands are
    contracted from left to right."""

    name = "einsum"
    mixed = "always"
    of_data = True
    subscripts: str

    def deduce(self, d: Deduction, operands: TupleType) -> TensorType:
        tensors = [x for x in operands.fields if isinstance(x, KnownTensor)]
        d.require(
            0 < len(tensors) == len(operands.fields),
            f"operands must be tensors, got {operands}",
            arg="operands",
        )
        try:
            spec = parse(self.subscripts, [x.ndim for x in tensors])
        except ValueError as error:
            d.fail(str(error), arg="subscripts")
        dtype = result_dtype(d, None, **{f"operand {i}": x for i, x in enumerate(tensors)})
        sizes: dict[str, Dim] = {}
        undecided = set[str]()
        for labels, x in zip(spec.operands, tensors, strict=True):
            own: dict[str, Dim] = {}
            for label, size in zip(labels, x.dims, strict=True):
                message = f"the sizes of {label!r} differ"
                own[label] = d.same_dim(own.get(label, size), size, message, arg="operands")
            for label, size in own.items():
                known = sizes.get(label, size)
                if not is_letter(label) or size == 1:
                    sizes.setdefault(label, size)
                elif known == 1:
                    sizes[label] = size
                elif known.value is not None and size.value is not None:
                    message = f"the sizes of {label!r} differ"
                    sizes[label] = d.same_dim(known, size, message, arg="operands")
                elif merged := d.broadcast((known,), (size,)):
                    sizes[label] = merged[0]
                else:
                    undecided.add(label)
        batches = [
            tuple(s for label, s in zip(labels, x.dims, strict=True) if not is_letter(label))
            for labels, x in zip(spec.operands, tensors, strict=True)
        ]
        batch = d.broadcast(*batches)
        if batch is None or not undecided.isdisjoint(spec.output):
            return TensorType(None, dtype, len(spec.output))
        rest = iter(batch)
        return TensorType(
            tuple(sizes[label] if is_letter(label) else next(rest) for label in spec.output), dtype
        )

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (operands,) = args
        fields = operands.fields if isinstance(operands, TupleType) else ()
        known = [x.dtype for x in fields if isinstance(x, TensorType) and x.dtype is not None]
        return TensorType(None, known[0] if known else None, self._rank(fields))

    def _rank(self, operands: Sequence[Annotation]) -> int:
        """The rank of the result, -1 if it is not known: letters tell an operand's rank, and "..." does not."""
        terms = self.subscripts.replace(" ", "").partition("->")[0].split(",")
        ranks = [x.ndim if isinstance(x, TensorType) else -1 for x in operands]
        if len(terms) != len(ranks):
            return -1
        told = [
            len(term) if "..." not in term and rank < 0 else rank
            for term, rank in zip(terms, ranks)
        ]
        if any(rank < 0 for rank in told):
            return -1
        try:
            return len(parse(self.subscripts, told).output)
        except ValueError:
            return -1

    def legalize(self, out: KnownTensor, operands: tuple[te.Tensor, ...]) -> te.Tensor:
        spec = parse(self.subscripts, [len(x.shape) for x in operands])
        sizes = dict(zip(spec.output, out.dims, strict=True))
        for labels, x in zip(spec.operands, operands, strict=True):
            for label, size in zip(labels, te.dims(x), strict=True):
                if label not in spec.output:
                    sizes[label] = _joint(sizes.get(label, size), size)
        wide = wide_dtype(out.dtype)
        factors = list(zip(operands, spec.operands, strict=True))
        while len(factors) > 2:
            later = {*spec.output, *(label for _, labels in factors[2:] for label in labels)}
            named = (label for _, labels in factors[:2] for label in labels)
            kept = tuple(dict.fromkeys(label for label in named if label in later))
            factors[:2] = [(_contracted(factors[:2], kept, sizes, wide), kept)]
        return rounded(out, _contracted(factors, spec.output, sizes, wide))

    def reference(self, operands: Sequence[np.ndarray]) -> np.ndarray:
        wide = [widened(x) for x in operands]
        return narrowed(np.einsum(self.subscripts, *wide), operands[0])

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (operands,) = args
        spec = parse(self.subscripts, [b.rank(x) for x in operands])
        if any(len(set(labels)) < len(labels) for labels in spec.operands):
            return [[NoRule("einsum has no rule for a diagonal, as in ii->i")] * len(operands)]
        letters = dict(
            zip(dict.fromkeys(itertools.chain(*spec.operands)), string.ascii_letters, strict=False)
        )
        found: list[Cotangent] = []
        for k, (own, x) in enumerate(zip(spec.operands, operands, strict=True)):
            others = [
                (labels, y)
                for i, (labels, y) in enumerate(zip(spec.operands, operands, strict=True))
                if i != k
            ]
            seen = {*spec.output, *(label for labels, _ in others for label in labels)}
            kept = [label for label in own if label in seen]
            terms = [spec.output, *(labels for labels, _ in others), kept]
            *inputs, result = ("".join(map(letters.__getitem__, labels)) for labels in terms)
            part = b.einsum((ct, *(y for _, y in others)), f"{','.join(inputs)}->{result}")
            sizes = iter(b.dims(part))
            spread = [next(sizes) if label in seen else Dim.of(1) for label in own]
            part = b.reshape(part, tuple(spread))
            dims = b.dims(x)
            given = zip(
                own, spread, dims, strict=True
            )  # an axis of size 1 is broadcast in the product
            target = [
                size if label in seen and part_size != 1 else Dim.of(1)
                for label, part_size, size in given
            ]
            part = b.summed(part, target)
            found.append(part if same_dims(b.dims(part), dims) else b.broadcast_to(part, dims))
        return [found]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        a, b, c = rand(3, 4), rand(4, 5), rand(5, 3)
        yield sample(cls("ij,jk->ik"), (a, b), dims="n k, k m")
        yield sample(cls("ij,kj->ik"), (a, rand(2, 4)), dims="n 4, 2 4")
        yield sample(cls("ij , jk"), (a, b), dims="n 4, 4 m")
        yield sample(cls("ij,jk,kl->il"), (a, b, c), dims="n m, m k, k 3")
        yield sample(cls("ij,jk,ki->"), (a, b, c), dims="n m, m k, k n")
        yield sample(cls("ii->i"), (rand(4, 4),), dims="n n")
        yield sample(cls("ii"), (rand(4, 4),), dims="n n")
        yield sample(cls("ij->ji"), (a,), dims="n m")
        yield sample(cls("ba"), (a,), dims="n m")
        yield sample(cls("i,j->ij"), (rand(3), rand(2)), dims="n, m")
        yield sample(
            cls("...ij,...jk->...ik"), (rand(2, 1, 3, 4), rand(5, 4, 2)), dims="b 1 n 4, 5 4 m"
        )
        yield sample(
            cls("bhqd,bhkd->bhqk"), (rand(1, 2, 3, 4), rand(1, 2, 5, 4)), dims="b 2 n 4, b 2 m 4"
        )
        yield sample(cls("i...->...i"), (rand(2, 3, 4),), dims="n m 4")
        yield sample(cls(",i->i"), (rand(), rand(3)), dims=", n")
        yield sample(cls("ij,jk->ik"), (rand(3, 1), b), dims="n 1, m k")
        yield sample(cls("ij,ij->j"), (rand(3, 1), rand(3, 4)), dims="n 1, n m")
        yield sample(cls("ij,ij->"), (rand(1, 4), rand(3, 4)), dims="1 m, n m")
        yield sample(
            cls("ij,ij,kj->ik"), (rand(3, 1), rand(1, 1), rand(2, 4)), dims="n 1, 1 1, 2 m"
        )
        yield sample(cls("ij,kj->ik"), (a, rand(2, 1)), dims="n 4, k m")
        yield sample(cls("ij,ij->"), (rand(1, 4), a), dims="n m, k l")
        half = rand(3, 4, dtype="float16"), rand(4, 5, dtype="float16")
        yield sample(cls("ij,jk->ik"), half, dims="n k, k m", rtol=2e-3, atol=2e-3)
        few = rand(3, 4, dtype="int32", low=-9, high=9)
        yield sample(cls("ij,ij->j"), (few, few), dims="n m, n m")
        yield wrong(cls("ij,jk->ik"), (a, rand(5, 2)), code="shape-mismatch", match="'j' differ")
        yield wrong(cls("ii->i"), (rand(1, 4),), code="shape-mismatch", match="'i' differ")
        yield wrong(cls("ij,jk"), (a,), code="op-arguments", match="2 operands, got 1")
        yield wrong(cls("ijk->k"), (a,), code="op-arguments", match="3 axes")
        yield wrong(cls("ij->ijk"), (a,), code="op-arguments", match="'k'")
        yield wrong(cls("ij->ii"), (a,), code="op-arguments", match="twice")
        yield wrong(cls("i1->i"), (a,), code="op-arguments", match="'i1'")
        yield wrong(cls("...j->j"), (a,), code="op-arguments", match="...")
        yield wrong(cls("ij,jk"), (a, b.astype(np.int32)), code="op-dtype", match="int32")


@dataclass(frozen=True)
class Subscripts:
    """A label for each axis of each operand and of the result: its letter, or, for the axes of "...", "...0" (the last
    such axis), "...1" and so on."""

    operands: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]


def parse(text: str, ranks: Sequence[int]) -> Subscripts:
    """Parse subscripts for operands of these ranks. Raises `ValueError`."""
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"{text!r} has {len(terms)} operands, got {len(ranks)}")
    operands = [_labels(t, rank, i) for i, (t, rank) in enumerate(zip(terms, ranks, strict=True))]
    named = [label for labels in operands for label in labels if is_letter(label)]
    dots = max(sum(not is_letter(label) for label in labels) for labels in operands)
    if not arrow:
        once = sorted(label for label, count in Counter(named).items() if count == 1)
        return Subscripts(tuple(operands), (*_dots(dots), *once))
    letters = right.replace("...", "", 1)
    for letter in letters:
        if letter not in named:
            raise ValueError(f"no operand has the axis {letter!r} of the result")
        if letters.count(letter) > 1:
            raise ValueError(f"the result has the axis {letter!r} twice")
    if dots and "..." not in right:
        raise ValueError(f'the result lacks the {dots} axes of "...": write "..." after "->"')
    return Subscripts(tuple(operands), _labels(right, len(letters) + dots, None))


def is_letter(label: str) -> bool:
    """Is this label a letter, not an axis of "..."?"""
    return not label.startswith(".")


def _labels(term: str, rank: int, operand: int | None) -> tuple[str, ...]:
    """The labels of a term, with "..." expanded."""
    before, dots, after = term.partition("...")
    letters = before + after
    if not all(letter.isascii() and letter.isalpha() for letter in letters):
        raise ValueError(f"{term!r} must consist of letters and at most one ...")
    if len(letters) != rank and (not dots or len(letters) > rank):
        raise ValueError(f"{term!r} names {len(letters)} axes, operand {operand} has {rank}")
    return (*before, *_dots(rank - len(letters)), *after)


def _dots(count: int) -> tuple[str, ...]:
    return tuple(f"...{i}" for i in reversed(range(count)))


def _joint(a: Dim, b: Dim) -> Dim:
    """The size of an axis that two operands have: the one that is not 1."""
    if a == b or b == 1 or a.value not in (None, 1):
        return a
    return b if a == 1 or b.value is not None else dim_op("select", dim_op("eq", a, 1), b, a)


def _contracted(
    factors: Sequence[tuple[te.Tensor, tuple[str, ...]]],
    kept: tuple[str, ...],
    sizes: dict[str, Dim],
    wide: str,
) -> te.Tensor:
    """The product of the factors, summed over all axes except `kept`, computed in the dtype `wide`."""
    named = dict.fromkeys(label for _, labels in factors for label in labels)
    loops = {a: te.reduce_axis(sizes[a], f"k{i}") for i, a in enumerate(named) if a not in kept}

    def read(x: te.Tensor, labels: tuple[str, ...], at: dict[str, Any]) -> Any:
        target = [sizes[label] for label in labels]
        place = te.broadcast_index(te.dims(x), target, [at[label] for label in labels])
        return te.cast(x(*place), wide)

    def element(*index: Any) -> Any:
        at = {**dict(zip(kept, index, strict=True)), **loops}
        values = [read(x, labels, at) for x, labels in factors]
        product = values[0] if len(values) == 1 else values[0] * values[1]
        return te.sum(product, list(loops.values())) if loops else product

    return te.compute([sizes[label] for label in kept], element, "einsum")
