"""Models with an encoder and a decoder: the blocks that their families share, as `relaxpy.models.decoder` has those of
decoders.

A family is a file that reads its `config.json` into an `EncoderDecoderConfig`, and says where its weights are
(`relaxpy.models.whisper`). The encoder reads sound (log-mel features) or tokens; the decoder is that of language models
with attention to the encoder's output in every layer, after its own.

Keys and values of the encoder's output are computed once, by `encode`, and kept in pages of their own (*sources*)
beside the paged cache of the decoder's tokens. A source is never appended to, and any number of sequences read it.

    caches, sources = vm["alloc_pages"](1024), vm["alloc_sources"](376)
    vm["encode"](features, source_tables, sources)                 (batch, mels, frames), (batch, pages of a source)
    logits = vm["step"](tokens, …, rows, caches, source_tables, source_lengths, sources)      (tokens,) → (rows, vocab)

`step` is that of decoders; sequence s of it reads the `source_lengths[s]` positions in the pages `source_tables[s]`.
What a source or a sequence gives is the same to the bit whatever else is in the call. `align` gives the weights of
attention to a source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.ir import Dim
from relaxpy.models.checkpoint import Source, flag, gather, whole
from relaxpy.models.decoder import NO_ADAPTERS, Angles, Attention, FeedForward, norm_of, step_spec
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.models.positions import DistanceBias, Sinusoids, sinusoids
from relaxpy.models.source_attention import MASKED, CrossAttention, SourceAttention
from relaxpy.nn import op
from relaxpy.nn.mlp import activation
from relaxpy.nn.rotary import Rope

if TYPE_CHECKING:
    from relaxpy.models.tower_config import TowerConfig

NAMES = {
    "hidden_size": "d_model", "num_hidden_layers": "decoder_layers", "num_attention_heads": "decoder_attention_heads",
    "intermediate_size": "decoder_ffn_dim", "hidden_act": "activation_function",
}  # fmt: skip
"""The names that decoders have, and those in the `config.json` of models with an encoder."""
LINEARS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
"""The linear maps of an attention, and their names in checkpoints."""


@dataclass(frozen=True)
class EncoderDecoderConfig(DecoderConfig):
    """The fields of a checkpoint's `config.json`. Those of `DecoderConfig` are of the decoder."""

    encoder_layers: int = 0
    encoder_attention_heads: int = 0
    encoder_ffn_dim: int = 0
    encoder_head_dim: int = 0
    """Width of a head of the encoder; 0: hidden_size / encoder_attention_heads."""
    mels: int = 0
    """Bands of the log-mel features that the encoder reads; 0: it reads tokens."""
    source_positions: int = 0
    """The most positions of an encoder's output."""
    source_dtype: str = ""
    """Dtype of the keys and values of sources: "" for that of the model, bfloat16, or int8 with a scale for each
    position and head."""
    norm_after: bool = False
    """Whether the sum of a block and its input is normalised, and not the input."""
    embedding_norm: bool = False
    """Whether embeddings are normalised."""
    final_norm: bool = True
    """Whether what the last layers give is normalised."""
    logits_bias: bool = False
    """Whether logits have a bias."""
    sinusoids: Sinusoids = ""
    """Positions that are computed, not learned: as Marian or as M2M-100 (NLLB) has them."""
    distance_buckets: int = 0
    """Buckets of distances, for which attention of tokens has biases (T5); 0: positions are embedded."""
    distance_most: int = 0
    """The distance from which on all are in one bucket."""
    distances_of_layers: bool = False
    """Whether each layer has biases of its own, not those of the first."""
    encoder_act: str = ""
    """Activation of the encoder's networks, which have no gates; "": they are as the decoder's."""
    hidden_scale: float = 1.0
    """Factor of what the last layer gives, before the head."""
    alignment_heads: tuple[tuple[int, int], ...] = ()
    """(layer, head) of the decoder: those whose attention to a source `align` gives."""

    times_words: ClassVar[bool] = False
    """Whether attention to sound tells when words were spoken."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % self.encoder_attention_heads and not self.encoder_head_dim:
            raise UsageError(
                "bad-config",
                f"d_model {self.hidden_size} is not a multiple of encoder_attention_heads "
                f"{self.encoder_attention_heads}",
            )
        if self.source_page_dtype not in (self.dtype, "bfloat16", "int8"):
            raise UsageError(
                "bad-config",
                f"source_dtype {self.source_dtype} is neither that of the model, {self.dtype}, nor bfloat16, nor int8",
            )
        if not isinstance(self.encoder_act, str):
            raise UsageError(
                "bad-config",
                f"the encoder's activation must be a name, got {self.encoder_act!r}",
            )
        if self.encoder_act:
            activation(self.encoder_act)
        if self.adapters:
            raise UsageError("bad-config", "models with an encoder take no adapters")
        layers, heads = self.num_hidden_layers, self.num_attention_heads
        if wrong := [
            h for h in self.alignment_heads if not (0 <= h[0] < layers and 0 <= h[1] < heads)
        ]:
            raise UsageError(
                "bad-config",
                f"alignment_heads names head {wrong[0][1]} of layer {wrong[0][0]}, and the decoder has {layers} layers "
                f"of {heads} heads",
            )

    def layer_sources(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter of layers, by the names that the families have in common."""
        found: dict[str, Source] = {}
        parts = {
            "encoder.layers": ("encoder", self.encoder_layers, {"attention": "self_attn"}),
            "layers": (
                "decoder",
                self.num_hidden_layers,
                {"attention": "self_attn", "cross": "encoder_attn"},
            ),
        }
        for layers, (part, count, attentions) in parts.items():
            for number in range(count):
                own, theirs = f"{layers}.{number}", f"model.{part}.layers.{number}"
                for name, place in attentions.items():
                    found |= both(f"{own}.{name}_norm", f"{theirs}.{place}_layer_norm")
                    for linear, proj in LINEARS.items():
                        bias = self.has_bias(linear)
                        found |= both(f"{own}.{name}.{linear}", f"{theirs}.{place}.{proj}", bias)
                found |= both(f"{own}.norm", f"{theirs}.final_layer_norm")
                found |= both(f"{own}.feed_forward.up", f"{theirs}.fc1")
                found |= both(f"{own}.feed_forward.down", f"{theirs}.fc2")
        return found

    def fitted(self, tensors: Collection[str]) -> Self:
        """The configuration of a checkpoint with tensors of these names."""
        return self

    @property
    def encoder_width(self) -> int:
        """Numbers of all heads of the encoder."""
        return self.encoder_attention_heads * self.encoder_head_dim or self.hidden_size

    @property
    def source_page_dtype(self) -> str:
        """Dtype of the keys and values of sources."""
        return self.source_dtype or self.dtype

    @property
    def rotates(self) -> bool:
        """Whether positions are known by rotary embeddings, on both sides."""
        return not (self.learned_positions or self.sinusoids or self.distance_buckets)

    def sound(self) -> nn.Module:
        """The first part of an encoder of sound: features (batch, mels, frames) → (batch, source, hidden)."""
        return Sound(self)

    @property
    def reach(self) -> int:
        """Frames, or tokens, that the first position of the encoder's output cannot be without."""
        return 1

    @property
    def stride(self) -> int:
        """Frames, or tokens, of a position of the encoder's output."""
        return 2 if self.mels else 1


