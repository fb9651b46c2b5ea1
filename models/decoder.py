"""Decoders of language models: the blocks that the families share, each with the settings in which families differ.

A family is a file that reads its `config.json` into a `DecoderConfig` (`relaxpy.models.llama` is the simplest), and
says where its weights are if they are not where those of Llama are. A decoder is pre-normalised (RMS norms), has rotary
embeddings, grouped key heads, and gated feed-forward networks.

One executable serves every batch size and length. The KV cache is passed in and out as tensors: `prefill` reads a
prompt, `decode` adds a token to each sequence. All sequences of a batch have the same length.

    logits, cache = vm["prefill"](input_ids)                  (batch, seq) → (batch, vocab)
    logits, cache = vm["decode"](next_ids, cache)             (batch, 1)   → (batch, vocab)

`step` serves many sequences at once from a paged cache, which it updates: prompts, parts of prompts, next tokens and
drafts in any mixture. `relaxpy.serve.PageBook` keeps the books, with a group of pages for each of `config.windows`.

    caches, book = vm["alloc_pages"](1024), PageBook(1024, config.page_size, config.windows)
    vm["copy_pages"](batch.sources, batch.targets, caches)
    logits = vm["step"](tokens, positions, starts, tables, lengths, rows, caches)     (tokens,) → (rows, vocab)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.ir import Dim, DType
from relaxpy.models.adapters import Adapter
from relaxpy.models.checkpoint import (
    Source,
    config_fields,
    flag,
    gather,
    positive,
    read_config,
    whole,
)
from relaxpy.nn import op
from relaxpy.nn.mlp import activation
from relaxpy.nn.rotary import Rope, rotate

Cache = tuple[nn.Tensor, nn.Tensor]
"""The KV cache of a layer: keys and values, each (batch, cached tokens, key heads, head)."""


LINEARS: Mapping[str, str] = {
    **{name: f"self_attn.{name[0]}_proj" for name in ("query", "key", "value", "output")},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}
"""The linear maps of a layer, and their names in checkpoints."""


SIZES = (
    "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "num_key_value_heads", "head_dim",
    "max_position_embeddings",
)  # fmt: skip
FLAGS = "tie_word_embeddings", "attention_bias", "mlp_bias"
"""The fields of every `config.json` that are read, beside those of the rotary embeddings."""
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class DecoderConfig:
    """The fields of a checkpoint's `config.json`, by transformers' names, and what a family makes of the others."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int = 0
    """Number of key and value heads, each shared by neighbouring query heads; 0: as many as query heads."""
    head_dim: int = 0
    """Width of a head; 0: hidden_size / num_attention_heads."""
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope: Rope = field(default_factory=Rope)
    dtype: str = "float32"
    """Dtype of weights, activations and cache: float32, bfloat16 or float16."""
    cache_dtype: str = ""
    """Dtype of the paged cache: "" for that of the model, or int8 with a scale for each token and head."""
    page_size: int = nn.PAGE_SIZE
    """Number of tokens in a page of the cache."""
    adapters: tuple[str, ...] = ()
    """The linear maps that take low-rank adapters in a step: of query, key, value, output, gate, up, down."""
    check_inputs: bool = False
    """Whether token ids out of range, and more than `max_position_embeddings` positions, are an error. Otherwise an id
    is clamped to the first or last token, and positions continue."""
    hidden_act: str = "silu"
    """Activation of the gate."""
    output_bias: bool | None = None
    """Whether the output of attention has a bias; None: as queries, keys and values have."""
    qk_norm: bool = False
    """Whether queries and keys are normalised, head by head, before they are rotated."""
    norm_offset: float = 0.0
    """Added to the weights of the norms, which are then applied in float32."""
    post_norms: bool = False
    """Whether the results of attention and of the feed-forward network are normalised, too."""
    layer_norm: bool = False
    """Whether norms subtract the mean, and have a bias."""
    gated: bool = True
    """Whether the feed-forward network has a gate; without one it is down(activation(up(x)))."""
    parallel: bool = False
    """Whether attention and the feed-forward network both read the input of their layer."""
    joined: bool = False
    """Whether queries, keys and values are one linear map, in which those of a head are side by side."""
    learned_positions: bool = False
    """Whether positions are embedded by a table, and nothing is rotated."""
    sliding_windows: tuple[int, ...] = ()
    """Of each layer, the number of keys, up to its own, that a token attends to; 0: all. (): all, in every layer."""
    local_rope: Rope | None = None
    """Rotary embeddings of the layers with a window; None: as of the others."""
    attention_scale: float | None = None
    """Factor of the attention scores; None: 1 / sqrt(head_dim)."""
    attention_soft_cap: float | None = None
    """Attention scores are cap * tanh(score / cap); None: as they are."""
    logit_soft_cap: float | None = None
    """The same of the logits."""
    embedding_scale: float = 1.0
    """Factor of the embeddings of the tokens."""

    model_type: ClassVar[str] = ""
    """The family's name in `config.json`."""
    prefix: ClassVar[str] = "model."
    """With which the names of a checkpoint's tensors begin, those of the head excepted. Some are saved without it."""

    def __post_init__(self) -> None:
        heads = self.num_attention_heads
        # Fill in the two optional fields; the dataclass is frozen otherwise.
        object.__setattr__(self, "num_key_value_heads", self.num_key_value_heads or heads)
        if not self.head_dim and self.hidden_size % heads:
            raise UsageError(
                "bad-config",
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {heads}",
            )
        object.__setattr__(self, "head_dim", self.head_dim or self.hidden_size // heads)
        if heads % self.num_key_value_heads:
            raise UsageError(
                "bad-config",
                f"num_attention_heads {heads} is not a multiple of num_key_value_heads {self.num_key_value_heads}",
            )
        if self.head_dim % 2:
            raise UsageError(
                "bad-config", f"head_dim {self.head_dim} is odd: rotary embeddings rotate pairs"
            )
        if not _is_float(self.dtype):
            raise UsageError("bad-config", f"dtype {self.dtype} is not a float dtype")
        if self.page_dtype not in (self.dtype, "int8"):
            raise UsageError(
                "bad-config",
                f"cache_dtype {self.cache_dtype} is neither that of the model, {self.dtype}, nor int8",
            )
        if self.joined and (self.num_key_value_heads != heads or self.qk_norm):
            raise UsageError(
                "bad-config", "joined queries, keys and values are as many, and not normalised"
            )
        absent = {"query", "key", "value"} if self.joined else set[str]()
        absent |= set() if self.gated else {"gate"}
        if unknown := sorted({*self.adapters} - ({*LINEARS} - absent)):
            raise UsageError(
                "bad-config",
                f"no linear map is named {', '.join(unknown)}",
                help=f"adapters are of {', '.join(name for name in LINEARS if name not in absent)}",
            )
        if len(self.sliding_windows) not in (0, self.num_hidden_layers):
            raise UsageError(
                "bad-config",
                f"{len(self.sliding_windows)} sliding windows for {self.num_hidden_layers} layers",
            )
        if not isinstance(self.hidden_act, str):
            raise UsageError("bad-config", f"hidden_act must be a name, got {self.hidden_act!r}")
        activation(self.hidden_act)

    @property
    def page_dtype(self) -> str:
        """Dtype of the keys and values in the paged cache."""
        return self.cache_dtype or self.dtype

    @property
    def windows(self) -> tuple[int, ...]:
        """The sliding window of each group of layers in the paged cache, 0 for none: `PageBook` takes them."""
        return tuple(dict.fromkeys(self.sliding_windows)) or (0,)

    def window(self, layer: int) -> int:
        """The sliding window of a layer, 0 for none."""
        return self.sliding_windows[layer] if self.sliding_windows else 0

    def group(self, layer: int) -> int:
        """The group of a layer in the paged cache."""
        return self.windows.index(self.window(layer))

    def rope_of(self, layer: int) -> Rope:
        """The rotary embeddings of a layer."""
        return self.local_rope if self.local_rope and self.window(layer) else self.rope

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], dtype: str | None = None) -> Self:
        """Read the fields of a `config.json`. Unsupported settings are refused; fields that are not needed are ignored.

        `dtype` is the dtype of the computation; None: the dtype of the checkpoint.
        """
        fields = cls.renamed(fields)
        read: dict[str, Any] = {
            **{name: whole(fields, name) for name in SIZES},
            "num_hidden_layers": whole(fields, "num_hidden_layers", most=_MOST_LAYERS),
            "rms_norm_eps": positive(fields, "rms_norm_eps"),
            **{name: flag(fields, name) for name in FLAGS},
            "hidden_act": fields.get("hidden_act"),
            "dtype": dtype or fields.get("dtype") or fields.get("torch_dtype") or "float32",
        }
        given = {name: value for name, value in read.items() if value is not None}
        config_fields(cls, given)  # before anything is made of them
        given |= cls.settings(fields)
        if "rope" not in given:
            given["rope"] = Rope.from_dict({n: v for n, v in fields.items() if v is not None})
        return cls(**config_fields(cls, given))

    @classmethod
    def renamed(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of a `config.json` by the names that most families have."""
        return fields

    @classmethod
    def settings(cls, _fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of this class that a family reads from its `config.json`, whose fields may be null. Raises:
        UsageError (`bad-config`) for what is not supported."""
        return {}

    @classmethod
    def from_checkpoint(cls, directory: str | Path, dtype: str | None = None) -> Self:
        """Read `config.json` of a checkpoint directory."""
        return cls.from_dict(read_config(Path(directory), cls.model_type), dtype)

    def sources(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter, by transformers' names."""
        found = {
            "embedding.weight": Source("model.embed_tokens.weight"),
            "norm.weight": Source("model.norm.weight"),
        }
        if not self.tie_word_embeddings:
            found["head.weight"] = Source("lm_head.weight")
        norms = {"attention_norm": "input_layernorm", "norm": "post_attention_layernorm"}
        if self.post_norms:
            norms["post_attention_norm"] = "post_attention_layernorm"
            norms["norm"], norms["post_norm"] = (
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            )
        if self.qk_norm:
            norms |= {f"attention.{x}_norm": f"self_attn.{x[0]}_norm" for x in ("query", "key")}
        for i in range(self.num_hidden_layers):
            ours, theirs = f"layers.{i}", f"model.layers.{i}"
            for own, name in norms.items():
                found[f"{ours}.{own}.weight"] = Source(f"{theirs}.{name}.weight")
            for name, place in LINEARS.items():
                is_mlp = place.startswith("mlp")
                linear = f"{ours}.{'feed_forward' if is_mlp else 'attention'}.{name}"
                found[f"{linear}.weight"] = Source(f"{theirs}.{place}.weight")
                if self.has_bias(name):
                    found[f"{linear}.bias"] = Source(f"{theirs}.{place}.bias")
        return found

    def sources_in(self, names: Iterable[str]) -> dict[str, Source]:
        """The sources in a checkpoint with tensors of these names: without the prefix, if none has it."""
        found = self.sources()
        if any(name.startswith(self.prefix) for name in names):
            return found
        return {
            own: replace(source, name=source.name.removeprefix(self.prefix))
            for own, source in found.items()
        }

    def unused(self) -> set[str]:
        """Tensors that some checkpoints have beside the parameters: tied embeddings a second time, and frequencies of
        rotary embeddings."""
        layers = range(self.num_hidden_layers)
        found = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in layers}
        return found | ({"lm_head.weight"} if self.tie_word_embeddings else set())

    def has_bias(self, linear: str) -> bool:
        """Has this linear map of a layer a bias?"""
        if LINEARS[linear].startswith("mlp"):
            return self.mlp_bias
        if linear == "output" and self.output_bias is not None:
            return self.output_bias
        return self.attention_bias


def _is_float(dtype: object) -> bool:
    try:
        return isinstance(dtype, str) and DType(dtype).is_float
    except UsageError:  # there is no such dtype
        return False


def windows_by_layer(kinds: Sequence[str] | None, window: int | None) -> tuple[int, ...]:
    """The sliding window of each layer, 0 for none, by the `layer_types` of a `config.json` and its `sliding_window`.
    Raises: UsageError (`bad-config`)."""
    kinds = kinds or ()
    if not isinstance(kinds, list | tuple) or not all(isinstance(kind, str) for kind in kinds):
        raise UsageError("bad-config", f"layer_types must be a list of names, got {kinds!r}")
    if unknown := sorted({*kinds} - {"sliding_attention", "full_attention"}):
        raise UsageError("bad-config", f"layers of type {', '.join(unknown)} are not supported")
    if "sliding_attention" not in kinds:
        return ()
    if not isinstance(window, int) or window < 1:
        raise UsageError("bad-config", f"layers have a sliding window, but it is {window!r}")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


Angles = tuple[nn.Tensor, nn.Tensor] | None
"""Cosines and sines of the tokens' positions; None: nothing is rotated."""

NO_ADAPTERS = nn.Adapters(None, {})
"""Of a call without adapters."""


class Norm(nn.RMSNorm):
    """RMS normalisation over the last axis, by the settings of a configuration."""

    def __init__(self, config: DecoderConfig, size: int) -> None:
        super().__init__(size, config.rms_norm_eps, config.dtype)
        self.offset, self.epsilon = config.norm_offset, config.rms_norm_eps

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(..., size) → the same shape."""
        if not self.offset:
            return super().forward(x)
        assert self.weight is not None, "made with a weight"
        weight = op.astype(self.weight, "float32") + self.offset
        wide = op.nn.rms_norm(op.astype(x, "float32"), weight, axes=(-1,), epsilon=self.epsilon)
        return op.astype(wide, x.dtype)


def _norm(config: DecoderConfig, size: int) -> nn.Module:
    """The norm of a configuration over the last axis."""
    if config.layer_norm:
        return nn.LayerNorm(size, config.rms_norm_eps, config.dtype)
    return Norm(config, size)


class Attention(nn.Module):
    """Causal self-attention with grouped key heads, over the cached and the new tokens."""

    def __init__(self, config: DecoderConfig, window: int = 0) -> None:
        self.config, self.window = config, window
        hidden, dtype = config.hidden_size, config.dtype
        heads = config.num_attention_heads * config.head_dim
        shared = config.num_key_value_heads * config.head_dim
        if config.joined:
            self.joined = nn.Linear(hidden, heads + 2 * shared, config.has_bias("query"), dtype)
        else:
            self.query = nn.Linear(hidden, heads, config.has_bias("query"), dtype)
            self.key = nn.Linear(hidden, shared, config.has_bias("key"), dtype)
            self.value = nn.Linear(hidden, shared, config.has_bias("value"), dtype)
        self.output = nn.Linear(heads, hidden, config.has_bias("output"), dtype)
        self.query_norm = Norm(config, config.head_dim) if config.qk_norm else None
        self.key_norm = Norm(config, config.head_dim) if config.qk_norm else None

    def forward(self, x: nn.Tensor, angles: Angles, cache: Cache | None) -> tuple[nn.Tensor, Cache]:
        """X is (batch, seq, hidden). Returns a tensor of the same shape, and the cache with the new tokens appended."""
        query, key, value = self._projected(x, angles, NO_ADAPTERS)
        if cache is not None:
            key = op.concat((cache[0], key), axis=1)
            value = op.concat((cache[1], value), axis=1)
        if self.config.attention_soft_cap is not None:
            raise UsageError(
                "bad-config",
                "attention with a soft cap is computed over a paged cache only",
                help="export `step` (step_spec), not `prefill` and `decode`",
            )
        mixed = op.nn.attention(
            query, key, value, causal_mask="BottomRight", window_size=self.window or None,
            scale=self.config.attention_scale,
        )  # fmt: skip
        return self._output(x, mixed, NO_ADAPTERS), (key, value)

    def step(
        self,
        x: nn.Tensor,
        angles: Angles,
        cache: nn.PagedCache,
        adapters: nn.Adapters,
    ) -> nn.Tensor:
        """The same for the tokens (1, tokens, hidden) of several sequences, whose pages are updated in place."""
        query, key, value = (op.squeeze(each, 0) for each in self._projected(x, angles, adapters))
        config = self.config
        mixed = cache.attend(
            query, key, value, scale=config.attention_scale, window_size=self.window or None,
            soft_cap=config.attention_soft_cap,
        )  # fmt: skip
        return self._output(x, mixed, adapters)

    def _projected(
        self, x: nn.Tensor, angles: Angles, adapters: nn.Adapters
    ) -> tuple[nn.Tensor, nn.Tensor, nn.Tensor]:
        """Queries, keys and values (batch, seq, heads, head), rotated."""
        batch, seq, _ = x.shape
        width = self.config.head_dim
        if self.config.joined:
            shape = (batch, seq, self.config.num_attention_heads, 3 * width)
            query, key, value = op.split(op.reshape(self.joined(x), shape), 3, axis=-1)
            return _rotated(query, angles), _rotated(key, angles), value
        all_heads = (batch, seq, self.config.num_attention_heads, width)
        shared = (batch, seq, self.config.num_key_value_heads, width)
        query = op.reshape(adapters.add("query", x, self.query(x)), all_heads)
        key = op.reshape(adapters.add("key", x, self.key(x)), shared)
        value = op.reshape(adapters.add("value", x, self.value(x)), shared)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        return _rotated(query, angles), _rotated(key, angles), value

    def _output(self, x: nn.Tensor, mixed: nn.Tensor, adapters: nn.Adapters) -> nn.Tensor:
        batch, seq, _ = x.shape
        heads = self.config.num_attention_heads * self.config.head_dim
        together = op.reshape(mixed, (batch, seq, heads))
        return adapters.add("output", together, self.output(together))


def _rotated(x: nn.Tensor, angles: Angles) -> nn.Tensor:
    return x if angles is None else rotate(x, *angles)


class FeedForward(nn.Module):
    """A gated network (Shazeer, 2020): down(activation(gate(x)) * up(x))."""

    def __init__(self, config: DecoderConfig) -> None:
        self.act = config.hidden_act
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate = (
            nn.Linear(hidden, inner, config.mlp_bias, config.dtype) if config.gated else None
        )
        self.up = nn.Linear(hidden, inner, config.mlp_bias, config.dtype)
        self.down = nn.Linear(inner, hidden, config.mlp_bias, config.dtype)

    def forward(self, x: nn.Tensor, adapters: nn.Adapters | None = None) -> nn.Tensor:
        """(batch, seq, hidden) → the same shape."""
        adapters = adapters or NO_ADAPTERS
        if self.gate is None:
            inner = activation(self.act)(adapters.add("up", x, self.up(x)))
        else:
            gate = adapters.add("gate", x, self.gate(x))
            inner = activation(self.act)(gate) * adapters.add("up", x, self.up(x))
        return adapters.add("down", inner, self.down(inner))


class Layer(nn.Module):
    """Attention, then the feed-forward network, each with pre-normalisation and a residual connection."""

    def __init__(self, config: DecoderConfig, window: int = 0) -> None:
        hidden = config.hidden_size
        self.attention_norm = _norm(config, hidden)
        self.attention = Attention(config, window)
        self.norm = _norm(config, hidden)
        self.feed_forward = FeedForward(config)
        self.parallel = config.parallel
        self.post_attention_norm = Norm(config, hidden) if config.post_norms else None
        self.post_norm = Norm(config, hidden) if config.post_norms else None

    def forward(self, x: nn.Tensor, angles: Angles, cache: Cache | None) -> tuple[nn.Tensor, Cache]:
        """Arguments and result as in `Attention.forward`."""
        mixed, grown = self.attention(self.attention_norm(x), angles, cache)
        return self._after(x, mixed, NO_ADAPTERS), grown

    def step(
        self,
        x: nn.Tensor,
        angles: Angles,
        cache: nn.PagedCache,
        adapters: nn.Adapters,
    ) -> nn.Tensor:
        """Arguments and result as in `Attention.step`."""
        mixed = self.attention.step(self.attention_norm(x), angles, cache, adapters)
        return self._after(x, mixed, adapters)

    def _after(self, x: nn.Tensor, mixed: nn.Tensor, adapters: nn.Adapters) -> nn.Tensor:
        if self.post_attention_norm is not None:
            mixed = self.post_attention_norm(mixed)
        if self.parallel:
            return self.feed_forward(self.norm(x), adapters) + mixed + x
        x = x + mixed
        y = self.feed_forward(self.norm(x), adapters)
        return x + (y if self.post_norm is None else self.post_norm(y))


class Decoder(nn.Module):
    """The decoder: `prefill`, `decode`, and `logits` of all tokens."""

    def __init__(self, config: DecoderConfig) -> None:
        self.config = config
        self.embedding = nn.Embedding(
            config.vocab_size, config.hidden_size, config.dtype, config.check_inputs, "token ids"
        )
        self.positions = (
            nn.Embedding(config.max_position_embeddings, config.hidden_size, config.dtype)
            if config.learned_positions
            else None
        )
        self.layers = nn.ModuleList(
            [Layer(config, config.window(i)) for i in range(config.num_hidden_layers)]
        )
        self.norm = _norm(config, config.hidden_size)
        self.head = (
            None
            if config.tie_word_embeddings
            else nn.Linear(config.hidden_size, config.vocab_size, False, config.dtype)
        )

    def prefill(self, input_ids: nn.Tensor) -> tuple[nn.Tensor, tuple[Cache, ...]]:
        """Process prompts: integers (batch, seq), seq at least 1. Returns the logits after the last token, (batch,
        vocab) float32, and the cache."""
        x, cache = self._hidden(input_ids, None)
        return self._last_logits(x), cache

    def decode(
        self, input_ids: nn.Tensor, cache: tuple[Cache, ...]
    ) -> tuple[nn.Tensor, tuple[Cache, ...]]:
        """Process one more token of each sequence: integers (batch, 1), and the cache of each layer. Returns the same
        as `prefill`."""
        x, cache = self._hidden(input_ids, cache)
        return self._last_logits(x), cache

    def logits(self, input_ids: nn.Tensor) -> nn.Tensor:
        """The logits after each token, (batch, seq, vocab) float32, for integers (batch, seq)."""
        return self._logits(self._hidden(input_ids, None)[0])

    def step(
        self,
        tokens: nn.Tensor,
        positions: nn.Tensor,
        starts: nn.Tensor,
        tables: nn.Tensor,
        lengths: nn.Tensor,
        rows: nn.Tensor,
        caches: tuple[nn.Pages, ...],
        ids: nn.Tensor | None = None,
        adapters: tuple[tuple[tuple[nn.Tensor, nn.Tensor], ...], ...] = (),
    ) -> nn.Tensor:
        """Process tokens of several sequences: `tokens` and `positions` (tokens,) of which those from starts[s] up to
        starts[s + 1] are the last ones of sequence s, whose pages in group g are tables[g, s] and which has lengths[s]
        tokens with them. Returns the logits (rows, vocab) float32 after the tokens numbered `rows`. The pages are
        updated in place. What a sequence gives is the same to the bit whatever else is in the call.

        If the configuration names linear maps that take adapters, `ids` (tokens,) are the adapters of the tokens, -1
        for none, and `adapters` the weights of each layer for these maps (`stack_adapters`)."""
        config, count = self.config, tokens.shape[0]
        ropes = self._ropes()
        for rope in ropes:
            _check_fixed(rope)
        windows = config.windows
        tables = nn.check_pages(
            tables,
            positions,
            starts,
            lengths,
            rows,
            caches[0][0].shape[0],
            config.page_size,
            windows,
        )
        if config.check_inputs:
            positions = op.check_range(positions, config.max_position_embeddings, "positions")
        batches = [
            nn.PagedBatch(positions, starts, op.squeeze(each, 0), lengths, config.page_size)
            for each in (op.split(tables, len(windows), axis=0) if len(windows) > 1 else [tables])
        ]
        if ids is not None:
            ids = nn.Adapters.checked(ids, adapters[0][0][0].shape[0])
        angles = {rope: rope.angles_at(positions, config.head_dim) for rope in ropes}
        x = op.reshape(self._embedded(tokens, positions), (1, count, config.hidden_size))
        for i, (layer, pages) in enumerate(zip(self.layers, caches, strict=True)):
            own = NO_ADAPTERS
            if ids is not None:
                own = nn.Adapters(ids, dict(zip(config.adapters, adapters[i], strict=True)))
            cache = nn.PagedCache(pages, batches[config.group(i)])
            x = layer.step(x, angles.get(config.rope_of(i)), cache, own)
        return self._logits(op.take(op.squeeze(x, 0), rows, axis=0))

    def sample(self, **arguments: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """The next token of each row of logits, and its log-probability: `nn.sample`, by the spec
        `nn.sampling_spec(config.vocab_size)`."""
        return nn.sample(**arguments)

    def alloc_pages(self, pages: Dim) -> tuple[nn.Pages, ...]:
        """The paged cache of all layers, with that many pages."""
        config = self.config
        heads, width = config.num_key_value_heads, config.head_dim
        return tuple(
            nn.PagedCache.empty(pages, heads, width, config.page_dtype, config.page_size)
            for _ in self.layers
        )

    def copy_pages(
        self, sources: nn.Tensor, targets: nn.Tensor, caches: tuple[nn.Pages, ...]
    ) -> tuple[nn.Pages, ...]:
        """Copy pages of all layers in place, in group g numbers sources[g, i] to targets[g, i]; negative ones are
        skipped. Returns the caches."""
        groups = len(self.config.windows)
        pairs = [
            [op.squeeze(each, 0) for each in (op.split(x, groups, axis=0) if groups > 1 else [x])]
            for x in (sources, targets)
        ]
        return tuple(
            nn.copy_pages(pages, *(x[self.config.group(i)] for x in pairs))
            for i, pages in enumerate(caches)
        )

    def _hidden(
        self, input_ids: nn.Tensor, cache: tuple[Cache, ...] | None
    ) -> tuple[nn.Tensor, tuple[Cache, ...]]:
        past = Dim.of(0) if cache is None else cache[0][0].shape[1]
        config = self.config
        limit = config.max_position_embeddings if config.check_inputs else None
        angles = {
            rope: rope.angles(past, input_ids.shape[1], config.head_dim, limit)
            for rope in self._ropes()
        }
        positions = None
        if self.positions is not None:
            positions = op.arange(past, past + input_ids.shape[1])
            if limit is not None:
                positions = op.check_range(positions, limit, "positions")
        x, grown = self._embedded(input_ids, positions), []
        for i, layer in enumerate(self.layers):
            x, pair = layer(x, angles.get(config.rope_of(i)), None if cache is None else cache[i])
            grown.append(pair)
        return x, tuple(grown)

    def _ropes(self) -> list[Rope]:
        """The rotary embeddings of all layers, each once."""
        config = self.config
        if config.learned_positions:
            return []
        return list(dict.fromkeys(config.rope_of(i) for i in range(config.num_hidden_layers)))

    def _embedded(self, ids: nn.Tensor, positions: nn.Tensor | None) -> nn.Tensor:
        x = self.embedding(ids)
        scale = self.config.embedding_scale
        if self.positions is not None and positions is not None:
            x = x + self.positions(positions)
        return x if scale == 1.0 else x * scale

    def _last_logits(self, x: nn.Tensor) -> nn.Tensor:
        batch, seq, hidden = x.shape
        if seq != 1:
            x = op.strided_slice(x, (1,), (seq - 1,), (seq,), assume_inbound=True)
        return self._logits(op.reshape(x, (batch, hidden)))

    def _logits(self, x: nn.Tensor) -> nn.Tensor:
        x = self.norm(x)
        found = op.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        found = op.astype(found, "float32")
        cap = self.config.logit_soft_cap
        return found if cap is None else op.tanh(found / cap) * cap


def _check_fixed(rope: Rope) -> None:
    """Raises: UsageError (`bad-config`) for frequencies that depend on the length of a sequence."""
    if rope.scaling is not None and rope.scaling.by_length:
        raise UsageError(
            "bad-config",
            f"{type(rope.scaling).__name__} depends on the length of a sequence, so a step cannot give equal results "
            "whatever else is in it",
            help="use prefill and decode, or a scaling of fixed frequencies: dataclasses.replace(config, rope=…)",
        )


def spec(config: DecoderConfig) -> dict[str, dict[str, Any]]:
    """The arguments of the exported functions, with symbolic batch size, length and number of cached tokens."""
    heads = (config.num_key_value_heads, config.head_dim)
    cached = nn.spec.Tensor(("batch", "past", *heads), config.dtype)
    cache = nn.spec.Tuple(nn.spec.Tuple((cached, cached)) for _ in range(config.num_hidden_layers))
    prompt = nn.spec.Tensor(("batch", "seq"), "int64")
    return {
        "prefill": {"input_ids": prompt},
        "decode": {"input_ids": nn.spec.Tensor(("batch", 1), "int64"), "cache": cache},
        "logits": {"input_ids": prompt},
    }


def step_spec(config: DecoderConfig) -> dict[str, dict[str, Any]]:
    """The arguments of `step`, `alloc_pages` and `copy_pages`, symbolic in the numbers of tokens, sequences, rows,
    pages, and pages of a sequence."""
    heads = config.num_key_value_heads, config.head_dim
    pages = nn.PagedCache.spec("pages", *heads, config.page_dtype, config.page_size)
    caches = nn.spec.Tuple([pages] * config.num_hidden_layers)
    of_tokens = nn.spec.Tensor(("count",), "int64")
    groups = len(config.windows)
    copies = nn.spec.Tensor((groups, "copies"), "int32")
    adapters: dict[str, Any] = {}
    if config.adapters:
        shapes = {name: p.shape for name, p in Layer(config).named_parameters()}
        sizes = [_shape_of(name, shapes) for name in config.adapters]
        of_layer = [nn.Adapters.spec(width, out, config.dtype) for out, width in sizes]
        layers = nn.spec.Tuple([nn.spec.Tuple(of_layer)] * config.num_hidden_layers)
        adapters = {"ids": nn.spec.Tensor(("count",), "int32"), "adapters": layers}
    return {
        "step": {
            "tokens": of_tokens,
            "positions": of_tokens,
            "starts": nn.spec.Tensor(("offsets",), "int32"),
            "tables": nn.spec.Tensor((groups, "sequences", "width"), "int32"),
            "lengths": nn.spec.Tensor(("sequences",), "int32"),
            "rows": nn.spec.Tensor(("outputs",), "int32"),
            "caches": caches,
            **adapters,
        },
        "alloc_pages": {"pages": nn.spec.Int()},
        "copy_pages": {"sources": copies, "targets": copies, "caches": caches},
    }


def _shape_of(linear: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    """The shape (out, in) of the weight of a linear map of a layer."""
    (found,) = (shape for name, shape in shapes.items() if name.endswith(f".{linear}.weight"))
    rows, columns = found
    return rows, columns


def stack_adapters(
    config: DecoderConfig, checkpoints: Sequence[Adapter]
) -> tuple[tuple[tuple[np.ndarray, np.ndarray], ...], ...]:
    """The argument `adapters` of `step`: for each layer and each linear map of `config.adapters`, the adapters of all
    checkpoints in one array, `down` (adapters, rank, in) and `up` (adapters, out, rank).

    A checkpoint is the tensors of a PEFT file by name and their scale, as `load_adapter` reads them from a folder. A
    linear map that it does not adapt gets zeros. Raises: UsageError (`bad-weights`) that lists tensors of other maps
    and of other shapes.
    """
    shapes = {name: p.shape for name, p in Layer(config).named_parameters()}
    ranks = [len(x) for tensors, _ in checkpoints for n, x in tensors.items() if ".lora_A." in n]
    rank, count = max(ranks, default=0), len(checkpoints)
    problems: list[str] = []
    taken: set[tuple[int, str]] = set()
    layers = []
    for i in range(config.num_hidden_layers):
        pairs = []
        for linear in config.adapters:
            out, width = _shape_of(linear, shapes)
            dtype = DType(config.dtype).numpy
            pair = np.zeros((count, rank, width), dtype), np.zeros((count, out, rank), dtype)
            place = f"model.layers.{i}.{LINEARS[linear]}"
            for number, (tensors, scale) in enumerate(checkpoints):
                own = {
                    half: name
                    for name in tensors
                    for half in ("lora_A", "lora_B")
                    if name.endswith(f"{place}.{half}.weight")
                }
                taken |= {(number, name) for name in own.values()}
                if not own:
                    continue
                down, up = (tensors.get(own.get(half, "")) for half in ("lora_A", "lora_B"))
                if (
                    down is None or up is None or down.ndim != 2
                    or down.shape[1] != width or up.shape != (out, len(down))
                ):  # fmt: skip
                    problems.append(f"adapter {number}: {place} needs (r, {width}) and ({out}, r)")
                    continue
                pair[0][number, : len(down)] = down
                pair[1][number, :, : len(down)] = np.asarray(up, np.float32) * scale
            pairs.append(pair)
        layers.append(tuple(pairs))
    problems += [
        f"adapter {number}: unexpected {name}"
        for number, (tensors, _) in enumerate(checkpoints)
        for name in tensors
        if (number, name) not in taken
    ]
    if problems:
        raise UsageError(
            "bad-weights",
            f"the adapters do not match the model: {len(problems)} problems",
            notes=problems[:12],
            help=f"the configuration takes adapters of {', '.join(config.adapters) or 'no linear map'}",
        )
    return tuple(layers)


def sources(config: DecoderConfig) -> dict[str, Source]:
    """The checkpoint tensor of each parameter, by transformers' names."""
    return config.sources()


def load_weights(model: Decoder, tensors: Mapping[str, np.ndarray]) -> None:
    """Load the model's weights from a checkpoint's tensors, strictly, in the dtype of its configuration."""
    config = model.config
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    bare = {name.removeprefix(config.prefix) for name in config.unused()}
    unused = config.unused() | bare
    model.load(gather(tensors, config.sources_in(tensors), shapes, unused, config.dtype))
