"""Every model type of transformers, tiny, by one rule: fields of its configuration are shrunk by their names, inputs are
made by the names of `forward`'s parameters. Of the ways to shrink and to call, the first that runs is taken."""

from __future__ import annotations

import inspect
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import torch

SMALL: tuple[tuple[str, int], ...] = (
    (r"num_kv_shared_layers", 0),
    (r"num_hidden_layers|num_layers|n_layers?|depth|num_\w*_layers|\w+_layers", 2),
    (r"(num_|n_)?(key_value|kv)_heads?|num_kv_heads|num_key_value_heads|n_kv_heads?|multi_query_group_num", 2),
    (r"(mamba_)?expand|mamba_n_groups|n_groups", 1),  # heads × their width = expand × hidden size
    (r"mamba_d_head|mamba_head_dim", 8),
    (r"mamba_d_ssm", 32),
    (r"index_n_heads", 64),  # scores are sums of relu over heads: of few heads many are 0, and torch chooses any of equals
    (r"(\w+_)?(num_|n_)?(attention_)?heads?|n_head|num_attention_heads|\w+_attention_heads", 4),
    (r"(\w+_)?head_dim|d_kv|(\w+_)?head_size|qk_nope_head_dim|qk_rope_head_dim|v_head_dim|d_head|kv_channels", 8),
    (r"n_words|vocab_size|\w*vocab_size\w*", 99),
    (r"max_position_embeddings|n_positions|max_\w*positions|max_sequence_length|max_\w*position\w*|n_ctx|seq_length|max_seq_len\w*", 64),
    (r"intermediate_size|d_ff|ffn_dim|\w*ffn_dim|n_inner|\w*intermediate_size|ffn_hidden_size|dim_feedforward|\w*ffn_size|\w*mlp_dim", 64),
    (r"hidden_size|d_model|n_embd|emb_dim|(\w+_)?embed_dim|hidden_dim|dim|\w*hidden_size|embedding_size|\w*embedding_size|projection_dim|\w*hidden_dim|d_embed|embed_dim|\w*embed_size|\w*channels_hidden", 32),
    (r"num_(local_)?experts|n_routed_experts|moe_num_experts|\w*num_experts", 4),
    (r"num_experts_per_tok(en)?|\w*top_?k|num_selected_experts", 2),
    (r"n_group|topk_group|first_k_dense_replace|n_shared_experts|num_nextn_predict_layers", 1),
    (r"q_lora_rank|kv_lora_rank|\w*lora_rank", 16),
    (r"image_size|crop_size|input_size", 32),
    (r"patch_size|tubelet_size", 8),
    (r"num_frames", 2),
    (r"num_mel_bins|feature_size|input_feat_per_channel|n_mels", 16),
    (r"max_source_positions|max_target_positions", 64),
    (r"num_queries|num_query_tokens|num_latents", 6),
    (r"type_vocab_size", 2),
    (r"sliding_window|attention_window|window_size|local_attention|chunk_size", 4),
    (r"num_buckets|relative_attention_num_buckets", 8),
    (r"state_size|mamba_d_state|ssm_state_size|conv_kernel_size|num_conv_pos_embeddings", 4),
    (r"num_conv_pos_embedding_groups", 2),
    (r"rotary_dim", 4),
    (r"num_labels", 3),
)  # fmt: skip
"""Names of fields → their small value; the first that fits."""

SMALL_LIST = {
    r"depths|layer_depths": 1,
    r"num_heads|num_attention_heads": 2,
    r"hidden_sizes|embed_dims?|out_features_dims|channels|encoder_hidden_sizes|block_out_channels": 16,
    r"conv_dim": 16,
}
"""Names of lists of integers → the small value of each (sizes grow, as 16, 32, …)."""

Way = frozenset[str]
"""The rows of both tables, by their patterns, that shrink a configuration; and MISSING."""

MISSING = "missing"
"""Numbers that are None are given, too."""

