"""Tiny checkpoints of every family as people get them: the folder of a published model, with random weights.

    python -m tests.llm.published FOLDER          one folder for each family

Configuration, weights (shards, tied or not, their dtype), tokenizer with the special tokens of the family, chat template,
several tokens that end a text, options of sampling.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.llm.checkpoints import TEXTS
from tests.llm.real_templates import TEMPLATES

tokenizers: Any = pytest.importorskip("tokenizers")

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
GPT4_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def sentencepiece(special: tuple[str, ...], prepended: bool) -> str:
    """Byte pairs with bytes as a last resort, converted from SentencePiece: of Llama 2, Mistral and Phi-3 (a space is
    prepended to texts), and of Gemma (none is)."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True))
    space = tokenizers.normalizers.Replace(" ", "▁")
    prepend = tokenizers.normalizers.Prepend("▁")
    made.normalizer = tokenizers.normalizers.Sequence([prepend, space]) if prepended else space
    if not prepended:
        made.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_previous")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=120, special_tokens=[], show_progress=False, limit_alphabet=60
    )
    made.train_from_iterator(TEXTS, trainer)
    fields = json.loads(made.to_str())
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *fields["model"]["vocab"]]
    fields["model"] |= {
        "vocab": {piece: number for number, piece in enumerate(dict.fromkeys(pieces))},
        "byte_fallback": True,
    }
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prepended:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    fields["decoder"] = {"type": "Sequence", "decoders": steps}
    return json.dumps(fields)


@cache
def byte_pairs(split: str | None, normalizer: str | None = None) -> str:
    """Byte pairs of bytes: of GPT-2 and GPT-NeoX (no split), Llama 3, Qwen and gpt-oss."""
    pre = tokenizers.pre_tokenizers
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    if normalizer is not None:
        made.normalizer = getattr(tokenizers.normalizers, normalizer)()
    level = pre.ByteLevel(add_prefix_space=False, use_regex=split is None)
    made.pre_tokenizer = (
        level
        if split is None
        else pre.Sequence([pre.Split(tokenizers.Regex(split), "isolated"), level])
    )
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=340, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    return made.to_str()


@dataclass(frozen=True)
class Published:
    """A family's checkpoint."""

    kind: str
    """The class of transformers, without what they all end with."""
    settings: Mapping[str, Any]
    """Fields of `config.json` beside the sizes."""
    tokenizer: str
    special: Sequence[str]
    """Tokens that control, by number in the published order, with the names of `tokenizer_config.json` first."""
    names: Mapping[str, str]
    """Fields of `tokenizer_config.json`."""
    ends: Sequence[str]
    """The tokens that end a text."""
    template: str | None
    dtype: str = "bfloat16"
    bos: bool = False
    """Whether the tokenizer puts the first of the special tokens before a text."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `generation_config.json`."""
    plain: Sequence[str] = ()
    """Added tokens that are text."""
    extra_logits: int = 0
    """Logits beyond the tokenizer's vocabulary."""


_SP = ("<unk>", "<s>", "</s>")
_SP_NAMES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
_GEMMA_NAMES = {
    "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>", "add_bos_token": True,
    "tokenizer_class": "GemmaTokenizer",
}  # fmt: skip
_LLAMA3 = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
    "<|python_tag|>",
)  # fmt: skip
_OSS = (
    "<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>",
    "<|message|>", "<|call|>",
)  # fmt: skip
_SAMPLED = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
_THOUGHTS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}

