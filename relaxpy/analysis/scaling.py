"""How a scale, a factor for each index of some axes, passes through operators: the table of `FoldScaleAxis`.

A scale of a tensor is an array of float64 with the tensor's rank, whose sizes are 1 or the tensor's. Each operator that
a scale passes through has a line in `RULES`, with two readings of one equation:

* backward, `op(x, w) * s == op(x * s1, w * s2)`: which operands are scaled instead of the result;
* forward, `op(x * s, w) == op(x, w * s2) * s1`: the scale of the result and of the other operands instead of one.

The equations hold for real numbers. What rounding makes of them is for the pass to judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.expr import Call, Expr, Tuple
from relaxpy.ir.known import KnownTensor
from relaxpy.op.activation import LeakyRelu, Relu
from relaxpy.op.adaptive_pool import AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d
from relaxpy.op.base import Op
from relaxpy.op.binary import Add, Divide, Maximum, Minimum, Multiply, Subtract
from relaxpy.op.conv import Conv1d, Conv2d, Conv3d, ConvolutionLike
from relaxpy.op.conv_transpose import (
    Conv1dTranspose,
    Conv2dTranspose,
    Conv3dTranspose,
    TransposedConvolution,
)
from relaxpy.op.join import Concat
from relaxpy.op.linear_algebra import Linear, Matmul
from relaxpy.op.manipulate import BroadcastTo, ExpandDims, PermuteDims, Squeeze
from relaxpy.op.norm import GroupNorm, InstanceNorm, LayerNorm, RmsNorm
from relaxpy.op.pad import Pad
from relaxpy.op.pool import AvgPool1d, AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d
from relaxpy.op.reduce import Max, Mean, Min, Reduction, Sum
from relaxpy.op.resize import Resize2d, Resize3d
from relaxpy.op.row_major import Flatten, Reshape
from relaxpy.op.unary import Abs, Negative

Scale: TypeAlias = np.ndarray
Scales: TypeAlias = Mapping[int, Scale]
"""The scales of some operands, by their position."""
Forward: TypeAlias = "Sequence[tuple[Scale | None, Scales]]"


@dataclass(frozen=True)
class Site:
    """A call whose operands and result are tensors of known shape and dtype."""

    op: Any
    operands: Sequence[KnownTensor | None]
    """None: an operand that is no tensor, as the shape of a reshape."""
    result: KnownTensor


def operands(call: Call) -> tuple[Expr, ...]:
    """The operands of a call: its arguments, or the fields of the tuple that is its only one."""
    match call.args:
        case (Tuple(fields=fields),):
            return fields
        case args:
            return args


def with_operands(call: Call, new: Sequence[Expr]) -> Call:
    """The call with other operands."""
    given = (Tuple(tuple(new)),) if isinstance(call.args[0], Tuple) else tuple(new)
    return replace(call, args=given)


@dataclass(frozen=True)
class Rule:
    """How a scale passes through one kind of operator. `backward` gives the ways to scale operands instead of the
    result; `forward` the ways to scale the result (None: it has no scale) and other operands instead of one operand.
    The scale of an operand that is broadcast has the axes of the result."""

    backward: Callable[[Site, Scale], Sequence[Scales]]
    forward: Callable[[Site, int, Scale], Forward]
    positive: bool = False
    """Whether the equations need scales above 0."""
    weighs: bool = False
    """Whether the result is a sum of products with a weight: a factor more of it is as good as none."""


# The shape of a scale on the other side of an operator. `_Geometry(site, index, scale, up)` is that of the result for
# the scale of operand `index` (up), or that of the operand for the scale of the result. None: there is none.

_Geometry: TypeAlias = Callable[[Site, int, Scale, bool], "Scale | None"]


def _sizes(tensor: KnownTensor | None) -> tuple[Dim, ...]:
    return () if tensor is None else tensor.dims


def _broadcast(site: Site, index: int, scale: Scale, up: bool) -> Scale | None:
    """Axes from the last on; along a scale's axes nothing is repeated."""
    inner, outer = _sizes(site.operands[index]), site.result.dims
    more = len(outer) - len(inner)
    if more < 0:
        return None
    wide = scale.reshape((*(1,) * more, *scale.shape)) if up else scale
    for axis, size in enumerate(wide.shape):
        if size != 1 and (axis < more or inner[axis - more] != size or outer[axis] != size):
            return None
    return wide if up else wide.reshape(wide.shape[more:])


def _kept(axes: Callable[[Site], Sequence[int] | None]) -> _Geometry:
    """The same axes, of which a scale is along these alone."""

    def geometry(site: Site, index: int, scale: Scale, up: bool) -> Scale | None:
        kept = axes(site)
        along = [axis for axis, size in enumerate(scale.shape) if size != 1]
        return scale if kept is not None and set(along) <= set(kept) else None

    return geometry