HEADS = next(pattern for pattern, _ in SMALL if pattern.startswith(r"(\w+_)?head_dim"))
ROWS: Way = frozenset([*(pattern for pattern, _ in SMALL), *SMALL_LIST])

MOST = 50_000_000
"""Parameters of a model that is tiny."""


def ways(used: set[str]) -> Iterator[Way]:
    """How to shrink: by all rows; not the widths of heads, which others are tied to; only layers and vocabularies; without
    any one or two of the rows that were used so far."""
    yield ROWS
    yield ROWS - {HEADS}
    yield frozenset(pattern for pattern, small in SMALL if small in (2, 99))
    yield ROWS | {MISSING}
    rows = [pattern for pattern in (*(p for p, _ in SMALL), *SMALL_LIST) if pattern in used]
    for count in (1, 2):
        for left in combinations(rows, count):
            yield ROWS.difference(left)


def _small(name: str, value: Any, way: Way, used: set[str]) -> Any:
    """A field's small value; notes the row that it is of."""
    if isinstance(value, bool) or (value is None and MISSING not in way):
        return value
    if isinstance(value, int) or value is None:
        if isinstance(value, int) and name.endswith(("token_id", "token_index", "_id")):
            return value if value < 80 else 80 + zlib.crc32(name.encode()) % 19
        for pattern, small in SMALL:
            if re.fullmatch(pattern, name):
                used.add(pattern)
                least = small if value is None else min(value, small)
                return least if pattern in way else value
        return value
    if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
        if "token_id" in name:
            return type(value)(min(v, 90) for v in value)
        for pattern, small in SMALL_LIST.items():
            if re.fullmatch(pattern, name):
                used.add(pattern)
                if pattern not in way:
                    return value
                if small == 16:
                    return type(value)(
                        16 * 2**i if name != "conv_dim" else 16 for i in range(len(value))
                    )
                return type(value)(min(v, small) for v in value)
    return value


def tiny_config(cls: Any, way: Way, used: set[str]) -> Any:
    """A small configuration of this class; notes the rows that it is made by."""
    return cls(**_fields(cls, cls(), way, used))


def _fields(cls: type, plain: Any, way: Way, used: set[str]) -> dict[str, Any]:
    names = [
        n for n in inspect.signature(cls.__init__).parameters if n not in ("self", "kwargs", "args")
    ]
    subs = getattr(cls, "sub_configs", None) or {}
    given: dict[str, Any] = {}
    for name in names:
        value = _field(plain, name)
        if getattr(value, "model_type", None) == "timm_backbone":
            given[name] = _backbone(value)  # a package of its own
            continue
        if name in subs:
            sub = type(value) if hasattr(value, "to_dict") else subs[name]
            if value is not None and hasattr(sub, "model_type") and sub.__name__ != "AutoConfig":
                given[name] = _fields(sub, value, way, used)
                if sub.model_type:
                    given[name]["model_type"] = sub.model_type
            continue
        if hasattr(value, "to_dict"):
            continue
        small = _small(name, value, way, used)
        if name == "num_key_value_heads" and "kv_lora_rank" in names:
            # Keys that are made of a shared vector have a head for each of the queries'.
            small = _small("num_attention_heads", value, way, used)
        if name == "prediction_length" and value is None:
            small = 4
        if name == "layer_types" and isinstance(value, (list, tuple)):
            small = list(dict.fromkeys(value))[:2]
            small = (small * 2)[:2]
        if small != value:
            given[name] = small
    rope = _field(plain, "rope_parameters")
    if isinstance(rope, dict) and ("mrope_section" in rope or MISSING in way):
        _share_positions(plain, given, rope)
    return given


def _backbone(config: Any) -> Any:
    """A network of transformers itself, of as many maps."""
    from transformers import ResNetConfig

    stages = [f"stage{4 - i}" for i in reversed(range(len(config.out_indices or (1,))))]
    return ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1] * 4, layer_type="basic",
        out_features=stages,
    )  # fmt: skip


