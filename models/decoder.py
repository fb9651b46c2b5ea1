"""Decoders of language models: the blocks that the families share, each with the settings in which families differ.

A family is a file that reads its `config.json` into a `DecoderConfig` (`relaxpy.models.decoder_config`;
`relaxpy.models.llama` is the simplest), and says where its weights are if they are not where those of Llama are. A
decoder is pre-normalised (RMS norms), has rotary embeddings, grouped key heads, and gated feed-forward networks.

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

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relaxpy import nn
from relaxpy.errors import UsageError, wrong_weights
from relaxpy.ir import Dim, DType
from relaxpy.models.adapters import Adapter
from relaxpy.models.checkpoint import Source, gather
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.models.vision import with_rows
from relaxpy.nn import op
from relaxpy.nn.mlp import activation
from relaxpy.nn.rotary import Rope, by_section, rotate

if TYPE_CHECKING:
    from relaxpy.models.tower_config import TowerConfig

Cache = tuple[nn.Tensor, nn.Tensor]
"""The KV cache of a layer: keys and values, each (batch, cached tokens, key heads, head)."""

Angles = tuple[nn.Tensor, nn.Tensor] | None
"""Cosines and sines of the tokens' positions; None: nothing is rotated."""

NO_ADAPTERS = nn.Adapters(None, {})
"""Of a call without adapters."""
_NONE: Mapping[int, nn.Adapters] = {}


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


