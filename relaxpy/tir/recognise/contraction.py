"""Reading a tensor program as a contraction: `out[...] = sum(lhs[...] * rhs[...])` over a rectangle of loops.

All variants of matrix products (batched, batches broadcast, either side transposed, einsum) are one form: three
buffers, each accessed at an offset that is linear in the loop variables. A schedule needs only the extent of every loop
and its stride in each buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from relaxpy.tir.analyzer import equal
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc
from relaxpy.tir.recognise.stages import (
    Stage,
    equal_indices,
    inlined_into,
    is_output,
    loads_of,
    stages_of,
)
from relaxpy.tir.recognise.stages import substitute as substitute_axes
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.walk import rewritten, walk

_REDUCE = 2
"""`IterVar.CommReduce`."""


@dataclass(frozen=True, eq=False)
class Operand:
    """One of the three buffers, accessed at element `base + sum(axis variable * stride)` of its flat view."""

    buffer: Buffer
    strides: tuple[Expr | None, ...]
    """One entry per axis; None for an axis that does not appear alone as an index."""
    base: Expr
    """The part of the offset that is not linear in single axes, such as a head number divided by the group size; over
    `Axis.var`."""
    panels: Panels | None = None
    formula: Expr | None = None
    """For a factor that the program computes, such as a quantised weight: its element, over `Axis.var`. `buffer` then
    has no memory: it only gives the extents and the dtype of the factor."""
    indices: tuple[Expr, ...] = ()
    """Of a contraction's operand, the index of its element, over `Axis.var`."""


@dataclass(frozen=True, eq=False)
class Panels:
    """An axis along which a buffer is packed into panels: `packed[j // width, k, j % width]`, or in groups along
    another axis `packed[j // width, …, k // group, j % width, k % group]`. The axis' stride is that inside a panel; the
    other axis' stride holds from one group to the next, divided by `group`."""

    axis: int
    """Number of the axis."""
    width: int
    stride: Expr
    """Stride from one panel to the next."""
    group: int = 1
    grouped: int | None = None
    """Number of the axis along which groups are formed."""


@dataclass(frozen=True, eq=False)
class Axis:
    """One loop."""

    var: Expr
    extent: Expr
    is_reduction: bool
    is_opaque: bool
    """Does an `Operand.base` depend on it?"""


@dataclass(frozen=True, eq=False)
class Epilogue:
    """The operation applied to a finished sum before it is stored."""

    value: Expr
    """The stored value, over `Axis.var`; reads the sum as `total` at the place written."""
    total: Buffer
    place: tuple[Expr, ...]
    """The place in the output."""


@dataclass(frozen=True, eq=False)
class FactorReads:
    """The two factors of a product of which the second is computed."""

    lhs: tvm.ir.TensorLoad
    rhs: tvm.ir.TensorLoad
    """A load of a buffer without memory, in place of the formula."""
    formula: Expr


ReadFactors = Callable[[Stage], "FactorReads | None"]


@dataclass(frozen=True, eq=False)
class Contraction:
    """`out[...] += lhs[...] * rhs[...]` from zero, over all axes; factors converted to the output's dtype."""

    axes: tuple[Axis, ...]
    out: Operand
    lhs: Operand
    rhs: Operand
    dtype: str
    """The accumulator dtype."""
    epilogue: Epilogue | None = None


def read_contraction(func: PrimFunc, read: ReadFactors | None = None) -> Contraction | None:
    """Recognise a single contraction of the program's parameters, perhaps with element-wise stages after it (a bias, an
    activation, a residual); None for other programs. With `read`, one factor is computed from parameters
    (`computed_factor`)."""
    if read is not None:
        return _with_epilogue(func, read)
    nest = _single_block(func)
    if nest is None:
        return _with_epilogue(func)
    extents, block = nest
    store, init = block.body, block.init
    if not isinstance(store, tirx.BufferStore) or not isinstance(init, tirx.BufferStore):
        return None
    factors = _product_into(store)
    if factors is None or not is_zero(init.value) or not _same_place(init, store):
        return None
    axes = [
        (it.var, extent, it.iter_type == _REDUCE)
        for it, extent in zip(block.iter_vars, extents, strict=True)
    ]
    accesses = [
        (store.buffer, tuple(store.indices)),
        *((f.source, tuple(f.indices)) for f in factors),
    ]
    return _contraction(func, axes, accesses, str(store.buffer.dtype))