def both(own: str, theirs: str, bias: bool = True) -> dict[str, Source]:
    """The checkpoint tensors of a weight and a bias."""
    parts = ("weight", "bias") if bias else ("weight",)
    return {f"{own}.{part}": Source(f"{theirs}.{part}") for part in parts}


def common_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the families read in the same way from a `config.json`, renamed. Raises: UsageError (`bad-config`)."""
    hidden = whole(fields, "hidden_size", most=1 << 20)
    sizes = ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")
    return {
        **{name: whole(fields, name, most=1 << 20) for name in sizes},
        "embedding_scale": hidden**0.5 if hidden and flag(fields, "scale_embedding") else 1.0,
        "rms_norm_eps": 1e-5,
        "layer_norm": True,
        "gated": False,
        "learned_positions": True,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": flag(fields, "tie_word_embeddings", True),
        "rope": Rope(),
    }


class _Layer(nn.Module):
    """The feed-forward network of a layer, and its norms: before each part, or after the sum with its input."""

    def __init__(self, config: EncoderDecoderConfig | TowerConfig, inner: int) -> None:
        """`inner` is the width of the network."""
        self.after = config.norm_after
        self.attention_norm = _norm(config)
        self.norm = _norm(config)
        self.feed_forward = FeedForward(replace(config, intermediate_size=inner))

    def _before(self, norm: nn.Module, x: nn.Tensor) -> nn.Tensor:
        return x if self.after else norm(x)

    def _behind(self, norm: nn.Module, x: nn.Tensor) -> nn.Tensor:
        return norm(x) if self.after else x

    def _fed(self, x: nn.Tensor) -> nn.Tensor:
        return self._behind(self.norm, x + self.feed_forward(self._before(self.norm, x)))


class SourceLayer(_Layer):
    """A layer of the encoder: attention, then the feed-forward network."""

    def __init__(self, config: EncoderDecoderConfig | TowerConfig, causal: bool = False) -> None:
        if isinstance(config, EncoderDecoderConfig) and config.encoder_act:
            config = replace(config, gated=False, hidden_act=config.encoder_act)
        super().__init__(config, config.encoder_ffn_dim)
        self.attention = SourceAttention(config, causal)

    def forward(
        self, x: nn.Tensor, bias: nn.Tensor | None = None, angles: Angles = None
    ) -> nn.Tensor:
        """(batch, source, hidden) → the same shape."""
        mixed = self.attention(self._before(self.attention_norm, x), bias, angles=angles)
        return self._fed(self._behind(self.attention_norm, x + mixed))


class CrossLayer(_Layer):
    """A layer of the decoder: attention to the tokens before, attention to a source, then the feed-forward network."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__(config, config.intermediate_size)
        self.attention = Attention(config)
        self.cross_norm = _norm(config)
        self.cross = CrossAttention(config)

    def step(
        self, x: nn.Tensor, angles: Angles, cache: nn.PagedCache, pages: nn.Pages, batch: nn.PagedBatch,
        bias: nn.Tensor | None, heads: Sequence[int] = (),
    ) -> tuple[nn.Tensor, nn.Tensor | None]:  # fmt: skip
        """The tokens (1, tokens, hidden) of several sequences, whose pages in `cache` are updated in place; `batch`
        tells the sequences' pages of sources, `bias` is that of `nn.paged_attention`. And the weights of attention of
        some heads to the source of a single sequence (`CrossAttention.weights`); None without heads."""
        y = self._before(self.attention_norm, x)
        mixed = self.attention.step(y, angles, cache, NO_ADAPTERS, bias)
        x = self._behind(self.attention_norm, x + mixed)
        y = self._before(self.cross_norm, x)
        found = self.cross.weights(y, pages, batch, heads) if heads else None
        x = self._behind(self.cross_norm, x + self.cross.step(y, pages, batch))
        return self._fed(x), found


