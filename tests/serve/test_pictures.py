"""Pictures in prompts: the store of rows, prefixes that are known by content, and the engine with a tower that has no
numbers."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.serve import Engine, Limits, PageBook, Request, Sampling
from relaxpy.serve.messages import request_fields, request_of
from relaxpy.serve.pages import Content
from relaxpy.serve.pictures import Picture, PictureShape, PictureStore, Placed, check_pictures
from tests.serve.fake_model import FakeModel, expected
from tests.sweeps import FULL

SHAPE = PictureShape(hidden=1, token=3)
PAGE = 4


def picture(*numbers: int) -> Picture:
    """A picture whose rows are these numbers."""
    return Picture([np.array(numbers, np.float32)], len(numbers))


def prompted(*parts: int | Picture) -> tuple[tuple[int, ...], tuple[Placed, ...]]:
    """A prompt of tokens and pictures."""
    prompt: list[int] = []
    placed: list[Placed] = []
    for each in parts:
        if isinstance(each, Picture):
            placed.append(Placed(len(prompt), each))
            prompt += [SHAPE.token] * each.tokens
        else:
            prompt.append(each)
    return tuple(prompt), tuple(placed)


def request(number: int, *parts: int | Picture, count: int = 5, **more: Any) -> Request:
    prompt, placed = prompted(*parts)
    return Request(number, prompt, count, Sampling(seed=number), pictures=placed, **more)


def engine(pages: int = 60, **options: Any) -> tuple[Engine, FakeModel]:
    model = FakeModel(pages, pictures=SHAPE)
    return Engine(model, pages=pages, **options), model


def run(own: Engine) -> dict[tuple[int, int], list[int]]:
    texts: dict[tuple[int, int], list[int]] = {}
    while own.is_busy:
        for piece in own.step():
            assert piece.error is None
            texts.setdefault((piece.request, piece.choice), []).extend(piece.tokens)
    return texts


def check(own: Engine, *asked: Request) -> None:
    for each in asked:
        own.submit(each)
    texts = run(own)
    for each in asked:
        for choice in range(each.n):
            assert texts[each.number, choice] == expected(each, choice), each


def test_pictures_are_told_apart_by_all_that_the_tower_reads() -> None:
    zeros = np.zeros((2, 3), np.float32)
    one = Picture([zeros], 2)
    assert one == Picture([zeros.copy()], 2)
    assert len({one, Picture([zeros.copy()], 2)}) == 1
    others = [
        Picture([zeros], 3), Picture([zeros.reshape(3, 2)], 2), Picture([zeros.astype(np.int32)], 2),
        Picture([zeros, np.zeros(0, np.float32)], 2), Picture([zeros + 1], 2),
    ]  # fmt: skip
    assert one not in others
    assert len({*others}) == len(others)
    assert repr(one) == "<picture [(2, 3)], 2 tokens>"
    with pytest.raises(UsageError, match="1 token or more"):
        Picture([zeros], 0)
    with pytest.raises(UsageError, match="not all finite"):
        Picture([zeros + np.nan], 2)


def test_pictures_that_no_prompt_can_have() -> None:
    own = picture(5, 6, 7)
    check_pictures((), 3, None)
    check_pictures((Placed(0, own), Placed(3, own)), 6, SHAPE)
    with pytest.raises(UsageError, match="sees no pictures"):
        check_pictures((Placed(0, own),), 6, None)
    for placed in ((Placed(4, own),), (Placed(-1, own),), (Placed(0, own), Placed(2, own)), (Placed(3, own), Placed(0, own))):  # fmt: skip
        with pytest.raises(UsageError, match="a prompt of 6: pictures are one after the other"):
            check_pictures(placed, 6, SHAPE)
    plain = Engine(FakeModel(8), pages=8)
    with pytest.raises(UsageError, match="sees no pictures"):
        plain.submit(request(0, 1, own))


def test_the_store_is_bounded() -> None:
    """The least recently used are dropped, but for those that are needed; of one salt nothing is seen by another."""
    store = PictureStore(limit=3 * 8)
    rows = np.zeros((2, 1), np.float32)
    made = [picture(n, 0) for n in range(5)]
    for each in made[:3]:
        store.put(each, "", rows, ())
    assert store.nbytes == 24
    assert (made[0], "") in store
    assert (made[0], "salt") not in store
    store.rows(made[0], "")
    store.put(made[3], "", rows, ())
    assert [(each, "") in store for each in made] == [True, False, True, True, False]
    store.put(made[4], "", rows, [(made[2], ""), (made[3], "")])
    assert [(each, "") in store for each in made] == [False, False, True, True, True]
    store.put(made[0], "", rows, [(each, "") for each in made])
    assert store.nbytes == 32
    assert store.seen == 6


def test_prefixes_are_known_by_content() -> None:
    """Tokens of equal numbers that stand for other contents are no common beginning; nor if a content begins elsewhere."""
    book = PageBook(40, PAGE)

    def pending(*contents: Content, salt: str = "") -> int:
        sequence = book.add([3] * 13, salt=salt, contents=contents)
        count = book.pending_count(sequence)
        while book.pending_count(sequence):
            book.commit(book.batch({sequence: min(5, book.pending_count(sequence))}))
        book.free(sequence)
        return count

    assert pending() == 13
    assert pending() == 1
    assert pending(Content(0, 13, "a")) == 13
    assert pending(Content(0, 13, "a")) == 1
    assert pending(Content(0, 13, "b")) == 13
    assert pending(Content(0, 12, "a")) == 1  # the last token is not of a full page
    assert pending(Content(0, 9, "a")) == 5
    assert pending(Content(4, 13, "a")) == 9  # the first page is that of the text
    assert pending(Content(0, 7, "a"), Content(7, 13, "b")) == 9
    assert pending(Content(0, 13, "a"), salt="other") == 13


def test_contents_end_with_the_tokens_that_are_taken_back() -> None:
    book = PageBook(40, PAGE)
    first = book.add([3] * 12, contents=[Content(2, 12, "a")])
    book.commit(book.batch({first: 12}))
    book.pop(first, 7)
    forked = book.fork(first)
    for sequence in (first, forked):
        book.append(sequence, [3] * 7)
        book.commit(book.batch({sequence: book.pending_count(sequence)}))
    other = book.add([3] * 13, contents=[Content(2, 5, "a")])
    assert book.pending_count(other) == 1
    same = book.add([3] * 13, contents=[Content(2, 12, "a")])
    assert book.pending_count(same) == 9  # those of the first page, which was not computed anew


@pytest.mark.parametrize("chunk", [1, 2, 7, 33])
def test_a_picture_in_chunks(chunk: int) -> None:
    own, model = engine(chunk=chunk)
    asked = [
        request(0, 1, 2, picture(*range(10, 21)), 0, 1),
        request(1, picture(7, 8), 1, picture(9), picture(*range(50, 56)), n=2),
        request(2, 1, picture(*range(10, 21))),  # ends with a picture
        request(3, 1, 2, 3, 1),
    ]
    check(own, *asked)
    assert len(model.looked) == own.counters.encoded_pictures == 4  # that of two requests once
    again = [
        request(10 + n, *parts)
        for n, parts in enumerate([(1, 2, picture(*range(10, 21)), 0, 1, 1)])
    ]
    check(own, *again)
    assert len(model.looked) == 4


def test_one_picture_between_two_steps() -> None:
    """Whoever waits for a next token waits for no more than one picture and a step."""
    own, model = engine(limits=Limits(running=8))
    own.submit(request(0, 1, 2, count=20))
    own.step()
    for n in range(1, 6):
        own.submit(request(n, picture(n, 9), picture(n, 8), 1))
    for step in range(1, 8):
        before = len(model.looked)
        pieces = own.step()
        assert len(model.looked) == before + 1 == step
        assert 0 in [piece.request for piece in pieces]
    run(own)


def test_equal_pictures_share_pages_and_others_do_not() -> None:
    own, model = engine()
    numbers = [*range(20, 31)]
    check(own, request(0, 1, picture(*numbers), 2))
    check(own, request(1, 1, picture(*numbers), 2))
    assert own.counters.cached_tokens == 12
    check(own, request(2, 1, picture(*numbers[::-1]), 2))
    assert own.counters.cached_tokens == 12
    check(own, request(3, 1, picture(*numbers), 2, salt="another"))
    assert own.counters.cached_tokens == 12
    assert len(model.looked) == 3
    # what the tower made is dropped, and the pages are there: nothing is missed
    own.scheduler.store = PictureStore()
    check(own, request(4, 1, picture(*numbers), 2, 1))
    assert own.counters.cached_tokens == 24
    assert len(model.looked) == 3


def test_a_tower_that_fails_ends_those_that_wait_for_it() -> None:
    own, model = engine()
    bad, good = picture(1, 2, 3), picture(4, 5)
    model.blind = {bad}
    asked = [request(0, 1, good, 2), request(1, bad, 1, n=2), request(2, bad, 2), request(3, 1, 2)]
    for each in asked:
        own.submit(each)
    errors: dict[int, str] = {}
    texts: dict[int, list[int]] = {}
    while own.is_busy:
        for piece in own.step():
            if piece.error is not None:
                errors[piece.request] = str(piece.error)
            texts.setdefault(piece.request, []).extend(piece.tokens)
    assert {*errors} == {1, 2}
    assert "a picture that fails" in errors[1]
    assert [texts[n] for n in (0, 3)] == [expected(asked[n], 0) for n in (0, 3)]
    assert len(own.book) == 0


def test_a_store_too_small_for_a_picture() -> None:
    """It is kept until its tokens are computed; another one in between may let the tower run again."""
    own, model = engine(chunk=3, picture_bytes=4)
    check(own, *(request(n, 1, picture(*range(n, n + 9)), picture(n), n % 3) for n in range(5)))
    assert len(model.looked) >= 10
    assert own.scheduler.store is not None
    assert own.scheduler.store.nbytes <= 40


@pytest.mark.parametrize("seed", range(60 if FULL else 4))
@pytest.mark.parametrize("windows", [(0,), (0, 7)])
def test_texts_are_those_that_each_has_alone(windows: tuple[int, ...], seed: int) -> None:
    """Many requests with pictures, few pages, preempted, a small store, in turns and at once: the texts are right."""
    pick = random.Random(seed)
    model = FakeModel(24, windows=windows, pictures=SHAPE)
    own = Engine(
        model, pages=24, limits=Limits(running=6), chunk=pick.choice((1, 3, 7, 33)), picture_bytes=pick.choice((4, 90))
    )  # fmt: skip
    sizes = [pick.choice((1, 3, 4, 9, 13)) for _ in range(6)]
    pictures = [picture(*(pick.randrange(9) for _ in range(size))) for size in sizes]
    asked: list[Request] = []
    texts: dict[tuple[int, int], list[int]] = {}

    def step() -> None:
        for piece in own.step():
            assert piece.error is None
            texts.setdefault((piece.request, piece.choice), []).extend(piece.tokens)

    for number in range(25):
        parts = [
            pick.choice(pictures) if pick.random() < 0.4 else pick.randrange(4)
            for _ in range(pick.choice((1, 3, 6)))
        ]
        count, n, salt = pick.choice((1, 6, 14)), pick.choice((1, 1, 2)), pick.choice("ab")
        each = request(number, *parts, count=count, n=n, salt=salt)
        if each.most_tokens * each.n <= 40:
            asked.append(each)
            own.submit(each)
        for _ in range(pick.choice((0, 1, 4))):
            step()
    while own.is_busy:
        step()
    for each in asked:
        for choice in range(each.n):
            assert texts[each.number, choice] == expected(each, choice, windows), each
    assert len(own.book) == 0


def test_a_thousand_pairs_share_no_page() -> None:
    """Two pictures of one size and different content, and equal texts: no page of one is ever the other's."""
    pick = np.random.default_rng(1)
    own, _ = engine(pages=80)
    for number in range(0, 400 if not FULL else 2000, 2):
        first = pick.integers(0, 5, 9)
        second = first.copy()
        second[pick.integers(0, 9)] += 1
        before = own.counters.cached_tokens
        check(
            own,
            *(
                request(number + n, 0, picture(*x), 1, 2, salt=str(number))
                for n, x in enumerate((first, second))
            ),
        )
        assert own.counters.cached_tokens == before


def test_a_request_with_pictures_between_processes() -> None:
    own = Picture([np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[1, 2]], np.int64)], 2)
    asked = Request(3, (1, 3, 3, 2), 5, pictures=(Placed(1, own),))
    assert request_of(json.loads(json.dumps(request_fields(asked)))) == asked


def test_one_request_by_itself() -> None:
    """`step_of`, as a process of its own has it."""
    own, model = engine()
    asked = request(0, 1, picture(5, 6, 7), 2, picture(8), 1)
    own.submit(asked)
    found: list[int] = []
    while own.is_busy:
        found += [token for piece in own.step_of(0, 2) for token in piece.tokens]
    assert found == expected(asked, 0)
    assert len(model.looked) == 2
