"""Texts by models with an encoder of text (BART), beside transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import relaxpy.llm
from relaxpy.errors import UsageError
from relaxpy.llm.generation_config import recommended
from relaxpy.models.loaded import Scheme
from tests.llm.translation_checkpoints import LETTERS, SIZES
from tests.sweeps import full


def bart(folder: Path) -> tuple[Any, Any]:
    """A model of transformers and its tokenizer, written to the folder."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    texts = ["<s>", "<pad>", "</s>", "<unk>", *LETTERS[1:], "\u0120"]
    vocab = {text: number for number, text in enumerate(texts)}
    tokenizer = transformers.BartTokenizer(vocab=vocab, merges=[])
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BartConfig(**SIZES, vocab_size=len(tokenizer))
    model = transformers.BartForConditionalGeneration(config).eval()
    model.generation_config.forced_bos_token_id = 0
    model.save_pretrained(folder)
    return model, tokenizer


@full
def test_beside_transformers(tmp_path: Path) -> None:
    reference, tokenizer = bart(tmp_path)
    target = "llvm -opt-level=0"  # in a full run, too: this test is about tokens
    own = relaxpy.llm.load(tmp_path, scheme=Scheme(bits=None), target=target, keep=False)
    for text in ("the cat is fat. ", "a thing", "abc" * 12):
        given = tokenizer(text, return_tensors="pt")
        options: dict[str, Any] = {"no_repeat_ngram_size": 2}
        written = reference.generate(
            **given, **options, max_new_tokens=12, num_beams=1, do_sample=False
        )
        wanted = tokenizer.decode(written[0], skip_special_tokens=True)
        assert len({*wanted}) > 2
        assert own.complete(text, max_tokens=11, **options) == wanted  # the first token is given
    with pytest.raises(UsageError, match="the encoder reads 1 to 40 tokens, got 52"):
        own.complete("a" * 50)


def test_how_a_text_begins(tmp_path: Path) -> None:
    config: dict[str, Any] = {"decoder_start_token_id": 2, "forced_bos_token_id": None}
    assert recommended(tmp_path, config).begin == (2,)
    with pytest.raises(UsageError, match="decoder_start_token_id must be a token, got 'x'"):
        recommended(tmp_path, {**config, "decoder_start_token_id": "x"})
    fields = {"decoder_start_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2}
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    found = recommended(tmp_path, config)
    assert (found.begin, found.last) == ((2, 0), 2)