class Sound(nn.Module):
    """The first part of an encoder of sound: two convolutions over time, the second of which halves it."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        self.act = activation(config.hidden_act)
        self.dtype = config.dtype
        self.first = nn.Conv1d(config.mels, config.hidden_size, 3, padding=1, dtype=config.dtype)
        self.second = nn.Conv1d(config.hidden_size, config.hidden_size, 3, 2, 1, dtype=config.dtype)

    def forward(self, features: nn.Tensor) -> nn.Tensor:
        """(batch, mels, frames) → (batch, source, hidden)."""
        x = self.act(self.second(self.act(self.first(op.astype(features, self.dtype)))))
        return op.permute_dims(x, (0, 2, 1))


class Encoder(nn.Module):
    """The encoder."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        self.config = config
        shape = config.source_positions, config.hidden_size
        self.sound = config.sound() if config.mels else None
        self.positions = nn.Parameter(shape, config.dtype) if config.learned_positions else None
        self.distances = _distances(config, config.encoder_attention_heads, config.encoder_layers)
        self.embedding_norm = _norm(config) if config.embedding_norm else None
        self.layers = nn.ModuleList([SourceLayer(config) for _ in range(config.encoder_layers)])
        self.norm = _norm(config) if config.final_norm else None

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """The output (batch, source, hidden) for features of sound (batch, mels, frames), or for embeddings of tokens
        (batch, source, hidden). More than `source_positions` are an error of the call."""
        config = self.config
        x = x if self.sound is None else self.sound(x)
        source, table = x.shape[1], self.positions
        if config.sinusoids:
            hidden, most = config.hidden_size, config.source_positions
            table = op.astype(sinusoids(config.sinusoids, hidden, most), config.dtype)
        if table is not None:
            positions = op.strided_slice(table, (0,), (0,), (source,))
            x = x + op.match_cast(positions, (source, config.hidden_size))
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        biases = [each.among(source) for each in self.distances]
        width = config.encoder_width // config.encoder_attention_heads
        angles = config.rope.angles(0, source, width) if config.rotates else None
        for number, layer in enumerate(self.layers):
            x = layer(x, _of_layer(biases, number), angles)
        return x if self.norm is None else self.norm(x)


