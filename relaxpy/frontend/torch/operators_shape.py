"""Shapes, slices, joining, gathering, and tensors made from nothing."""

from __future__ import annotations

from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.operators_elementwise import number, size_tensor
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import dim_op, product

_LAST = 2**63 - 1


@operator("view.default", "reshape.default", "_unsafe_view.default")
def reshape(at: Site, x: Expr, sizes: Any) -> Any:
    """Torch's own shape may say a size in another way that is the same for the sizes of the trace only."""
    shape = at.shape
    if all(size in (-1, known) for size, known in zip(sizes, shape, strict=True)):
        return op.reshape(x, shape)
    others = product(tuple(Dim.of(size) for size in sizes if size != -1))
    left = product(tuple(at.shape_of(x))) // others
    return op.reshape(x, [left if size == -1 else size for size in sizes])


@operator("flatten.using_ints", "unflatten.int")
def flatten(at: Site, x: Expr, *rest: Any) -> Any:
    return op.reshape(x, at.shape)


@operator("expand.default")
def expand(at: Site, x: Expr, *rest: Any) -> Any:
    return op.broadcast_to(x, at.shape)


@operator("permute.default")
def permute(at: Site, x: Expr, axes: list[int]) -> Any:
    return op.permute_dims(x, axes) if at.ndim(x) else x


@operator("transpose.int")
def transpose(at: Site, x: Expr, a: int, b: int) -> Any:
    if not at.ndim(x):
        return x
    axes = list(range(at.ndim(x)))
    axes[a], axes[b] = axes[b], axes[a]
    return op.permute_dims(x, axes)


@operator("unsqueeze.default")
def unsqueeze(at: Site, x: Expr, axis: int) -> Any:
    return op.expand_dims(x, axis)


@operator("squeeze.dims", "squeeze.dim", "squeeze.default")
def squeeze(at: Site, x: Expr, axes: Any = None) -> Any:
    """The trace keeps an axis whose size may vary: torch would remove it at a size of 1."""
    sizes = at.shape_of(x)
    if axes is None:
        axes = range(len(sizes))
    for axis in [axes] if isinstance(axes, int) else axes:
        if sizes and sizes[axis].value is None:
            at.check(dim_op("ne", sizes[axis], 1), f"axis {axis} stays: its size is not 1")
    return op.reshape(x, at.shape)


@operator("slice.Tensor")
def slice_(at: Site, x: Expr, axis: int, start: Any, end: Any, step: Any) -> Any:
    start = 0 if start is None else start
    if end is None or (isinstance(end, int) and end >= _LAST):
        if start == 0 and step == 1:
            return x
        end = at.shape_of(x)[axis]
    return op.strided_slice(x, [axis], [start], [end], [step])


@operator("select.int")
def select(at: Site, x: Expr, axis: int, index: Any) -> Any:
    size = at.shape_of(x)[axis]
    at.check(_inside(index, size), f"the index {index} is in an axis of {size}")
    first = Dim.of(index) if not (isinstance(index, int) and index < 0) else size + index
    y = op.strided_slice(x, [axis], [first], [first + 1])
    return op.reshape(y, at.shape)


def _inside(index: Any, size: Dim) -> Dim:

    if isinstance(index, int) and index < 0:
        return dim_op("le", -index, size)
    return dim_op("lt", index, size)


@operator("cat.default")
def cat(at: Site, tensors: list[Expr], axis: int = 0) -> Any:
    # Torch takes empty 1-d tensors of any rank's company.
    rank = len(at.shape)
    kept = [x for x in tensors if at.ndim(x) == rank]
    return op.concat([at.cast(x, at.dtype) for x in kept], axis=axis)


@operator("stack.default")
def stack(at: Site, tensors: list[Expr], axis: int = 0) -> Any:
    return op.stack([at.cast(x, at.dtype) for x in tensors], axis=axis)


@operator("split_with_sizes.default")
def split_with_sizes(at: Site, x: Expr, sizes: list[Any], axis: int = 0) -> Any:
    # Each part is inside, which is checked: sizes that are known only at run time are those of the parts.
    parts, start = [], Dim.of(0)
    for size in sizes:
        parts.append(op.strided_slice(x, [axis], [start], [start + size], assume_inbound=True))
        start = start + size
    return parts


@operator("flip.default")
def flip(at: Site, x: Expr, axes: list[int]) -> Any:
    for axis in axes:
        x = at.emit(op.flip(x, axis=axis)) if at.ndim(x) else x
    return x