def _share_positions(plain: Any, given: dict[str, Any], rope: dict[str, Any]) -> None:
    """Positions of several axes share the width of a head, which has become smaller."""
    axes = len(rope.get("mrope_section") or (0, 0, 0))
    width = given.get("head_dim", _field(plain, "head_dim"))
    if width is None:
        names = "hidden_size", "num_attention_heads"
        size, heads = (given.get(name, _field(plain, name)) for name in names)
        if size is None or heads is None:
            return
        width = size // heads
    pairs = int(width * rope.get("partial_rotary_factor", 1)) // 2
    sections = [pairs // axes + (axis < pairs % axes) for axis in range(axes)]
    given["rope_parameters"] = {**rope, "mrope_section": sections}


@dataclass(frozen=True)
class Tiny:
    """A tiny model and how it is called."""

    model: torch.nn.Module
    config: Any
    form: str
    """Which of the ways to call it."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The call that is traced."""
        return self.call(3, 11)

    @property
    def sizes(self) -> Mapping[str, Any]:
        """Which sizes vary, by name."""
        return self._made(3, 11).sizes

    def call(self, batch: int, length: int) -> dict[str, Any]:
        return self._made(batch, length).values

    def _made(self, batch: int, length: int) -> Inputs:
        made = Inputs(self.model, self.config, batch, length)
        FORMS[self.form](made)
        made.rest()
        return made


def tiny_model(kind: str) -> Tiny:
    """The tiny model of a type of transformers, which runs. Raises ValueError, with what the ways raise."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    config_class = CONFIG_MAPPING[kind]
    model_class = MODEL_MAPPING[config_class]
    if isinstance(model_class, (tuple, list)):
        model_class = model_class[0]
    transformers.logging.set_verbosity_error()
    problems: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        used: set[str] = set()
        tried: list[str] = []
        for way in ways(used):
            try:
                config = tiny_config(config_class, way, used)
                if (text := repr(config)) in tried:
                    continue
                tried.append(text)
                model = _model(model_class, config)
            except Exception as error:
                problems.append(f"{type(error).__name__}: {str(error)[:150]}")
                continue
            for form in FORMS:
                tiny = Tiny(model, config, form)
                try:
                    _runs(tiny)
                except _NoSuchForm:
                    continue
                except Exception as error:
                    problems.append(f"{form}: {type(error).__name__}: {str(error)[:150]}")
                    continue
                return tiny
    raise ValueError(" | ".join(dict.fromkeys(problems)) or "no inputs")


def _model(model_class: Any, config: Any) -> torch.nn.Module:
    with suppress(NotImplementedError, RuntimeError, TypeError), torch.device("meta"):
        # No values are needed to count.
        if sum(p.numel() for p in model_class(config).parameters()) > MOST:
            raise ValueError("not tiny")
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # routers of zeros: of equal scores, torch chooses any
            if (
                parameter.is_floating_point()
                and parameter.numel()
                and (parameter == parameter.flatten()[0]).all()
            ):
                parameter += 0.1 * torch.randn_like(parameter)
    if sum(p.numel() for p in model.parameters()) > MOST:
        raise ValueError("not tiny")
    return model


def _runs(tiny: Tiny) -> None:
    """Raise what the model raises for the calls."""
    with torch.no_grad():
        for shape in ((2, 7), (1, 5)):
            tiny.model(**tiny.call(*shape))


def _field(config: Any, name: str) -> Any:
    """A field of a configuration. None if there is none, or if layers have values of their own."""
    with suppress(RuntimeError):
        return getattr(config, name, None)
    return None


def _find(config: Any, *names: str) -> Any:
    """A field of a configuration, or of one inside it."""
    for name in names:
        value = _field(config, name)
        if value is not None:
            return value
    for sub in vars(config).values():
        if hasattr(sub, "to_dict"):
            found = _find(sub, *names)
            if found is not None:
                return found
    return None


class _NoSuchForm(Exception):
    """`forward` has no such parameter."""


@dataclass
class Inputs:
    """Arguments of `forward` by name, and the sizes that vary."""

    model: Any
    config: Any
    batch: int
    length: int
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    sizes: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.rng = torch.Generator().manual_seed(self.batch * 1000 + self.length)
        self.names = inspect.signature(self.model.forward).parameters

    def add(self, name: str, value: torch.Tensor, *sizes: str) -> None:
        """An argument with the names of its first sizes; "" for one that does not vary."""
        if name not in self.names:
            raise _NoSuchForm(name)
        self.values[name] = value
        self.sizes[name] = {axis: size for axis, size in enumerate(sizes) if size}

    def needs(self, *names: str) -> None:
        if not all(name in self.names for name in names):
            raise _NoSuchForm(names)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.rng)

    def whole(self, low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self.rng)

    @cached_property
    def picture(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        size = _find(self.config, "image_size", "img_size") or 32
        if isinstance(size, dict):
            size = tuple(size.values())
        height, width = size if isinstance(size, (tuple, list)) else (size, size)
        return _find(self.config, "num_channels", "in_channels", "in_chans") or 3, height, width

    def tokens(self, length: int) -> torch.Tensor:
        return self.whole(3, min(_find(self.config, "vocab_size") or 99, 80), self.batch, length)

    @property
    def mels(self) -> int:
        names = "num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels"
        return _find(self.config, *names, "feature_projection_input_dim") or 16

    def text(self, ids: torch.Tensor | None = None) -> None:
        ids = self.tokens(self.length) if ids is None else ids
        self.add("input_ids", ids, "batch", "length")
        if "attention_mask" in self.names:
            mask = torch.ones_like(ids)
            if self.length > 2:  # some models take another path where all tokens count
                mask[0, -2:] = 0
            self.add("attention_mask", mask, "batch", "length")
        if "bbox" in self.names:
            boxes = self.whole(0, 9, *ids.shape, 4).sort(-1).values
            self.add("bbox", boxes, "batch", "length")
        if "qformer_input_ids" in self.names:
            self.add("qformer_input_ids", self.tokens(self.length), "batch", "length")

    def decoder(self) -> None:
        if "decoder_input_ids" in self.names:
            self.add("decoder_input_ids", self.tokens(self.length), "batch", "length")

    def pictures(self) -> None:
        self.add("pixel_values", self.normal(self.batch, *self.picture), "batch")

    def videos(self) -> None:
        frames = _find(self.config, "num_frames", "frames_per_clip") or 2
        name = "pixel_values_videos" if "pixel_values_videos" in self.names else "pixel_values"
        self.add(name, self.normal(self.batch, frames, *self.picture), "batch")

    def pictures_in_text(self) -> None:
        """As many tokens of the picture before the text as the model makes of it."""
        token = _find(self.config, "image_token_id", "image_token_index")
        if token is None or not hasattr(self.model, "get_image_features"):
            raise _NoSuchForm
        self.pictures()
        with torch.no_grad():
            found = self.model.get_image_features(self.values["pixel_values"])
        if getattr(found, "pooler_output", None) is not None:
            found = found.pooler_output
        parts = found if isinstance(found, (tuple, list)) else [found]
        width = self.model.get_input_embeddings().weight.shape[-1]
        count = sum(part.numel() for part in parts) // width // self.batch
        ids = torch.full((self.batch, count), token)
        self.text(torch.cat([ids, self.tokens(self.length)], 1))

    def waves(self) -> None:
        self.add(
            "input_values", self.normal(self.batch, 480 + 320 * self.length), "batch", "samples"
        )

    def waves_of_a_channel(self) -> None:
        waves = self.normal(self.batch, 1, 480 + 320 * self.length)
        self.add("input_values", waves, "batch", "", "samples")

    def spectra(self) -> None:
        name = "input_features" if "input_features" in self.names else "input_values"
        frames = self.normal(self.batch, 40 + 8 * self.length, self.mels)
        self.add(name, frames, "batch", "frames")
        if "input_features_mask" in self.names:
            mask = torch.ones(frames.shape[:2], dtype=torch.long)
            self.add("input_features_mask", mask, "batch", "frames")

    def spectra_by_band(self) -> None:
        """Of the only length that the model takes, if there is one."""
        length = 2 * (_find(self.config, "max_source_positions") or 32)
        self.add("input_features", self.normal(self.batch, self.mels, length), "batch")
        if "input_features_mask" in self.names:
            mask = torch.ones(self.batch, length, dtype=torch.long)
            self.add("input_features_mask", mask, "batch")

    def spectra_of_a_length(self) -> None:
        length = _find(self.config, "max_length")
        if length is None:
            raise _NoSuchForm
        self.add("input_values", self.normal(self.batch, length, self.mels), "batch")

    def spectra_of_a_channel(self) -> None:
        frames = self.normal(self.batch, 1, 40 + 8 * self.length, self.mels)
        self.add("input_features", frames, "batch", "", "frames")

    def past(self) -> None:
        """A time series of one variable with lags, or of several."""
        lags = _find(self.config, "lags_sequence")
        context = _find(self.config, "context_length") or 32
        channels = _find(self.config, "num_input_channels")
        if lags is None:
            series = (context, channels) if channels else (context,)
            self.add("past_values", self.normal(self.batch, *series), "batch")
            if "past_values_padding" in self.names:
                self.add("past_values_padding", torch.zeros(self.batch, context), "batch")
            if "freq" in self.names:
                self.add("freq", torch.zeros(self.batch, 1, dtype=torch.long), "batch")
            return
        past = context + max(lags)
        features = _find(self.config, "num_time_features") or 0
        future = _find(self.config, "prediction_length") or 4
        self.add("past_values", self.normal(self.batch, past), "batch")
        self.add("past_time_features", self.normal(self.batch, past, features), "batch")
        self.add("past_observed_mask", torch.ones(self.batch, past), "batch")
        self.add("future_values", self.normal(self.batch, future), "batch")
        self.add("future_time_features", self.normal(self.batch, future, features), "batch")

    def grids(self) -> None:
        """The patches of all pictures one after the other, and the grid of each. What the model computes of the grids
        before its layers are further inputs, as transformers' own exporter has them."""
        name = "image_grid_thw" if "image_grid_thw" in self.names else "grid_thw"
        self.needs(name)
        size = _find(self.config, "patch_size") or 8
        across = size if isinstance(size, int) else size[0]
        width = self.picture[0] * across**2 * (_find(self.config, "temporal_patch_size") or 1)
        names = "pixel_values", "hidden_states", "inputs_embeds"
        patches = next((each for each in names if each in self.names), names[0])
        self.add(patches, self.normal(self.batch * 32, width), "patches")
        self.add(name, torch.tensor([[1, 4, 8]] * self.batch), "batch")
        if "merge_sizes" in self.names:
            self.add("merge_sizes", torch.full((self.batch,), 2), "batch")
        if name == "grid_thw":
            more, others = self.computed(self.batch), self.computed(self.batch + 1)
            for key, value in more.items():
                sizes = zip(value.shape, others[key].shape, strict=True)
                varying = [axis for axis, (one, other) in enumerate(sizes) if one != other]
                self.values[key] = value
                self.sizes[key] = {
                    axis: "patches" if value.shape[axis] == self.batch * 32 else key
                    for axis in varying
                }

    def computed(self, batch: int) -> dict[str, torch.Tensor]:
        """What transformers' exporter computes of as many grids."""
        from transformers.exporters.utils import precompute_export_inputs

        own = {"grid_thw": torch.tensor([[1, 4, 8]] * batch)}
        if "merge_sizes" in self.names:
            own["merge_sizes"] = torch.full((batch,), 2)
        given = dict(own)
        with torch.no_grad():
            precompute_export_inputs(self.model, given)
        tensors = {key: value for key, value in given.items() if isinstance(value, torch.Tensor)}
        return {key: value for key, value in tensors.items() if key not in own}

    def grids_in_text(self) -> None:
        """As many tokens of the pictures before the text as the model makes of their grids."""
        self.needs("pixel_values", "image_grid_thw", "input_ids")
        self.grids()
        token = _find(self.config, "image_token_id", "image_token_index")
        merge = _find(self.config, "spatial_merge_size", "merge_size") or 1
        ids = torch.full((self.batch, 4 * 8 // merge**2), token)
        self.text(torch.cat([ids, self.tokens(self.length)], 1))
        if "mm_token_type_ids" in self.names:
            ids = self.values["input_ids"]
            self.add("mm_token_type_ids", (ids == token).int(), "batch", "length")

    def patches(self) -> None:
        """Pictures as rows of patches, with their heights and widths."""
        self.needs("pixel_values", "spatial_shapes")
        channels, size = self.picture[0], _find(self.config, "patch_size") or 8
        self.add("pixel_values", self.normal(self.batch, 6, channels * size**2), "batch")
        self.add("pixel_attention_mask", torch.ones(self.batch, 6, dtype=torch.long), "batch")
        self.add("spatial_shapes", torch.tensor([[2, 3]] * self.batch), "batch")

    def states(self) -> None:
        """What an agent saw, did and got."""
        self.needs("states", "actions", "returns_to_go", "timesteps")
        shape = self.batch, self.length
        for name, width in (
            ("states", self.config.state_dim), ("actions", self.config.act_dim),
            ("rewards", 1), ("returns_to_go", 1),
        ):  # fmt: skip
            self.add(name, self.normal(*shape, width), "batch", "length")
        self.add("timesteps", self.whole(0, 9, *shape), "batch", "length")

    def vectors(self) -> None:
        """Rows of the model's own width, under whatever name."""
        name = next(
            (n for n in ("inputs", "hidden_states", "query_embeds", "latents") if n in self.names),
            "inputs_embeds",
        )
        width = _find(self.config, "d_model", "hidden_size", "codebook_dim")
        self.add(name, self.normal(self.batch, self.length, width or 32), "batch", "length")

    def columns(self) -> None:
        """The same with the width before the length."""
        self.vectors()
        (name,) = self.values
        self.values[name] = self.values[name].transpose(1, 2).contiguous()
        self.sizes[name] = {0: "batch", 2: "length"}

    def rest(self) -> None:
        """What else the call has."""
        if "use_cache" in self.names:
            self.values["use_cache"], self.sizes["use_cache"] = False, None


def _all(*parts: Callable[[Inputs], None]) -> Callable[[Inputs], None]:
    def made(inputs: Inputs) -> None:
        for part in parts:
            part(inputs)

    return made


FORMS: Mapping[str, Callable[[Inputs], None]] = {
    "grids in text": Inputs.grids_in_text,
    "grids": Inputs.grids,
    "pictures in text": Inputs.pictures_in_text,
    "pictures and text": _all(Inputs.pictures, Inputs.text, Inputs.decoder),
    "text and waves": _all(Inputs.text, Inputs.waves),
    "text and spectra": _all(Inputs.text, Inputs.spectra),
    "text and spectra by band": _all(Inputs.text, Inputs.spectra_by_band),
    "text and spectra of a channel": _all(Inputs.text, Inputs.spectra_of_a_channel),
    "text and videos": _all(Inputs.text, Inputs.videos),
    "text": _all(Inputs.text, Inputs.decoder),
    "patches": Inputs.patches,
    "pictures": _all(Inputs.pictures, Inputs.decoder),
    "videos": Inputs.videos,
    "waves": _all(Inputs.waves, Inputs.decoder),
    "waves of a channel": Inputs.waves_of_a_channel,
    "spectra": _all(Inputs.spectra, Inputs.decoder),
    "spectra of a length": Inputs.spectra_of_a_length,
    "spectra by band": _all(Inputs.spectra_by_band, Inputs.decoder),
    "past": Inputs.past,
    "states": Inputs.states,
    "vectors": Inputs.vectors,
    "columns": Inputs.columns,
}
"""Ways to call a model; the first that its `forward` takes and that runs."""


def kinds() -> list[str]:
    """All types of the installed transformers that have a model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(kind for kind in CONFIG_MAPPING if kind in MODEL_MAPPING_NAMES)