@dataclass(frozen=True)
class _Rows:
    """What a step computes, as `Decoder.step` has it."""

    tokens: nn.Tensor
    positions: nn.Tensor
    starts: nn.Tensor
    tables: nn.Tensor
    lengths: nn.Tensor
    rows: nn.Tensor
    caches: tuple[nn.Pages, ...]


@dataclass(frozen=True)
class _Sources:
    """What the sequences of a step attend to beside themselves: the pages, and of each sequence which, and how many
    positions of them."""

    tables: nn.Tensor
    lengths: nn.Tensor
    pages: tuple[nn.Pages, ...]


class EncoderDecoder(nn.Module):
    """The model: `encode`, `step`, `align`, and what allocates and copies pages."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        self.config = config
        hidden, dtype = config.hidden_size, config.dtype
        self.encoder = Encoder(config)
        self.embedding = nn.Embedding(
            config.vocab_size, hidden, dtype, config.check_inputs, "token ids"
        )
        most = config.max_position_embeddings
        self.positions = nn.Embedding(most, hidden, dtype) if config.learned_positions else None
        self.distances = _distances(config, config.num_attention_heads, config.num_hidden_layers)
        self.embedding_norm = _norm(config) if config.embedding_norm else None
        self.layers = nn.ModuleList([CrossLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = _norm(config) if config.final_norm else None
        tied = config.tie_word_embeddings
        self.head = None if tied else nn.Linear(hidden, config.vocab_size, False, dtype)
        self.logits_bias = (
            nn.Parameter((1, config.vocab_size), dtype) if config.logits_bias else None
        )

    def encode(
        self, features: nn.Tensor, tables: nn.Tensor, sources: tuple[nn.Pages, ...]
    ) -> tuple[nn.Pages, ...]:
        """Encode a batch of features (batch, mels, frames), or of tokens (batch, source), and write their keys and
        values of all layers into the pages `tables` (batch, pages of a source). Returns the pages, which are updated in
        place."""
        if self.config.mels:
            x = self.encoder(features)
        else:
            x = self.encoder(self._scaled(self.embedding(features)))
        batch, source, _ = x.shape
        tables = op.check_range(tables, sources[0][0].shape[0], "source tables")
        every = op.broadcast_to(op.arange(source), (batch, source))
        starts = op.astype(op.arange(batch + 1) * source, "int32")
        lengths = op.full((batch,), source, "int32")
        paged = nn.PagedBatch(
            op.reshape(every, (batch * source,)), starts, tables, lengths, self.config.page_size
        )
        return tuple(
            layer.cross.fill(x, pages, paged)
            for layer, pages in zip(self.layers, sources, strict=True)
        )

    def step(
        self,
        tokens: nn.Tensor,
        positions: nn.Tensor,
        starts: nn.Tensor,
        tables: nn.Tensor,
        lengths: nn.Tensor,
        rows: nn.Tensor,
        caches: tuple[nn.Pages, ...],
        source_tables: nn.Tensor,
        source_lengths: nn.Tensor,
        sources: tuple[nn.Pages, ...],
    ) -> nn.Tensor:
        """`Decoder.step`, of which sequence s attends to the source_lengths[s] positions in the pages
        source_tables[s] of the sources, too."""
        own = _Rows(tokens, positions, starts, tables, lengths, rows, caches)
        return self._read(own, _Sources(source_tables, source_lengths, sources))[0]

    def align(
        self,
        tokens: nn.Tensor,
        positions: nn.Tensor,
        starts: nn.Tensor,
        tables: nn.Tensor,
        lengths: nn.Tensor,
        rows: nn.Tensor,
        caches: tuple[nn.Pages, ...],
        source_tables: nn.Tensor,
        source_lengths: nn.Tensor,
        sources: tuple[nn.Pages, ...],
        following: nn.Tensor,
        texts: nn.Tensor,
    ) -> tuple[nn.Tensor, nn.Tensor]:
        """`step` of one sequence, of which it gives the attention of `config.alignment_heads` to its source while the
        tokens (tokens,) are read: (heads, tokens, width * page size) float32, 0 after the source. And after each of the
        rows the log-probability of the `following` token (rows,), one of those below a number `texts` (1,), among
        them. (The kernels are those of `step`, which are compiled once.)"""
        heads = self.config.alignment_heads
        step = _Rows(tokens, positions, starts, tables, lengths, rows, caches)
        attended = _Sources(source_tables, source_lengths, sources)
        logits, weights = self._read(step, attended, sorted(heads))
        among = op.where(op.less(op.arange(self.config.vocab_size), texts), logits, MASKED)
        own = op.gather_elements(logits, op.expand_dims(following, 1), axis=1)
        most = op.max(among, axis=-1, keepdims=True)
        logprobs = own - most - op.log(op.sum(op.exp(among - most), axis=-1, keepdims=True))
        every = weights[0] if len(weights) == 1 else op.concat(tuple(weights), axis=0)
        if [*heads] != sorted(heads):
            order = np.array([sorted(heads).index(each) for each in heads], np.int64)
            every = op.take(every, order, axis=0)
        return every, op.squeeze(logprobs, 1)

    def _read(
        self, step: _Rows, attended: _Sources, seen: Sequence[tuple[int, int]] = ()
    ) -> tuple[nn.Tensor, list[nn.Tensor]]:
        """The logits after the rows of a step, and the weights of attention to a source of some heads (layer, head), in
        order: a tensor for each layer."""
        config, positions, starts, lengths = self.config, step.positions, step.starts, step.lengths
        pages = step.caches[0][0].shape[0]
        tables = nn.check_pages(
            step.tables, positions, starts, lengths, step.rows, pages, config.page_size
        )
        if config.check_inputs:
            positions = op.check_range(positions, config.max_position_embeddings, "positions")
        batch = nn.PagedBatch(positions, starts, op.squeeze(tables, 0), lengths, config.page_size)
        others = self._sources_of(starts, attended.tables, attended.lengths, attended.pages)
        size = (1, step.tokens.shape[0], config.hidden_size)
        x = op.reshape(self._embedded(step.tokens, positions), size)
        biases = [each.after() for each in self.distances]
        angles = config.rope.angles_at(positions, config.head_dim) if config.rotates else None
        found: list[nn.Tensor] = []
        for number, (layer, own, source) in enumerate(
            zip(self.layers, step.caches, attended.pages, strict=True)
        ):
            bias, heads = _of_layer(biases, number), [head for of, head in seen if of == number]
            cache = nn.PagedCache(own, batch)
            x, weights = layer.step(x, angles, cache, source, others, bias, heads)
            found += [] if weights is None else [weights]
        return self._logits(op.take(op.squeeze(x, 0), step.rows, axis=0)), found

    def sample(self, **arguments: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """`Decoder.sample`."""
        return nn.sample(**arguments)

    def alloc_pages(self, pages: Dim) -> tuple[nn.Pages, ...]:
        """The paged cache of the decoder's tokens, of all layers, with that many pages."""
        return self._empty(pages, self.config.page_dtype)

    def alloc_sources(self, pages: Dim) -> tuple[nn.Pages, ...]:
        """Pages of sources, of all layers, of that number."""
        return self._empty(pages, self.config.source_page_dtype)

    def copy_pages(
        self, sources: nn.Tensor, targets: nn.Tensor, caches: tuple[nn.Pages, ...]
    ) -> tuple[nn.Pages, ...]:
        """`Decoder.copy_pages`, of the cache of tokens."""
        pair = op.squeeze(sources, 0), op.squeeze(targets, 0)
        return tuple(nn.copy_pages(pages, *pair) for pages in caches)

    def _empty(self, pages: Dim, dtype: str) -> tuple[nn.Pages, ...]:
        config = self.config
        return tuple(
            nn.PagedCache.empty(
                pages, config.num_attention_heads, config.head_dim, dtype, config.page_size
            )
            for _ in self.layers
        )

    def _sources_of(
        self,
        starts: nn.Tensor,
        tables: nn.Tensor,
        lengths: nn.Tensor,
        sources: tuple[nn.Pages, ...],
    ) -> nn.PagedBatch:
        """The sources of sequences, after a check of their pages; -1 is none."""
        count = sources[0][0].shape[0]
        tables = op.check_range(tables, count, "source tables", lowest=-1)
        return nn.PagedBatch(None, starts, tables, lengths, self.config.page_size)

    def _scaled(self, x: nn.Tensor) -> nn.Tensor:
        scale = self.config.embedding_scale
        return x if scale == 1.0 else x * scale

    def _embedded(self, ids: nn.Tensor, positions: nn.Tensor) -> nn.Tensor:
        config, x = self.config, self._scaled(self.embedding(ids))
        if self.positions is not None:
            x = x + self.positions(positions)
        elif config.sinusoids:
            table = sinusoids(config.sinusoids, config.hidden_size, config.max_position_embeddings)
            x = x + op.take(op.astype(table, config.dtype), positions, axis=0)
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def _logits(self, x: nn.Tensor) -> nn.Tensor:
        x = x if self.norm is None else self.norm(x)
        x = x if self.config.hidden_scale == 1.0 else x * self.config.hidden_scale
        found = op.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        found = found if self.logits_bias is None else found + self.logits_bias
        found = op.astype(found, "float32")
        return (
            op.check_finite(found, "the logits, after all layers")
            if self.config.check_numbers
            else found
        )


