"""Borders around the last axes, with torch's options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from relaxpy.nn import op
from relaxpy.nn.construction import mistake
from relaxpy.nn.describe import options
from relaxpy.nn.module import Module
from relaxpy.nn.tensor import Tensor


class _Pad(Module):
    """A border around the last axes of (batch, channels, …) or (channels, …)."""

    axes: ClassVar[int]
    """The number of axes with a border."""
    mode: ClassVar[str] = "constant"
    value: float = 0.0

    def __init__(self, padding: int | Sequence[int]) -> None:
        given = (padding,) * (2 * self.axes) if isinstance(padding, int) else tuple(padding)
        if len(given) != 2 * self.axes:
            raise mistake(
                "bad-spec",
                f"padding must be one number, or {2 * self.axes}, two for each axis, the last axis first; got {given}",
            )
        self.padding = given

    def extra_repr(self) -> str:
        return options(padding=self.padding)

    def forward(self, x: Tensor) -> Tensor:
        """The tensor with its border; a negative width, of a constant border, takes elements away."""
        if x.ndim not in (self.axes + 1, self.axes + 2):
            raise mistake(
                "op-rank",
                f"the input must have {self.axes + 1} or {self.axes + 2} axes, got {x.ndim}",
            )
        widths = [0] * (2 * (x.ndim - self.axes))
        for i in reversed(range(self.axes)):
            widths += self.padding[2 * i : 2 * i + 2]
        return op.nn.pad(x, tuple(widths), pad_value=self.value, pad_mode=self.mode)


class _ConstantPad(_Pad):
    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return options(padding=self.padding, value=self.value)


class ZeroPad1d(_Pad):
    """A border of zeros around (batch, channels, length)."""

    axes = 1


class ZeroPad2d(_Pad):
    """A border of zeros around images."""

    axes = 2


class ZeroPad3d(_Pad):
    """A border of zeros around volumes."""

    axes = 3


class ConstantPad1d(_ConstantPad):
    """A border of a number around (batch, channels, length)."""

    axes = 1


class ConstantPad2d(_ConstantPad):
    """A border of a number around images."""

    axes = 2


class ConstantPad3d(_ConstantPad):
    """A border of a number around volumes."""

    axes = 3


class ReflectionPad1d(_Pad):
    """A border of the elements mirrored at the edge around (batch, channels, length)."""

    axes = 1
    mode = "reflect"


class ReflectionPad2d(_Pad):
    """A border of the elements mirrored at the edge around images."""

    axes = 2
    mode = "reflect"


class ReflectionPad3d(_Pad):
    """A border of the elements mirrored at the edge around volumes."""

    axes = 3
    mode = "reflect"


class ReplicationPad1d(_Pad):
    """A border of the elements at the edge around (batch, channels, length)."""

    axes = 1
    mode = "replicate"


class ReplicationPad2d(_Pad):
    """A border of the elements at the edge around images."""

    axes = 2
    mode = "replicate"


class ReplicationPad3d(_Pad):
    """A border of the elements at the edge around volumes."""

    axes = 3
    mode = "replicate"


class CircularPad1d(_Pad):
    """A border of the elements of the other end around (batch, channels, length)."""

    axes = 1
    mode = "circular"


class CircularPad2d(_Pad):
    """A border of the elements of the other end around images."""

    axes = 2
    mode = "circular"


class CircularPad3d(_Pad):
    """A border of the elements of the other end around volumes."""

    axes = 3
    mode = "circular"
