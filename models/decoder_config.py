"""The configuration of a decoder: the settings in which the families of language models differ.

A family is a subclass that reads its `config.json` (`DecoderConfig.settings`), and says where its weights are if they
are not where those of Llama are (`DecoderConfig.sources`). `relaxpy.models.decoder` has the modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.ir import DType
from relaxpy.models.checkpoint import Source, config_fields, flag, positive, read_config, whole
from relaxpy.nn.mlp import activation
from relaxpy.nn.rotary import Rope
from relaxpy.runtime.safetensors import best_layout

if TYPE_CHECKING:
    from relaxpy.models.vision import VisionConfig

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
    context: int = 0
    """The longest sequence that is served, 0 for `max_position_embeddings`: where frequencies of rotary embeddings are
    chosen by length (LongRoPE), a step has those of this one for all sequences."""
    check_inputs: bool = False
    """Whether token ids out of range, and more than `max_position_embeddings` positions, are an error. Otherwise an id
    is clamped to the first or last token, and positions continue."""
    check_numbers: bool = False
    """Whether a NaN or an infinity after a layer is an error that names it. It takes time, and is for debugging."""
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
    """Whether norms subtract the mean."""
    norm_bias: bool = True
    """Whether norms that subtract the mean have a bias."""
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
    rope_interleaved: bool = False
    """Whether neighbours are rotated together, not the elements of both halves of what is rotated."""
    local_rope: Rope | None = None
    """Rotary embeddings of the layers with a window; None: as of the others."""
    attention_scale: float | None = None
    """Factor of the attention scores; None: 1 / sqrt(head_dim)."""
    attention_soft_cap: float | None = None
    """Attention scores are cap * tanh(score / cap); None: as they are."""
    logit_soft_cap: float | None = None
    """The same of the logits."""
    attention_sinks: bool = False
    """Whether the softmax of each head has one score more, a weight that has no value."""
    num_experts: int = 0
    """Number of experts of a layer's feed-forward network; 0: it is dense."""
    num_experts_per_tok: int = 0
    """Number of experts that compute for a token."""
    moe_intermediate_size: int = 0
    """Width of an expert's hidden layer."""
    norm_topk_prob: bool = True
    """Whether the weights of a token's experts are scaled to sum 1."""
    dense_layers: tuple[int, ...] = ()
    """The layers without experts, where others have them."""
    expert_bias: bool = False
    """Whether router and experts have biases."""
    expert_interleaved: bool = False
    """Whether the rows of an expert's gate and up are in turns, not one after the other."""
    expert_clamp: tuple[float, float] | None = None
    """Alpha and limit of gpt-oss's product of gate and up (`nn.MixtureOfExperts`); None: activation(gate) * up."""
    embedding_scale: float = 1.0
    """Factor of the embeddings of the tokens."""
    vision: VisionConfig | None = None
    """What the model sees pictures by; None: it reads texts alone."""

    model_type: ClassVar[str] = ""
    """The family's name in `config.json`."""
    defaults: ClassVar[Mapping[str, Any]] = {"max_position_embeddings": 2048}
    """transformers' values of fields that a `config.json` leaves out, where they are not those of this class."""
    heads: ClassVar[tuple[str, ...]] = "lm_head.weight", "embed_out.weight"
    """The names that heads have in checkpoints."""
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
        if self.num_experts and not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise UsageError(
                "bad-config",
                f"{self.num_experts_per_tok} experts for a token, of {self.num_experts}",
            )
        if unknown := sorted({*self.adapters} - {*self.linears}):
            raise UsageError(
                "bad-config",
                f"no linear map is named {', '.join(unknown)}",
                help=f"adapters are of {', '.join(self.linears)}",
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
    def linears(self) -> tuple[str, ...]:
        """The linear maps of every layer, which take adapters: of `LINEARS`, and "joined"."""
        absent = {"query", "key", "value"} if self.joined else set[str]()
        absent |= set() if self.gated else {"gate"}
        absent |= {"gate", "up", "down"} if self.num_experts else set()
        own = tuple(name for name in LINEARS if name not in absent)
        return ("joined", *own) if self.joined else own

    def linear_sources(self) -> dict[tuple[int, str], Source]:
        """Where each linear map of each layer is in a checkpoint: the source of its weight, by transformers' name of
        the module."""
        places = {
            name: f"{'feed_forward' if LINEARS.get(name, '').startswith('mlp') else 'attention'}.{name}"
            for name in self.linears
        }
        found: dict[tuple[int, str], Source] = {}
        sources = self.sources()
        for i in range(self.num_hidden_layers):
            for name, place in places.items():
                source = sources[f"layers.{i}.{place}.weight"]
                found[i, name] = replace(source, name=source.name.removesuffix(".weight"))
        return found

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

    def has_experts(self, layer: int) -> bool:
        """Is the feed-forward network of a layer a mixture of experts?"""
        return self.num_experts > 0 and layer not in self.dense_layers

    def rope_of(self, layer: int) -> Rope:
        """The rotary embeddings of a layer."""
        return self.local_rope if self.local_rope and self.window(layer) else self.rope

    def served_rope_of(self, layer: int) -> Rope:
        """The same in a step, where it is of all sequences."""
        return self.rope_of(layer).fixed(self.context or self.max_position_embeddings)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], dtype: str | None = None) -> Self:
        """Read the fields of a `config.json`. Unsupported settings are refused; fields that are not needed are ignored.

        `dtype` is the dtype of the computation; None: the dtype of the checkpoint.
        """
        fields = cls.renamed({**cls.defaults, **fields})
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
            if self.attention_sinks:
                found[f"{ours}.attention.sinks"] = Source(f"{theirs}.self_attn.sinks")
            if self.has_experts(i):
                found |= {
                    f"{ours}.feed_forward.{name}": source
                    for name, source in self.expert_sources(f"{theirs}.mlp").items()
                }
            for name, place in LINEARS.items():
                is_mlp = place.startswith("mlp")
                if is_mlp and self.has_experts(i):
                    continue
                linear = f"{ours}.{'feed_forward' if is_mlp else 'attention'}.{name}"
                found[f"{linear}.weight"] = Source(f"{theirs}.{place}.weight")
                if self.has_bias(name):
                    found[f"{linear}.bias"] = Source(f"{theirs}.{place}.bias")
        return found

    def expert_sources(self, mlp: str) -> dict[str, Source]:
        """The same for the parameters of a mixture of experts, whose tensors' names begin with `mlp`: one tensor for
        all experts."""
        return {
            "gate.weight": Source(f"{mlp}.gate.weight"),
            "experts.gate_up_proj": Source(f"{mlp}.experts.gate_up_proj"),
            "experts.down_proj": Source(f"{mlp}.experts.down_proj"),
        }

    def layouts(self) -> list[dict[str, Source]]:
        """All ways in which checkpoints of the family have the tensors: `sources()`, and the same without the
        prefix."""
        whole = self.sources()
        bare = {own: source.without(self.prefix) for own, source in whole.items()}
        return [whole, bare]

    def sources_in(self, names: Iterable[str]) -> dict[str, Source]:
        """The sources in a checkpoint with tensors of these names: the layout of which most are there."""
        layouts = self.layouts()
        if self.vision is None:
            return best_layout(layouts, names)
        names = {*names}
        decoder = [layout for each in layouts for layout in self.vision.with_decoder(each)]
        own = {f"vision.{name}": x for name, x in self.vision.sources_in(names).items()}
        return best_layout(decoder, names) | own

    def unused(self) -> set[str]:
        """Tensors that some checkpoints have beside the parameters: tied embeddings a second time, and frequencies of
        rotary embeddings."""
        layers = range(self.num_hidden_layers)
        found = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in layers}
        return found | ({"lm_head.weight"} if self.tie_word_embeddings else set())

    def ignored(self) -> set[str]:
        """The tensors of `unused`, with the prefix and without it."""
        found = self.unused()
        found |= {name.removeprefix(self.prefix) for name in found}
        return found if self.vision is None else self.vision.ignored(found)

    def kept_whole(self) -> set[str]:
        """The parameters of the exported program that are not quantised with the other weights: those of routers, of
        which few bits decide between experts, and of what sees pictures."""
        layers = filter(self.has_experts, range(self.num_hidden_layers))
        found = {f"layers_{i}_feed_forward_gate_weight" for i in layers}
        seeing = () if self.vision is None else self.vision.sources_in(())
        return found | {f"vision_{name}".replace(".", "_") for name in seeing}

    def joined_maps(self) -> dict[str, dict[str, int]]:
        """The linear maps of a layer that a checkpoint has as one, by its name there: those in it, in order, and how
        many rows each has."""
        return {}

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
