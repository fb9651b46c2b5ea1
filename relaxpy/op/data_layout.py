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

from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.expr import Expr
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.deduction import Deduction
from relaxpy.op.rule import Rule

T = TypeVar("T")

_AXIS = re.compile("([A-Z])|([1-9][0-9]{0,8})([a-z])")
"""An axis of a layout: an axis of the tensor, or the places in the blocks that one is divided into."""


@dataclass(frozen=True)
class Layout:
    """The axes of a tensor as letters: N batch, C channels, D H W spatial axes; O and I the output and input channels
    of a kernel. A small letter is the place in a block of that axis: NCHW16c has blocks of 16 channels, whose number
    is C and whose channels are the last axis."""

    letters: str
    blocks: tuple[int, ...] = ()
    """The sizes of the blocks, in the order of the small letters."""

    @staticmethod
    def of(text: str) -> Layout:
        """Parse a layout. "NCHW4c" has the axes NCHWc; the last one has 4 channels."""
        axes = _AXIS.findall(text)
        letters = "".join(whole or place for whole, _, place in axes)
        return Layout(letters, tuple(int(size) for _, size, _ in axes if size))

    def __str__(self) -> str:
        sizes = iter(self.blocks)
        return "".join(x if x.isupper() else f"{next(sizes)}{x}" for x in self.letters)

    def named(self, values: Sequence[T]) -> dict[str, T]:
        """Values of each axis (dimensions, an index) by letter."""
        return dict(zip(self.letters, values, strict=True))

    def order(self, values: Mapping[str, T]) -> tuple[T, ...]:
        """Values by letter, in the order of the axes."""
        return tuple(values[letter] for letter in self.letters)

    def moved(self, x: np.ndarray, to: str) -> np.ndarray:
        """Transpose an array from this layout to the layout `to`."""
        return x.transpose([self.letters.index(letter) for letter in to])

    @property
    def whole(self) -> str:
        """The letters without those of blocks."""
        return "".join(filter(str.isupper, self.letters))

    def block(self, letter: str) -> int:
        """The size of the blocks that an axis is divided into; 1 if it is not."""
        places = [place for place in self.letters if place.islower()]
        return dict(zip(places, self.blocks, strict=True)).get(letter.lower(), 1)

    def refined(self, letters: str) -> str:
        """These letters, each that has blocks followed by the letter of the place in them."""
        return "".join(x + (x.lower() if self.block(x) > 1 else "") for x in letters)

    def sizes(self, dims: Sequence[Dim]) -> dict[str, Dim]:
        """The sizes of the tensor's axes by letter, from the dimensions in this layout."""
        named = self.named(dims)
        return {letter: named[letter] * self.block(letter) for letter in self.whole}

    def dims(self, sizes: Mapping[str, Dim]) -> tuple[Dim, ...]:
        """The dimensions in this layout of a tensor of these sizes; blocks must divide them."""
        parts = {x: sizes[x] if self.block(x) == 1 else sizes[x] // self.block(x) for x in sizes}
        return self.order({**parts, **{x.lower(): Dim.of(self.block(x)) for x in sizes}})

    def place(self, letter: str, index: Mapping[str, Any], to: Layout, of: str) -> dict[str, Any]:
        """A position along an axis of this layout, whose indices are in `index`, as the indices along the axis `of` of
        another layout."""
        size, block = self.block(letter), to.block(of)
        if size == block:
            inner = {of.lower(): index[letter.lower()]} if size > 1 else {}
            return {of: index[letter], **inner}
        at = index[letter]
        return to.split(of, at if size == 1 else at * size + index[letter.lower()])

    def split(self, letter: str, at: Any) -> dict[str, Any]:
        """A position along an axis of the tensor as the indices of this layout."""
        size = self.block(letter)
        return {letter: at} if size == 1 else {letter: at // size, letter.lower(): at % size}

    def merged(self, x: np.ndarray, to: str) -> np.ndarray:
        """An array in this layout as one in the layout `to`, which has no blocks."""
        parts = self.moved(x, self.refined(to))
        sizes = dict(zip(self.letters, x.shape, strict=True))
        return parts.reshape([sizes[letter] * self.block(letter) for letter in to])

    def divided(self, x: np.ndarray, letters: str) -> np.ndarray:
        """An array in the layout `letters`, which has no blocks, as one in this layout. Blocks must divide its
        sizes."""
        shape: list[int] = []
        for letter, size in zip(letters, x.shape, strict=True):
            block = self.block(letter)
            shape += [size] if block == 1 else [size // block, block]
        return Layout(self.refined(letters)).moved(x.reshape(shape), self.letters)


def check_packed_layout(
    d: Deduction, text: str, letters: str, arg: str, x: KnownTensor | None
) -> Layout:
    """Like `check_layout`; axes may be divided into blocks, as in "NCHW4c"."""
    layout = Layout.of(text)
    if not layout.blocks:
        return check_layout(d, text, letters, arg, x)
    places = [letter for letter in layout.letters if letter.islower()]
    known = len(set(places)) == len(places) and all(
        place in "cio" and place.upper() in letters for place in places
    )
    d.require(
        str(layout) == text and known and 1 not in layout.blocks,
        f"{arg} {text!r} is not a layout",
        arg=arg,
        help="channels may be divided into blocks of a size of at least 2: NCHW16c, OIHW16i16o",
    )
    check_layout(d, layout.whole, letters, arg, None)
    if x is None:
        return layout
    name = _tensor(arg)
    d.require(
        x.ndim == len(layout.letters),
        f"{name} must have {len(layout.letters)} dimensions ({text}), got {x.ndim}",
        arg=name,
        code="op-rank",
    )
    dims = layout.named(x.dims)
    for place in places:
        d.same_dim(dims[place], Dim.of(layout.block(place)), f"layout {text}", arg=name)
    return layout


def arranged(
    d: Deduction, sizes: Mapping[str, Dim], layout: Layout, what: str, arg: str
) -> tuple[Dim, ...]:
    """The dimensions in a layout of a result of these sizes. Blocks must divide its channels, which are called
    `what`."""
    block = layout.block("C")
    d.ensure(
        dim_op("eq", sizes["C"] % block, 0),
        f"{what} cannot be divided into blocks of {block}: {sizes['C']}",
        arg=arg,
    )
    return layout.dims(sizes)


def _tensor(arg: str) -> str:
    """The name of the tensor whose layout is the argument of this name."""
    return "weight" if arg == "kernel_layout" else "data"


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
        name = _tensor(arg)
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


def rearranged(b: Rule, x: Expr, letters: str, wanted: str) -> Expr:
    """X with its axes, which have these letters, in another order."""
    return x if letters == wanted else b.permute_dims(x, tuple(map(letters.index, wanted)))