def _channels(site: Site) -> Sequence[int] | None:
    """The axes N and C of a pooling or resizing operator."""
    layout = site.op.layout
    same = getattr(site.op, "out_layout", None) in (None, layout)
    return [layout.index(x) for x in "NC"] if same and layout.isalpha() else None


def _sized(site: Site) -> Sequence[int] | None:
    """The same of resizing, unless there is another value outside of data, or another dtype."""
    plain = site.op.extrapolation_value == 0 and site.op.out_dtype is None
    return _channels(site) if plain else None


def _unpadded(site: Site) -> Sequence[int] | None:
    if site.op.pad_mode == "constant" and site.op.pad_value != 0:
        return None
    return [axis for axis, width in enumerate(site.op.widths()) if not any(width)]


def _permuted(site: Site, index: int, scale: Scale, up: bool) -> Scale | None:
    order = site.op.order(scale.ndim)
    return scale.transpose(order if up else np.argsort(order))


def _reduced(site: Site, index: int, scale: Scale, up: bool) -> Scale | None:
    """What is along the axes that are left."""
    of: Reduction = site.op
    ndim = len(_sizes(site.operands[index]))
    gone = of.axes_of(ndim)
    if not up:
        return scale if of.keepdims else np.expand_dims(scale, gone)
    if any(scale.shape[axis] != 1 for axis in gone):
        return None
    return (
        scale
        if of.keepdims
        else scale.reshape([size for axis, size in enumerate(scale.shape) if axis not in gone])
    )


def _reshaped(site: Site, index: int, scale: Scale, up: bool) -> Scale | None:
    """Axes in groups of as many elements; a scale is along groups of known sizes, or of one axis on each side."""
    old, new = _sizes(site.operands[index]), site.result.dims
    if not up:
        old, new = new, old
    full, shape = list(scale.shape), list[int]()
    a = b = 0
    while a < len(old) or b < len(new):
        end, stop = _group(old, new, a, b)
        if scale.shape[a:end] == (1,) * (end - a):
            shape += [1] * (stop - b)
        elif end - a == stop - b == 1:
            shape.append(scale.shape[a])
        else:
            before, after = ([dim.value or 0 for dim in dims] for dims in (old[a:end], new[b:stop]))
            if math.prod(before) != math.prod(after) or 0 in before:
                return None  # unknown sizes, or elements of which there are none
            full[a:end] = before
            shape += after
        a, b = end, stop
    scale = np.broadcast_to(scale, full)
    return _narrowed(scale.reshape(shape))


def _group(old: Sequence[Dim], new: Sequence[Dim], a: int, b: int) -> tuple[int, int]:
    """The ends of the smallest groups of axes from `a` and `b` on that have the same number of elements; all of the
    rest if that cannot be told."""
    if a < len(old) and b < len(new) and old[a] == new[b]:
        return a + 1, b + 1
    if a < len(old) and old[a] == 1:
        return a + 1, b
    if b < len(new) and new[b] == 1:
        return a, b + 1
    end, stop, left, right = a, b, Dim.of(1), Dim.of(1)
    while end < len(old) or stop < len(new):
        if left == right and left != 1:
            return end, stop
        behind = left.value is not None and right.value is not None and left.value > right.value
        if (behind or end == len(old)) and stop < len(new):
            right, stop = right * new[stop], stop + 1
        else:
            left, end = left * old[end], end + 1
    return end, stop


def _narrowed(scale: Scale) -> Scale:
    """The scale with size 1 along axes along which it does not change."""
    for axis, size in enumerate(scale.shape):
        first = scale.take([0], axis) if size > 1 else scale
        if size > 1 and np.array_equal(np.broadcast_to(first, scale.shape), scale):
            scale = first
    return scale


# Kinds of operators


def _one(geometry: _Geometry = _broadcast, *, positive: bool = False) -> Rule:
    """A function of the first operand, with `f(x * s) == f(x) * s`."""

    def backward(site: Site, scale: Scale) -> Sequence[Scales]:
        own = geometry(site, 0, scale, False)
        return [] if own is None else [{0: own}]

    def forward(site: Site, index: int, scale: Scale) -> Forward:
        own = geometry(site, 0, scale, True) if index == 0 else None
        return [] if own is None else [(own, {})]

    return Rule(backward, forward, positive)


def _all(*, positive: bool = False) -> Rule:
    """A function with `f(x * s, y * s) == f(x, y) * s`."""

    def backward(site: Site, scale: Scale) -> Sequence[Scales]:
        return [dict.fromkeys(range(len(site.operands)), scale)]

    def forward(site: Site, index: int, scale: Scale) -> Forward:
        own = _broadcast(site, index, scale, True)
        if own is None or not own.all():
            return []
        others = (i for i in range(len(site.operands)) if i != index)
        return [(own, dict.fromkeys(others, 1 / own))]

    return Rule(backward, forward, positive)


