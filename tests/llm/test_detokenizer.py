"""Text from single tokens: the pieces joined are the text of all tokens, and no piece has half a character."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from relaxpy.llm import Tokenizer
from tests.llm.checkpoints import KINDS, TEXTS, byte_level, write_tokenizer


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    return Tokenizer.from_checkpoint(write_tokenizer(folder, KINDS[request.param]()))


def pieces(tokenizer: Tokenizer, tokens: list[int], special: bool = False) -> list[str]:
    found = tokenizer.detokenizer(special)
    return [*(found.feed(token) for token in tokens), found.finish()]


@pytest.mark.parametrize("text", TEXTS[:3])
def test_texts(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    found = pieces(tokenizer, tokens)
    assert "".join(found) == tokenizer.decode(tokens)
    assert not any("\ufffd" in piece for piece in found)
    assert sum(map(bool, found)) > len(tokens) / 4


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_any_tokens(tokenizer: Tokenizer, seed: int, special: bool) -> None:
    """Invalid bytes, special tokens in between, numbers that are no tokens."""
    draw = random.Random(seed)
    length = draw.choice([1, 3, 10, 80, 200])
    tokens = [draw.randrange(len(tokenizer) + 3) for _ in range(length)]
    assert "".join(pieces(tokenizer, tokens, special)) == tokenizer.decode(tokens, special)


@pytest.mark.parametrize("seed", range(20))
def test_runs_of_bytes(tokenizer: Tokenizer, seed: int) -> None:
    """Characters of several bytes, cut anywhere."""
    draw = random.Random(seed)
    tokens = tokenizer.encode("".join(draw.choices("a é你🎉\n", k=40)), special=False)
    start, end = sorted(draw.choices(range(len(tokens) + 1), k=2))
    part = tokens[start:end]
    assert "".join(pieces(tokenizer, part)) == tokenizer.decode(part)


def test_a_cut_text_ends_with_a_whole_character(tmp_path: Path) -> None:
    """Where a limit of tokens cuts one, it is left out."""
    for name in ("byte level", "byte fallback"):
        found = Tokenizer.from_checkpoint(write_tokenizer(tmp_path / name, KINDS[name]()))
        tokens = found.encode("a 🦜🦜", special=False)
        seen = set()
        for end in range(1, len(tokens) + 1):
            detokenizer = found.detokenizer()
            text = "".join(map(detokenizer.feed, tokens[:end])) + detokenizer.finish(cut=True)
            assert "a 🦜🦜".startswith(text), name
            seen.add(text)
        assert {"a 🦜", "a 🦜🦜"} <= seen, name


def test_special_tokens(tmp_path: Path) -> None:
    found = Tokenizer.from_checkpoint(write_tokenizer(tmp_path, byte_level()))
    tokens = found.encode("a</s>b")
    assert "".join(pieces(found, tokens)) == "ab"
    assert "".join(pieces(found, tokens, special=True)) == "a</s>b"


WORDS = [
    "Compile once, and run it for every shape.",
    "a é 你好 🦜🦜 run\n\n  once",
    " begins with a space",
    "don't stop, it's done!",
]


@pytest.mark.parametrize("text", WORDS)
@pytest.mark.parametrize("tokens_before", [0, 1, 4])
def test_bytes_of_tokens(tokenizer: Tokenizer, text: str, tokens_before: int) -> None:
    """Those of all tokens, joined, are the text; those of the last ones are what they add to it."""
    tokens = tokenizer.encode(text, special=False)
    whole = b"".join(tokenizer.token_bytes(each, not place) for place, each in enumerate(tokens))
    assert whole.decode() == tokenizer.decode(tokens, special=True)
    before, after = tokens[:tokens_before], tokens[tokens_before:]
    lead = b"".join(tokenizer.token_bytes(each, not place) for place, each in enumerate(before))
    more = b"".join(
        tokenizer.token_bytes(each, not (place or before)) for place, each in enumerate(after)
    )
    assert lead + more == whole
    found = tokenizer.detokenizer(special=True, begins=not before)
    continued = "".join(map(found.feed, after)) + found.finish()
    if lead.decode(errors="replace").encode() == lead:  # no character is cut in two
        assert continued == more.decode()


def test_bytes_of_any_token(tokenizer: Tokenizer) -> None:
    """A text of random tokens, cut anywhere."""
    draw = random.Random(3)
    for _ in range(50):
        tokens = [draw.randrange(len(tokenizer)) for _ in range(draw.choice([1, 2, 7, 33]))]
        tokens = [each for each in tokens if each not in tokenizer.special_tokens]
        joined = b"".join(tokenizer.token_bytes(each, not n) for n, each in enumerate(tokens))
        decoded = tokenizer.decode(tokens)
        if "\ufffd" not in decoded:
            assert joined.decode() == decoded
    assert tokenizer.token_bytes(len(tokenizer) + 5) == b""


def test_bytes_of_single_bytes(tmp_path: Path) -> None:
    found = Tokenizer.from_checkpoint(write_tokenizer(tmp_path, KINDS["byte fallback"]()))
    assert found.token_bytes(found.number("<0xF0>") or 0) == b"\xf0"
    assert found.token_bytes(found.number("<0x61>") or 0) == b"a"
    assert found.token_bytes(found.number("▁") or 0) == b" "
    assert found.token_bytes(found.number("▁") or 0, first=True) == b""
