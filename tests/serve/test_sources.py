"""The books of sources, and the engine with an encoder: by a model without numbers, and without one."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.serve import Engine, Limits, Piece, Request, Sampling
from relaxpy.serve.messages import request_fields, request_of
from relaxpy.serve.pages import NONE
from relaxpy.serve.request import Features
from relaxpy.serve.sources import SourceBook, SourceShape
from relaxpy.serve.timestamp_rules import TimestampRules
from tests.serve.fake_model import FakeModel, expected

SHAPE = SourceShape(positions=10, vocab_size=50)
PAGE = 4


def features(*tokens: int) -> Features:
    return Features(np.array(tokens, np.int64))


def check_book(book: SourceBook) -> None:
    """Each page is free, or of one source."""
    named = Counter(page for each in book._sources.values() for page in each.pages)
    assert Counter(book._free) + named == Counter(range(book.pages))
    assert all(each.users or each.is_filled for each in book._sources.values())


def test_equal_inputs_are_one_source() -> None:
    book = SourceBook(6, PAGE, SHAPE)
    one, two = book.hold(features(1, 2, 3, 4, 5)), book.hold(features(1, 2, 3, 4, 5))
    assert one is two
    assert one is not None
    assert (one.users, len(one.pages), one.length) == (2, 2, 5)
    other, salted = book.hold(features(1, 2, 3, 4, 6)), book.hold(features(1, 2, 3, 4, 5), "salt")
    assert other is not one
    assert salted is not one
    assert book.available == 0
    assert book.hold(features(9)) is None
    book.fill([one])
    book.release(one)
    assert book.available == 0
    book.release(one)
    assert book.available == 2
    assert book.hold(features(1, 2, 3, 4, 5)) is one  # still there, and filled
    assert one.is_filled
    check_book(book)


def test_what_is_not_filled_is_forgotten() -> None:
    book = SourceBook(3, PAGE, SHAPE)
    one = book.hold(features(1))
    assert one is not None
    book.release(one)
    assert not book._sources
    two = book.hold(features(1))
    assert two is not one
    check_book(book)


def test_the_least_recently_used_is_forgotten_first() -> None:
    book = SourceBook(3, PAGE, SHAPE)
    made = [book.hold(features(n)) for n in range(3)]
    for each in made:
        assert each is not None
        book.fill([each])
    for n in (1, 0, 2):
        book.release(made[n])  # type: ignore[arg-type]
    assert book.hold(features(7, 8)) is not None
    assert book.hold(features(0)) is made[0]
    assert {each.features for each in book._sources.values()} == {
        features(0),
        features(2),
        features(7, 8),
    }
    assert book.encoded == 3
    check_book(book)


def test_tables() -> None:
    book = SourceBook(6, PAGE, SHAPE)
    one, two = book.hold(features(*range(9))), book.hold(features(1))
    tables, lengths = book.tables([two, None, one])
    assert lengths.tolist() == [1, 0, 9]
    assert tables.shape == (3, 3)
    assert (tables[1] == -1).all()
    assert (tables[0, 1:] == -1).all()
    assert sorted([tables[0, 0], *tables[2]]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (np.zeros(11, np.int64), "1 to 10 tokens, got 11"),
        (np.zeros(0, np.int64), "got 0"),
        (np.array([50]), "0 to 49"),
        (np.array([-1]), "0 to 49"),
        (np.zeros((2, 3), np.float32), "got features"),
    ],
)
def test_inputs_that_do_not_fit(values: np.ndarray, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        SHAPE.length(Features(values))


def test_sound() -> None:
    shape = SourceShape(positions=5, stride=2, mels=3)
    assert [shape.length(Features(np.zeros((3, n), np.float32))) for n in (1, 2, 9, 10)] == [
        1,
        1,
        5,
        5,
    ]
    for wrong in (np.zeros((3, 11)), np.zeros((4, 10)), np.zeros((3, 0))):
        with pytest.raises(UsageError, match="the encoder reads"):
            shape.length(Features(wrong.astype(np.float32)))
    for wrong in (
        np.zeros((1, 3, 4), np.float32),
        np.array(1),
        np.zeros((3, 4), np.int64),
        np.zeros(3),
    ):
        with pytest.raises(UsageError, match="an encoder reads"):
            Features(wrong)
    for number in (np.nan, np.inf):
        with pytest.raises(UsageError, match="not all finite"):
            Features(np.full((3, 4), number, np.float32))
    with pytest.raises(UsageError, match="no room"):
        SourceBook(1, PAGE, shape)


# In an engine


def engine(pages: int = 40, source_pages: int = 30, **options: Any) -> tuple[Engine, FakeModel]:
    model = FakeModel(pages, source=SHAPE, source_pages=source_pages)
    return Engine(model, pages=pages, source_pages=source_pages, **options), model


def request(
    number: int, prompt: list[int], source: Features, count: int = 6, **more: Any
) -> Request:
    return Request(number, tuple(prompt), count, Sampling(seed=number), features=source, **more)


def run(own: Engine, most: int = 10_000) -> dict[tuple[int, int], list[int]]:
    texts: dict[tuple[int, int], list[int]] = {}
    for _ in range(most):
        if not own.is_busy:
            break
        for piece in own.step():
            assert piece.error is None
            texts.setdefault((piece.request, piece.choice), []).extend(piece.tokens)
        assert own.sources is not None
        check_book(own.sources)
    return texts


def check_texts(asked: list[Request], texts: dict[tuple[int, int], list[int]]) -> None:
    for each in asked:
        for choice in range(each.n):
            assert texts[each.number, choice] == expected(each, choice), each


def test_inputs_are_encoded_together_and_once() -> None:
    """At first several at a time; texts of an equal input share one; its prefix in the cache is not that of another."""
    own, model = engine()
    inputs = [features(n, 2, 3) for n in (1, 1, 2, 3, 4, 5, 6)]
    asked = [request(n, [1, 2, 3, 0, 1, 2], each, n=1 + n % 2) for n, each in enumerate(inputs)]
    for each in asked:
        own.submit(each)
    texts = run(own)
    assert model.encoded[0] == 4
    check_texts(asked, texts)
    assert sum(model.encoded) == own.counters.encoded_inputs == 6
    again = [request(n, [1, 2, 3, 0, 1, 2], features(n % 4 + 1, 2, 3)) for n in range(10, 14)]
    for each in again:
        own.submit(each)
    texts = run(own)
    check_texts(again, texts)
    assert own.counters.encoded_inputs == 6  # they are still there


def test_texts_are_those_that_each_has_alone() -> None:
    """Many requests for few pages of both kinds: they wait, are preempted, and encoded again; the texts are right."""
    pick = random.Random(3)
    own, _ = engine(pages=14, source_pages=6, limits=Limits(running=6, encoded=2), chunk=16)
    asked: list[Request] = []
    texts: dict[tuple[int, int], list[int]] = {}
    for number in range(40):
        tokens = [pick.randrange(3) for _ in range(pick.choice((1, 3, 4, 5, 9, 10)))]
        prompt = [pick.randrange(4) for _ in range(pick.choice((1, 4, 5, 9)))]
        asked.append(
            request(
                number, prompt, features(*tokens), pick.choice((1, 5, 12)), n=pick.choice((1, 1, 2))
            )
        )
        own.submit(asked[-1])
        for _ in range(pick.choice((0, 1, 3))):
            for piece in own.step():
                texts.setdefault((piece.request, piece.choice), []).extend(piece.tokens)
    for key, tokens in run(own).items():
        texts.setdefault(key, []).extend(tokens)
    check_texts(asked, texts)
    assert own.counters.preemptions > 0
    assert own.sources is not None
    assert not any(each.users for each in own.sources._sources.values())


def test_nobody_waits_for_more_than_one_input() -> None:
    own, model = engine()
    own.submit(request(0, [1], features(1), 20))
    own.step()
    for number in range(1, 6):
        own.submit(request(number, [1, 2], features(number + 1), 2))
    model.encoded.clear()
    for _ in range(5):
        assert any(piece.request == 0 for piece in own.step())
    assert model.encoded == [1] * 5


def test_an_input_that_fails_ends_its_texts_only() -> None:
    own, model = engine()
    own.submit(request(0, [1], features(1), 9))
    texts = [piece.tokens[0] for piece in own.step()]
    model.failing = {model.steps + 1}
    own.submit(request(1, [1], features(2)))
    own.submit(request(2, [1], features(2), n=2))
    found: list[Piece] = own.step()
    assert sorted(piece.request for piece in found if piece.error is not None) == [1, 2]
    while own.is_busy:
        found += own.step()
    texts += [token for piece in found if piece.request == 0 for token in piece.tokens]
    assert texts == expected(request(0, [1], features(1), 9), 0)
    assert own.sources is not None
    check_book(own.sources)
    assert len(own.sources._sources) == 1


def test_cancelled_texts_let_go() -> None:
    own, _ = engine(source_pages=3)
    for number in range(3):
        own.submit(request(number, [1], features(*range(10)), n=2))
    own.submit(request(3, [1], features(1), 3))
    own.step()
    for number in range(3):
        own.cancel(number)
    assert own.sources is not None
    assert own.sources.available == 3
    check_texts([request(3, [1], features(1), 3)], run(own))


def test_features_where_there_are_none_to_be() -> None:
    own, _ = engine()
    with pytest.raises(UsageError, match="reads features"):
        own.submit(Request(0, (1,), 3))
    plain = Engine(FakeModel(8), pages=8)
    with pytest.raises(UsageError, match="does not read features"):
        plain.submit(request(0, [1], features(1)))
    with pytest.raises(UsageError, match="1 to 10 tokens"):
        own.submit(request(0, [1], features(*range(11))))
    assert not own.is_busy


def test_one_request_at_a_time() -> None:
    """`step_of` encodes what its request needs, and refuses where pages are held."""
    own, model = engine(source_pages=3)
    own.submit(request(0, [1], features(*range(9)), 2))
    own.submit(request(1, [1], features(3), 2))
    first = own.step_of(0, 8)
    assert model.encoded == [1]
    with pytest.raises(UsageError, match="no pages for what the encoder"):
        own.step_of(1, 8)
    tokens = [token for piece in [*first, *own.step_of(0, 8)] for token in piece.tokens]
    assert tokens == expected(request(0, [1], features(*range(9)), 2), 0)
    assert own.step_of(1, 8)


def test_probes() -> None:
    """Log-probabilities at places of the prompt, in chunks, with what is in the cache, and of all choices once."""
    own, model = engine(chunk=4)
    asked = request(
        0, [1, 2, 3, 0, 1, 2, 3], features(1, 2), 2, n=2, probes=((6, 1), (0, 3), (0, 2), (4, 0))
    )
    for _ in range(2):
        own.submit(asked)
        pieces = []
        while own.is_busy:
            pieces += own.step()
        assert [len(piece.probes) for piece in pieces] == [4, 0, 0, 0]
        for (place, token), found in zip(asked.probes, pieces[0].probes, strict=True):
            row = model.logits([[NONE, *asked.prompt[: place + 1], 1, 2]])[0].astype(np.float64)
            assert found == pytest.approx(row[token] - np.log(np.exp(row).sum()))
    read = request(1, [1, 2], features(4), 0, probes=((1, 1),))
    own.submit(read)
    assert [len(piece.probes) for piece in own.step()] == [1]
    for wrong in ((7, 0), (-1, 0), (0, 4)):
        with pytest.raises(UsageError, match="a probe asks for"):
            own.submit(request(2, [1] * 7, features(1), probes=(wrong,)))


def test_requests_travel() -> None:
    sampling = Sampling(timestamps=TimestampRules(5, 4, 3, 50))
    sound = Features(np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32))
    asked = Request(0, (1,), 3, sampling, features=sound, probes=((0, 2),), ruled=True)
    assert request_of(json.loads(json.dumps(request_fields(asked)))) == asked