def _with_epilogue(func: PrimFunc, read: ReadFactors | None = None) -> Contraction | None:
    """A contraction of operands that may be permuted (a transposition, split heads), perhaps with a stage after it that
    stores one element of the output for each sum, possibly at another place."""
    stages = stages_of(func)
    if stages is not None and read is not None:
        stages = _without_decoding(stages, func)
    if stages is None:
        return None
    if len(stages) > 2:
        return None
    product, last = stages[0], stages[-1]
    combiner = product.combiner
    if combiner is None or combiner.kind != "add" or not is_zero(combiner.init):
        return None
    if not is_output(last, func):
        return None
    dtype = str(product.buffer.dtype)
    factors, formula = _factors(product.value, dtype), None
    if read is not None:
        found = read(product) if factors is None else None
        factors, formula = ((found.lhs, found.rhs), found.formula) if found else (None, None)
    if factors is None:
        return None
    axes = [(v, e, False) for v, e in zip(product.axes, product.extents, strict=True)]
    axes += [(v, e, True) for v, e in zip(product.reduce_axes, product.reduce_extents, strict=True)]
    place, epilogue = product.index, None
    if last is not product:
        moved = places_behind(product, last) if not is_output(product, func) else None
        if moved is None:
            return None
        place = tuple(substitute_axes(index, moved) for index in last.index)
        if not _is_load(last.value):
            value = substitute_axes(last.value, moved)
            epilogue = Epilogue(value, product.buffer, place)
    accesses = [(last.buffer, place), *((f.source, tuple(f.indices)) for f in factors)]
    return _contraction(func, axes, accesses, dtype, epilogue, formula)


def _without_decoding(stages: Sequence[Stage], func: PrimFunc) -> tuple[Stage, ...]:
    """The stages with those before the only reduction inlined into it, however much work their values are."""
    at = next((n for n, stage in enumerate(stages) if stage.combiner is not None), 0)
    product = stages[at]
    for stage in reversed(stages[:at]):
        if is_output(stage, func) or any(after.reads(stage.buffer) for after in stages[at + 1 :]):
            return tuple(stages)
        product = inlined_into(stage, product)
    return (product, *stages[at + 1 :])


def computed_factor(product: Stage) -> FactorReads | None:
    """The factors of a product of which one is read and the other is computed from parameters, such as a quantised
    weight; None for other products."""
    dtype = str(product.buffer.dtype)
    if not isinstance(product.value, tirx.Mul):
        return None
    pair = product.value.a, product.value.b
    for read, value in (pair, pair[::-1]):
        factor = _stripped(read, dtype)
        if _is_load(factor):
            return factor_reads(product, factor, value)
    return None


def factor_reads(product: Stage, lhs: tvm.ir.TensorLoad, formula: Expr) -> FactorReads | None:
    """A factor that is read and one that the formula computes. None if that does not depend on the depth, or reads at
    places that are read from memory."""
    used = _variables(formula)
    if not all(_is_pure(index) for load in loads_of(formula) for index in load.indices):
        return None
    if not any(_contains(used, axis) for axis in product.reduce_axes):
        return None
    pairs = [  # along the columns elements are neighbours
        *zip(product.reduce_axes, product.reduce_extents, strict=True),
        *zip(product.axes, product.extents, strict=True),
    ]
    axes = [(axis, extent) for axis, extent in pairs if _contains(used, axis)]
    extents = [extent for _, extent in axes]
    buffer = tirx.decl_buffer(extents, str(product.buffer.dtype), "computed", layout=None)
    return FactorReads(lhs, tirx.BufferLoad(buffer, [axis for axis, _ in axes]), formula)


def places_behind(product: Stage, last: Stage) -> dict[Expr, Expr] | None:
    """The axes of the stage after a product, in terms of the product's axes: the place of each sum in the output. None
    unless this is a bijection."""
    if last.combiner is not None:
        return None
    reads = last.reads(product.buffer)
    if not reads or any(not equal_indices(read.indices, reads[0].indices) for read in reads):
        return None
    pairs = list(zip(reads[0].indices, product.index, strict=True))
    if any(not isinstance(own, tvm.ir.Var) and loops.constant(read) != 0 for read, own in pairs):
        return None
    pairs = [(read, own) for read, own in pairs if isinstance(own, tvm.ir.Var)]
    if not equal(_number(last.extents), _number(product.extents)):
        return None
    if all(any(read.same_as(axis) for axis in last.axes) for read, _ in pairs):
        table = dict(pairs)
        return table if len(table) == len(pairs) == len(last.axes) else None
    ranges = dict(zip(last.axes, map(_range, last.extents), strict=True))
    found = tvm.sym.detect_iter_map(
        [read for read, _ in pairs],
        ranges,
        check_level=tvm.sym.iter_affine_map.IterMapLevel.Bijective,
    )
    if not found.indices:
        return None
    inverse = tvm.sym.inverse_affine_iter_map(found.indices, [own for _, own in pairs])
    return dict(inverse) if len(inverse) == len(last.axes) else None


def _number(extents: Sequence[Expr]) -> Expr:
    """The number of places."""
    number = loops.int64(1)
    for extent in extents:
        number = number * extent
    return number