def norm_of(config: DecoderConfig | TowerConfig, size: int) -> nn.Module:
    """The norm of a configuration over the last axis."""
    if isinstance(config, DecoderConfig) and not config.layer_norm:
        return Norm(config, size)
    bias = config.norm_bias if isinstance(config, DecoderConfig) else True
    return nn.LayerNorm(size, config.rms_norm_eps, config.dtype, bias=bias)


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
        sinks = nn.Parameter((config.num_attention_heads,), dtype)
        self.sinks = sinks if config.attention_sinks else None

    def forward(
        self, x: nn.Tensor, angles: Angles, cache: Cache | None, adapters: nn.Adapters = NO_ADAPTERS
    ) -> tuple[nn.Tensor, Cache]:
        """X is (batch, seq, hidden). Returns a tensor of the same shape, and the cache with the new tokens appended."""
        query, key, value = self._projected(x, angles, adapters)
        if cache is not None:
            key = op.concat((cache[0], key), axis=1)
            value = op.concat((cache[1], value), axis=1)
        mixed = nn.causal_attention(
            query, key, value, window=self.window, scale=self.config.attention_scale,
            soft_cap=self.config.attention_soft_cap, sinks=self.sinks,
        )  # fmt: skip
        return self._output(x, mixed, adapters), (key, value)

    def step(
        self,
        x: nn.Tensor,
        angles: Angles,
        cache: nn.PagedCache,
        adapters: nn.Adapters,
        bias: nn.Tensor | None = None,
    ) -> nn.Tensor:
        """The same for the tokens (1, tokens, hidden) of several sequences, whose pages are updated in place. `bias` is
        that of `nn.paged_attention`."""
        query, key, value = (op.squeeze(each, 0) for each in self._projected(x, angles, adapters))
        config = self.config
        mixed = cache.attend(
            query, key, value, scale=config.attention_scale, window_size=self.window or None,
            soft_cap=config.attention_soft_cap, sinks=self.sinks, bias=bias,
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
            together = adapters.add("joined", x, self.joined(x))
            query, key, value = op.split(op.reshape(together, shape), 3, axis=-1)
            return self._rotated(query, angles), self._rotated(key, angles), value
        all_heads = (batch, seq, self.config.num_attention_heads, width)
        shared = (batch, seq, self.config.num_key_value_heads, width)
        query = op.reshape(adapters.add("query", x, self.query(x)), all_heads)
        key = op.reshape(adapters.add("key", x, self.key(x)), shared)
        value = op.reshape(adapters.add("value", x, self.value(x)), shared)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        return self._rotated(query, angles), self._rotated(key, angles), value

    def _rotated(self, x: nn.Tensor, angles: Angles) -> nn.Tensor:
        return x if angles is None else rotate(x, *angles, self.config.rope_interleaved)

    def _output(self, x: nn.Tensor, mixed: nn.Tensor, adapters: nn.Adapters) -> nn.Tensor:
        batch, seq, _ = x.shape
        heads = self.config.num_attention_heads * self.config.head_dim
        together = op.reshape(mixed, (batch, seq, heads))
        return adapters.add("output", together, self.output(together))


class FeedForward(nn.Module):
    """A gated network (Shazeer, 2020): down(activation(gate(x)) * up(x))."""

    def __init__(self, config: DecoderConfig | TowerConfig) -> None:
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


class Mixture(nn.MixtureOfExperts):
    """A mixture of experts, by the settings of a configuration."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(
            config.hidden_size, config.moe_intermediate_size, config.num_experts, config.num_experts_per_tok,
            config.hidden_act, config.norm_topk_prob, config.dtype, bias=config.expert_bias,
            interleaved=config.expert_interleaved, clamp=config.expert_clamp,
        )  # fmt: skip

    def forward(self, x: nn.Tensor, adapters: nn.Adapters | None = None) -> nn.Tensor:
        """(batch, seq, hidden) → the same shape. There are no adapters of experts."""
        return super().forward(x)


class Layer(nn.Module):
    """Attention, then the feed-forward network, each with pre-normalisation and a residual connection."""

    def __init__(self, config: DecoderConfig, number: int = 0) -> None:
        hidden = config.hidden_size
        self.attention_norm = norm_of(config, hidden)
        self.attention = Attention(config, config.window(number))
        self.norm = norm_of(config, hidden)
        self.feed_forward = Mixture(config) if config.has_experts(number) else FeedForward(config)
        self.parallel = config.parallel
        self.number, self.check_numbers = number, config.check_numbers
        self.post_attention_norm = Norm(config, hidden) if config.post_norms else None
        self.post_norm = Norm(config, hidden) if config.post_norms else None

    def forward(
        self, x: nn.Tensor, angles: Angles, cache: Cache | None, adapters: nn.Adapters = NO_ADAPTERS
    ) -> tuple[nn.Tensor, Cache]:
        """Arguments and result as in `Attention.forward`."""
        mixed, grown = self.attention(self.attention_norm(x), angles, cache, adapters)
        return self._after(x, mixed, adapters), grown

    def step(
        self, x: nn.Tensor, angles: Angles, cache: nn.PagedCache, adapters: nn.Adapters
    ) -> nn.Tensor:
        """Arguments and result as in `Attention.step`."""
        mixed = self.attention.step(self.attention_norm(x), angles, cache, adapters)
        return self._after(x, mixed, adapters)

    def _after(self, x: nn.Tensor, mixed: nn.Tensor, adapters: nn.Adapters) -> nn.Tensor:
        if not self.check_numbers:
            return self._added(x, mixed, adapters)
        mixed = op.check_finite(mixed, f"layer {self.number}, after its attention")
        found = self._added(x, mixed, adapters)
        return op.check_finite(found, f"layer {self.number}, after its feed-forward network")

    def _added(self, x: nn.Tensor, mixed: nn.Tensor, adapters: nn.Adapters) -> nn.Tensor:
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
        self.vision = None if config.vision is None else config.vision.module(config)
        self.layers = nn.ModuleList([Layer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = norm_of(config, config.hidden_size)
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

    def logits(
        self, input_ids: nn.Tensor, adapters: Mapping[int, nn.Adapters] | None = None
    ) -> nn.Tensor:
        """The logits after each token, (batch, seq, vocab) float32, for integers (batch, seq). `adapters` are those of
        each layer that has some."""
        return self._logits(self._hidden(input_ids, None, adapters or {})[0])

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
        embeds: nn.Tensor | None = None,
        sources: nn.Tensor | None = None,
        turns: nn.Tensor | None = None,
        lasts: nn.Tensor | None = None,
    ) -> nn.Tensor:
        """Process tokens of several sequences: `tokens` and `positions` (tokens,) of which those from starts[s] up to
        starts[s + 1] are the last ones of sequence s, whose pages in group g are tables[g, s] and which has lengths[s]
        tokens with them. Returns the logits (rows, vocab) float32 after the tokens numbered `rows`. The pages are
        updated in place. What a sequence gives is the same to the bit whatever else is in the call.

        If the configuration names linear maps that take adapters, `ids` (tokens,) are the adapters of the tokens, -1
        for none, and `adapters` the weights of each layer for these maps (`stack_adapters`).

        If the model sees pictures (`config.vision`), `sources` (tokens,) say which row of `embeds` (embedded, hidden)
        float32 stands for each token, -1 for its embedding in the table. A text alone has no rows. `turns` (positions
        of a token, tokens) are rotary positions (`config.vision.sections`), and `lasts` (tokens,) the last places that
        tokens attend to (`config.vision.spans`), if they are after their own: a picture's tokens are in one call."""
        config, count = self.config, tokens.shape[0]
        of_layers = [
            None if config.learned_positions else config.served_rope_of(i)
            for i in range(config.num_hidden_layers)
        ]
        ropes = list(dict.fromkeys(rope for rope in of_layers if rope is not None))
        for rope in ropes:
            _check_fixed(rope)
        windows = config.windows
        count_of_pages = caches[0][0].shape[0]
        tables = nn.check_pages(
            tables, positions, starts, lengths, rows, count_of_pages, config.page_size, windows
        )
        if config.check_inputs:
            positions = op.check_range(positions, config.max_position_embeddings, "positions")
        batches = [
            nn.PagedBatch(positions, starts, op.squeeze(each, 0), lengths, config.page_size, lasts)
            for each in (op.split(tables, len(windows), axis=0) if len(windows) > 1 else [tables])
        ]
        if ids is not None:
            ids = nn.Adapters.checked(ids, adapters[0][0][0].shape[0])
        turned = positions if turns is None else turns
        angles = {rope: rope.angles_at(turned, config.head_dim) for rope in ropes}
        if turns is not None and config.vision is not None:
            sections = config.vision.sections
            angles = {rope: by_section(*each, sections) for rope, each in angles.items()}
        x = self._embedded(tokens, positions)
        if embeds is not None and sources is not None:
            x = with_rows(x, embeds, sources)
        x = op.reshape(x, (1, count, config.hidden_size))
        for i, (layer, pages) in enumerate(zip(self.layers, caches, strict=True)):
            own = NO_ADAPTERS
            if ids is not None:
                own = nn.Adapters(ids, dict(zip(config.adapters, adapters[i], strict=True)))
            cache = nn.PagedCache(pages, batches[config.group(i)])
            rope = of_layers[i]
            x = layer.step(x, None if rope is None else angles[rope], cache, own)
        return self._logits(op.take(op.squeeze(x, 0), rows, axis=0))

    def encode_picture(self, **inputs: nn.Tensor) -> nn.Tensor:
        """The rows (tokens, hidden) float32 that stand for a picture in a step: what the projector makes of the tower's
        states. The inputs are those of `config.vision.spec()`."""
        assert self.vision is not None, "step_spec has it where there is a tower"
        return op.astype(self.vision(**inputs), "float32")

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
        self,
        input_ids: nn.Tensor,
        cache: tuple[Cache, ...] | None,
        adapters: Mapping[int, nn.Adapters] = _NONE,
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
            own = None if cache is None else cache[i]
            x, pair = layer(x, angles.get(config.rope_of(i)), own, adapters.get(i, NO_ADAPTERS))
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
        x = x if scale == 1.0 else x * scale
        return op.check_finite(x, "the embeddings") if self.config.check_numbers else x

    def _last_logits(self, x: nn.Tensor) -> nn.Tensor:
        batch, seq, hidden = x.shape
        if seq != 1:
            x = op.strided_slice(x, (1,), (seq - 1,), (seq,), assume_inbound=True)
        return self._logits(op.reshape(x, (batch, hidden)))

    def _logits(self, x: nn.Tensor) -> nn.Tensor:
        x = self.norm(x)
        found = op.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        found = op.astype(found, "float32")
        if self.config.check_numbers:
            found = op.check_finite(found, "the logits, after all layers")
        cap = self.config.logit_soft_cap
        return found if cap is None else op.tanh(found / cap) * cap


def _check_fixed(rope: Rope) -> None:
    """Raises: UsageError (`bad-config`) for frequencies that depend on the length of a sequence."""
    if rope.scaling is not None and rope.scaling.by_length:
        raise UsageError(
            "bad-config",
            f"{type(rope.scaling).__name__} (rope_type dynamic) depends on the length of a sequence, so a step cannot "
            "give equal results whatever else is in it",
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
    """The arguments of `step`, `alloc_pages`, `copy_pages`, and of `encode_picture` if the model sees pictures:
    symbolic in the numbers of tokens, sequences, rows, pages, pages of a sequence, and rows of pictures."""
    heads = config.num_key_value_heads, config.head_dim
    pages = nn.PagedCache.spec("pages", *heads, config.page_dtype, config.page_size)
    caches = nn.spec.Tuple([pages] * config.num_hidden_layers)
    of_tokens = nn.spec.Tensor(("count",), "int64")
    groups = len(config.windows)
    copies = nn.spec.Tensor((groups, "copies"), "int32")
    adapters: dict[str, Any] = {}
    if config.adapters:
        shapes = layer_shapes(config)
        sizes = [shapes[name] for name in config.adapters]
        of_layer = [nn.Adapters.spec(width, out, config.dtype) for out, width in sizes]
        layers = nn.spec.Tuple([nn.spec.Tuple(of_layer)] * config.num_hidden_layers)
        adapters = {"ids": nn.spec.Tensor(("count",), "int32"), "adapters": layers}
    vision = config.vision
    pictures = {} if vision is None else vision.step_spec(config.hidden_size)
    found: dict[str, dict[str, Any]] = {
        "step": {
            "tokens": of_tokens,
            "positions": of_tokens,
            "starts": nn.spec.Tensor(("offsets",), "int32"),
            "tables": nn.spec.Tensor((groups, "sequences", "width"), "int32"),
            "lengths": nn.spec.Tensor(("sequences",), "int32"),
            "rows": nn.spec.Tensor(("outputs",), "int32"),
            "caches": caches,
            **adapters,
            **pictures,
        },
        "alloc_pages": {"pages": nn.spec.Int()},
        "copy_pages": {"sources": copies, "targets": copies, "caches": caches},
    }
    return found if vision is None else {**found, "encode_picture": vision.spec()}


def layer_shapes(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """The shape (out, in) of the weight of each linear map of a layer."""
    shapes = {name: p.shape for name, p in Layer(config).named_parameters()}
    found: dict[str, tuple[int, int]] = {}
    for linear in config.linears:
        (own,) = (shape for name, shape in shapes.items() if name.endswith(f".{linear}.weight"))
        found[linear] = own[0], own[1]
    return found


def stack_adapters(
    config: DecoderConfig, checkpoints: Sequence[Adapter]
) -> tuple[tuple[tuple[np.ndarray, np.ndarray], ...], ...]:
    """The argument `adapters` of `step`: for each layer and each linear map of `config.adapters`, the adapters of all
    checkpoints in one array, `down` (adapters, rank, in) and `up` (adapters, out, rank).

    A checkpoint is the tensors of a PEFT file by name and their scale, as `load_adapter` reads them from a folder. A
    linear map that it does not adapt gets zeros. An adapter of a joined map (Phi-3's `qkv_proj`) is taken apart, if
    `config.adapters` names all maps that are joined there. Raises: UsageError (`bad-weights`) that lists tensors of
    other maps and of other shapes.
    """
    shapes, places = layer_shapes(config), config.linear_sources()
    ranks = [len(x) for tensors, _ in checkpoints for n, x in tensors.items() if ".lora_A." in n]
    rank, count = max(ranks, default=0), len(checkpoints)
    problems: list[str] = []
    taken: set[tuple[int, str]] = set()
    layers = []
    for i in range(config.num_hidden_layers):
        pairs = []
        for linear in config.adapters:
            out, width = shapes[linear]
            dtype = DType(config.dtype).numpy
            pair = np.zeros((count, rank, width), dtype), np.zeros((count, out, rank), dtype)
            source = places[i, linear]
            together = {name for name in config.linears if places[i, name].name == source.name}
            if not together <= {*config.adapters}:
                pairs.append(pair)  # a part of a joined map, which has no adapter of its own
                continue
            place, (start, end, rows) = source.name, source.rows or (0, out, out)
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
                    or down.shape[1] != width or up.shape != (rows, len(down))
                ):  # fmt: skip
                    problems.append(f"adapter {number}: {place} needs (r, {width}) and ({rows}, r)")
                    continue
                pair[0][number, : len(down)] = down
                pair[1][number, :, : len(down)] = np.asarray(up[start:end], np.float32) * scale
            pairs.append(pair)
        layers.append(tuple(pairs))
    problems += [
        f"adapter {number}: unexpected {name}"
        for number, (tensors, _) in enumerate(checkpoints)
        for name in tensors
        if (number, name) not in taken
    ]
    if problems:
        taking = (
            f"the configuration takes adapters of {', '.join(config.adapters) or 'no linear map'}"
        )
        raise wrong_weights("model", problems, taking, what="adapters")
    return tuple(layers)


def sources(config: DecoderConfig) -> dict[str, Source]:
    """The checkpoint tensor of each parameter, by transformers' names."""
    return config.sources()


def load_weights(model: Decoder, tensors: Mapping[str, np.ndarray]) -> None:
    """Load the model's weights from a checkpoint's tensors, strictly, in the dtype of its configuration. Raises:
    UsageError (`bad-weights`), also for a head that is not the embedding, if the configuration says that it is."""
    config = model.config
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    sources = config.sources_in(tensors)
    head = next((tensors[name] for name in config.heads if name in tensors), None)
    embedding = tensors.get(sources["embedding.weight"].name)
    two = head is not None and embedding is not None and not np.array_equal(head, embedding)
    if config.tie_word_embeddings and two:
        raise UsageError(
            "bad-weights",
            "the configuration says that the head is the embedding (tie_word_embeddings), and the tensors have another",
            help="dataclasses.replace(config, tie_word_embeddings=False)",
        )
    model.load(gather(tensors, sources, shapes, config.ignored(), config.dtype))