def _product(site: Site, scale: Scale) -> Sequence[Scales]:
    return [{0: scale}, {1: scale}]


def _product_forward(site: Site, index: int, scale: Scale) -> Forward:
    own = _broadcast(site, index, scale, True)
    return [] if own is None else [(None, {1 - index: own}), (own, {})]


def _quotient(site: Site, scale: Scale) -> Sequence[Scales]:
    return [{0: scale}, *([{1: 1 / scale}] if scale.all() else [])]


def _quotient_forward(site: Site, index: int, scale: Scale) -> Forward:
    own = _broadcast(site, index, scale, True) if index == 0 else None
    if own is None:
        return []
    return [*([(None, {1: 1 / own})] if own.all() else []), (own, {})]


def _joined(site: Site, scale: Scale) -> Sequence[Scales]:
    """A concatenation: each part has its part of the scale."""
    axis = _axis_of(site)
    if axis is None:
        return []
    if scale.shape[axis] == 1:
        return [dict.fromkeys(range(len(site.operands)), scale)]
    sizes = [_sizes(part)[axis].value for part in site.operands]
    if None in sizes:
        return []
    ends = np.cumsum([size or 0 for size in sizes])[:-1]
    parts = np.split(scale, ends, axis)
    return [{i: _narrowed(part) for i, part in enumerate(parts)}]


def _joined_forward(site: Site, index: int, scale: Scale) -> Forward:
    """The scale of the result is 1 where the other parts are."""
    axis = _axis_of(site)
    if axis is None:
        return []
    parts: list[Scale] = []
    for i, part in enumerate(site.operands):
        size = _sizes(part)[axis].value
        if size is None:
            return []
        shape = [size if a == axis else n for a, n in enumerate(scale.shape)]
        parts.append(np.broadcast_to(scale if i == index else np.ones(()), shape))
    return [(_narrowed(np.concatenate(parts, axis)), {})]


def _axis_of(site: Site) -> int | None:
    return None if site.op.axis is None else site.op.axis % len(site.result.dims)


def _along(scale: Scale, axis: int) -> Scale | None:
    """The scale as a vector (or one number), if it changes along this axis alone."""
    others = [size for a, size in enumerate(scale.shape) if a != axis % max(scale.ndim, 1)]
    return scale.reshape(-1) if all(size == 1 for size in others) else None


def _placed(values: Scale, letters: str, to: str) -> Scale:
    """An array with these axes, in the order `to`, in which others have size 1."""
    missing = [x for x in to if x not in letters]
    wide = values.reshape((*values.shape, *(1,) * len(missing)))
    return wide.transpose([(letters + "".join(missing)).index(x) for x in to])


