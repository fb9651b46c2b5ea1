"""Operators that make tensors, and change shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy.frontend.onnx.element_types import NUMBERS
from relaxpy.ir import Dim, DType
from relaxpy.ir.dim import product
from relaxpy.onnx.write_table import writes
from relaxpy.onnx.write_values import ShapeTensor, Tensor
from relaxpy.onnx.writer import Place
from relaxpy.onnx.writes_elementwise import converted_to, position
from relaxpy.op import (
    create,
    intrinsic,
    join,
    manipulate,
    rearrange,
    repetition,
    reverse,
    row_major,
    triangle,
)
from relaxpy.op.collapse import CollapseSumLike, CollapseSumTo
from relaxpy.op.pad import Pad
from relaxpy.op.precision import converted
from relaxpy.op.slice import FAR, DynamicStridedSlice, SliceScatter, StridedSlice, clipped

# New tensors


def filled(at: Place, shape: Any, value: Any, dtype: DType) -> str:
    """A tensor of one number; `shape` is a name."""
    number = np.asarray(value).astype(dtype.numpy)
    if dtype.is_narrow and dtype not in ("float16", "bfloat16"):
        return at.node("Expand", at.number(value, dtype), shape)
    from onnx import helper

    data = number.reshape(1).tobytes()
    tensor = helper.make_tensor("value", NUMBERS[dtype], [1], data, raw=True)
    return at.node("ConstantOfShape", shape, value=tensor)


@writes(create.Zeros, create.Ones)
def zeros(at: Place, op: Any, shape: Sequence[Dim]) -> Any:
    return filled(at, at.shape(shape), op.value, op.dtype)


@writes(create.ZerosLike, create.OnesLike)
def zeros_like(at: Place, op: Any, x: Tensor) -> Any:
    return filled(at, at.node("Shape", x), op.value, op.dtype or x.dtype)


@writes(create.Full)
def full(at: Place, op: create.Full, shape: Sequence[Dim], value: Tensor) -> Any:
    return _full(at, at.shape(shape), value, op.dtype)


@writes(create.FullLike)
def full_like(at: Place, op: create.FullLike, x: Tensor, value: Tensor) -> Any:
    return _full(at, at.node("Shape", x), value, op.dtype or x.dtype)


def _full(at: Place, shape: str, value: Tensor, dtype: DType | None) -> str:
    if value.constant is not None:
        return filled(
            at, shape, converted(value.constant, dtype or value.dtype), dtype or value.dtype
        )
    number: Any = value
    if dtype is not None and dtype != value.dtype:
        number = converted_to(at, value, dtype)
    return at.node("Expand", number, shape)


@writes(create.Arange)
def arange(at: Place, op: create.Arange, start: Any, end: Any = None, step: Any = None) -> Any:
    first, last = (Dim.of(0), start) if end is None else (start, end)
    by = Dim.of(1) if step is None else step
    for each in (first, last, by):
        if not isinstance(each, Dim):
            raise at.fail("of numbers that are no integers")
    found = at.node("Range", *(at.scalar(each) for each in (first, last, by)))
    return at.cast(found, op.dtype, "int64")


@writes(create.FloatArange)
def float_arange(at: Place, op: create.FloatArange) -> Any:
    return at.node("Identity", at.array(op.reference()))


@writes(create.HammingWindow)
def hamming_window(at: Place, op: create.HammingWindow, size: Any) -> Any:
    if not isinstance(size, Dim) or size.value is None:
        raise at.fail("of a size that is not known")
    return at.node("Identity", at.array(op.reference(size.value)))


@writes(triangle.Eye)
def eye(at: Place, op: triangle.Eye, n: Dim, m: Dim | None = None, k: Dim | None = None) -> Any:
    sizes = filled(at, at.shape([n, n if m is None else m]), 0, DType("float32"))
    return _eye(at, sizes, k, op.dtype)


@writes(triangle.EyeLike)
def eye_like(at: Place, op: triangle.EyeLike, x: Tensor, k: Dim | None = None) -> Any:
    return _eye(at, at.cast(x, "float32"), k, op.dtype or x.dtype)


def _eye(at: Place, x: Any, k: Dim | None, dtype: DType) -> str:
    own = (
        dtype if dtype.bits >= 32 and dtype != "uint32" else DType("float32")
    )  # runtimes have no others
    return at.cast(at.node("EyeLike", x, k=_offset(at, k), dtype=NUMBERS[own]), dtype, own)


def _offset(at: Place, k: Dim | None) -> int:
    if k is not None and k.value is None:
        raise at.fail("with a diagonal that is known only when it runs")
    return 0 if k is None or k.value is None else k.value


@writes(triangle.Tril, triangle.Triu)
def tril(at: Place, op: Any, x: Tensor, k: Dim | None = None) -> Any:
    by = None if k is None else at.scalar(k)
    return at.node("Trilu", x, by, upper=int(isinstance(op, triangle.Triu)))


# Shapes


@writes(row_major.Reshape)
def reshape(at: Place, op: Any, x: Tensor, shape: Sequence[Dim]) -> Any:
    return at.reshape(x, shape)


@writes(row_major.Flatten)
def flatten(at: Place, op: Any, x: Tensor) -> Any:
    return at.node("Reshape", x, at.ints([-1]))


@writes(rearrange.BatchFlatten)
def batch_flatten(at: Place, op: Any, x: Tensor) -> Any:
    return at.node("Flatten", x, axis=1)


@writes(row_major.Size)
def size(at: Place, op: Any, x: Tensor) -> Any:
    return at.node("Size", x)


@writes(manipulate.BroadcastTo)
def broadcast_to(at: Place, op: Any, x: Tensor, shape: Sequence[Dim]) -> Any:
    return at.node("Expand", x, at.shape(shape))


@writes(manipulate.ExpandDims)
def expand_dims(at: Place, op: manipulate.ExpandDims, x: Tensor) -> Any:
    axes = (op.axis,) if isinstance(op.axis, int) else op.axis
    return at.unsqueeze(x, axes) if axes else at.node("Identity", x)


@writes(manipulate.Squeeze)
def squeeze(at: Place, op: manipulate.Squeeze, x: Tensor) -> Any:
    if op.axis is None:
        axes: Sequence[int] = [a for a, dim in enumerate(at.dims(x)) if dim.value == 1]
    else:
        axes = (op.axis,) if isinstance(op.axis, int) else op.axis
        axes = [a for a in axes if at.dims(x)[a].value in (1, None)]
    return at.squeeze(x, axes) if axes else at.node("Identity", x)


@writes(manipulate.PermuteDims)
def permute_dims(at: Place, op: manipulate.PermuteDims, x: Tensor) -> Any:
    axes = range(x.ndim)[::-1] if op.axes is None else [a % x.ndim for a in op.axes]
    return at.node("Transpose", x, perm=list(axes))


@writes(CollapseSumLike, CollapseSumTo)
def collapse_sum(at: Place, op: Any, x: Tensor, target: Any) -> Any:
    dims = at.dims(target) if isinstance(target, Tensor) else target
    lead = x.ndim - len(dims)
    axes = [
        a
        for a in range(x.ndim)
        if a < lead or (dims[a - lead].value == 1 and at.dims(x)[a].value != 1)
    ]
    unclear = [d for a, d in enumerate(dims) if d.value is None and at.dims(x)[a + lead] != d]
    if unclear:
        raise at.fail(f"to the size {unclear[0]}, of which it is not known whether it is 1")
    if not axes:
        return at.node("Identity", x)
    return at.reshape(at.node("ReduceSum", x, at.ints(axes), keepdims=1), dims)


@writes(rearrange.PixelShuffle)
def pixel_shuffle(at: Place, op: rearrange.PixelShuffle, x: Tensor) -> Any:
    if x.ndim == 4:
        return at.node("DepthToSpace", x, blocksize=op.upscale_factor, mode="CRD")
    dims = at.dims(x)
    flat = at.reshape(x, [product(dims[:-3]), *dims[-3:]])
    found = at.node("DepthToSpace", flat, blocksize=op.upscale_factor, mode="CRD")
    by = op.upscale_factor
    return at.reshape(found, [*dims[:-3], dims[-3] // (by * by), dims[-2] * by, dims[-1] * by])


@writes(repetition.Repeat)
def repeat(at: Place, op: repetition.Repeat, x: Tensor) -> Any:
    dims = list(at.dims(x))
    source: Any = x
    axis = op.axis
    if axis is None:
        source, dims, axis = at.node("Reshape", x, at.ints([-1])), [product(tuple(dims))], 0
    axis %= len(dims)
    if op.repeats == 0:  # runtimes do not expand to 0
        return filled(at, at.shape([*dims[:axis], 0, *dims[axis + 1 :]]), 0, x.dtype)
    apart = at.unsqueeze(source, [axis + 1])
    wide = at.node(
        "Expand", apart, at.shape([1] * (axis + 1) + [op.repeats] + [1] * (len(dims) - axis - 1))
    )
    dims[axis] = dims[axis] * op.repeats
    return at.reshape(wide, dims)


@writes(repetition.Tile)
def tile(at: Place, op: repetition.Tile, x: Tensor) -> Any:
    times = (op.repeats,) if isinstance(op.repeats, int) else op.repeats
    ndim = max(x.ndim, len(times))
    source = at.unsqueeze(x, range(ndim - x.ndim))
    return at.node("Tile", source, at.ints(op.times(ndim))) if ndim else at.node("Identity", x)


@writes(reverse.Flip)
def flip(at: Place, op: reverse.Flip, x: Tensor) -> Any:
    first, last = at.ints([-1]), at.ints([-(2**63) + 1])
    return at.node("Slice", x, first, last, at.ints([op.axis]), first)


@writes(reverse.ReverseSequence)
def reverse_sequence(at: Place, op: reverse.ReverseSequence, x: Tensor, lengths: Tensor) -> Any:
    batch, time = op.batch_axis % x.ndim, op.seq_axis % x.ndim
    order = [time, batch, *(a for a in range(x.ndim) if a not in (time, batch))]
    turned = at.transpose(x, order)
    # No length below 1 is valid, and none beyond the axis.
    size = at.dims(x)[time]
    own = position(at, lengths)
    bounded = at.node("Min", at.node("Max", own, at.ints([1])), at.shape([size]))
    found = at.node("ReverseSequence", turned, bounded, batch_axis=1, time_axis=0)
    back = [order.index(a) for a in range(x.ndim)]
    return at.transpose(found, back)


# Joining and slicing


@writes(join.Concat)
def concat(at: Place, op: join.Concat, tensors: Sequence[Tensor]) -> Any:
    if op.axis is None:
        return at.node("Concat", *(at.node("Reshape", x, at.ints([-1])) for x in tensors), axis=0)
    return at.node("Concat", *tensors, axis=op.axis)


@writes(join.Stack)
def stack(at: Place, op: join.Stack, tensors: Sequence[Tensor]) -> Any:
    axis = op.axis % (tensors[0].ndim + 1)
    return at.node("Concat", *(at.unsqueeze(x, [axis]) for x in tensors), axis=axis)


@writes(join.Meshgrid)
def meshgrid(at: Place, op: join.Meshgrid, tensors: Sequence[Tensor]) -> Any:
    count = len(tensors)
    places = [op.axis_of(k, count) for k in range(count)]
    sizes = [at.dims(x)[0] if x.ndim else Dim.of(1) for x in tensors]
    shape = at.shape([sizes[places.index(axis)] for axis in range(count)])
    found: list[str] = []
    for place, size, x in zip(places, sizes, tensors, strict=True):
        along: list[Any] = [size if axis == place else 1 for axis in range(count)]
        found.append(at.node("Expand", at.reshape(x, along), shape))
    return found


@writes(join.Split)
def split(at: Place, op: join.Split, x: Tensor, sections: Any) -> Any:
    axis = op.axis % x.ndim
    size = at.dims(x)[axis]
    if isinstance(sections, Dim):
        count = sections.value or 1
        step = (size + (count - 1)) // count
        ends = [step * (i + 1) for i in range(count - 1)]
    else:
        ends = list(sections)
    if not ends:
        return [at.node("Identity", x)]
    begin, found = Dim.of(0), list[str]()
    for end in (*ends, Dim.of(FAR)):
        found.append(at.slice(x, axis, begin, end))
        begin = end
    return found


@writes(StridedSlice)
def strided_slice(
    at: Place, op: StridedSlice, x: Tensor, axes: Sequence[Dim], begin: Sequence[Dim], end: Sequence[Dim],
    strides: Sequence[Dim] | None = None,
) -> Any:  # fmt: skip
    if not axes:
        return at.node("Identity", x)
    steps = strides or (Dim.of(1),) * len(axes)
    return at.node("Slice", x, at.shape(begin), at.shape(end), at.shape(axes), at.shape(steps))


@writes(DynamicStridedSlice)
def dynamic_strided_slice(
    at: Place, op: Any, x: Tensor, begin: Tensor, end: Tensor, strides: Tensor
) -> Any:
    axes = at.ints(range(x.ndim))
    return at.node("Slice", x, begin, end, axes, strides)


@writes(SliceScatter)
def slice_scatter(
    at: Place, op: SliceScatter, x: Tensor, source: Tensor, start: Dim, end: Dim, step: Dim
) -> Any:
    axis = op.axis % x.ndim
    size = at.dims(x)[axis]
    count = at.dims(source)[axis]
    first = clipped(start, size)
    last = first + count * step
    rows = at.node("Range", at.scalar(first), at.scalar(last), at.scalar(step))
    order = [axis, *(a for a in range(x.ndim) if a != axis)]
    into, new = at.transpose(x, order), at.transpose(source, order)
    found = at.node("ScatterND", into, at.unsqueeze(rows, [1]), new)
    return at.transpose(found, [order.index(a) for a in range(x.ndim)])


_PAD = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@writes(Pad)
def pad(at: Place, op: Pad, x: Tensor) -> Any:
    pairs = list(zip(op.pad_width[::2], op.pad_width[1::2], strict=True))
    if not any(op.pad_width):
        return at.node("Identity", x)
    mode = _PAD[op.pad_mode]
    if mode == "wrap":
        at.need(19)
    widths = at.ints([pair[0] for pair in pairs] + [pair[1] for pair in pairs])
    value = at.number(op.pad_value, x.dtype) if mode == "constant" else None
    return at.node("Pad", x, widths, value, mode=mode)


# Shapes as values


@writes(intrinsic.ShapeOf)
def shape_of(at: Place, op: Any, x: Tensor) -> Any:
    return at.dims(x)


@writes(intrinsic.ShapeToTensor)
def shape_to_tensor(at: Place, op: Any, shape: Sequence[Dim]) -> Any:
    if not shape:
        return at.node("Identity", at.ints([]))
    return at.node("Identity", at.shape(shape))


@writes(intrinsic.TensorToShape)
def tensor_to_shape(at: Place, op: Any, x: Tensor) -> Any:
    return ShapeTensor(x)


@writes(intrinsic.TensorToScalar)
def tensor_to_scalar(at: Place, op: Any, x: Tensor) -> Any:
    return x


@writes(intrinsic.ScalarToTensor)
def scalar_to_tensor(at: Place, op: intrinsic.ScalarToTensor, value: Any) -> Any:
    return at.node("Identity", at.writer.tensor(value, op.dtype))
