"""Normalisation layers, with the parameters of torch's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relaxpy.ir import DType
from relaxpy.nn import op
from relaxpy.nn.construction import mistake
from relaxpy.nn.describe import options
from relaxpy.nn.module import Module
from relaxpy.nn.parameter import Buffer, Parameter
from relaxpy.nn.tensor import Tensor

Shape = int | Sequence[int]


def _shape(normalized_shape: Shape) -> tuple[int, ...]:
    if isinstance(normalized_shape, (int, np.integer)):
        return (int(normalized_shape),)
    return tuple(normalized_shape)


class LayerNorm(Module):
    """Layer normalisation: mean 0 and variance 1 over the last axes, those of `normalized_shape`; then scaled by
    `weight` and shifted by `bias`."""

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        dtype: str = "float32",
        *,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        shape = _shape(normalized_shape)
        self.weight = Parameter(shape, dtype) if elementwise_affine else None
        self.bias = Parameter(shape, dtype) if elementwise_affine and bias else None
        self.shape, self.eps = shape, eps

    def extra_repr(self) -> str:
        return f"{self.shape}, {options(eps=self.eps, elementwise_affine=self.weight is not None)}"

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) → the same shape."""
        weight = op.ones(self.shape, x.dtype) if self.weight is None else self.weight
        bias = op.zeros(self.shape, x.dtype) if self.bias is None else self.bias
        axes = tuple(range(-len(self.shape), 0))
        return op.nn.layer_norm(x, weight, bias, axes=axes, epsilon=self.eps)


class RMSNorm(Module):
    """RMS normalisation: mean square 1 over the last axes, those of `normalized_shape`; then scaled by `weight` (Zhang
    and Sennrich, 2019). `eps=None` is the smallest number that 1 can be told from, as in torch."""

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float | None = None,
        dtype: str = "float32",
        *,
        elementwise_affine: bool = True,
    ) -> None:
        shape = _shape(normalized_shape)
        self.weight = Parameter(shape, dtype) if elementwise_affine else None
        self.shape, self.eps = shape, eps

    def extra_repr(self) -> str:
        return f"{self.shape}, {options(eps=self.eps, elementwise_affine=self.weight is not None)}"

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) → the same shape."""
        weight = op.ones(self.shape, x.dtype) if self.weight is None else self.weight
        eps = _machine_epsilon(x.dtype) if self.eps is None else self.eps
        axes = tuple(range(-len(self.shape), 0))
        return op.nn.rms_norm(x, weight, axes=axes, epsilon=eps)


def _machine_epsilon(dtype: DType) -> float:
    """The distance from 1 to the next number of a float dtype."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype.numpy).eps)


class GroupNorm(Module):
    """Group normalisation: mean 0 and variance 1 over each group of channels (axis 1) and all axes after it."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        dtype: str = "float32",
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise mistake(
                "bad-spec", f"{num_channels} channels are not divisible into {num_groups} groups"
            )
        self.weight = Parameter((num_channels,), dtype) if affine else None
        self.bias = Parameter((num_channels,), dtype) if affine else None
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps

    def extra_repr(self) -> str:
        affine = self.weight is not None
        return f"{self.num_groups}, {self.num_channels}, {options(eps=self.eps, affine=affine)}"

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, …) → the same shape."""
        weight = op.ones((self.num_channels,), x.dtype) if self.weight is None else self.weight
        bias = op.zeros((self.num_channels,), x.dtype) if self.bias is None else self.bias
        return op.nn.group_norm(
            x,
            weight,
            bias,
            num_groups=self.num_groups,
            channel_axis=1,
            axes=tuple(range(2, x.ndim)),
            epsilon=self.eps,
        )


class _OfChannels(Module):
    """Normalisation of channels (axis 1), each with a weight and a bias, or with none."""

    ranks: tuple[int, ...] = ()
    """The numbers of axes of its argument; none: any."""

    def _set(self, num_features: int, eps: float, affine: bool, dtype: str) -> None:
        self.weight = Parameter((num_features,), dtype) if affine else None
        self.bias = Parameter((num_features,), dtype) if affine else None
        self.num_features, self.eps = num_features, eps

    def extra_repr(self) -> str:
        return f"{self.num_features}, {options(eps=self.eps, affine=self.weight is not None)}"

    def _affine(self, x: Tensor) -> tuple[Tensor | Parameter, Tensor | Parameter]:
        """The weights and biases for x, after a check of its rank."""
        _check_rank(self, x, self.ranks)
        weight = op.ones((self.num_features,), x.dtype) if self.weight is None else self.weight
        bias = op.zeros((self.num_features,), x.dtype) if self.bias is None else self.bias
        return weight, bias


class BatchNorm(_OfChannels):
    """Batch normalisation at inference, over axis 1: with the mean and variance from training."""

    ignored_state = ("num_batches_tracked",)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: str = "float32",
    ) -> None:
        del momentum
        if not track_running_stats:
            raise mistake(
                "bad-spec",
                f"{type(self).__name__} needs track_running_stats: without, it would use statistics of the batch",
                help="nn.InstanceNorm normalises each item by itself",
            )
        self._set(num_features, eps, affine, dtype)
        self.running_mean = Buffer((num_features,), dtype)
        self.running_var = Buffer((num_features,), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, features, …) → the same shape."""
        weight, bias = self._affine(x)
        statistics = (self.running_mean, self.running_var)
        y, _, _ = op.nn.batch_norm(
            x, weight, bias, *statistics, axis=1, epsilon=self.eps, training=False
        )
        return y


class BatchNorm1d(BatchNorm):
    """`BatchNorm` of (batch, features) or (batch, features, length)."""

    ranks = (2, 3)


class BatchNorm2d(BatchNorm):
    """`BatchNorm` of images (batch, features, height, width)."""

    ranks = (4,)


class BatchNorm3d(BatchNorm):
    """`BatchNorm` of volumes (batch, features, depth, height, width)."""

    ranks = (5,)


class InstanceNorm(_OfChannels):
    """Instance normalisation: mean 0 and variance 1 over the axes after the channels (axis 1), of each channel of each
    item."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        dtype: str = "float32",
    ) -> None:
        del momentum
        if track_running_stats:
            raise mistake(
                "bad-spec",
                f"{type(self).__name__} does not support track_running_stats",
                help="with statistics from training it is nn.BatchNorm",
            )
        self._set(num_features, eps, affine, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, features, …) → the same shape."""
        weight, bias = self._affine(x)
        return op.nn.instance_norm(
            x, weight, bias, channel_axis=1, axes=tuple(range(2, x.ndim)), epsilon=self.eps
        )


class InstanceNorm1d(InstanceNorm):
    """`InstanceNorm` of (batch, features, length)."""

    ranks = (3,)


class InstanceNorm2d(InstanceNorm):
    """`InstanceNorm` of images (batch, features, height, width)."""

    ranks = (4,)


class InstanceNorm3d(InstanceNorm):
    """`InstanceNorm` of volumes (batch, features, depth, height, width)."""

    ranks = (5,)


def _check_rank(module: Module, x: Tensor, ranks: Sequence[int]) -> None:
    if ranks and x.ndim not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise mistake(
            "op-rank",
            f"{type(module).__name__} takes a tensor with {wanted} axes, got {x.ndim}",
            help="(batch, features, …)",
        )