def _of_outputs(site: Site, scale: Scale) -> Sequence[Scales]:
    """A convolution: a factor for each channel of the result is one of the weight's."""
    op: ConvolutionLike = site.op
    _, weight, result = op.layouts()
    if weight.blocks or result.blocks:
        return []
    vector = _along(scale, result.letters.index("C"))
    if vector is None:
        return []
    if vector.size == 1 or not isinstance(op, TransposedConvolution):
        return [{1: _placed(vector, "O", weight.letters)}]
    rows = weight.sizes(_sizes(site.operands[1]))["I"].value
    if rows is None:
        return []
    groups = np.repeat(vector.reshape(op.groups, -1), rows // op.groups, axis=0)
    return [{1: _placed(groups, "IO", weight.letters)}]


def _of_inputs(site: Site, index: int, scale: Scale) -> Forward:
    """A convolution: a factor for each channel of data is one of the weight's."""
    op: ConvolutionLike = site.op
    data, weight, _ = op.layouts()
    if data.blocks or weight.blocks or index != 0:
        return []
    vector = _along(scale, data.letters.index("C"))
    if vector is None:
        return []
    if vector.size == 1 or isinstance(op, TransposedConvolution) or op.groups == 1:
        return [(None, {1: _placed(vector, "I", weight.letters)})]
    rows = weight.sizes(_sizes(site.operands[1]))["O"].value
    if rows is None:
        return []
    groups = np.repeat(vector.reshape(op.groups, -1), rows // op.groups, axis=0)
    return [(None, {1: _placed(groups, "OI", weight.letters)})]


def _layer(site: Site, scale: Scale) -> Sequence[Scales]:
    """A linear layer: a factor for each column of the result is one for each row of the weight, and for the bias."""
    vector = _along(scale, -1)
    if vector is None or (vector.size > 1 and len(_sizes(site.operands[1])) < 2):
        return []
    weight = vector.reshape((-1, 1)) if len(_sizes(site.operands[1])) == 2 else vector
    return [{1: weight, **({2: scale} if len(site.operands) > 2 else {})}]


def _layer_forward(site: Site, index: int, scale: Scale) -> Forward:
    vector = _along(scale, -1) if index == 0 else None
    if vector is None:
        return []
    return [(None, {1: vector.reshape((*(1,) * (len(_sizes(site.operands[1])) - 1), -1))})]


def _matmul(site: Site, scale: Scale) -> Sequence[Scales]:
    """A product of matrices: a factor for each column is one of the right-hand side's, for each row of the left's."""
    left, right = (len(_sizes(x)) for x in site.operands)
    found: list[Scales] = []
    columns = _along(scale, -1) if right > 1 or scale.size == 1 else None
    if columns is not None:
        found.append({1: columns.reshape((*(1,) * (right - 1), -1))})
    axis = -1 if right == 1 else -2
    rows = _along(scale, axis) if left > 1 or scale.size == 1 else None
    if rows is not None:
        found.append({0: rows.reshape((*(1,) * max(left - 2, 0), -1, *(1,) * (left > 1)))})
    return found


def _matmul_forward(site: Site, index: int, scale: Scale) -> Forward:
    """A factor for each index that is summed over is one of the other side's."""
    vector = _along(scale, -1 if index == 0 or scale.ndim == 1 else -2)
    if vector is None:
        return []
    other = len(_sizes(site.operands[1 - index]))
    after = (1,) if index == 0 and other > 1 else ()
    return [(None, {1 - index: vector.reshape((*(1,) * (other - 1 - len(after)), -1, *after))})]


def _normalised(site: Site, scale: Scale) -> Sequence[Scales]:
    """A normalisation: a factor along the axes of its weights is one of these."""
    ndim, op = scale.ndim, site.op
    if isinstance(op, (LayerNorm, RmsNorm)):
        axes = op.axes_of(ndim)
    else:
        axes = (op.channel_axis % ndim,)
    if any(size != 1 for axis, size in enumerate(scale.shape) if axis not in axes):
        return []
    own = scale.reshape([scale.shape[axis] for axis in axes])
    if isinstance(op, RmsNorm):
        return [{1: own}]
    return [{1: own, **({2: own} if op.center else {})}] if op.scale else []


def _nothing(site: Site, index: int, scale: Scale) -> Forward:
    return []


_TABLE: tuple[tuple[Rule, tuple[type[Op], ...]], ...] = (
    # The scale is positive: an order stays.
    (_one(positive=True), (Relu, LeakyRelu, Abs)),
    (_all(positive=True), (Maximum, Minimum)),
    (_one(_kept(_channels), positive=True), (MaxPool1d, MaxPool2d, MaxPool3d)),
    (_one(_reduced, positive=True), (Max, Min)),
    # Sums, and what moves elements.
    (_one(), (Negative, BroadcastTo)),
    (_all(), (Add, Subtract)),
    (_one(_kept(_channels)), (AvgPool1d, AvgPool2d, AvgPool3d)),
    (_one(_kept(_channels)), (AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d)),
    (_one(_kept(_sized)), (Resize2d, Resize3d)),
    (_one(_kept(_unpadded)), (Pad,)),
    (_one(_reduced), (Sum, Mean)),
    (_one(_reshaped), (Reshape, Flatten, ExpandDims, Squeeze)),
    (_one(_permuted), (PermuteDims,)),
    (Rule(_joined, _joined_forward), (Concat,)),
    # Products.
    (Rule(_product, _product_forward), (Multiply,)),
    (Rule(_quotient, _quotient_forward), (Divide,)),
    (
        Rule(_of_outputs, _of_inputs, weighs=True),
        (Conv1d, Conv2d, Conv3d, Conv1dTranspose, Conv2dTranspose, Conv3dTranspose),
    ),
    (Rule(_layer, _layer_forward, weighs=True), (Linear,)),
    (Rule(_matmul, _matmul_forward, weighs=True), (Matmul,)),
    # Normalisations have weights of their own.
    (Rule(_normalised, _nothing), (LayerNorm, RmsNorm, GroupNorm, InstanceNorm)),
)
RULES: Mapping[type[Op], Rule] = {kind: rule for rule, kinds in _TABLE for kind in kinds}
"""The rule of each operator that a scale passes through. An operator without one ends the way."""


def known(annotation: object) -> KnownTensor | None:
    """The tensor, if its shape and dtype are known."""
    if not isinstance(annotation, TensorType) or annotation.dims is None:
        return None
    return None if annotation.dtype is None else KnownTensor(annotation.dims, annotation.dtype)
