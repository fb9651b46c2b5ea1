"""Searches with beams in an engine: equal to a search that computes every text anew, with others, in few pages."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.serve import Draw, Engine, Limits, Request, Sampling
from relaxpy.serve.beams import Beam, Beams, BeamSearch, beam_scores
from relaxpy.serve.messages import piece_fields, piece_of, request_fields, request_of
from relaxpy.serve.request import Features, Piece
from relaxpy.serve.sources import SourceShape
from tests.serve.fake_model import FakeModel, expected, scores_after
from tests.serve.test_engine import check_pages

VOCAB = 7


def searched(request: Request) -> list[Beam]:
    """The search, alone, without pages."""
    assert request.beams is not None
    search = BeamSearch(request.beams, request.max_tokens, request.ends)
    texts = [list(request.prompt)]
    while not search.is_over:
        rows = []
        for text in texts:
            seen = [request.adapter, *text]
            seen += [] if request.features is None else request.features.values.tolist()
            logits = np.array(scores_after(seen, VOCAB), np.float32)
            rows.append(
                beam_scores(
                    logits, Draw(request.sampling, text, len(request.prompt), ends=request.ends)
                )
            )
        chosen = search.advance(
            np.stack(rows), lambda beam, token, rows=rows: float(rows[beam][token])
        )
        texts = [[*texts[beam], token] for beam, token in chosen]
    return search.best


def run(own: Engine) -> dict[int, list[Piece]]:
    found: dict[int, list[Piece]] = {}
    while own.is_busy:
        for piece in own.step():
            assert piece.error is None
            found.setdefault(piece.request, []).append(piece)
        check_pages(own.book)
    return found


def check(asked: Sequence[Request], found: dict[int, list[Piece]]) -> None:
    for each in asked:
        pieces = found[each.number]
        if each.beams is None:
            tokens = [token for piece in pieces for token in piece.tokens]
            assert tokens == expected(each, 0, vocab=VOCAB)
            continue
        wanted = searched(each)
        assert [piece.tokens for piece in pieces] == [beam.tokens for beam in wanted]
        assert [piece.score for piece in pieces] == [beam.score for beam in wanted]
        assert [piece.choice for piece in pieces] == [*range(len(wanted))]
        assert [piece.finish for piece in pieces] == [
            ("length", "stop")[beam.is_ended] for beam in wanted
        ]


def request(
    number: int, prompt: Sequence[int], count: int, beams: Beams | None, **more: Any
) -> Request:
    sampling = Sampling(seed=number, **more.pop("rules", {}))
    return Request(
        number,
        tuple(prompt),
        count,
        sampling,
        frozenset(more.pop("ends", (6,))),
        beams=beams,
        **more,
    )


def engine(pages: int = 80, **options: Any) -> Engine:
    return Engine(FakeModel(pages, vocab_size=VOCAB), pages=pages, **options)


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("stopping", [False, True, "never"])
def test_one_search(width: int, stopping: Any) -> None:
    for penalty in (-1.0, 0.0, 1.0, 2.5):
        for prompt in ([1], [1, 2, 3, 0, 1], [2] * 12):
            own = engine()
            asked = [
                request(0, prompt, 9, Beams(width, penalty, stopping, num_return_sequences=width))
            ]
            own.submit(asked[0])
            check(asked, run(own))


def test_among_others_in_few_pages() -> None:
    """Searches and texts wait, are preempted, and come out as alone, with an input of an encoder too."""
    pick = random.Random(1)
    shape = SourceShape(positions=8, vocab_size=50)
    model = FakeModel(30, vocab_size=VOCAB, source=shape, source_pages=4)
    own = Engine(model, pages=30, source_pages=4, limits=Limits(running=12, waiting=64), chunk=16)
    asked: list[Request] = []
    found: dict[int, list[Piece]] = {}
    for number in range(30):
        beams = (
            Beams(pick.choice((2, 3)), 1.0, pick.choice((False, True)), 2) if number % 2 else None
        )
        prompt = [pick.randrange(6) for _ in range(pick.choice((1, 4, 9)))]
        source = Features(np.array([pick.randrange(3)], np.int64))
        asked.append(
            request(
                number,
                prompt,
                pick.choice((3, 14)),
                beams,
                features=source,
                priority=-number % 3,
                ends=(),
            )
        )
        own.submit(asked[-1])
        for piece in own.step():
            found.setdefault(piece.request, []).append(piece)
        check_pages(own.book)
    for number, pieces in run(own).items():
        found.setdefault(number, []).extend(pieces)
    check(asked, found)
    assert own.counters.preemptions > 0
    assert not len(own.book)
    assert not own.scheduler._clients
    assert own.sources is not None
    assert not any(each.users for each in own.sources._sources.values())


def test_rules() -> None:
    rules: list[dict[str, Any]] = [
        {"no_repeat_ngram_size": 2}, {"suppress_tokens": (1, 2)}, {"begin_suppress_tokens": (0, 3)},
        {"min_tokens": 5}, {"bad_words_ids": ((1,), (2, 3))}, {"repetition_penalty": 1.7}, {"bias": {4: 3.0}},
        {"presence_penalty": 0.5, "frequency_penalty": 0.3}, {"suppress_tokens": (0, 1, 2, 3, 4)},
    ]  # fmt: skip
    for number, each in enumerate(rules):
        own = engine()
        asked = [request(number, [1, 2], 8, Beams(3, num_return_sequences=2), rules=each)]
        own.submit(asked[0])
        found = run(own)
        check(asked, found)
        for token in each.get("suppress_tokens", ()):
            assert all(token not in piece.tokens for piece in found[number])


def test_no_token_is_possible() -> None:
    own = engine()
    own.submit(request(0, [1], 4, Beams(2), rules={"suppress_tokens": tuple(range(VOCAB))}))
    own.submit(request(1, [1], 4, None))
    pieces = [piece for _ in range(9) for piece in own.step()]
    (wrong,) = [piece for piece in pieces if piece.error is not None]
    assert wrong.request == 0
    assert "no token is possible" in str(wrong.error)
    assert len([token for piece in pieces for token in piece.tokens]) > 0
    assert not own.is_busy
    check_pages(own.book)


def test_cancelled() -> None:
    own = engine()
    own.submit(request(0, [1] * 6, 30, Beams(4)))
    for _ in range(4):
        own.step()
    assert len(own.scheduler.running) == 4
    own.cancel(0)
    assert not own.is_busy
    assert not len(own.book)
    assert not own.scheduler._clients
    own.submit(asked := request(1, [1] * 6, 5, Beams(4)))
    own.cancel(1)
    own.submit(asked)
    check([asked], run(own))


def test_one_request_at_a_time() -> None:
    own = engine()
    asked = request(0, [1, 2, 3], 6, Beams(3, num_return_sequences=3))
    own.submit(asked)
    pieces: list[Piece] = []
    while own.is_busy:
        pieces += own.step_of(0, 2)
    check([asked], {0: pieces})


def test_mistakes() -> None:
    for options, match in (
        ({"num_beams": 0}, "num_beams"), ({"num_beams": 2.0}, "num_beams"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences"),
        ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty"),
        ({"num_beams": 2, "early_stopping": "maybe"}, "early_stopping"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=match):
            Beams(**options)
    own = engine(8)
    for more, match in (
        ({"n": 2}, "no other choices"),
        ({"grammar": "x"}, "grammar"),
        ({"top": 3}, "beside its own"),
    ):
        with pytest.raises(UsageError, match=match):
            own.submit(request(0, [1], 4, Beams(2), **more))
    with pytest.raises(UsageError, match="1 to 16 texts, got num_beams=17"):
        own.submit(request(0, [1], 4, Beams(17)))
    with pytest.raises(UsageError, match="at least one token"):
        own.submit(request(0, [1], 0, Beams(2)))
    with pytest.raises(UsageError, match="4 beams of 9 tokens"):
        own.submit(request(0, [1], 8, Beams(4)))
    assert not own.is_busy


def test_they_travel() -> None:
    asked = request(0, [1], 4, Beams(3, 0.5, "never", 2))
    assert request_of(json.loads(json.dumps(request_fields(asked)))) == asked
    piece = Piece(0, 1, (3,), finish="stop", score=-0.5)
    assert piece_of(json.loads(json.dumps(piece_fields(piece)))) == piece