FAMILIES: dict[str, Published] = {
    "llama-2": Published(
        "Llama", {"rms_norm_eps": 1e-5, "num_key_value_heads": 4}, sentencepiece(_SP, True), _SP,
        {**_SP_NAMES, "add_bos_token": True, "add_eos_token": False, "legacy": False, "tokenizer_class": "LlamaTokenizer"},
        ["</s>"], TEMPLATES["llama-2"], "float16", True, {**_SAMPLED, "max_length": 4096, "pad_token_id": 0},
    ),
    "llama-3": Published(
        "Llama",
        {
            "rope_theta": 500000.0, "tie_word_embeddings": True, "head_dim": 16,
            "rope_scaling": {
                "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128, "rope_type": "llama3",
            },
        },
        byte_pairs(GPT4_SPLIT), _LLAMA3,
        {**GENERIC, "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "clean_up_tokenization_spaces": True},
        ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"], TEMPLATES["llama-3.1"], "bfloat16", True, _SAMPLED,
    ),
    "mistral": Published(
        "Mistral", {"sliding_window": 48}, sentencepiece((*_SP, "[INST]", "[/INST]"), True), (*_SP, "[INST]", "[/INST]"),
        {**_SP_NAMES, "add_bos_token": True, "add_eos_token": False, "tokenizer_class": "LlamaTokenizer"},
        ["</s>"], TEMPLATES["mistral with tools"], "bfloat16", True,
    ),
    "qwen2.5": Published(
        "Qwen2", {"tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 64, "max_window_layers": 1},
        byte_pairs(GPT4_SPLIT, "NFC"), _CHATML,
        {
            "add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
            "tokenizer_class": "Qwen2Tokenizer", "errors": "replace",
        },
        ["<|im_end|>", "<|endoftext|>"], TEMPLATES["chatml"],
        generation={"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
        extra_logits=23,
    ),
    "qwen3": Published(
        "Qwen3", {"head_dim": 32, "tie_word_embeddings": True}, byte_pairs(GPT4_SPLIT, "NFC"), _CHATML,
        {
            "add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
            "tokenizer_class": "Qwen2Tokenizer",
        },
        ["<|im_end|>", "<|endoftext|>"], TEMPLATES["qwen3"], plain=_THOUGHTS,
        generation={"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}, extra_logits=9,
    ),
    "qwen3-moe": Published(
        "Qwen3Moe",
        {"head_dim": 32, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
        byte_pairs(GPT4_SPLIT, "NFC"), _CHATML,
        {
            "add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
            "tokenizer_class": "Qwen2Tokenizer",
        },
        ["<|im_end|>", "<|endoftext|>"], TEMPLATES["qwen3"], plain=_THOUGHTS,
    ),
    "gpt-oss": Published(
        "GptOss",
        {
            "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32, "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn", "factor": 4.0, "rope_theta": 150000.0, "truncate": False,
                "original_max_position_embeddings": 128,
            },
        },
        byte_pairs(O200K_SPLIT), _OSS,
        {**GENERIC, "bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>"},
        ["<|return|>", "<|endoftext|>", "<|call|>"], TEMPLATES["gpt-oss"],
        generation={"do_sample": True},
    ),
    "gemma": Published(
        "Gemma", {"head_dim": 32, "num_key_value_heads": 1, "hidden_activation": None}, sentencepiece(_GEMMA, False), _GEMMA, _GEMMA_NAMES,
        ["<eos>", "<end_of_turn>"], TEMPLATES["gemma"], bos=True,
    ),
    "gemma-2": Published(
        "Gemma2", {"head_dim": 32, "sliding_window": 64, "query_pre_attn_scalar": 32}, sentencepiece(_GEMMA, False),
        _GEMMA, _GEMMA_NAMES, ["<eos>", "<end_of_turn>"], TEMPLATES["gemma"], bos=True,
    ),
    "gemma-3": Published(
        "Gemma3Text", {"head_dim": 32, "sliding_window": 32, "query_pre_attn_scalar": 32}, sentencepiece(_GEMMA, False),
        _GEMMA, _GEMMA_NAMES, ["<eos>", "<end_of_turn>"], TEMPLATES["gemma-3"], bos=True,
        generation={"do_sample": True, "top_k": 64, "top_p": 0.95},
    ),
    "phi-3": Published(
        "Phi3", {"sliding_window": 100, "tie_word_embeddings": False},
        sentencepiece((*_SP, "<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"), True),
        (*_SP, "<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"),
        {
            **_SP_NAMES, "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "add_bos_token": False,
            "add_eos_token": False, "legacy": False, "tokenizer_class": "LlamaTokenizer",
        },
        ["<|endoftext|>", "<|assistant|>", "<|end|>"], TEMPLATES["phi-3"],
    ),
    "gpt-neox": Published(
        "GPTNeoX", {"num_key_value_heads": None, "rotary_pct": 0.25, "use_parallel_residual": True},
        byte_pairs(None), ("<|endoftext|>", "<|padding|>"),
        {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "add_prefix_space": False,
         "tokenizer_class": "GPTNeoXTokenizer"},
        ["<|endoftext|>"], None, "float16", extra_logits=37,
    ),
    "gpt-2": Published(
        "GPT2", {}, byte_pairs(None), ("<|endoftext|>",), {"model_max_length": 1024}, ["<|endoftext|>"], None, "float32",
    ),
}  # fmt: skip
"""By the name of the folder."""


def tokenizer_json(family: Published) -> str:
    """`tokenizer.json`: the special tokens have the first numbers where they are in the vocabulary, else the last."""
    backend = tokenizers.Tokenizer.from_str(family.tokenizer)
    added = [tokenizers.AddedToken(text, normalized=False) for text in family.special]
    backend.add_special_tokens(added)
    backend.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in family.plain])
    if family.bos:
        bos = family.names["bos_token"]
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, backend.token_to_id(bos))]
        )  # fmt: skip
    return backend.to_str()


def write(name: str, folder: Path, seed: int = 0, **settings: Any) -> Any:
    """The checkpoint of a family. Returns the model as transformers reads it, in float32."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")

    family = FAMILIES[name]
    text = tokenizer_json(family)
    backend = tokenizers.Tokenizer.from_str(text)
    number = backend.token_to_id
    ends = [number(end) for end in family.ends]
    sizes: dict[str, Any] = dict(SIZES)
    if family.kind == "GPT2":
        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
    bos = family.names.get("bos_token")
    tokens = {
        "vocab_size": backend.get_vocab_size() + family.extra_logits,
        "bos_token_id": ends[0] if bos is None else number(bos),
        "eos_token_id": ends[0] if len(ends) == 1 else ends,
        "pad_token_id": None,
    }
    kind = getattr(transformers, f"{family.kind}Config")
    config = kind(**{**sizes, **tokens, **family.settings, **settings})
    config._attn_implementation = "eager"  # the only one with a soft cap
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for own, weight in model.named_parameters():
            norm = own.endswith("weight") and ("norm" in own or "ln_" in own)
            weight.copy_(torch.randn_like(weight) * 0.2 + (norm and "emma" not in family.kind))
    model = model.to(getattr(torch, family.dtype))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size="150KB")
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    names = {"model_max_length": 512, **family.names}
    if family.template is not None:
        names["chat_template"] = family.template
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    marks = {n: v for n, v in names.items() if n.endswith("_token") and isinstance(v, str)}
    if marks:
        (folder / "special_tokens_map.json").write_text(json.dumps(marks), encoding="utf-8")
    chosen = {
        "eos_token_id": tokens["eos_token_id"],
        "bos_token_id": tokens["bos_token_id"],
        **family.generation,
    }
    (folder / "generation_config.json").write_text(json.dumps(chosen), encoding="utf-8")
    # Read anew: a model that was cast has frequencies of rotary embeddings that were rounded.
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


if __name__ == "__main__":
    for each in FAMILIES:
        write(each, Path(sys.argv[1]) / each)
