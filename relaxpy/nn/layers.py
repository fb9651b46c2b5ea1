"""The standard layers."""

from __future__ import annotations

from relaxpy.nn import op
from relaxpy.nn.module import Module, Parameter
from relaxpy.nn.tensor import Tensor


class Linear(Module):
    """`x @ weight + bias`. The weight is (in, out), so that nothing is transposed at run time. A checkpoint that stores
    (out, in), as torch does, is transposed when it is loaded."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: str = "float32"
    ) -> None:
        self.weight = Parameter((in_features, out_features), dtype)
        self.bias = Parameter((out_features,), dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) → (..., out)."""
        y = op.matmul(x, self.weight)
        return y if self.bias is None else op.add(y, self.bias)


class LayerNorm(Module):
    """Layer normalisation: mean 0 and variance 1 over the last axis, then scaled by `weight` and shifted by `bias`."""

    def __init__(self, size: int, eps: float = 1e-5, dtype: str = "float32") -> None:
        self.weight = Parameter((size,), dtype)
        self.bias = Parameter((size,), dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) → the same shape."""
        return op.nn.layer_norm(x, self.weight, self.bias, axes=(-1,), epsilon=self.eps)


class RMSNorm(Module):
    """RMS normalisation: mean square 1 over the last axis, then scaled by `weight` (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float = 1e-5, dtype: str = "float32") -> None:
        self.weight = Parameter((size,), dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) → the same shape."""
        return op.nn.rms_norm(x, self.weight, axes=(-1,), epsilon=self.eps)


class Embedding(Module):
    """Rows of a table, by index. An index out of range is clamped; with `check` it is an error, which calls the indices
    `what`."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        dtype: str = "float32",
        check: bool = False,
        what: str = "indices",
    ) -> None:
        self.weight = Parameter((num_embeddings, embedding_dim), dtype)
        self.check, self.what = check, what

    def forward(self, indices: Tensor) -> Tensor:
        """(...) integers → (..., embedding_dim)."""
        if self.check:
            indices = op.check_range(indices, self.weight.shape[0], self.what)
        return op.take(self.weight, indices, axis=0)


class Conv2d(Module):
    """2-D convolution with a square kernel, of images (batch, channels, height, width). The weight is (out, in /
    groups, kernel, kernel)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: str = "float32",
    ) -> None:
        shape = (out_channels, in_channels // groups, kernel_size, kernel_size)
        self.weight = Parameter(shape, dtype)
        self.bias = Parameter((out_channels,), dtype) if bias else None
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in, height, width) → (batch, out, …), where the spatial size is the number of windows."""
        y = op.nn.conv2d(
            x,
            self.weight,
            strides=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )
        if self.bias is None:
            return y
        return op.add(y, op.reshape(self.bias, (1, -1, 1, 1)))


class BatchNorm(Module):
    """Batch normalisation at inference, over axis 1: with the mean and variance from training."""

    def __init__(self, size: int, eps: float = 1e-5, dtype: str = "float32") -> None:
        self.weight = Parameter((size,), dtype)
        self.bias = Parameter((size,), dtype)
        self.running_mean = Parameter((size,), dtype)
        self.running_var = Parameter((size,), dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(batch, size, …) → the same shape."""
        statistics = (self.running_mean, self.running_var)
        y, _, _ = op.nn.batch_norm(
            x, self.weight, self.bias, *statistics, axis=1, epsilon=self.eps, training=False
        )
        return y
