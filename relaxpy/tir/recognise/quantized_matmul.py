"""Matrix products of quantised activations and quantised weights, recognised by what they compute.

Each factor is a small integer, its *code*, made a float by numbers that a whole group of neighbours along the depth
shares: `slope * (code + shift) + offset`. Then a group's part of a sum is, with activations `scale * x` and codes `q`,

    scale * (slope * (sum(x * q) + shift * sum(x)) + offset * sum(x))

where both sums are sums of integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.contraction import FactorReads, factor_reads
from relaxpy.tir.recognise.matmul import MatmulForm, read_computed_matmul
from relaxpy.tir.recognise.stages import Load, Stage, Var
from relaxpy.tir.tvm import tirx, tvm


@dataclass(frozen=True, eq=False)
class Scaled:
    """`slope * (code + shift) + offset`; the three are None where they are 1 or 0."""

    code: Expr
    """An integer."""
    slope: Expr | None = None
    shift: Expr | None = None
    offset: Expr | None = None


@dataclass(frozen=True, eq=False)
class Nibbles:
    """Codes of 4 bits, eight to a word of 32 bits along the depth, the first in the lowest bits."""

    word: Load


@dataclass(frozen=True, eq=False)
class QuantizedMatmul:
    """The product of activations in int8, with a scale a group, and a weight of codes of 4 bits."""

    form: MatmulForm
    """`form.lhs` are the activations' codes; `form.rhs.formula` is the weight."""
    scale: Buffer
    """The scales of the activations: their shape, with groups in place of the depth."""
    group: int
    """Neighbours along the depth that share such a scale. It divides the depth."""
    shared: int
    """Neighbours that also share the numbers of the weight. It divides the group."""
    weight: Scaled
    nibbles: Nibbles


_SHARED = (128, 64, 32)
"""Lengths that are tried for `shared`, after the group itself."""


def quantized_matmul_of(func: PrimFunc) -> QuantizedMatmul | None:
    """Recognise such a product; None for other programs."""
    found: list[QuantizedFactors] = []

    def read(product: Stage) -> FactorReads | None:
        factors = _factors(product)
        if factors is None:
            return None
        found[:] = [factors]
        return factor_reads(product, factors.lhs, factors.rhs)

    form = read_computed_matmul(func, read)
    if form is None or form.dtype != "float32" or loops.constant(form.depth.lhs) != 1:
        return None
    depth = loops.constant(form.depth.extent)
    (factors,) = found
    if depth is None or depth % factors.group or form.batch:
        return None
    return QuantizedMatmul(
        form,
        factors.scale.source,
        factors.group,
        factors.shared,
        factors.weight,
        factors.nibbles,
    )


@dataclass(frozen=True, eq=False)
class QuantizedFactors:
    """The parts of the product's value."""

    lhs: Load
    scale: Load
    group: int
    shared: int
    rhs: Expr
    weight: Scaled
    nibbles: Nibbles


def _factors(product: Stage) -> QuantizedFactors | None:
    if not isinstance(product.value, tirx.Mul) or len(product.reduce_axes) != 1:
        return None
    (depth,) = product.reduce_axes
    pair = product.value.a, product.value.b
    return quantized_factors(*pair, depth) or quantized_factors(*pair[::-1], depth)


def quantized_factors(left: Expr, right: Expr, depth: Var) -> QuantizedFactors | None:
    """Two factors as activations and a weight, summed along `depth`."""
    activations = _activations(left, depth)
    if activations is None:
        return None
    lhs, scale, group = activations
    for shared in (group, *(n for n in _SHARED if n < group and group % n == 0)):
        weight = scaled(right, depth, shared)
        nibbles = nibbles_of(weight.code, depth) if weight is not None else None
        if weight is not None and nibbles is not None:
            return QuantizedFactors(lhs, scale, group, shared, right, weight, nibbles)
    return None