def _norm(config: EncoderDecoderConfig | TowerConfig) -> nn.Module:
    return norm_of(config, config.hidden_size)


def _distances(
    config: EncoderDecoderConfig, heads: int, layers: int
) -> nn.ModuleList[DistanceBias]:
    """The biases by distance of all layers, or of each."""
    count = (layers if config.distances_of_layers else 1) if config.distance_buckets else 0
    given = config.distance_buckets, config.distance_most, heads, config.dtype
    return nn.ModuleList([DistanceBias(*given) for _ in range(count)])


def _of_layer(biases: list[nn.Tensor], number: int) -> nn.Tensor | None:
    """The bias of a layer."""
    return biases[min(number, len(biases) - 1)] if biases else None


def encoder_decoder_spec(config: EncoderDecoderConfig) -> dict[str, dict[str, Any]]:
    """The arguments of the functions, symbolic in the numbers of sources, positions of a source, tokens, sequences,
    rows, pages, and pages of a sequence and of a source."""
    found = step_spec(config)
    heads = config.num_attention_heads, config.head_dim
    pages = nn.PagedCache.spec("source_pages", *heads, config.source_page_dtype, config.page_size)
    sources = nn.spec.Tuple([pages] * config.num_hidden_layers)
    of_sequences = {
        "source_tables": nn.spec.Tensor(("sequences", "source_width"), "int32"),
        "source_lengths": nn.spec.Tensor(("sequences",), "int32"),
        "sources": sources,
    }
    found["step"] |= of_sequences
    found["encode"] = {
        "features": nn.spec.Tensor(("batch", config.mels, "frames"), "float32")
        if config.mels
        else nn.spec.Tensor(("batch", "source"), "int64"),
        "tables": nn.spec.Tensor(("batch", "source_width"), "int32"),
        "sources": sources,
    }
    found["alloc_sources"] = {"pages": nn.spec.Int()}
    if config.alignment_heads:
        found["align"] = found["step"] | {
            "following": nn.spec.Tensor(("outputs",), "int64"),
            "texts": nn.spec.Tensor((1,), "int64"),
        }
    return found


def load_weights(model: EncoderDecoder, tensors: Mapping[str, np.ndarray]) -> None:
    """Load the model's weights from a checkpoint's tensors, strictly, in the dtype of its configuration. Raises:
    UsageError (`bad-weights`)."""
    config = model.config
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    model.load(gather(tensors, config.sources_in(tensors), shapes, config.ignored(), config.dtype))