@operator("repeat.default")
def repeat(at: Site, x: Expr, repeats: list[Any]) -> Any:
    """Each axis of size d is a row of `repeats` copies: (repeats, d), which is one axis again."""
    sizes = [Dim.of(1)] * (len(repeats) - at.ndim(x)) + at.shape_of(x)
    apart = [each for size in sizes for each in (Dim.of(1), size)]
    wide = [each for count, size in zip(repeats, sizes) for each in (Dim.of(count), size)]
    x = at.emit(op.broadcast_to(at.emit(op.reshape(x, apart)), wide))
    return op.reshape(x, at.shape)


@operator("fill.Scalar", "fill.Tensor")
def fill(at: Site, x: Expr, value: Any) -> Any:
    return op.broadcast_to(number(at, value), at.shape)


@operator("copy.default")
def copy(at: Site, x: Expr, source: Expr, *rest: Any) -> Any:
    return op.broadcast_to(at.cast(source, at.dtype), at.shape)


@operator("unbind.int")
def unbind(at: Site, x: Expr, axis: int = 0) -> Any:
    shape = at.shape
    return [
        op.reshape(at.emit(op.strided_slice(x, [axis], [k], [k + 1])), shape)
        for k in range(len(at.val))
    ]


@operator("getitem", namespace="operator")
def getitem(at: Site, values: Any, index: int) -> Any:
    return values[index]


@operator("arange.start_step")
def arange(at: Site, start: Any, end: Any, step: Any, *rest: Any) -> Any:
    """`arange` of an integer dtype with float arguments is torch's: their number is computed from the floats, their
    values from start and step truncated to integers. Also for a step that is a size."""
    start, end, step = given = tuple(
        int(each) if isinstance(each, bool) else each for each in (start, end, step)
    )
    known = not isinstance(step, Dim) or step.value is not None
    if known and not any(isinstance(each, float) for each in given):
        return at.cast(at.emit(op.arange(start, end, step, dtype="int64")), at.dtype)
    sizes = any(isinstance(each, Dim) and each.value is None for each in given)
    if not at.dtype.is_int and not sizes:
        return op.float_arange(float(start), float(end), float(step), dtype=at.dtype)
    wide = "int64" if at.dtype.is_int else "float64"
    places = at.emit(op.arange(0, at.shape[0], 1, dtype="int64"))
    first, by = (
        size_tensor(at, each, wide)
        if isinstance(each, Dim)
        else op.full((), int(each) if wide == "int64" else each, wide)
        for each in (start, step)
    )
    steps = at.emit(op.multiply(at.cast(places, wide), by))
    return at.cast(at.emit(op.add(steps, first)), at.dtype)


@operator("full.default", "full_like.default", "new_full.default")
def full(at: Site, first: Any, *rest: Any) -> Any:
    value = rest[0] if not isinstance(first, Expr) or not isinstance(rest[0], list) else rest[1]
    if isinstance(value, (int, float)):
        return op.full(at.shape, value, dtype=at.dtype)
    return op.broadcast_to(number(at, value), at.shape)


@operator("zeros.default", "zeros_like.default", "empty.memory_format", "new_zeros.default")
@operator("empty_like.default", "new_empty.default", "empty_permuted.default")
@operator("empty_strided.default", "new_empty_strided.default")
def zeros(at: Site, *rest: Any) -> Any:
    return op.zeros(at.shape, at.dtype)


@operator("ones.default", "ones_like.default", "new_ones.default")
def ones(at: Site, *rest: Any) -> Any:
    return op.ones(at.shape, at.dtype)


@operator("scalar_tensor.default")
def scalar_tensor(at: Site, value: Any, *rest: Any) -> Any:
    return number(at, value)


@operator("roll.default")
def roll(at: Site, x: Expr, shifts: list[Any], axes: list[int]) -> Any:
    if not at.ndim(x):
        return x
    if not axes:
        flat = at.emit(op.reshape(x, (product(tuple(at.shape_of(x))),)))
        return op.reshape(at.emit(_rolled(at, flat, shifts[0], 0)), at.shape)
    for shift, axis in zip(shifts, axes, strict=True):
        x = at.emit(_rolled(at, x, shift, axis))
    return x


def _rolled(at: Site, x: Expr, shift: Any, axis: int) -> Any:
    """The part from the new first element on, then the part before it."""
    size = at.shape_of(x)[axis]
    first = -Dim.of(shift) % dim_op("max", size, 1)
    parts = ((first, size), (Dim.of(0), first))
    return op.concat([at.emit(op.strided_slice(x, [axis], [a], [b])) for a, b in parts], axis=axis)
