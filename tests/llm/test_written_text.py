"""Texts from the tokens of pieces: stop strings, tokens that end, lengths, loops, in any pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from relaxpy.llm.loops import LoopDetector
from relaxpy.llm.stop_strings import StopStrings
from relaxpy.llm.tokenizer import Tokenizer
from relaxpy.llm.written_text import WrittenText
from tests.llm.checkpoints import write_model

TEXT = "a stone, and a stone again"
END = 9


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_checkpoint(write_model(tmp_path_factory.mktemp("model") / "tiny"))


def written(
    tokenizer: Tokenizer,
    pieces: Sequence[Sequence[int]],
    stop: Sequence[str] = (),
    finish: Any = None,
    **options: Any,
) -> tuple[str, int, str | None]:
    """What is shown of pieces, after the last of which the engine ends the text; how many tokens belong to it; why it
    ended."""
    text = WrittenText(
        tokenizer.detokenizer(begins=True), StopStrings(stop), frozenset({END}), **options
    )
    shown, total = "", 0
    for number, piece in enumerate(pieces, 1):
        more, count = text.feed(piece, finish if number == len(pieces) else None)
        shown, total = shown + more, total + count
        if text.finish is not None:
            break
    return shown, total, text.finish


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_pieces_of_any_size(tokenizer: Tokenizer, size: int) -> None:
    tokens = tokenizer.encode(TEXT)
    pieces = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    assert written(tokenizer, pieces, finish="length") == (TEXT, len(tokens), "length")
    ended = [*pieces, [END]]
    assert written(tokenizer, ended, finish="stop") == (TEXT, len(tokens) + 1, "stop")
    assert written(tokenizer, ended, ["again!"], "stop") == (TEXT, len(tokens) + 1, "stop")
    shown, count, finish = written(tokenizer, pieces, ["stone"], "length")
    assert (shown, finish) == ("a ", "stop")
    assert tokenizer.decode(tokens[:count]).rstrip().endswith("stone")
    assert "stone" not in tokenizer.decode(tokens[: count - 1])


def test_a_stop_string_ends_nothing_in_the_first_tokens(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(TEXT)
    most = len(tokens)
    assert written(tokenizer, [tokens], ["stone"], "length", min_tokens=most)[0] == TEXT
    first = next(n for n in range(most) if "stone" in tokenizer.decode(tokens[:n]))
    shown, _, finish = written(tokenizer, [tokens], ["stone"], "length", min_tokens=first)
    assert (shown, finish) == ("a stone, and a ", "stop")


def test_a_text_that_repeats_itself(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("x") * 1000
    shown, count, finish = written(tokenizer, [tokens], loops=LoopDetector())
    assert finish == "repetition"
    assert len(shown) == count < 1000


def test_a_character_that_is_cut(tokenizer: Tokenizer) -> None:
    """Is left out at the greatest length, and marked where the text ends by itself."""
    tokens = tokenizer.encode("n☃")
    assert len(tokens) > 2
    cut = tokens[:-1]
    assert written(tokenizer, [cut], finish="length")[0] == "n"
    assert written(tokenizer, [[*cut, END]], finish="stop")[0] == "n\ufffd"
