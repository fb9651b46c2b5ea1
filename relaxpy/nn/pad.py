"""Borders around the last axes, and changes of resolution, with torch's options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

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


_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "bilinear": "linear", "trilinear": "linear",
            "bicubic": "cubic"}  # fmt: skip
_AXES = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}


class Upsample(Module):
    """(batch, channels, …) at another resolution: of a `size`, or `scale_factor` times as large, a whole number."""

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        del recompute_scale_factor  # the same for whole factors
        if mode not in _METHODS:
            raise mistake("bad-spec", f"mode must be one of {', '.join(_METHODS)}, got {mode!r}")
        if (size is None) == (scale_factor is None):
            raise mistake("bad-spec", "either size or scale_factor must be given")
        if align_corners is not None and mode == "nearest":
            raise mistake("bad-spec", "align_corners is an option of the other modes than nearest")
        factors = scale_factor if isinstance(scale_factor, Sequence) else (scale_factor,)
        if any(each is not None and (each != int(each) or each < 1) for each in factors):
            raise mistake(
                "bad-spec",
                f"scale_factor must be a whole number, got {scale_factor}",
                help="give size",
            )
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners = bool(align_corners)

    def extra_repr(self) -> str:
        return options(size=self.size, scale_factor=self.scale_factor, mode=self.mode)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, …) → (batch, channels, …)."""
        axes = x.ndim - 2
        if axes == 1 and self.mode in ("nearest", "linear"):  # an image of one row
            row = Upsample(
                _with_row(self.size), _with_row(self.scale_factor),
                "bilinear" if self.mode == "linear" else self.mode,
            )  # fmt: skip
            row.align_corners = self.align_corners
            return op.squeeze(row(op.expand_dims(x, 2)), 2)
        if axes != _AXES.get(self.mode, axes) or not 1 <= axes <= 3:
            raise mistake("op-rank", f"an input of {x.ndim} axes has no mode {self.mode!r}")
        given: Any = self.scale_factor if self.size is None else self.size
        each = tuple(given) if isinstance(given, Sequence) else (given,) * axes
        if len(each) != axes:
            raise mistake("bad-spec", f"{axes} sizes are expected, got {each}")
        if self.size is None:
            each = tuple(n * int(factor) for n, factor in zip(x.shape[2:], each, strict=True))
        transformation = "align_corners" if self.align_corners else "half_pixel"
        nearest = self.mode == "nearest"
        resize = getattr(op.image, f"resize{axes}d")
        return resize(
            x,
            each,
            method=_METHODS[self.mode],
            coordinate_transformation_mode="asymmetric" if nearest else transformation,
            rounding_method="floor" if nearest else "",
        )


def _with_row(sizes: Any) -> Any:
    """The size or factor of an axis, as those of a row of an image."""
    return sizes if sizes is None else (1, *(sizes if isinstance(sizes, Sequence) else (sizes,)))
