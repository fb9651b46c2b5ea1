"""Layers of one weight matrix: linear maps, embeddings; and layers that do nothing at inference."""

from __future__ import annotations

from typing import Any

from relaxpy.nn import op
from relaxpy.nn.construction import mistake
from relaxpy.nn.describe import options
from relaxpy.nn.module import Module
from relaxpy.nn.parameter import Parameter
from relaxpy.nn.tensor import Tensor


class Linear(Module):
    """`x @ weight.T + bias`, as in torch: the weight is (out, in). How a kernel reads it best is decided when
    compiling; nothing is transposed at run time. `out_dtype` is the dtype of the result, if not that of the weight."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: str = "float32",
        out_dtype: str | None = None,
    ) -> None:
        self.weight = Parameter((out_features, in_features), dtype)
        self.bias = Parameter((out_features,), out_dtype or dtype) if bias else None
        self.out_dtype = out_dtype

    @property
    def in_features(self) -> int:
        """The size of the last axis of its argument."""
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        """The size of the last axis of its result."""
        return self.weight.shape[0]

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return options(in_features=self.in_features, out_features=self.out_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) → (..., out)."""
        y = op.linear(x, self.weight, out_dtype=self.out_dtype)
        return y if self.bias is None else op.add(y, self.bias)


class Embedding(Module):
    """Rows of a table, by index. An index out of range is clamped; with `check` it is an error, which calls the indices
    `what`. `padding_idx` is accepted: it matters in training only."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        dtype: str = "float32",
        check: bool = False,
        what: str = "indices",
        padding_idx: int | None = None,
    ) -> None:
        del padding_idx
        self.weight = Parameter((num_embeddings, embedding_dim), dtype)
        self.check, self.what = check, what

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"

    def forward(self, indices: Tensor) -> Tensor:
        """(...) integers → (..., embedding_dim)."""
        if self.check:
            indices = op.check_range(indices, self.weight.shape[0], self.what)
        return op.take(self.weight, indices, axis=0)


class Identity(Module):
    """Its argument, whatever it was made with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    def forward(self, x: Tensor) -> Tensor:
        return x


class Dropout(Module):
    """Its argument: at inference nothing is dropped."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        if not 0 <= p <= 1:
            raise mistake("bad-spec", f"a probability must be from 0 to 1, got {p}")
        del inplace
        self.p = p

    def extra_repr(self) -> str:
        return options(p=self.p)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Dropout1d(Dropout):
    """`Dropout` of channels."""


class Dropout2d(Dropout):
    """`Dropout` of channels."""


class Dropout3d(Dropout):
    """`Dropout` of channels."""


class AlphaDropout(Dropout):
    """`Dropout` for SELU networks."""


class Flatten(Module):
    """Joins the axes from `start_dim` to `end_dim` into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def extra_repr(self) -> str:
        return options(start_dim=self.start_dim, end_dim=self.end_dim)

    def forward(self, x: Tensor) -> Tensor:
        shape, ndim = list(x.shape), x.ndim
        first, last = self.start_dim % max(ndim, 1), self.end_dim % max(ndim, 1)
        if first > last:
            raise mistake(
                "op-axis", f"Flatten({self.start_dim}, {self.end_dim}) of a tensor with {ndim} axes"
            )
        size: Any = 1
        for dim in shape[first : last + 1]:
            size = dim * size
        return op.reshape(x, (*shape[:first], size, *shape[last + 1 :]))


class Unflatten(Module):
    """Splits an axis into several of these sizes."""

    def __init__(self, dim: int, unflattened_size: tuple[int, ...]) -> None:
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def extra_repr(self) -> str:
        return options(dim=self.dim, unflattened_size=self.unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        at = self.dim % x.ndim
        return op.reshape(x, (*x.shape[:at], *self.unflattened_size, *x.shape[at + 1 :]))
