"""Convolutions and transposed convolutions over one, two and three axes, with the weights of torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from relaxpy.nn import op
from relaxpy.nn.construction import mistake
from relaxpy.nn.describe import options
from relaxpy.nn.module import Module
from relaxpy.nn.parameter import Parameter
from relaxpy.nn.tensor import Tensor

Sizes = int | Sequence[int]
"""One number for all axes, or one for each."""
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def sizes_of(value: Any, axes: int, what: str, least: int = 0) -> tuple[int, ...]:
    """A size for each of so many axes. Raises UsageError (`bad-spec`)."""
    several = isinstance(value, (tuple, list))
    found = tuple(value) if several else (value,) * axes
    if several and len(found) == 1:
        found *= axes
    right = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in found)
    if not right or len(found) != axes or min(found) < least:
        raise mistake(
            "bad-spec",
            f"{what} must be an integer of at least {least}, or {axes} of them, got {value!r}",
        )
    return tuple(map(int, found))


class _Conv(Module):
    """Base of all convolutions: sizes for each axis, weight and bias."""

    axes: ClassVar[int]
    """The number of axes that the kernel has."""

    def _set(
        self,
        channels: tuple[int, int],
        kernel_size: Sizes,
        stride: Sizes,
        dilation: Sizes,
        groups: int,
    ) -> None:
        inputs, outputs = channels
        if groups < 1 or inputs % groups or outputs % groups:
            raise mistake(
                "bad-spec",
                f"{inputs} and {outputs} channels are not divisible into {groups} groups",
            )
        self.in_channels, self.out_channels, self.groups = inputs, outputs, groups
        self.kernel_size = sizes_of(kernel_size, self.axes, "kernel_size", 1)
        self.stride = sizes_of(stride, self.axes, "stride", 1)
        self.dilation = sizes_of(dilation, self.axes, "dilation", 1)

    def _with_bias(self, y: Tensor, bias: Parameter | None) -> Tensor:
        return y if bias is None else op.add(y, op.reshape(bias, (1, -1, *(1,) * self.axes)))

    def _batched(self, x: Tensor) -> bool:
        """Whether x has a batch axis. Raises UsageError (`op-rank`) for another number of axes."""
        if x.ndim not in (self.axes + 1, self.axes + 2):
            raise mistake(
                "op-rank",
                f"{type(self).__name__} takes (batch, channels, …) with {self.axes + 2} axes, got {x.ndim}",
            )
        return x.ndim == self.axes + 2

    def extra_repr(self) -> str:
        shown = f"{self.in_channels}, {self.out_channels}, "
        return shown + options(kernel_size=self.kernel_size, stride=self.stride)


class _Convolution(_Conv):
    """A convolution. The weight is (out, in / groups, *kernel)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        dtype: str = "float32",
    ) -> None:
        self._set((in_channels, out_channels), kernel_size, stride, dilation, groups)
        if padding_mode not in PADDING_MODES:
            raise mistake(
                "bad-spec",
                f"unknown padding_mode {padding_mode!r}",
                help=f"one of {', '.join(PADDING_MODES)}",
            )
        self.padding_mode = padding_mode
        self.padding = self._border(padding)
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = Parameter(shape, dtype)
        self.bias = Parameter((out_channels,), dtype) if bias else None

    def _border(self, padding: Any) -> tuple[tuple[int, int], ...]:
        """The widths before and after each axis."""
        if padding == "same":
            if max(self.stride) > 1:
                raise mistake("bad-spec", 'padding "same" needs a stride of 1')
            whole = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            return tuple((n // 2, n - n // 2) for n in whole)
        if isinstance(padding, str) and padding != "valid":
            raise mistake("bad-spec", f'padding {padding!r} is neither "same" nor "valid"')
        widths = sizes_of(0 if padding == "valid" else padding, self.axes, "padding")
        return tuple((n, n) for n in widths)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in, …) → (batch, out, …), where the sizes are the numbers of windows."""
        if not self._batched(x):
            return op.squeeze(self.forward(op.expand_dims(x, 0)), 0)
        padding = (*(before for before, _ in self.padding), *(after for _, after in self.padding))
        if self.padding_mode != "zeros" and any(padding):
            width = (0, 0, 0, 0, *(n for pair in self.padding for n in pair))
            x = op.nn.pad(x, pad_width=width, pad_mode=self.padding_mode)
            padding = (0,) * len(padding)
        convolve = getattr(op.nn, f"conv{self.axes}d")
        y = convolve(
            x,
            self.weight,
            strides=self.stride,
            padding=padding,
            dilation=self.dilation,
            groups=self.groups,
        )
        return self._with_bias(y, self.bias)


class Conv1d(_Convolution):
    """Convolution of (batch, channels, length). The weight is (out, in / groups, kernel)."""

    axes = 1


class Conv2d(_Convolution):
    """Convolution of images (batch, channels, height, width). The weight is (out, in / groups, *kernel)."""

    axes = 2


class Conv3d(_Convolution):
    """Convolution of volumes (batch, channels, depth, height, width). The weight is (out, in / groups, *kernel)."""

    axes = 3


class _ConvTranspose(_Conv):
    """A transposed convolution. The weight is (in, out / groups, *kernel)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        dtype: str = "float32",
    ) -> None:
        self._set((in_channels, out_channels), kernel_size, stride, dilation, groups)
        self.padding = sizes_of(padding, self.axes, "padding")
        self.output_padding = sizes_of(output_padding, self.axes, "output_padding")
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        self.weight = Parameter(shape, dtype)
        self.bias = Parameter((out_channels,), dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in, …) → (batch, out, …)."""
        if not self._batched(x):
            return op.squeeze(self.forward(op.expand_dims(x, 0)), 0)
        convolve = getattr(op.nn, f"conv{self.axes}d_transpose")
        y = convolve(
            x,
            self.weight,
            strides=self.stride,
            padding=(*self.padding, *self.padding),
            output_padding=self.output_padding,
            dilation=self.dilation,
            groups=self.groups,
        )
        return self._with_bias(y, self.bias)


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution of (batch, channels, length). The weight is (in, out / groups, kernel)."""

    axes = 1


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution of images. The weight is (in, out / groups, *kernel)."""

    axes = 2


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution of volumes. The weight is (in, out / groups, *kernel)."""

    axes = 3
