"""Pooling over one, two and three axes, and changes of resolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from relaxpy.nn import op
from relaxpy.nn.construction import mistake
from relaxpy.nn.conv import Sizes, sizes_of
from relaxpy.nn.describe import options
from relaxpy.nn.module import Module
from relaxpy.nn.tensor import Tensor


class _Pool(Module):
    """Base of pooling layers: windows along the last axes."""

    axes: ClassVar[int]
    """The number of axes that a window has."""

    def _windows(self, kernel_size: Sizes, stride: Sizes | None, padding: Sizes) -> None:
        self.kernel_size = sizes_of(kernel_size, self.axes, "kernel_size", 1)
        given = kernel_size if stride is None else stride
        self.stride = sizes_of(given, self.axes, "stride", 1)
        self.padding = sizes_of(padding, self.axes, "padding")
        if any(2 * p > k for p, k in zip(self.padding, self.kernel_size, strict=True)):
            raise mistake(
                "bad-spec",
                f"padding {self.padding} is more than half of the window {self.kernel_size}",
            )

    def extra_repr(self) -> str:
        return options(kernel_size=self.kernel_size, stride=self.stride, padding=self.padding)

    def _pooled(self, kind: str, x: Tensor, **more: Any) -> Tensor:
        if x.ndim == self.axes + 1:
            return op.squeeze(self._pooled(kind, op.expand_dims(x, 0), **more), 0)
        pool = getattr(op.nn, f"{kind}_pool{self.axes}d")
        return pool(
            x,
            pool_size=self.kernel_size,
            strides=self.stride,
            padding=(*self.padding, *self.padding),
            **more,
        )


class _MaxPool(_Pool):
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        if return_indices:
            raise mistake("bad-spec", "return_indices is not supported")
        self._windows(kernel_size, stride, padding)
        self.dilation = sizes_of(dilation, self.axes, "dilation", 1)
        self.ceil_mode = ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, …) → (batch, channels, …), where the sizes are the numbers of windows."""
        return self._pooled("max", x, dilation=self.dilation, ceil_mode=self.ceil_mode)


class MaxPool1d(_MaxPool):
    """The maximum of each window of (batch, channels, length)."""

    axes = 1


class MaxPool2d(_MaxPool):
    """The maximum of each window of images (batch, channels, height, width)."""

    axes = 2


class MaxPool3d(_MaxPool):
    """The maximum of each window of volumes (batch, channels, depth, height, width)."""

    axes = 3


class _AvgPool(_Pool):
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        self._windows(kernel_size, stride, padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, …) → (batch, channels, …), where the sizes are the numbers of windows."""
        return self._pooled(
            "avg", x, ceil_mode=self.ceil_mode, count_include_pad=self.count_include_pad
        )


class AvgPool1d(_AvgPool):
    """The mean of each window of (batch, channels, length)."""

    axes = 1


class AvgPool2d(_AvgPool):
    """The mean of each window of images (batch, channels, height, width)."""

    axes = 2


class AvgPool3d(_AvgPool):
    """The mean of each window of volumes (batch, channels, depth, height, width)."""

    axes = 3


class _AdaptiveAvgPool(Module):
    axes: ClassVar[int]

    def __init__(self, output_size: int | None | Sequence[int | None]) -> None:
        found: tuple[int | None, ...] = (
            (output_size,) * self.axes
            if output_size is None or isinstance(output_size, int)
            else tuple(output_size)
        )
        sizes_of([1 if n is None else n for n in found], self.axes, "output_size", 1)
        self.output_size = found

    def extra_repr(self) -> str:
        return options(output_size=self.output_size)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, …) → (batch, channels, *output_size); None keeps the size."""
        if x.ndim == self.axes + 1:
            return op.squeeze(self.forward(op.expand_dims(x, 0)), 0)
        sizes = [
            size.value if wanted is None else wanted
            for wanted, size in zip(self.output_size, x.shape[2:], strict=True)
        ]
        if None not in sizes:
            pool = getattr(op.nn, f"adaptive_avg_pool{self.axes}d")
            return pool(x, output_size=tuple(sizes))
        kept = [i + 2 for i, n in enumerate(self.output_size) if n is None]
        if any(n not in (None, 1) for n in self.output_size):
            raise mistake(
                "bad-spec",
                f"output_size {self.output_size} keeps axes {kept} of symbolic size",
                help="with a kept axis of symbolic size, the other sizes must be 1",
            )
        others = tuple(i + 2 for i, n in enumerate(self.output_size) if n is not None)
        return op.mean(x, axis=others, keepdims=True) if others else x


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means of (batch, channels, length), as many as `output_size`."""

    axes = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means of images (batch, channels, height, width), as many as `output_size`."""

    axes = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means of volumes (batch, channels, depth, height, width), as many as `output_size`."""

    axes = 3


class PixelShuffle(Module):
    """(batch, channels * r * r, height, width) → (batch, channels, height * r, width * r)."""

    def __init__(self, upscale_factor: int) -> None:
        self.upscale_factor = upscale_factor

    def extra_repr(self) -> str:
        return options(upscale_factor=self.upscale_factor)

    def forward(self, x: Tensor) -> Tensor:
        return op.nn.pixel_shuffle(x, upscale_factor=self.upscale_factor)


class PixelUnshuffle(Module):
    """(batch, channels, height * r, width * r) → (batch, channels * r * r, height, width)."""

    def __init__(self, downscale_factor: int) -> None:
        self.downscale_factor = downscale_factor

    def extra_repr(self) -> str:
        return options(downscale_factor=self.downscale_factor)

    def forward(self, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        r = self.downscale_factor
        x = op.reshape(x, (n, channels, height // r, r, width // r, r))
        x = op.permute_dims(x, (0, 1, 3, 5, 2, 4))
        return op.reshape(x, (n, channels * r * r, height // r, width // r))


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
        options: dict[str, Any] = {
            "method": _METHODS[self.mode],
            "coordinate_transformation_mode": "asymmetric" if nearest else transformation,
            "rounding_method": "floor" if nearest else "",
        }
        if axes == 1:  # an image of one row
            return op.squeeze(op.image.resize2d(op.expand_dims(x, 2), (1, *each), **options), 2)
        return getattr(op.image, f"resize{axes}d")(x, each, **options)
