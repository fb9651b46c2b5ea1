"""Layouts: a letter for each axis of a tensor, as in "NCHW"; and the per-axis attributes (strides, padding) of
convolutions and poolings."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from relaxpy.ir.dim import Dim
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.deduction import Deduction

T = TypeVar("T")

_DIGITS = re.compile("[0-9]+")
_PACKED = re.compile("([A-Z]+)([1-9][0-9]{0,8})c")
"""A packed layout: a block of channels is the last axis."""


@dataclass(frozen=True)
class Layout:
    """The axes of a tensor as letters: N batch, C channels, D H W spatial axes; O and I the output and input channels
    of a kernel."""

    letters: str

    @staticmethod
    def of(text: str) -> Layout:
        """Parse a layout. "NCHW4c" has the axes NCHWc; the last one has 4 channels."""
        return Layout(_DIGITS.sub("", text))

    def named(self, values: Sequence[T]) -> dict[str, T]:
        """Values of each axis (dimensions, an index) by letter."""
        return dict(zip(self.letters, values, strict=True))

    def order(self, values: Mapping[str, T]) -> tuple[T, ...]:
        """Values by letter, in the order of the axes."""
        return tuple(values[letter] for letter in self.letters)

    def moved(self, x: np.ndarray, to: str) -> np.ndarray:
        """Transpose an array from this layout to the layout `to`."""
        return x.transpose([self.letters.index(letter) for letter in to])


def check_packed_layout(
    d: Deduction, text: str, letters: str, arg: str, data: KnownTensor
) -> Layout:
    """Like `check_layout`; a packed layout such as "NCHW4c" is allowed."""
    packed = _PACKED.fullmatch(text)
    if packed is None:
        return check_layout(d, text, letters, arg, data)
    check_layout(d, packed[1], letters, arg, None)
    d.require(
        data.ndim == len(letters) + 1,
        f"data must have {len(letters) + 1} dimensions ({text}), got {data.ndim}",
        arg="data",
        code="op-rank",
    )
    d.same_dim(data.dims[-1], Dim.of(int(packed[2])), f"layout {text}", arg="data")
    return Layout.of(text)


def check_layout(d: Deduction, text: str, letters: str, arg: str, x: KnownTensor | None) -> Layout:
    """Parse the layout of tensor `x`. It must have each of `letters` once, and as many axes as `x`, if that is
    given."""
    d.require(
        sorted(text) == sorted(letters),
        f"{arg} {text!r} must contain each of the letters {', '.join(letters)} once",
        arg=arg,
        help="convert packed layouts such as NCHW4c with R.permute_dims and R.reshape",
    )
    if x is not None:
        name = "weight" if arg == "kernel_layout" else "data"
        d.require(
            x.ndim == len(text),
            f"{name} must have {len(text)} dimensions ({text}), got {x.ndim}",
            arg=name,
            code="op-rank",
        )
    return Layout(text)


def per_axis(value: tuple[int, ...] | int, count: int) -> tuple[int, ...]:
    """An attribute given as one number for all of `count` spatial axes, or one for each, as a tuple."""
    values = (value,) if isinstance(value, int) else value
    return values * count if len(values) == 1 else values


def check_per_axis(
    d: Deduction, value: tuple[int, ...] | int, count: int, arg: str, least: int = 1
) -> tuple[int, ...]:
    """Like `per_axis`; every number must be at least `least`."""
    values = per_axis(value, count)
    d.require(
        len(values) == count,
        f"{arg} must be one number or {count}, got {len(values)}",
        arg=arg,
    )
    d.require(min(values) >= least, f"{arg} must be at least {least}, got {value}", arg=arg)
    return values


def padding_pairs(value: tuple[int, ...] | int, count: int) -> tuple[tuple[int, int], ...]:
    """The padding (before, after) of each of `count` spatial axes. `value` is one number, one for each axis, or all
    before and then all after (top, left, bottom, right)."""
    values = (value,) if isinstance(value, int) else value
    if len(values) == 2 * count:
        return tuple(zip(values[:count], values[count:], strict=True))
    return tuple((v, v) for v in per_axis(values, count))


def check_padding(
    d: Deduction, value: tuple[int, ...] | int, count: int
) -> tuple[tuple[int, int], ...]:
    """Like `padding_pairs`; no number may be negative."""
    values = (value,) if isinstance(value, int) else value
    allowed = sorted({1, count, 2 * count})
    d.require(
        len(values) in allowed,
        f"padding must be {', '.join(map(str, allowed[:-1]))} or {allowed[-1]} numbers, got {len(values)}",
        arg="padding",
    )
    d.require(min(values) >= 0, f"padding must not be negative, got {value}", arg="padding")
    return padding_pairs(value, count)


def padded_sizes(
    sizes: Mapping[str, Dim], spatial: str, pairs: Sequence[tuple[int, int]]
) -> dict[str, Dim]:
    """Sizes by letter after padding."""
    added = {letter: before + after for letter, (before, after) in zip(spatial, pairs, strict=True)}
    return {letter: size + added.get(letter, 0) for letter, size in sizes.items()}


def inside(places: Iterable[tuple[Any, Any]]) -> Any:
    """The condition that each index is inside its axis: pairs of an index and the size of its axis."""
    ends = ((te.less_equal(te.dim(0), at), te.less(at, te.dim(size))) for at, size in places)
    return functools.reduce(te.logical_and, itertools.chain.from_iterable(ends))
