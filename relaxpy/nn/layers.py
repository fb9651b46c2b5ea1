"""The layers that models are made of."""

from __future__ import annotations

from relaxpy.nn import op
from relaxpy.nn.module import Module, Parameter
from relaxpy.nn.tensor import Tensor


class Linear(Module):
    """`x @ weight + bias`. The weight is stored (in, out), so that nothing is transposed at run time; a checkpoint
    that stores (out, in), as torch does, is transposed when it is loaded."""

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
    """Mean 0 and variance 1 over the last axis, then scaled by `weight` and shifted by `bias`."""

    def __init__(self, size: int, eps: float = 1e-5, dtype: str = "float32") -> None:
        self.weight = Parameter((size,), dtype)
        self.bias = Parameter((size,), dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) → the same shape."""
        return op.nn.layer_norm(x, self.weight, self.bias, axes=(-1,), epsilon=self.eps)


class Embedding(Module):
    """Rows of a table, by index."""

    def __init__(self, num_embeddings: int, embedding_dim: int, dtype: str = "float32") -> None:
        self.weight = Parameter((num_embeddings, embedding_dim), dtype)

    def forward(self, indices: Tensor) -> Tensor:
        """(...) integers → (..., embedding_dim)."""
        return op.take(self.weight, indices, axis=0)
