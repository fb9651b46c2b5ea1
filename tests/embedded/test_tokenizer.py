"""The tokenizer of the embedded model: round trips, code, special tokens, the chat template."""

from __future__ import annotations

import random
import textwrap
from pathlib import Path
from typing import Any

import pytest

from embedded import tokenizer as own
from embedded.tokenizer import BOS, END, SPECIAL

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def made() -> Any:
    return own.train([Path(textwrap.__file__).read_text(), Path(random.__file__).read_text()], 600)


HARD = [
    "", " ", "\n", "\r\n\r\n\t x", "a\u0301 é ﬁ İ", "\x00\x01\x7f", "👩‍👩‍👧 日本語 עברית", "<|end|>", "<|user|>x<|bos|>",
    "x  y   z\n\n\n    return 12345\n", "\ufeff\u2028\u00a0", "'S don't", "\U0010ffff",
]  # fmt: skip


@pytest.mark.parametrize("text", HARD)
def test_texts_come_back(made: Any, text: str) -> None:
    (tokens,) = own.encode_texts(made, [text])
    assert tokens[0] == BOS
    assert tokens[-1] == END
    assert made.decode(tokens[1:-1], skip_special_tokens=False) == text


def test_random_texts_come_back(made: Any) -> None:
    draw = random.Random(0)
    for _ in range(300):
        raw = bytes(draw.choices(range(256), k=draw.randrange(40)))
        text = raw.decode("utf-8", "replace") + "".join(
            chr(draw.randrange(0xD800)) for _ in range(20)
        )
        (tokens,) = own.encode_texts(made, [text])
        assert made.decode(tokens[1:-1], skip_special_tokens=False) == text


def test_every_byte_has_a_token(made: Any) -> None:
    """Bytes that no text of the training had are tokens, too."""
    assert made.get_vocab_size() == 600
    for text in map(chr, [0, 127, 0x7FF, 0xFFFD, 0x1F600]):
        assert made.decode(made.encode(text).ids) == text


def test_special_tokens_in_a_text_are_text(made: Any) -> None:
    (tokens,) = own.encode_texts(made, ["a<|end|>b"])
    assert tokens.count(END) == 1
    assert [made.token_to_id(each) for each in SPECIAL] == list(range(len(SPECIAL)))


def test_indentation_and_digits(made: Any) -> None:
    """An indentation is one token, each digit one."""
    assert made.encode("x\n        return").tokens.count("ĠĠĠĠĠĠĠ") == 1
    assert [t for t in made.encode("20 417").tokens if t.isdigit()] == list("20417")


def test_the_template_is_what_the_model_reads(made: Any, tmp_path: Path) -> None:
    """transformers renders a chat into the tokens of the training."""
    own.save(made, tmp_path, 64)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    chat = [
        {"role": "user", "content": "What is\n textwrap?"},
        {"role": "assistant", "content": " Text wrapping and filling."},
        {"role": "user", "content": "textwrap.dedent"},
    ]
    rendered = theirs.apply_chat_template(chat, tokenize=False)
    assert theirs.encode(rendered, add_special_tokens=False) == own.encode_chats(made, [chat])[0]
    asked = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert asked == rendered + "<|assistant|>"
    system = [{"role": "system", "content": "Be brief."}, *chat[:1]]
    told = theirs.apply_chat_template(system, tokenize=False)
    assert told == "<|bos|><|user|>Be brief.\n\nWhat is\n textwrap?<|end|>"
    for wrong in (system[:1], [*chat, {"role": "tool", "content": "x"}]):
        with pytest.raises(Exception, match=f"user and assistant, not {wrong[-1]['role']}"):
            theirs.apply_chat_template(wrong, tokenize=False)
    assert (theirs.bos_token_id, theirs.eos_token_id) == (BOS, END)
    assert theirs.encode("textwrap") == [BOS, *made.encode("textwrap").ids]