def _range(extent: Expr) -> tvm.ir.Range:
    return tvm.ir.Range.from_min_extent(loops.int64(0), loops.int64(extent))


def _contraction(
    func: PrimFunc,
    axes: Sequence[tuple[Expr, Expr, bool]],
    accesses: Sequence[tuple[Buffer, Sequence[Expr]]],
    dtype: str,
    epilogue: Epilogue | None = None,
    formula: Expr | None = None,
) -> Contraction | None:
    """The contraction over these axes (variable, extent, whether it is reduced) with these accesses of the output and
    the factors, the second of which is computed by the formula if there is one."""
    out = accesses[0][0]
    buffers = [buffer for buffer, _ in accesses]
    if formula is not None:
        buffers[-1:] = [load.source for load in loads_of(formula)]
    if not all(any(buffer.same_as(param) for param in func.params) for buffer in buffers):
        return None
    if any(buffer.same_as(out) for buffer in buffers[1:]):
        return None
    iters = {var: loops.int64(extent) for var, extent, _ in axes}
    operands = [read_operand(buffer, tuple(indices), iters) for buffer, indices in accesses]
    if any(operand is None for operand in operands):
        return None
    operands = [
        replace(operand, indices=tuple(indices))
        for operand, (_, indices) in zip(operands, accesses, strict=True)
    ]
    if formula is not None:
        operands[-1] = replace(operands[-1], formula=formula)
    opaque = [var for operand in operands for var in _variables(operand.base)]
    read = tuple(
        Axis(var, loops.int64(extent), summed, _contains(opaque, var))
        for var, extent, summed in axes
    )
    return Contraction(read, *operands, dtype, epilogue)


def substitute(expr: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """The expression with variables substituted, simplified."""
    replaced = rewritten(expr, (tvm.ir.Var, lambda var: values.get(var, var)))
    return loops.simplify(replaced)


def _single_block(func: PrimFunc) -> tuple[list[Expr], s_tir.SBlock] | None:
    """The only block of a program, bound one to one to the loops, and the extents in the order of the block's
    variables."""
    realize = func.body
    if not isinstance(realize, s_tir.SBlockRealize):
        return None
    if realize.block.iter_vars or realize.block.alloc_buffers or realize.block.match_buffers:
        return None
    stmt, extents = realize.block.body, {}
    while isinstance(stmt, tirx.For):
        if (
            stmt.kind not in (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)
            or loops.constant(stmt.min) != 0
        ):
            return None
        extents[stmt.loop_var] = stmt.extent
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize) or loops.constant(stmt.predicate) != 1:
        return None
    block = stmt.block
    if block.alloc_buffers or block.match_buffers:
        return None
    bound = [
        extents.pop(value, None) for value in stmt.iter_values if isinstance(value, tvm.ir.Var)
    ]
    # An unbound loop would repeat the block; a loop bound twice would be a diagonal.
    if len(bound) != len(block.iter_vars) or any(e is None for e in bound) or extents:
        return None
    return bound, block


def _product_into(store: tirx.BufferStore) -> tuple[tvm.ir.TensorLoad, tvm.ir.TensorLoad] | None:
    """The two loads of `out[i] = out[i] + a * b`, in either order, each possibly converted to the output's dtype."""
    if not isinstance(store.value, tirx.Add):
        return None
    for total, product in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
        if (
            not isinstance(product, tirx.Mul)
            or not _is_load(total)
            or not _same_place(total, store)
        ):
            continue
        factors = _factors(product, str(store.buffer.dtype))
        if factors is not None:
            return factors
    return None


def _factors(product: Expr, dtype: str) -> tuple[tvm.ir.TensorLoad, tvm.ir.TensorLoad] | None:
    """The two loads that are multiplied, each possibly converted to the dtype."""
    if not isinstance(product, tirx.Mul):
        return None
    a, b = (_stripped(factor, dtype) for factor in (product.a, product.b))
    return (a, b) if _is_load(a) and _is_load(b) else None


def _is_load(expr: Expr) -> bool:
    return isinstance(expr, tvm.ir.TensorLoad)


def _stripped(factor: Expr, dtype: str) -> Expr:
    """The value below one conversion to the dtype."""
    return factor.value if isinstance(factor, tirx.Cast) and factor.ty.dtype == dtype else factor


def is_zero(value: Expr) -> bool:
    return isinstance(value, tirx.IntImm | tirx.FloatImm) and value.value == 0


def _same_place(a: tvm.ir.TensorLoad | tirx.BufferStore, b: tirx.BufferStore) -> bool:
    buffer = a.buffer if isinstance(a, tirx.BufferStore) else a.source
    if not buffer.same_as(b.buffer) or len(a.indices) != len(b.indices):
        return False
    return equal_indices(a.indices, b.indices)