def _activations(value: Expr, depth: Var) -> tuple[Load, Load, int] | None:
    """The codes of the activations, their scales, and the length of a group."""
    if not isinstance(value, tirx.Mul):
        return None
    for code, scale in ((value.a, value.b), (value.b, value.a)):
        if not isinstance(code, tirx.Cast) or not isinstance(code.value, Load):
            continue
        load = code.value
        if str(load.source.dtype) != "int8" or not isinstance(scale, Load):
            continue
        *rows, last = load.indices
        *scale_rows, at = scale.indices
        group = loops.constant(at.b) if isinstance(at, tirx.FloorDiv) else None
        if not group or not at.a.same_as(depth) or not last.same_as(depth):
            continue
        if str(scale.source.dtype) != "float32" or not s.equal_indices(rows, scale_rows):
            continue
        if s.same_extents(list(load.source.shape)[:-1], list(scale.source.shape)[:-1]):
            return load, scale, group
    return None


def scaled(value: Expr, depth: Var, group: int) -> Scaled | None:
    """The value as a code made a float by numbers that neighbours in each group share; None if it is something else."""
    if isinstance(value, tirx.Cast) and str(value.ty.dtype) == "float32":
        if str(value.value.ty.dtype).startswith(("int", "uint")):
            return Scaled(value.value)
        return None
    if isinstance(value, tirx.Mul):
        for inner, factor in ((value.a, value.b), (value.b, value.a)):
            found = scaled(inner, depth, group)
            if found is None or found.slope is not None or found.offset is not None:
                continue
            if _shared(factor, depth, group):
                return Scaled(found.code, factor, found.shift)
        return None
    if isinstance(value, tirx.Add):
        for inner, added in ((value.a, value.b), (value.b, value.a)):
            found = _with_added(scaled(inner, depth, group), added, depth, group)
            if found is not None:
                return found
        return None
    if isinstance(value, tirx.Sub):
        negative = tirx.const(-1, value.ty.dtype) * value.b
        return _with_added(scaled(value.a, depth, group), negative, depth, group)
    return None


def _with_added(found: Scaled | None, added: Expr, depth: Var, group: int) -> Scaled | None:
    if found is None or found.offset is not None or not _shared(added, depth, group):
        return None
    if found.slope is not None:
        return Scaled(found.code, found.slope, found.shift, added)
    return Scaled(found.code, None, added) if found.shift is None else None


def _shared(value: Expr, depth: Var, group: int) -> bool:
    """Does the value, a float, depend on the group of a place along the depth, not on the place inside?"""
    if str(value.ty.dtype) != "float32":
        return False
    start = tirx.Var("group", "int64")
    inside = tirx.Var("inside", "int64")
    analyzer = tvm.sym.Analyzer()
    analyzer.bind(inside, tvm.ir.Range.from_min_extent(loops.int64(0), loops.int64(group)))
    at = start * loops.int64(group) + inside

    def moved(index: Expr) -> bool:
        return s.uses(analyzer.simplify(s.substitute(index, {depth: at})), inside)

    loads = s.loads_of(value)
    if any(moved(index) for load in loads for index in load.indices):
        return False
    outside = s.map_loads(value, lambda node: tirx.const(0, node.ty.dtype))
    return not s.uses(outside, depth)


def nibbles_of(code: Expr, depth: Var) -> Nibbles | None:
    """The code as a nibble of a word: the word's bits, shifted by 4 times the place in the word, and masked."""
    if not isinstance(code, tirx.BitwiseAnd):
        return None
    for shifted, mask in ((code.a, code.b), (code.b, code.a)):
        if loops.constant(mask) != 15 or not isinstance(shifted, tirx.RShift):
            continue
        word, distance = shifted.a, shifted.b
        if not isinstance(word, Load) or str(word.source.dtype) != "uint32":
            continue
        start = tirx.Var("word", "int64")
        for k in range(8):
            at = start * loops.int64(8) + loops.int64(k)
            by = _simplified(s.substitute(distance, {depth: at}))
            if loops.constant(by) != 4 * k:
                return None
            if any(
                not _is_one_of((start, None), _simplified(s.substitute(i, {depth: at})), i, depth)
                for i in word.indices
            ):
                return None
        return Nibbles(word)
    return None


def _is_one_of(allowed: Sequence[Expr | None], found: Expr, index: Expr, depth: Var) -> bool:
    """Is an index, at a place of the depth, one of these; or does it not depend on the depth (None)?"""
    if not s.uses(index, depth):
        return None in allowed
    return any(each is not None and found.same_as(each) for each in allowed)


def _simplified(value: Expr) -> Expr:
    if isinstance(value, tirx.Cast):
        return _simplified(value.value)
    return tvm.sym.Analyzer().simplify(value)
