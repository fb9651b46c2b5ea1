"""Tiny checkpoints that translate, with vocabularies of letters in the formats of real ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

LETTERS = ["\u2581", *"abcdefghijklmnopqrstuvwxyz.,!?"]
WORDS = ["\u2581the", "\u2581a", "th", "he", "ing", "\u2581qu"]
LANGUAGES = ["deu_Latn", "eng_Latn", "zho_Hans", "zho_Hant"]
SIZES = {
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "d_model": 32, "max_position_embeddings": 40, "init_std": 0.4,
}  # fmt: skip


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def sentencepiece_file(kind: int = 1, **options: int) -> bytes:
    """A model of SentencePiece: the three tokens that control, words and letters. `kind` 1 is unigram, 2 is BPE."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(text, -2.0 - n / 8, 1) for n, text in enumerate(WORDS)]
    pieces += [(text, -6.0 - n / 8, 1) for n, text in enumerate(LETTERS)]
    data = b""
    for text, score, type_ in pieces:
        own = _field(1, text.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", score)
        data += _field(1, own + (_field(3, type_) if type_ != 1 else b""))
    data += _field(2, _field(3, kind))
    own = _field(1, b"identity")
    for name, number in {"is_prefixed": 3, "is_stripped": 4}.items():
        if name in options:
            own += _field(number, options[name])
    return data + _field(3, own)


def nllb(folder: Path) -> Any:
    """A model of transformers, written to the folder with its tokenizer."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    texts = ["<s>", "<pad>", "</s>", "<unk>", *LETTERS]
    tokenizer = transformers.NllbTokenizer(
        vocab={text: number for number, text in enumerate(texts)}, extra_special_tokens=LANGUAGES, src_lang="eng_Latn"
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.M2M100Config(
        **SIZES, vocab_size=len(tokenizer), decoder_start_token_id=2, eos_token_id=2, pad_token_id=1
    )
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    return model


def mbart(folder: Path, fifty: bool = False) -> Any:
    """The tokenizer of an mBART, with its config.json."""
    transformers: Any = pytest.importorskip("transformers")
    pieces = [(text, 0.0) for text in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces += [(text, -3.0) for text in LETTERS]
    made = transformers.MBart50Tokenizer if fifty else transformers.MBartTokenizer
    tokenizer = made(vocab=pieces, src_lang="en_XX")
    tokenizer.save_pretrained(folder)
    config = {"model_type": "mbart", "eos_token_id": 2, "decoder_start_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    return tokenizer


def pieces(folder: Path, kind: str, *codes: str, **options: str) -> None:
    """An Opus-MT ("marian") or M2M-100 ("m2m_100") with a model of SentencePiece, without weights."""
    folder.mkdir(exist_ok=True)
    own = ["</s>", "<unk>", *WORDS, *LETTERS, *(f">>{code}<<" for code in codes), "<pad>"]
    vocab = {text: number for number, text in enumerate(own)}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    name = "source.spm" if kind == "marian" else "sentencepiece.bpe.model"
    (folder / name).write_bytes(sentencepiece_file(1 if kind == "marian" else 2))
    (folder / "target.spm").write_bytes(sentencepiece_file())
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    config = {"model_type": kind, "eos_token_id": 0, "decoder_start_token_id": vocab["<pad>"]}
    (folder / "config.json").write_text(json.dumps(config))
