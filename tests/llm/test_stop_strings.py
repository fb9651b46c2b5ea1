"""Stop strings: found wherever the pieces of a text are cut."""

from __future__ import annotations

import random
from typing import Any

import pytest

from relaxpy.errors import UsageError
from relaxpy.llm import StopStrings


def given(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    found = StopStrings(stops)
    return [*(found.feed(piece) for piece in pieces), found.finish()], found.found


def ended(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the first stop string that is complete in it, by search."""
    ends = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end - len(stop)], stop


def test_across_pieces() -> None:
    assert given(["Hello", " us", "er", ": no"], [" user:"]) == (
        ["Hello", "", "", "", ""],
        " user:",
    )
    assert given(["a #", "#", " b"], ["###"]) == (["a ", "", "## b", ""], None)


def test_the_end_of_a_text_is_given_when_it_ends() -> None:
    assert given(["stay #"], ["###"]) == (["stay ", "#"], None)


def test_without_stops_nothing_is_held() -> None:
    assert given(["a", "b"], []) == (["a", "b", ""], None)


@pytest.mark.parametrize("seed", range(200))
def test_any_cut_gives_the_same(seed: int) -> None:
    """Over two letters, where stop strings overlap with themselves and one another."""
    draw = random.Random(seed)
    text = "".join(draw.choices("ab", k=draw.randrange(30)))
    stops = ["".join(draw.choices("ab", k=draw.randint(1, 6))) for _ in range(draw.randint(1, 3))]
    cuts = sorted(draw.choices(range(len(text) + 1), k=4))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found, stop = given(pieces, stops)
    assert ("".join(found), stop) == ended(text, stops)


def test_nothing_is_held_longer_than_needed() -> None:
    """What is held back is the longest end of the text that begins a stop string."""
    found = StopStrings(["abac"])
    assert [found.feed(char) for char in "ababx"] == ["", "", "", "ab", "abx"]


def test_long_stop_strings_take_linear_time() -> None:
    found = StopStrings(["a" * 100_000 + "b"])
    for _ in range(100):
        found.feed("a" * 2000)
    assert found.finish() == "a" * 100_000


@pytest.mark.parametrize("stops", [[""], ["a", ""], [3], [None]])
def test_mistakes(stops: Any) -> None:
    with pytest.raises(UsageError, match="at least one character") as caught:
        StopStrings(stops)
    assert caught.value.code == "bad-prompt"
