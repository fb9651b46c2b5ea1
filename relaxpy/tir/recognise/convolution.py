"""Recognise a convolution: `out[...] = sum(data[...] * weight[...])`, where data is read through sliding windows,
perhaps with zero padding. There are two forms: a `ConvolutionForm` has contiguous pixels, a `ChannelForm` contiguous
channels of the result (NHWC, NCHW16c).

The roles follow from where a loop variable appears, as those of a matrix product do (`relaxpy.tir.recognise.matmul`): a
*row* is in the output and the weight (a channel of the result), a *column* in the output and data (a pixel), the
*depth* in data and the weight (a place of the window, a channel of data), a *batch* in all three (a group of
channels). So any layout is one form, with one, two or three spatial axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from relaxpy.tir.analyzer import equal
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.contraction import (
    Axis,
    Epilogue,
    Operand,
    is_zero,
    places_behind,
    read_operand,
    substitute,
)
from relaxpy.tir.recognise.stages import Load, Stage
from relaxpy.tir.recognise.windows import Walk, read_guarded, read_walks, with_padding_inlined
from relaxpy.tir.tvm import tirx, tvm_ffi

SUMMED_IN = {"float32": 32, "float64": 64, "int32": 32, "int64": 64}
"""Accumulator types, and their bits."""

NARROW = {"int32": {"int8", "uint8", "int16"}, "float32": {"bfloat16"}}
"""By accumulator type: types of factors that are narrower."""


@dataclass(frozen=True, eq=False)
class ConvolutionForm:
    """A convolution. The roles are numbers of `axes`, outermost first."""

    axes: tuple[Axis, ...]
    out: Operand
    weight: Operand
    """The weight. Along the depth it has a constant stride, in order; it may be packed into tiles of rows."""
    data: Buffer
    walks: tuple[Walk, ...]
    batch: tuple[int, ...]
    row: int
    columns: tuple[int, ...]
    """The columns. The last one is contiguous in the output and moves along data's last dimension with stride
    `step`."""
    step: int
    depth: tuple[int, ...]
    dtype: str
    """The accumulator dtype."""
    epilogue: Epilogue | None

    @property
    def depth_stride(self) -> Expr:
        """The stride of the weight from one position of the depth to the next."""
        stride = self.weight.strides[self.depth[-1]] if self.depth else None
        return loops.int64(1) if stride is None else stride

    def extents(self, axes: Sequence[int]) -> list[Expr]:
        return [self.axes[n].extent for n in axes]


@dataclass(frozen=True, eq=False)
class ChannelForm:
    """A convolution whose result has contiguous channels. The roles are numbers of `axes`, outermost first."""

    axes: tuple[Axis, ...]
    out: Operand
    weight: Operand
    data: Buffer
    walks: tuple[Walk, ...]
    blocks: int | None
    """The axis that counts the blocks of channels; None if there is one block."""
    lane: int
    """The axis of the channels in a block. Its positions are contiguous in the weight, perhaps in tiles, if the weight
    is as kernels read it; in the output they are if that is not permuted."""
    columns: tuple[int, ...]
    depth: tuple[int, ...]
    dtype: str
    epilogue: Epilogue | None

    @property
    def is_window(self) -> bool:
        """Is data read through real windows, with steps or with padding? Else this is a matrix product."""
        return not _is_matmul(self.walks)

    @property
    def is_narrow(self) -> bool:
        """Are factors narrower than their sums?"""
        return str(self.data.dtype) != self.dtype

    @property
    def channel_walk(self) -> int | None:
        """The dimension of data along which the innermost axis of the depth moves by itself, from its beginning to its
        end; None if there is none."""
        if not self.depth:
            return None
        axis = self.depth[-1]
        for n, walk in enumerate(self.walks):
            if walk.steps[axis] is None:
                continue
            alone = sum(step is not None for step in walk.steps) == 1 and not walk.is_guarded
            first = loops.constant(walk.steps[axis]) == 1 and loops.constant(walk.base) == 0
            whole = equal(walk.size, self.axes[axis].extent)
            return n if alone and first and whole else None
        return None

    @property
    def channels(self) -> int | None:
        """The dimension of data whose positions are contiguous in the weight, but for the lanes, while data's last
        dimension is one of windows: that of the channels of NCHW for OHWI. None if there is none."""
        moving = [n for n in self.depth if loops.constant(self.axes[n].extent) != 1]
        if not moving or not any(self.walks[-1].steps[n] is not None for n in self.columns):
            return None
        if all(sum(step is not None for step in walk.steps) < 2 for walk in self.walks):
            return None
        for n, walk in enumerate(self.walks[:-1]):
            axes = [axis for axis, step in enumerate(walk.steps) if step is not None]
            step = walk.steps[moving[-1]]
            if axes == [moving[-1]] and not walk.is_guarded and step is not None:
                return n if loops.constant(step) == 1 else None
        return None


@dataclass(frozen=True, eq=False)
class _Access:
    """A sum of products with the role of each axis."""

    axes: tuple[Axis, ...]
    out: Operand
    weight: Operand
    data: Buffer
    walks: tuple[Walk, ...]
    roles: Mapping[str, list[int]]
    dtype: str
    epilogue: Epilogue | None


@dataclass(frozen=True, eq=False)
class _Sum:
    """The operand of a reduction by addition."""

    data: Load
    weight: Load
    bounds: tuple[Expr, ...]
    """Expressions that must all be at least 0 for data to be read."""


def read_convolution(func: PrimFunc) -> ConvolutionForm | None:
    """Recognise a convolution of two parameters, perhaps with an element-wise stage after it.

    None for other programs; for a product of two matrices; for programs without rows (depthwise convolutions, which
    read each element once per window); and if the output's contiguous axis does not move along data's last dimension.
    """
    return next((form for access in _accesses(func) if (form := _pixel_form(access))), None)


def read_channel_convolution(func: PrimFunc) -> ChannelForm | None:
    """Recognise a convolution of two parameters with contiguous channels, perhaps with an element-wise stage after it.
    None for other programs, and for groups of channels."""
    return next((form for access in _accesses(func) if (form := _channel_form(access))), None)


def prefers_channels(func: PrimFunc) -> bool:
    """Does a convolution of data with contiguous pixels have a weight whose channels are contiguous?"""
    form = read_channel_convolution(func)
    return form is not None and form.channels is not None


def _accesses(func: PrimFunc) -> Iterator[_Access]:
    """The readings of a program as a sum of products of data and a weight, either factor as data."""
    found = s.stages_of(func)
    if found is None:
        return
    stages = with_padding_inlined(found, func)
    if len(stages) > 2 or not s.is_output(stages[-1], func):
        return
    product, last = stages[0], stages[-1]
    combiner = product.combiner
    dtype = str(product.buffer.dtype)
    if combiner is None or combiner.kind != "add" or not is_zero(combiner.init):
        return
    if dtype not in SUMMED_IN:
        return
    place, epilogue = product.index, None
    if last is not product:
        moved = places_behind(product, last) if not s.is_output(product, func) else None
        if moved is None:
            return
        place = tuple(substitute(index, moved) for index in last.index)
        if not isinstance(last.value, Load):
            epilogue = Epilogue(s.substitute(last.value, moved), product.buffer, place)
    for a, b in _factor_orders(product):
        found = _read_sum(a, b, dtype)
        if found is not None and _are_inputs(found, last.buffer, func):
            access = _access(product, found, last.buffer, place, epilogue, dtype)
            if access is not None:
                yield access


def _factor_orders(product: Stage) -> list[tuple[Expr, Expr]]:
    value = product.value
    if not isinstance(value, tirx.Mul):
        return []
    return [(value.a, value.b), (value.b, value.a)]


def _read_sum(data: Expr, weight: Expr, dtype: str) -> _Sum | None:
    """The two factors, each possibly converted to the dtype, the first possibly padded with zeros."""
    data, weight = (
        factor.value if isinstance(factor, tirx.Cast) and factor.ty.dtype == dtype else factor
        for factor in (data, weight)
    )
    guarded = read_guarded(data)
    if guarded is None or not is_zero(guarded.otherwise) or not isinstance(weight, Load):
        return None
    return _Sum(guarded.load, weight, guarded.bounds)


def _are_inputs(found: _Sum, out: Buffer, func: PrimFunc) -> bool:
    """Are the factors two compact parameters of the function other than its result?"""
    data, weight = found.data.source, found.weight.source
    if data.same_as(weight) or data.same_as(out) or weight.same_as(out):
        return False
    compact = not data.strides and loops.constant(data.elem_offset) == 0
    return compact and all(
        any(buffer.same_as(param) for param in func.params) for buffer in (data, weight)
    )


def _access(
    product: Stage,
    found: _Sum,
    out: Buffer,
    place: Sequence[Expr],
    epilogue: Epilogue | None,
    dtype: str,
) -> _Access | None:
    """The sum over its axes, with groups of channels as an axis of their own."""
    table = dict(zip(product.axes, product.extents, strict=True))
    split = _group_split(found.data, table)
    if split is not None:
        var, group, inside, size = split
        values = {var: group * size + inside}
        found = _Sum(
            s.substitute(found.data, values),
            s.substitute(found.weight, values),
            tuple(s.substitute(bound, values) for bound in found.bounds),
        )
        place = tuple(s.substitute(index, values) for index in place)
        if epilogue is not None:
            epilogue = replace(epilogue, value=s.substitute(epilogue.value, values), place=place)
        spatial: dict[Expr, Expr] = {}
        for axis, extent in table.items():
            if axis.same_as(var):
                spatial[group] = loops.floordiv(extent, size)
                spatial[inside] = size
            else:
                spatial[axis] = extent
        table = spatial
    extents = {**table, **dict(zip(product.reduce_axes, product.reduce_extents, strict=True))}
    operands = (
        read_operand(out, tuple(place), extents),
        read_operand(found.weight.source, tuple(found.weight.indices), extents),
    )
    walks = read_walks(found.data, found.bounds, extents)
    if operands[0] is None or operands[1] is None or walks is None:
        return None
    if any(s.uses(walk.base, axis) for walk in walks for axis in extents):
        return None
    axes = tuple(
        Axis(var, loops.int64(extent), var not in table, False) for var, extent in extents.items()
    )
    roles = _roles(axes, operands[0], operands[1], walks)
    if roles is None:
        return None
    return _Access(axes, operands[0], operands[1], found.data.source, walks, roles, dtype, epilogue)


def _group_split(data: Load, axes: Mapping[Expr, Expr]) -> tuple[Expr, Expr, Expr, Expr] | None:
    """The axis that data accesses only through a quotient (the group of a channel), a variable for the quotient, one
    for the remainder, and the divisor; None if there is no such axis."""
    found: list[tuple[Expr, Expr]] = []

    def division(node: tirx.FloorDiv) -> None:
        if any(node.a.same_as(axis) for axis in axes) and not found:
            found.append((node.a, node.b))

    for index in data.indices:
        tvm_ffi.structural_walk(index, (tirx.FloorDiv, division))
    if not found:
        return None
    var, size = found[0]
    # Only whole groups: a partial last one would be lost.
    if not equal(tirx.floormod(axes[var], size), loops.int64(0)) or loops.constant(size) == 0:
        return None
    group, inside = (tirx.Var(f"{var.name}_{part}", "int64") for part in ("group", "inside"))
    return var, group, inside, loops.int64(size)


def _roles(
    axes: Sequence[Axis], out: Operand, weight: Operand, walks: Sequence[Walk]
) -> dict[str, list[int]] | None:
    """The axes of each role; None if one has no role."""
    roles: dict[str, list[int]] = {"batch": [], "row": [], "column": [], "depth": []}
    for n, axis in enumerate(axes):
        there = (
            out.strides[n] is not None,
            any(walk.steps[n] is not None for walk in walks),
            weight.strides[n] is not None,
        )
        role = _ROLES.get(there)
        if role is None or (role == "depth") != axis.is_reduction:
            return None
        roles[role].append(n)
    if out.panels is not None or _depends(out.base, axes) or _depends(weight.base, axes):
        return None
    return roles


def _pixel_form(access: _Access) -> ConvolutionForm | None:
    """The form with contiguous pixels."""
    axes, out, weight, walks = access.axes, access.out, access.weight, access.walks
    rows, columns = access.roles["row"], access.roles["column"]
    if len(rows) != 1 or not columns:
        return None
    panels = weight.panels
    if panels is not None and (panels.axis != rows[0] or panels.grouped is not None):
        return None
    depth = _depth(access)
    step = _contiguous_step(columns[-1], out, walks)
    if step is None or not _is_one_walk(depth, axes, weight):
        return None
    if len(columns) == 1 and step == 1 and _is_matmul(walks):
        return None
    return ConvolutionForm(
        axes, out, weight, access.data, walks, tuple(access.roles["batch"]), rows[0],
        tuple(columns), step, tuple(depth), access.dtype, access.epilogue,
    )  # fmt: skip


def _channel_form(access: _Access) -> ChannelForm | None:
    """The form with contiguous channels."""
    weight, rows, columns = access.weight, access.roles["row"], access.roles["column"]
    dtypes = {str(buffer.dtype) for buffer in (access.data, weight.buffer)}
    if access.roles["batch"] or not rows or len(rows) > 2 or not columns:
        return None
    if dtypes != {access.dtype} and not dtypes <= NARROW.get(access.dtype, set()):
        return None
    *blocks, lane = sorted(rows, key=lambda n: _order(weight.strides[n]), reverse=True)
    panels, depth = weight.panels, _depth(access)
    if panels is not None and (panels.axis != lane or blocks):
        return None
    if panels is not None and panels.grouped not in (None, depth[-1] if depth else None):
        return None
    return ChannelForm(
        access.axes, access.out, weight, access.data, access.walks, blocks[0] if blocks else None,
        lane, tuple(columns), tuple(depth), access.dtype, access.epilogue,
    )  # fmt: skip


def _depth(access: _Access) -> list[int]:
    """The axes of the depth, in the order in which the weight is in memory."""
    strides = access.weight.strides
    return sorted(access.roles["depth"], key=lambda n: _order(strides[n]), reverse=True)


_ROLES = {
    (True, True, True): "batch",
    (True, False, True): "row",
    (True, True, False): "column",
    (False, True, True): "depth",
}
"""Roles of axes, by whether an axis appears in the output, data and the weight."""


def _depends(expr: Expr, axes: Sequence[Axis]) -> bool:
    return any(s.uses(expr, axis.var) for axis in axes)


def _order(stride: Expr | None) -> tuple[int, int]:
    """Sort key of axes by stride: outer axes first; unknown strides count as large."""
    assert stride is not None, "the axis moves along the weight"
    known = loops.constant(stride)
    return (1, 0) if known is None else (0, known)


def _contiguous_step(column: int, out: Operand, walks: Sequence[Walk]) -> int | None:
    """The stride, along data's last dimension, of the output's contiguous axis; None if it does not move along it."""
    stride = out.strides[column]
    if stride is None or loops.constant(stride) != 1:
        return None
    if any(walk.steps[column] is not None for walk in walks[:-1]):
        return None
    step = walks[-1].steps[column]
    known = None if step is None else loops.constant(step)
    return known if known is not None and known > 0 else None


def _is_one_walk(depth: Sequence[int], axes: Sequence[Axis], weight: Operand) -> bool:
    """Is the weight's stride along the depth constant?"""
    for outer, inner in itertools.pairwise(depth):
        a, b = weight.strides[outer], weight.strides[inner]
        if a is None or b is None or not equal(a, b * axes[inner].extent):
            return False
    return True


def _is_matmul(walks: Sequence[Walk]) -> bool:
    """Is every dimension of data a single axis without padding?"""
    if any(walk.is_guarded for walk in walks):
        return False
    steps = [[step for step in walk.steps if step is not None] for walk in walks]
    return all(len(own) <= 1 and all(loops.constant(x) == 1 for x in own) for own in steps)
