"""Tokenizers in GGUF files: written from tokenizers that are trained here, and read back: the same tokens of any text,
which are llama.cpp's where its Python package is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from relaxpy.checkpoints import gguf_tokenizer
from relaxpy.checkpoints.gguf_tokenizer import PRE
from relaxpy.errors import UsageError

SPECIAL = ["<s>", "</s>", "<|user|>"]
TEXTS = [
    "Hello, world!", " leading and  double   spaces ", "tabs\tand\n\nnew lines\r\n x", "numbers 1 12 123 1234 12345",
    "I'm you'LL they'Ve don't 'S", "Straße naïve Ünïcödé", "日本語 한국어 中文123", "🙂 emoji 👩‍👩‍👧", "def f(x_1): return x**2 # ok",
    "CamelCase HTTPServer iPhone", "a/b//c\n/d", "!!! ... ---\n", "e\u0301 combining", "", " ", "\n", "x" * 50,
    "for i in range(10):\n    print(i)\n\n\n", "€100 and ½", "<|user|>hi</s>", "مرحبا بالعالم", "हिन्दी में",
]  # fmt: skip
TEXTS_WITH_MARKS = [TEXTS[12], TEXTS[21]]


def corpus() -> list[str]:
    return [t for t in TEXTS for _ in range(20)] + [
        Path(gguf.__file__).with_name("constants.py").read_text()[:20000]
    ]


def byte_pairs(pre: str) -> Any:
    """A tokenizer of byte pairs, trained with these steps."""
    steps = PRE[pre]
    backend = tokenizers.Tokenizer(models.BPE())
    own = {
        "Split": lambda s: pre_tokenizers.Split(
            tokenizers.Regex(s["pattern"]["Regex"]), "isolated"
        ),
        "ByteLevel": lambda s: pre_tokenizers.ByteLevel(False, use_regex=s["use_regex"]),
        "Digits": lambda _: pre_tokenizers.Digits(True),
    }
    backend.pre_tokenizer = pre_tokenizers.Sequence([own[s["type"]](s) for s in steps])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator(corpus(), trainer)
    return backend


def write(path: Path, more: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for add in (writer.add_context_length, writer.add_embedding_length, writer.add_block_count,
                writer.add_feed_forward_length, writer.add_head_count):  # fmt: skip
        add(32)
    writer.add_layer_norm_rms_eps(1e-5)
    more(writer)
    writer.add_tensor("x", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_byte_pairs(writer: gguf.GGUFWriter, backend: Any, pre: str) -> None:
    """The fields of a tokenizer of byte pairs."""
    fields = json.loads(backend.to_str())
    vocab = sorted(fields["model"]["vocab"], key=fields["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocab)
    writer.add_token_types([3 if t in SPECIAL else 1 for t in vocab])
    writer.add_token_merges([" ".join(m) for m in fields["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages }}")


def write_byte_pairs(path: Path, backend: Any, pre: str) -> Path:
    return write(path, lambda writer: add_byte_pairs(writer, backend, pre))


def by_llama_cpp(path: Path) -> Callable[[str], list[int]]:
    llama_cpp: Any = pytest.importorskip("llama_cpp")
    found = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return lambda text: found.tokenize(text.encode(), add_bos=True, special=True)


@pytest.mark.parametrize(
    "pre", ["gpt-2", "llama-bpe", "qwen2", "smollm", "gpt-4o", "tekken", "deepseek-v3"]
)
def test_byte_pairs(pre: str, tmp_path: Path) -> None:
    backend = byte_pairs(pre)
    found = gguf_tokenizer(write_byte_pairs(tmp_path / "t.gguf", backend, pre))
    for text in TEXTS:
        tokens = found.backend.encode(text).ids
        composed = __import__("unicodedata").normalize("NFC", text) if pre == "qwen2" else text
        assert tokens == [0, *backend.encode(composed).ids], text
        assert found.backend.decode(tokens) == composed.replace("<|user|>", "").replace("</s>", "")
    assert found.special == {"bos_token": "<s>", "eos_token": "</s>"}
    assert found.end_tokens == (1,)
    assert found.chat_templates == {"default": "{{ messages }}"}


@pytest.mark.parametrize(
    "pre", ["gpt-2", "llama-bpe", "qwen2", "smollm", "gpt-4o", "tekken", "deepseek-v3"]
)
def test_byte_pairs_beside_llama_cpp(pre: str, tmp_path: Path) -> None:
    path = write_byte_pairs(tmp_path / "t.gguf", byte_pairs(pre), pre)
    theirs, ours = by_llama_cpp(path), gguf_tokenizer(path)
    different = [t for t in TEXTS if t and theirs(t) != ours.backend.encode(t).ids]
    # llama.cpp composes no characters, and its patterns for these two know no marks.
    known = {"qwen2": TEXTS_WITH_MARKS[:1], "gpt-4o": TEXTS_WITH_MARKS, "tekken": TEXTS_WITH_MARKS}
    assert different == known.get(pre, [])


def pieces(path: Path, spaced: bool = True) -> Path:
    """A tokenizer of scored pieces, with a byte for each character that has none."""
    words = [
        "▁Hello",
        "▁world",
        "Hel",
        "lo",
        "▁a",
        "nd",
        "▁and",
        "▁the",
        "in",
        "▁in",
        "er",
        "ing",
        "▁n",
        "um",
    ]
    letters = sorted({c for w in words for c in w} | {*"abcdefghijklmnopqrstuvwxyz,.!▁0123456789"})
    partial = [
        "▁H",
        "▁He",
        "▁Hel",
        "▁Hell",
        "▁w",
        "▁wo",
        "▁wor",
        "▁worl",
        "He",
        "▁an",
        "▁t",
        "▁th",
        "▁i",
        "▁nu",
    ]
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(256)),
        *words,
        *partial,
        *letters,
    ]
    tokens = [*dict.fromkeys(tokens)]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    scores = [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)]

    def more(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_space_prefix(spaced)

    return write(path, more)


@pytest.mark.parametrize("spaced", [True, False])
def test_pieces(spaced: bool, tmp_path: Path) -> None:
    found = gguf_tokenizer(pieces(tmp_path / "t.gguf", spaced))
    assert found.special == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokens = found.backend.encode("Hello world").tokens
    assert tokens == ["<s>", "▁Hello" if spaced else "Hel", *([] if spaced else ["lo"]), "▁world"]
    for text in TEXTS:
        if "</s>" not in text and text:
            assert found.backend.decode(found.backend.encode(text).ids) == text


@pytest.mark.parametrize("spaced", [True, False])
def test_pieces_beside_llama_cpp(spaced: bool, tmp_path: Path) -> None:
    path = pieces(tmp_path / "t.gguf", spaced)
    theirs, ours = by_llama_cpp(path), gguf_tokenizer(path)
    for text in [
        "Hello world",
        "Hello, the world!",
        " and  in",
        "naïve 日本 🙂",
        "number 12\nin the inner",
    ]:
        assert ours.backend.encode(text).ids == theirs(text), text


def test_what_is_not_supported(tmp_path: Path) -> None:
    def basic(writer: Any, **changes: Any) -> None:
        given = {
            "model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab"], "token_type": [1, 1, 1], "merges": ["a b"],
            **changes,
        }  # fmt: skip
        for name, value in given.items():
            if value is not None:
                key = f"tokenizer.ggml.{name}"
                {str: writer.add_string, list: writer.add_array, int: writer.add_uint32}[
                    type(value)
                ](key, value)

    cases: list[tuple[dict[str, Any], str]] = [
        ({"model": None}, "it has no tokenizer"),
        ({"model": "bert"}, "model 'bert'; gpt2 and llama are supported"),
        ({"pre": "bloom"}, "splits texts as 'bloom'"),
        ({"pre": None}, "splits texts as 'default'"),
        ({"tokens": None}, "0 tokens"),
        ({"tokens": [1, 2, 3]}, "tokens is not a list of str"),
        ({"tokens": ["a", "b", "a"]}, "a token twice"),
        ({"token_type": [1]}, "3 tokens and 1 of token_type"),
        ({"merges": ["a c"]}, "merge 'a c' of what are no tokens"),
        ({"merges": ["ab"]}, "merge 'ab'"),
        ({"bos_token_id": 3}, "bos_token_id is 3, of 3 tokens"),
        ({"eos_token_id": "x"}, "eos_token_id is 'x', not int"),
        ({"model": "llama"}, "3 tokens and 0 scores"),
        ({"model": "llama", "scores": [0.0, float("nan"), 1.0]}, "has a NaN"),
    ]
    for number, (changes, message) in enumerate(cases):
        path = write(tmp_path / f"{number}.gguf", lambda w, c=changes: basic(w, **c))
        with pytest.raises(UsageError, match=message) as caught:
            gguf_tokenizer(path)
        assert caught.value.code == "bad-checkpoint"
        assert str(path) in str(caught.value)
