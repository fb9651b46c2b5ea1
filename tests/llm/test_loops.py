"""Texts that repeat themselves."""

from __future__ import annotations

import random

import pytest

from relaxpy.llm.loops import LONGEST, TIMES, TOKENS, LoopDetector


def ends_at(tokens: list[int], text: str = "x") -> int | None:
    """The number of tokens after which it is a loop."""
    detector = LoopDetector()
    return next((n for n, token in enumerate(tokens, 1) if detector.feed(token, text)), None)


@pytest.mark.parametrize("period", [1, 2, 7, 50, LONGEST])
@pytest.mark.parametrize("before", [0, 1, 100])
def test_a_part_again_and_again(period: int, before: int) -> None:
    """Whatever was before; after as many tokens as the limits say."""
    tokens = [*range(1000, 1000 + before), *([*range(period)] * 500)]
    assert ends_at(tokens) == before + period + max(TOKENS, (TIMES - 1) * period)


def test_texts_that_go_on() -> None:
    """Noise; long parts; a ruler of many equal tokens; a table, whose rows begin and end alike."""
    noise = random.Random(0)
    assert ends_at([noise.randrange(3) for _ in range(20_000)]) is None
    assert ends_at([*range(LONGEST + 1)] * 100) is None
    assert ends_at([*([7] * (TOKENS - 1)), 8] * 3) is None
    assert ends_at([token for row in range(500) for token in (1, 2, row, 3, 4, row + 1, 5)]) is None


def test_nothing_but_white_space() -> None:
    noise = random.Random(0)
    blank = [noise.randrange(9) for _ in range(TOKENS)]
    assert ends_at(blank, " \n") == TOKENS
    assert ends_at(blank, "") == TOKENS
    detector = LoopDetector()
    assert not any(
        detector.feed(token, "a" if n % 150 == 0 else "\n") for n, token in enumerate(blank * 9)
    )
