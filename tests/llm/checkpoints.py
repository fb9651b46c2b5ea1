"""Checkpoints for tests: tokenizers of every kind, and tiny models that know a sentence."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.test_safetensors import saved

tokenizers: Any = pytest.importorskip("tokenizers")

TEXTS = [
    "Compile once, and run it for every shape.",
    "naïve café, 你好世界, дом, 👩‍👩‍👧 🎉, ½ × ∞",
    "def f(x):\n    return x + 1\n\n\tif x:  # tabs and   spaces",
] * 4
CHATML = """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
SPECIAL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]


@cache
def byte_level(vocab: int = 320) -> str:
    """A vocabulary of bytes, as of GPT-2, Llama 3 and Qwen, as JSON."""
    models, pre, decoders, trainers = (
        tokenizers.models, tokenizers.pre_tokenizers, tokenizers.decoders, tokenizers.trainers,
    )  # fmt: skip
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre.ByteLevel.alphabet(), special_tokens=SPECIAL, show_progress=False
    )  # fmt: skip
    made.train_from_iterator(TEXTS, trainer)
    return made.to_str()


@cache
def byte_fallback(vocab: int = 400) -> str:
    """As SentencePiece has it for Llama 2 and Gemma: words begin with ▁, unknown characters are bytes."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True))
    made.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab - 256, special_tokens=SPECIAL, show_progress=False, limit_alphabet=60
    )
    made.train_from_iterator(TEXTS, trainer)
    fields = json.loads(made.to_str())
    model = fields["model"]
    for byte in range(256):
        model["vocab"][f"<0x{byte:02X}>"] = len(model["vocab"])
    model["byte_fallback"] = True
    fields["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    return json.dumps(fields)


@cache
def metaspace() -> str:
    """Unigram with Metaspace, as of T5 and newer conversions of SentencePiece."""
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    return made.to_str()


@cache
def word_piece() -> str:
    """As of BERT."""
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=SPECIAL, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    return made.to_str()


KINDS = {
    "byte level": byte_level,
    "byte fallback": byte_fallback,
    "metaspace": metaspace,
    "word piece": word_piece,
}


def write_tokenizer(
    folder: Path, text: str | None = None, template: Any = CHATML, **config: Any
) -> Path:
    """`tokenizer.json` and `tokenizer_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(text or byte_level(), encoding="utf-8")
    fields = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **config}
    if template is not None:
        fields["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 256,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32", "rope_theta": 10000.0,
}  # fmt: skip


def write_model(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A Llama with random weights, and a byte-level tokenizer. Its texts are noise, the same ones each time."""
    from relaxpy.models.llama import Llama, LlamaConfig, sources

    write_tokenizer(folder)
    fields = {**CONFIG, **changes}
    (folder / "config.json").write_text(json.dumps(fields))
    config = LlamaConfig.from_dict(fields)
    shapes = {name: parameter.shape for name, parameter in Llama(config).named_parameters()}
    random = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for name, source in sources(config).items():
        noise = random.standard_normal(shapes[name], dtype=np.float32)
        found[source.name] = 1 + noise / 8 if "norm" in name else noise / np.float32(4)
    saved(folder / "model.safetensors", found)
    return folder
