"""Sequences of a known length, and optional values."""

from __future__ import annotations

from typing import Any

from relaxpy import op
from relaxpy.frontend.onnx.arrays import dtype_of
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.operators_shape import cut
from relaxpy.frontend.onnx.table import operator
from relaxpy.frontend.onnx.values import Absent, Listed


@operator("SequenceConstruct")
def sequence_construct(at: Site, *xs: Any, **_: Any) -> Any:
    return Listed(tuple(xs))


@operator("SequenceEmpty")
def sequence_empty(at: Site, dtype: int | None = None, **_: Any) -> Any:
    return Listed((), dtype_of(dtype or 1, at.span))


def _place(at: Site, position: Any, count: int, last: int) -> int:
    """A place up to `last`; negative positions count from the end of the `count` tensors."""
    found = int(at.number_of(position, "the position"))
    if not -count <= found <= last:
        raise at.fail(
            "onnx-operator", f"the position {found} is not in a sequence of {count} tensors"
        )
    return found + count if found < 0 else found


@operator("SequenceAt")
def sequence_at(at: Site, xs: Listed, position: Any, **_: Any) -> Any:
    count = len(xs.items)
    return xs.items[_place(at, position, count, count - 1)]


@operator("SequenceInsert")
def sequence_insert(at: Site, xs: Listed, x: Any, position: Any = None, **_: Any) -> Any:
    count = len(xs.items)
    place = count if position is None else _place(at, position, count, count)
    return Listed((*xs.items[:place], x, *xs.items[place:]), xs.dtype)


@operator("SequenceErase")
def sequence_erase(at: Site, xs: Listed, position: Any = None, **_: Any) -> Any:
    count = len(xs.items)
    place = count - 1 if position is None else _place(at, position, count, count - 1)
    return Listed((*xs.items[:place], *xs.items[place + 1 :]), xs.dtype)


@operator("SequenceLength")
def sequence_length(at: Site, xs: Listed, **_: Any) -> Any:
    return constant(len(xs.items), "int64")


@operator("SplitToSequence")
def split_to_sequence(
    at: Site, x: Any, split: Any = None, axis: int = 0, keepdims: int = 1, **_: Any
) -> Any:
    axis = at.axis(axis, at.ndim(x))
    size = at.shape_of(x)[axis].value
    if split is None:
        parts: list[int] = [1] * _known(at, size)
    else:
        given = at.value(split, "the parts")
        if given.ndim:
            parts = [int(v) for v in given]
        else:
            each, whole = int(given), _known(at, size)
            parts = [min(each, whole - start) for start in range(0, whole, each)]
    found = cut(at, x, axis, parts)
    if split is None and not keepdims:
        found = [at.emit(op.squeeze(part, [axis])) for part in found]
    return Listed(tuple(found), at.dtype_of(x))


def _known(at: Site, size: int | None) -> int:
    if size is None:
        raise at.fail(
            "onnx-operator",
            "a sequence of a length that is known only when it runs is not supported",
        )
    return size


@operator("ConcatFromSequence")
def concat_from_sequence(at: Site, xs: Listed, axis: int, new_axis: int = 0, **_: Any) -> Any:
    return op.stack(list(xs.items), axis=axis) if new_axis else op.concat(list(xs.items), axis=axis)


@operator("Optional")
def optional(at: Site, x: Any = None, **_: Any) -> Any:
    return Absent() if x is None else x


@operator("OptionalHasElement")
def optional_has_element(at: Site, x: Any = None, **_: Any) -> Any:
    return constant(x is not None and not isinstance(x, Absent), "bool")


@operator("OptionalGetElement")
def optional_get_element(at: Site, x: Any, **_: Any) -> Any:
    if isinstance(x, Absent):
        raise at.fail("onnx-operator", "an optional value is read that is not there")
    return x
