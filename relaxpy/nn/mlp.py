"""Gated feed-forward networks, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relaxpy.ir import Dim, SymVar
from relaxpy.nn import op
from relaxpy.nn.construction import mistake
from relaxpy.nn.describe import options
from relaxpy.nn.linear import Linear
from relaxpy.nn.module import Module
from relaxpy.nn.parameter import Parameter
from relaxpy.nn.tensor import Tensor

ACTIVATIONS: dict[str, Callable[[Any], Tensor]] = {
    "silu": lambda x: op.nn.silu(x),
    "swish": lambda x: op.nn.silu(x),
    "gelu": lambda x: op.nn.gelu(x),
    "gelu_new": lambda x: op.nn.gelu_tanh(x),
    "gelu_pytorch_tanh": lambda x: op.nn.gelu_tanh(x),
    "gelu_tanh": lambda x: op.nn.gelu_tanh(x),
    "relu": lambda x: op.nn.relu(x),
    "sigmoid": lambda x: op.sigmoid(x),
    "tanh": lambda x: op.tanh(x),
    "identity": lambda x: x,
}
"""Activations by transformers' names (`hidden_act`)."""


def activation(name: str) -> Callable[[Any], Tensor]:
    """The activation of this name. Raises UsageError (`bad-config`)."""
    if name not in ACTIVATIONS:
        raise mistake(
            "bad-config",
            f"unknown activation {name!r}",
            help=f"one of {', '.join(ACTIVATIONS)}",
        )
    return ACTIVATIONS[name]


class GatedMLP(Module):
    """down_proj(activation(gate_proj(x)) * up_proj(x)) (Shazeer, 2020): SwiGLU with "silu", GEGLU with "gelu". The
    names are those of transformers' Llama."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        act: str = "silu",
        bias: bool = False,
        dtype: str = "float32",
    ) -> None:
        activation(act)
        self.gate_proj = Linear(hidden_size, intermediate_size, bias, dtype)
        self.up_proj = Linear(hidden_size, intermediate_size, bias, dtype)
        self.down_proj = Linear(intermediate_size, hidden_size, bias, dtype)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) → the same shape."""
        return self.down_proj(activation(self.act)(self.gate_proj(x)) * self.up_proj(x))


class Experts(Module):
    """The weights of several gated networks, stacked, by transformers' names: `gate_up_proj` (experts, 2 *
    intermediate, hidden) and `down_proj` (experts, hidden, intermediate)."""

    def __init__(
        self, num_experts: int, hidden_size: int, intermediate_size: int, act: str, dtype: str
    ) -> None:
        activation(act)
        self.gate_up_proj = Parameter((num_experts, 2 * intermediate_size, hidden_size), dtype)
        self.down_proj = Parameter((num_experts, hidden_size, intermediate_size), dtype)
        self.act = act

    def extra_repr(self) -> str:
        return f"{options(num_experts=self.down_proj.shape[0])}, act={self.act!r}"

    def forward(self, x: Tensor, expert: int) -> Tensor:
        """(tokens, hidden) → the same shape, by one of the networks."""
        joined = op.linear(x, self.gate_up_proj[expert])
        gate, up = op.split(joined, 2, axis=-1)
        return op.linear(activation(self.act)(gate) * up, self.down_proj[expert])


class MixtureOfExperts(Module):
    """A router sends each token to the `top_k` experts of the highest probability, and the results are summed with
    these weights; with `normalize` they are scaled to sum 1 (Shazeer et al., 2017; Mixtral). The names are those of
    transformers' Mixtral: `gate.weight`, `experts.gate_up_proj`, `experts.down_proj`.

    Each expert computes on its own tokens only; how many these are is known when the program runs.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_experts: int,
        top_k: int,
        act: str = "silu",
        normalize: bool = True,
        dtype: str = "float32",
    ) -> None:
        if not 1 <= top_k <= num_experts:
            raise mistake("bad-spec", f"top_k must be from 1 to {num_experts}, got {top_k}")
        self.gate = Linear(hidden_size, num_experts, bias=False, dtype=dtype)
        self.experts = Experts(num_experts, hidden_size, intermediate_size, act, dtype)
        self.num_experts, self.top_k, self.normalize = num_experts, top_k, normalize

    def extra_repr(self) -> str:
        return options(top_k=self.top_k, normalize=self.normalize)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights (tokens, top_k) in the dtype of x, and the experts (tokens, top_k) int64, of tokens (tokens,
        hidden)."""
        probabilities = op.nn.softmax(op.astype(self.gate(x), "float32"), axis=-1)
        weights, chosen = op.topk(probabilities, k=self.top_k, axis=-1, dtype="int64")
        if self.normalize:
            weights = weights / op.sum(weights, axis=-1, keepdims=True)
        return op.astype(weights, x.dtype), chosen

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) → the same shape."""
        *others, hidden = x.shape
        count = Dim.of(1)
        for dim in others:
            count = count * dim
        tokens = op.reshape(x, (count, hidden))
        weights, chosen = self.route(tokens)
        total = op.zeros((count, hidden), x.dtype)
        for expert in range(self.num_experts):
            own = op.equal(chosen, expert)
            weight = op.sum(op.where(own, weights, op.zeros_like(weights)), axis=-1)
            found = op.nonzero(op.any(own, axis=-1))
            rows = op.match_cast(found, (1, SymVar(f"tokens{expert}").dim), "int64")
            rows = op.squeeze(rows, 0)
            y = self.experts(op.take(tokens, rows, axis=0), expert)
            y = y * op.expand_dims(op.take(weight, rows, axis=0), 1)
            total = op.scatter_nd(total, op.expand_dims(rows, 1), y, reduction="add")
        return op.reshape(total, x.shape)
