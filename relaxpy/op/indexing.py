"""`x[…]` on a tensor, with numpy's meaning, as operators of R.

An integer selects an index of an axis (checked at run time if the size is unknown), a slice selects a part, `None` adds
an axis, and `...` covers all remaining axes. One tensor of integers gathers along its axis; several index the first
axes together. Negative indices count from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from relaxpy.errors import ScriptError
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.expr import Expr, Tuple
from relaxpy.op.deduce import deduce
from relaxpy.op.familiar import advice
from relaxpy.op.gather import IndexTensor, Take
from relaxpy.op.manipulate import ExpandDims, Squeeze
from relaxpy.op.slice import FAR, StridedSlice
from relaxpy.shape.prove import prove


@dataclass
class _Slices:
    """The arguments of one `strided_slice`."""

    axes: list[int] = field(default_factory=list[int])
    begin: list[Dim] = field(default_factory=list[Dim])
    end: list[Dim] = field(default_factory=list[Dim])
    strides: list[int] = field(default_factory=list[int])

    def add(self, axis: int, begin: Any, end: Any, stride: int = 1) -> None:
        self.axes.append(axis)
        self.begin.append(Dim.of(begin))
        self.end.append(Dim.of(end))
        self.strides.append(stride)

    def call(self, x: Expr, inbound: bool) -> Expr:
        strides = [tuple(self.strides)] if any(s != 1 for s in self.strides) else []
        op = StridedSlice(assume_inbound=inbound)
        return op(x, tuple(self.axes), tuple(self.begin), tuple(self.end), *strides)


def index_tensor(
    x: Expr,
    annotation: TensorType,
    items: Sequence[Any],
    bind: Callable[[Expr], Expr],
) -> Expr:
    """The value of `x[items]`. Items are integers, dimensions, slices of these, None, `...`, and tensors. `bind` binds
    an intermediate value to a variable. Raises `ScriptError` for an invalid subscript."""
    if any(_is_mask(item) for item in items):
        raise _wrong("a tensor of bools as an index", MASK)
    axes = _axes(items, annotation)
    tensors = [item for item in axes if isinstance(item, Expr)]
    if len(tensors) > 1:
        if axes[: len(tensors)] != tensors or axes[len(tensors) :] != [slice(None)] * (
            annotation.ndim - len(tensors)
        ):
            raise _wrong("several tensors as indices, but of the first axes,", "index in two steps")
        return IndexTensor()(x, Tuple(tuple(tensors)))
    places, parts = _Slices(), _Slices()
    gathered: tuple[int, Expr] | None = None
    new_axes: list[int] = []
    kept = 0  # axes of the result before the gathered one
    axis = 0
    for item in axes:
        if item is None:
            new_axes.append(kept + len(new_axes))
            continue
        size = annotation.dims[axis] if annotation.dims is not None else None
        if isinstance(item, Expr):
            gathered = (kept, item)
        elif isinstance(item, slice):
            _add_slice(parts, kept, item, size)
        else:
            _add_place(places, axis, Dim.of(item), size)
            axis += 1
            continue
        kept += 1
        axis += 1
    if gathered is not None and (new_axes or places.axes):
        raise _wrong("a tensor beside an integer or None as indices", "index in two steps")
    value = x
    if places.axes:
        value = Squeeze(tuple(places.axes))(
            bind(places.call(x, inbound=annotation.dims is not None))
        )
    if parts.axes:
        value = parts.call(_leaf(value, x, bind), inbound=False)
    if gathered is not None:
        value = Take(gathered[0], "wrap")(_leaf(value, x, bind), gathered[1])
    if new_axes:
        value = ExpandDims(tuple(new_axes))(_leaf(value, x, bind))
    return value


MASK = f"{advice('masked_select', 'R.')}; to keep the shape write R.where(c, x, R.zeros_like(x))"
"""The advice for a mask: what it selects has a size that depends on values."""


def _is_mask(item: Any) -> bool:
    annotation = deduce(item) if isinstance(item, Expr) else None
    return isinstance(annotation, TensorType) and annotation.dtype == "bool"


def _leaf(value: Expr, x: Expr, bind: Callable[[Expr], Expr]) -> Expr:
    return value if value is x else bind(value)


def _axes(items: Sequence[Any], annotation: TensorType) -> list[Any]:
    """One item for each axis, with None for each new axis."""
    if annotation.ndim < 0:
        raise ScriptError(
            "tensor-index",
            "a tensor of unknown rank cannot be indexed",
            help="check it first: R.match_cast(x, R.Tensor(ndim=2))",
        )
    count = sum(1 for item in items if item is not None and item is not ...)
    dots = [i for i, item in enumerate(items) if item is ...]
    if len(dots) > 1:
        raise _wrong("more than one `...`", "keep one")
    if count > annotation.ndim:
        raise ScriptError(
            "tensor-index",
            f"{count} indices for a tensor of {annotation.ndim} dimension{'s' * (annotation.ndim != 1)}",
        )
    at = dots[0] if dots else len(items)
    rest = [slice(None)] * (annotation.ndim - count)
    return [*items[:at], *rest, *items[at + len(dots) :]]


def _add_place(places: _Slices, axis: int, index: Dim, size: Dim | None) -> None:
    known = index.value
    if known is not None and size is not None and size.value is not None:
        if not -size.value <= known < size.value:
            raise ScriptError(
                "tensor-index", f"index {known} is out of range for an axis of size {size}"
            )
        index = Dim.of(known % size.value)
    elif known is not None and known < 0 and size is not None:
        index = size + known
    elif known is None and size is not None and _may_be_negative(index):
        index = dim_op("select", dim_op("lt", index, 0), index + size, index)
    last = FAR if index.value == -1 else index + 1
    places.add(axis, index, last)


def _may_be_negative(index: Dim) -> bool:
    """Can this index be negative, and so count from the end? Arithmetic of sizes counts from the front."""
    return any(var.signed for var in index.vars) and not prove(dim_op("le", 0, index))


def _add_slice(parts: _Slices, axis: int, item: slice, size: Dim | None) -> None:
    stride = 1 if item.step is None else Dim.of(item.step).value
    if stride is None or stride == 0:
        what = "a step of 0" if stride == 0 else "a step that is known only at run time"
        raise _wrong(what, "write a constant other than 0")
    if item.start is None and item.stop is None and stride == 1:
        return
    whole: Any = (0, FAR if size is None else size) if stride > 0 else (FAR, -FAR)
    begin = whole[0] if item.start is None else item.start
    end = whole[1] if item.stop is None else item.stop
    parts.add(axis, begin, end, stride)


def _wrong(what: str, help: str) -> ScriptError:
    return ScriptError("tensor-index", f"{what} cannot be used here", help=help)
