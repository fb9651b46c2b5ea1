"""The embedded model's network in PyTorch, for training: a Llama, with the tensor names that checkpoints of
transformers have. `relaxpy.models.llama` runs what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Config:
    """The fields of `config.json` that matter here, by transformers' names."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 1024
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0

    def flops(self, length: int) -> int:
        """Floating-point operations of a training step for one token of a sequence of that length."""
        heads = (2 * self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim
        layer = self.hidden_size * (heads + 3 * self.intermediate_size)
        attention = self.num_attention_heads * self.head_dim * length
        return 6 * (
            self.num_hidden_layers * (layer + attention) + self.hidden_size * self.vocab_size
        )


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class Attention(nn.Module):
    """Causal attention with rotary embeddings and grouped keys."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        width, head = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(width, config.num_attention_heads * head, bias=False)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * head, bias=False)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * head, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * head, width, bias=False)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, _ = x.shape

        def heads(linear: nn.Linear) -> Tensor:
            return linear(x).view(batch, length, -1, self.config.head_dim).transpose(1, 2)

        query, key = rotated(heads(self.q_proj), angles), rotated(heads(self.k_proj), angles)
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        key, value = (each.repeat_interleave(group, 1) for each in (key, heads(self.v_proj)))
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


def rotated(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the halves of each head by its position."""
    cosine, sine = angles
    left, right = x.chunk(2, -1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward network, each behind a norm and added to its input."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), angles)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """Tokens (batch, length) → logits; the head is the table of embeddings."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
        positions = torch.arange(config.max_position_embeddings)[:, None]
        self.register_buffer("angles", positions / config.rope_theta**exponents, persistent=False)
        self.apply(_initial)

    def forward(self, tokens: Tensor) -> Tensor:
        angle = self.angles[: tokens.shape[1]]
        angles = angle.cos(), angle.sin()
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, angles)
        return functional.linear(self.norm(x), self.embed_tokens.weight)

    def loss(self, tokens: Tensor, reduction: str = "mean") -> Tensor:
        """Cross entropy in nats of each token from the one before it; tokens (batch, length + 1)."""
        logits = self(tokens[:, :-1]).float().flatten(0, 1)
        return functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction=reduction)


def _initial(module: nn.Module) -> None:
    """Initial weights. What is added to the residual stream begins at zero."""
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.6 * module.in_features**-0.5)
    for name in ("o_proj", "down_proj"):
        if isinstance(last := getattr(module, name, None), nn.Linear):
            nn.init.zeros_(last.weight)
