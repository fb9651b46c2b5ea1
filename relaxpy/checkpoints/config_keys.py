"""The fields of `config.json` that are read, and those that change no number, by family. Others are named in a warning
(`relaxpy.checkpoints.unread`), unless their values ask for nothing.

That the tables are right is tested field by field, beside transformers (tests/models/test_config_fields.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relaxpy.checkpoints.unread import unknown_fields
from relaxpy.errors import UsageError
from relaxpy.narrow import is_mapping

_ROPE = (
    "rope_parameters rope_scaling rope_theta partial_rotary_factor original_max_position_embeddings "
    "max_position_embeddings"
)
_DECODERS = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "rms_norm_eps hidden_act attention_bias mlp_bias tie_word_embeddings " + _ROPE
)
_QWEN = "use_sliding_window sliding_window max_window_layers layer_types"
_GEMMA = "use_bidirectional_attention hidden_activation"
_GEMMA2 = (
    f"{_GEMMA} sliding_window layer_types query_pre_attn_scalar attn_logit_softcapping "
    "final_logit_softcapping"
)
_TEXTS = (
    "vocab_size d_model encoder_layers encoder_attention_heads encoder_ffn_dim decoder_layers decoder_attention_heads "
    "decoder_ffn_dim max_position_embeddings activation_function scale_embedding tie_word_embeddings "
    "is_encoder_decoder "
    # of training, and of heads that classify
    "dropout activation_dropout encoder_layerdrop decoder_layerdrop init_std classifier_dropout classif_dropout "
    # of texts: whoever asks for one says it
    "decoder_start_token_id forced_bos_token_id forced_eos_token_id bad_words_ids"
)
"""Of models that read a text and write one."""
_WAV2VEC2 = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act layer_norm_eps "
    "feat_extract_norm feat_extract_activation conv_dim conv_stride conv_kernel conv_bias num_conv_pos_embeddings "
    "num_conv_pos_embedding_groups do_stable_layer_norm pad_token_id add_adapter adapter_attn_dim "
    # of training, and of heads that classify
    "hidden_dropout activation_dropout attention_dropout feat_proj_dropout feat_quantizer_dropout final_dropout "
    "feat_extract_dropout layerdrop apply_spec_augment mask_time_prob mask_time_length mask_time_min_masks "
    "mask_feature_prob mask_feature_length mask_feature_min_masks mask_channel_length mask_channel_min_space "
    "mask_channel_other mask_channel_prob mask_channel_selection mask_time_min_space mask_time_other "
    "mask_time_selection ctc_loss_reduction ctc_zero_infinity use_weighted_layer_sum classifier_proj_size "
    "num_codevectors_per_group num_codevector_groups contrastive_logits_temperature num_negatives codevector_dim "
    "proj_codevector_dim diversity_loss_weight tdnn_dim tdnn_kernel tdnn_dilation xvector_output_dim "
    # of adapters, which are refused
    "adapter_kernel_size adapter_stride num_adapter_layers output_hidden_size num_feat_extract_layers"
)
"""Of wav2vec 2.0 and its kin."""
_TOWER = (
    "hidden_size intermediate_size num_hidden_layers num_attention_heads hidden_act layer_norm_eps"
)
_PICTURES = f"{_TOWER} image_size patch_size num_channels"
READ: Mapping[str, frozenset[str]] = {
    family: frozenset(f"{_DECODERS} {names}".split())
    for family, names in {
        "llama": "",
        "mistral": "sliding_window",
        "qwen2": _QWEN,
        "qwen3": _QWEN,
        "qwen3_moe": "use_sliding_window sliding_window decoder_sparse_step mlp_only_layers moe_intermediate_size "
        "num_experts num_local_experts num_experts_per_tok norm_topk_prob",
        "gemma": _GEMMA,
        "gemma2": _GEMMA2,
        "gemma3_text": f"{_GEMMA2} sliding_window_pattern rope_local_base_freq",
        "phi3": "sliding_window",
        "gpt_oss": "sliding_window layer_types num_experts num_local_experts num_experts_per_tok experts_per_token "
        "swiglu_alpha swiglu_limit",
    }.items()
} | {
    "gpt_neox": frozenset(
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "hidden_act layer_norm_eps tie_word_embeddings attention_bias use_parallel_residual rotary_emb_base rotary_pct "
        "rope_parameters rope_scaling max_position_embeddings original_max_position_embeddings".split()
    ),
    "gpt2": frozenset(
        "vocab_size n_embd n_inner n_layer n_head n_positions layer_norm_epsilon activation_function "
        "tie_word_embeddings scale_attn_weights scale_attn_by_inverse_layer_idx add_cross_attention".split()
    ),
    **{
        family: frozenset(
            f"{_TEXTS} share_encoder_decoder_embeddings decoder_vocab_size max_length num_hidden_layers".split()
        )
        for family in ("bart", "mbart", "marian", "m2m_100")
    },
    **{
        family: frozenset(
            "vocab_size d_model d_kv d_ff num_layers num_decoder_layers num_heads n_positions feed_forward_proj "
            "relative_attention_num_buckets relative_attention_max_distance layer_norm_epsilon is_encoder_decoder "
            "tie_word_embeddings scale_decoder_outputs "
            # what feed_forward_proj says, too; of training, of a head that classifies, and of texts
            "dense_act_fn is_gated_act dropout_rate initializer_factor classifier_dropout is_decoder output_past "
            "decoder_start_token_id max_length".split()
        )
        for family in ("t5", "mt5", "umt5")
    },
    "whisper": frozenset(
        "vocab_size d_model num_mel_bins encoder_layers encoder_attention_heads encoder_ffn_dim decoder_layers "
        "decoder_attention_heads decoder_ffn_dim max_source_positions max_target_positions activation_function "
        "scale_embedding tie_word_embeddings is_encoder_decoder "
        # of training, and of a head that classifies sound
        "dropout activation_dropout encoder_layerdrop decoder_layerdrop init_std apply_spec_augment mask_time_prob "
        "mask_time_length mask_time_min_masks mask_feature_prob mask_feature_length mask_feature_min_masks "
        "use_weighted_layer_sum classifier_proj_size "
        # of texts: whoever asks for one says it, by generation_config.json
        "decoder_start_token_id forced_decoder_ids suppress_tokens begin_suppress_tokens median_filter_width "
        "max_length num_hidden_layers".split()
    ),
    "moonshine": frozenset(
        "vocab_size hidden_size intermediate_size encoder_num_hidden_layers decoder_num_hidden_layers "
        "encoder_num_attention_heads decoder_num_attention_heads encoder_num_key_value_heads "
        "decoder_num_key_value_heads encoder_hidden_act decoder_hidden_act max_position_embeddings attention_bias "
        "rope_parameters rope_scaling rope_theta partial_rotary_factor tie_word_embeddings is_encoder_decoder "
        # of kernels of others, and of texts: whoever asks for one says it
        "pad_head_dim_to_multiple_of decoder_start_token_id max_length".split()
    ),
    "wav2vec2": frozenset(_WAV2VEC2.split()),
    "hubert": frozenset(
        f"{_WAV2VEC2} feat_proj_layer_norm conv_pos_batch_norm tokenizer_class".split()
    ),
    "parakeet_ctc": frozenset(
        "vocab_size pad_token_id encoder_config ctc_loss_reduction ctc_zero_infinity".split()
    ),
    "bert": frozenset(
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads max_position_embeddings "
        "type_vocab_size layer_norm_eps hidden_act position_embedding_type is_decoder pad_token_id "
        "tie_word_embeddings".split()  # of a head that sentences do not need
    ),
    # beside sizes: of heads that vectors do not need
    "vit": frozenset(f"{_PICTURES} qkv_bias encoder_stride pooler_output_size pooler_act".split()),
    # of backbones; of training
    "dinov2": frozenset(
        f"{_PICTURES} qkv_bias mlp_ratio use_swiglu_ffn apply_layernorm out_features out_indices reshape_hidden_states "
        "stage_names layerscale_value drop_path_rate use_mask_token".split()
    ),
    "clip": frozenset(
        "text_config vision_config text_config_dict vision_config_dict projection_dim logit_scale_init_value".split()
    ),
    "siglip": frozenset({"text_config", "vision_config"}),
    "llava": frozenset(
        "text_config vision_config vision_feature_layer vision_feature_select_strategy image_token_index "
        "image_token_id projector_hidden_act multimodal_projector_bias tie_word_embeddings "
        # what the tower says, too
        "image_seq_length".split()
    ),
    "gemma3": frozenset(
        "text_config vision_config mm_tokens_per_image image_token_index boi_token_index eoi_token_index "
        "image_token_id boi_token_id eoi_token_id tie_word_embeddings".split()
    ),
    # older files have the fields of the decoder beside the others; of films
    "qwen2_vl": frozenset(
        f"{_DECODERS} {_QWEN} text_config vision_config image_token_id video_token_id vision_start_token_id "
        "vision_end_token_id vision_token_id tie_word_embeddings rope_scaling".split()
    ),
    "qwen2_5_vl": frozenset(
        f"{_DECODERS} {_QWEN} text_config vision_config image_token_id video_token_id vision_start_token_id "
        "vision_end_token_id vision_token_id tie_word_embeddings rope_scaling".split()
    ),
}
"""By `model_type`."""
PARTS: Mapping[str, Mapping[str, frozenset[str]]] = {
    "parakeet_ctc": {
        "encoder_config": frozenset(
            "hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act attention_bias "
            "convolution_bias conv_kernel_size subsampling_factor subsampling_conv_channels num_mel_bins "
            "subsampling_conv_kernel_size subsampling_conv_stride scale_input "
            # of training, and what other fields say, too
            "dropout dropout_positions layerdrop activation_dropout max_position_embeddings num_key_value_heads".split()
        )
    },
    **{
        family: {
            # the width of a tower that is alone
            "text_config": frozenset(f"{_TOWER} vocab_size max_position_embeddings {own}".split()),
            "vision_config": frozenset(f"{_PICTURES} vision_use_head projection_dim".split()),
        }
        for family, own in {"clip": "projection_dim", "siglip": "projection_size"}.items()
    },
    "qwen2_vl": {
        "text_config": READ["qwen2"] | {"rope_scaling", "rope_parameters"},
        "vision_config": frozenset(
            "depth embed_dim hidden_size hidden_act mlp_ratio num_heads in_channels in_chans patch_size "
            "spatial_patch_size spatial_merge_size temporal_patch_size rope_parameters".split()
        ),
    },
    "qwen2_5_vl": {
        "text_config": READ["qwen2"] | {"rope_scaling", "rope_parameters"},
        "vision_config": frozenset(
            "intermediate_size out_hidden_size window_size fullatt_block_indexes tokens_per_second "
            "depth hidden_size hidden_act mlp_ratio num_heads in_channels in_chans patch_size "
            "spatial_patch_size spatial_merge_size temporal_patch_size rope_parameters".split()
        ),
    },
    "gemma3": {
        "text_config": READ["gemma3_text"],
        "vision_config": frozenset(f"{_PICTURES} vision_use_head projection_dim".split()),
    },
    "llava": {
        "text_config": READ["llama"] | READ["mistral"] | READ["qwen2"],
        # beside sizes: the width of a tower that is alone, and a head that makes one vector
        "vision_config": frozenset(
            f"{_PICTURES} vision_use_head projection_dim vocab_size".split()
        ),
    },
}
"""The fields of parts of a `config.json`, by `model_type`."""
HARMLESS = frozenset(
    # of all models: names, files, training, what transformers returns beside, and how it computes
    "architectures auto_map dtype id2label label2id num_labels model_type name_or_path problem_type return_dict "
    "torch_dtype transformers_version torchscript finetuning_task task_specific_params tokenizer_class "
    "_name_or_path _commit_hash _from_model_config _attn_implementation attn_implementation _flash_attn_2_enabled "
    "use_flash_attn initializer_range initializer_factor use_cache output_attentions output_hidden_states "
    "output_router_logits router_aux_loss_coef gradient_checkpointing chunk_size_feed_forward "
    "bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id "
    # dropout, of training
    "attention_dropout hidden_dropout embd_pdrop resid_pdrop attn_pdrop embed_dropout ffn_dropout residual_dropout "
    "hidden_dropout_prob attention_probs_dropout_prob classifier_dropout summary_first_dropout "
    # heads that are no language models'
    "summary_type summary_use_proj summary_activation summary_proj_to_labels "
    # codes, which have tables of their own; how products are cut, and added in other orders
    "quantization_config compression_config pretraining_tp reorder_and_upcast_attn cache_implementation "
    # what other fields say, too
    "n_ctx _sliding_window_pattern "
    # of the programs that fine-tuned the model
    "unsloth_version unsloth_fixed unsloth_training_args trust_remote_code vocab_size_original "
    "initial_context_length".split()
)
"""The fields that change no number in any family."""
NEUTRAL: Mapping[str, Any] = {
    "interpolate_factor": 1, "full_attn_mod": 1, "num_return_sequences": 1, "num_beams": 1, "num_beam_groups": 1,
    "temperature": 1.0, "top_k": 50, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0, "length_penalty": 1.0,
    "max_length": 20, "encoder_repetition_penalty": 1.0, "is_causal": True, "use_rope": True,
}  # fmt: skip
"""Values at which further fields change nothing: mostly options of texts, which older versions of transformers wrote
here, and newer ones do not read here either."""


def unread_fields(config: Mapping[str, Any]) -> list[str]:
    """The fields of a `config.json` that may change numbers and are not read, with their values; of a family that is
    not known, none: it is refused."""
    family = str(config.get("model_type"))
    if family not in READ:
        return []
    found = unknown_fields(config, READ[family] | HARMLESS, NEUTRAL)
    for part, read in PARTS.get(family, {}).items():
        if is_mapping(fields := config.get(part)):
            unread = unknown_fields(fields, read | HARMLESS, NEUTRAL)
            found += [f"{part}.{each}" for each in unread]
    return found


_SHARE = "partial_rotary_factor"
_OF_PARTS = frozenset({"phi3", "gpt_neox", "moonshine"})
"""The families of which transformers rotates a part of each head. In others it does not follow the field, or fails;
other programs follow it, so that nobody knows how such a model was trained."""


def check_rotary_share(path: Path, config: Mapping[str, Any]) -> None:
    """Raises: UsageError (`bad-config`) if a `config.json` asks for a part of each head in a family that has none."""
    family = str(config.get("model_type"))
    if family not in READ or family in _OF_PARTS:
        return
    for share in _shares(config):
        if share not in (None, 1):
            raise UsageError(
                "bad-config",
                f"{path} has {_SHARE} {share!r}, which transformers does not follow for {family}, and others do",
                help=f"remove {_SHARE} if the model was trained with transformers; its GGUF file says what it is else",
            )


def _shares(fields: Mapping[str, Any]) -> Iterator[Any]:
    """The values of the field, also in those of rotary embeddings, of each type of layers."""
    yield fields.get(_SHARE)
    for name, value in fields.items():
        if name in (
            "rope_parameters",
            "rope_scaling",
            "full_attention",
            "sliding_attention",
        ) and is_mapping(value):
            yield from _shares(value)