def read_operand(
    buffer: Buffer, indices: tuple[Expr, ...], extents: Mapping[Expr, Expr]
) -> Operand | None:
    """The access as strides along the axes of these extents; None for buffers that are not compact and for indices that
    are read from memory."""
    if buffer.strides or loops.constant(buffer.elem_offset) != 0:
        return None
    iters = list(extents)
    strides: list[Expr | None] = [None] * len(iters)
    base, step = loops.int64(0), loops.int64(1)
    shape = list(buffer.shape)
    panels = _panels(shape, indices, iters)
    if panels is not None and panels.grouped is not None:
        strides[panels.axis] = loops.int64(panels.group)
        strides[panels.grouped] = loops.int64(panels.width)
        step = loops.simplify(loops.int64(shape[-3]) * (panels.width * panels.group))
        shape, indices = shape[1:-3], indices[1:-3]
    elif panels is not None:
        strides[panels.axis] = step
        step = loops.int64(panels.width)
        shape, indices = shape[1:-1], indices[1:-1]
    for dim, index in zip(reversed(shape), reversed(indices), strict=True):
        if not _is_pure(index):
            return None
        linear, rest = linear_part(index, extents)
        for position, var in enumerate(iters):
            if var in linear:
                stride = loops.simplify(step * linear[var])
                before = strides[position]
                strides[position] = stride if before is None else loops.simplify(before + stride)
        base = base + rest * step
        step = loops.simplify(step * loops.int64(dim))
    return Operand(buffer, tuple(strides), loops.simplify(base), panels)


def linear_part(index: Expr, extents: Mapping[Expr, Expr]) -> tuple[dict[Expr, Expr], Expr]:
    """Split the index into factors of axes and a remainder: `h * 32 + d` has no remainder. Divisions that the extents
    decide are simplified."""
    if index in extents:
        return {index: loops.int64(1)}, loops.int64(0)
    analyzer = tvm.sym.Analyzer()
    for var, extent in extents.items():
        analyzer.bind(var, _range(extent))
    rest = analyzer.simplify(loops.int64(index))
    linear: dict[Expr, Expr] = {}
    for var in extents:
        if not _contains(_variables(rest), var):
            continue
        factor = analyzer.simplify(substitute_axes(rest, {var: var + loops.int64(1)}) - rest)
        if not any(_contains(_variables(factor), axis) for axis in extents):
            linear[var] = factor
            rest = analyzer.simplify(substitute_axes(rest, {var: loops.int64(0)}))
    return linear, rest


def _panels(shape: list[Expr], indices: Sequence[Expr], iters: Sequence[Expr]) -> Panels | None:
    """The axis along which a buffer of at least three dimensions is packed into panels, if it is."""
    if len(indices) >= 4:
        columns = _cut(indices[0], indices[-2], shape[-2], iters)
        depth = _cut(indices[-3], indices[-1], shape[-1], iters)
        if columns is not None and depth is not None and columns[0] != depth[0]:
            (axis, width), (grouped, group) = columns, depth
            if not any(_contains(_variables(each), iters[axis]) for each in indices[1:-3]):
                stride = loops.int64(width * group)
                for dim in shape[1:-2]:
                    stride = loops.simplify(stride * loops.int64(dim))
                return Panels(axis, width, stride, group, grouped)
    found = _cut(indices[0], indices[-1], shape[-1], iters) if len(indices) >= 3 else None
    if found is None:
        return None
    axis, width = found
    if any(_contains(_variables(index), iters[axis]) for index in indices[1:-1]):
        return None
    stride = loops.int64(width)
    for dim in shape[1:-1]:
        stride = loops.simplify(stride * loops.int64(dim))
    return Panels(axis, width, stride)


def _cut(piece: Expr, inside: Expr, extent: Expr, iters: Sequence[Expr]) -> tuple[int, int] | None:
    """The number of an axis and the width, if the indices are `axis // width` and `axis % width`."""
    width = loops.constant(extent)
    if not isinstance(piece, tirx.FloorDiv) or not isinstance(inside, tirx.FloorMod) or not width:
        return None
    if any(loops.constant(divisor) != width for divisor in (piece.b, inside.b)):
        return None
    axis = next((n for n, var in enumerate(iters) if var.same_as(piece.a)), None)
    return (axis, width) if axis is not None and piece.a.same_as(inside.a) else None


def _is_pure(index: Expr) -> bool:
    """Is the index arithmetic on variables, without loads or calls?"""
    impure: list[object] = []
    walk(index, ((tvm.ir.TensorLoad, tvm.ir.Call), impure.append))
    return not impure


def _variables(expr: Expr) -> list[Expr]:
    found: list[Expr] = []
    walk(expr, (tvm.ir.Var, found.append))
    return found


def _contains(found: list[Expr], var: Expr) -> bool:
    return any(var.same_as(other) for other in found)
