"""Gated feed-forward networks, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relaxpy.ir import Dim
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
    "quick_gelu": lambda x: x * op.sigmoid(x * 1.702),
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
    intermediate, hidden) and `down_proj` (experts, hidden, intermediate), and with `bias` their biases.

    The rows of `gate_up_proj` are those of the gates and then those of up, or in turns if `interleaved`. With `clamp`,
    two numbers (alpha, limit), the product of gate and up is that of gpt-oss: (up + 1) * gate * sigmoid(alpha * gate),
    where the gate is at most `limit`, and up between -limit and limit; `act` is not used then.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        act: str,
        dtype: str,
        *,
        bias: bool = False,
        interleaved: bool = False,
        clamp: tuple[float, float] | None = None,
    ) -> None:
        activation(act)
        joined = 2 * intermediate_size
        self.gate_up_proj = Parameter((num_experts, joined, hidden_size), dtype)
        self.down_proj = Parameter((num_experts, hidden_size, intermediate_size), dtype)
        self.gate_up_proj_bias = Parameter((num_experts, joined), dtype) if bias else None
        self.down_proj_bias = Parameter((num_experts, hidden_size), dtype) if bias else None
        self.act, self.interleaved, self.clamp = act, interleaved, clamp

    def extra_repr(self) -> str:
        return f"{options(num_experts=self.down_proj.shape[0])}, act={self.act!r}"

    def forward(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """(tokens, hidden) → the same shape: the results of each token's `experts` (tokens, choices), times `weights`
        of the same shape, added up in the order of the choices."""
        count, hidden = x.shape
        choices, inner = experts.shape[1], self.down_proj.shape[2]
        pairs = count * choices
        joined = _chosen(x, self.gate_up_proj, experts, self.gate_up_proj_bias)
        gated = op.reshape(self._gated(joined), (pairs, inner))
        own = op.reshape(experts, (pairs, 1))
        found = _chosen(gated, self.down_proj, own, self.down_proj_bias)
        found = op.reshape(found, (count, choices, hidden))
        return op.sum(found * op.expand_dims(weights, -1), axis=1)

    def _gated(self, joined: Tensor) -> Tensor:
        """(tokens, choices, 2 * intermediate) → (tokens, choices, intermediate)."""
        if self.interleaved:
            pairs = op.reshape(joined, (*joined.shape[:2], self.down_proj.shape[2], 2))
            gate, up = (op.squeeze(part, -1) for part in op.split(pairs, 2, axis=-1))
        else:
            gate, up = op.split(joined, 2, axis=-1)
        if self.clamp is None:
            return activation(self.act)(gate) * up
        alpha, limit = self.clamp
        gate, up = op.minimum(gate, limit), op.clip(up, -limit, limit)
        return (up + 1.0) * (gate * op.sigmoid(gate * alpha))


def _chosen(x: Tensor, weight: Any, experts: Tensor, bias: Any) -> Tensor:
    given = () if bias is None else (bias,)
    return op.nn.expert_linear(x, weight, experts, *given)


class MixtureOfExperts(Module):
    """A router sends each token to the `top_k` experts of the highest probability, and the results are summed with
    these weights; with `normalize` they are scaled to sum 1 (Shazeer et al., 2017; Mixtral). The names are those of
    transformers' Mixtral: `gate.weight`, `experts.gate_up_proj`, `experts.down_proj`. With `bias` the router and the
    experts have biases; `interleaved` and `clamp` are those of `Experts`.

    Only the weights of chosen experts are read, each once for all tokens that chose it. The result of a token is the
    same to the bit whatever the other tokens are.
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
        *,
        bias: bool = False,
        interleaved: bool = False,
        clamp: tuple[float, float] | None = None,
    ) -> None:
        if not 1 <= top_k <= num_experts:
            raise mistake("bad-spec", f"top_k must be from 1 to {num_experts}, got {top_k}")
        self.gate = Linear(hidden_size, num_experts, bias=bias, dtype=dtype)
        self.experts = Experts(
            num_experts, hidden_size, intermediate_size, act, dtype, bias=bias,
            interleaved=interleaved, clamp=clamp,
        )  # fmt: skip
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
        return op.reshape(self.experts(tokens, *self.route(tokens)), x.shape)
