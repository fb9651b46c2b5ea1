"""The engine on a model without numbers: texts as if each were alone, pages, order, drafts, failures."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.serve import Draw, PageBook, Sampling
from relaxpy.serve.engine import Engine
from relaxpy.serve.pages import ABSENT
from relaxpy.serve.request import Piece, Request
from relaxpy.serve.sampling import no_token
from relaxpy.serve.scheduler import PRIORITY, Limits
from tests.serve.fake_model import FakeModel, expected, scores_after
from tests.sweeps import FULL

Texts = dict[tuple[int, int], list[int]]


def engine(pages: int = 64, windows: tuple[int, ...] = (0,), **options: Any) -> Engine:
    return Engine(FakeModel(pages, windows=windows), pages=pages, **options)


def collect(pieces: list[Piece], into: Texts) -> None:
    for piece in pieces:
        into.setdefault((piece.request, piece.choice), []).extend(piece.tokens)


def run(own: Engine) -> Texts:
    """Compute all that waits."""
    texts: Texts = {}
    while own.is_busy:
        collect(own.step(), texts)
    return texts


def check_pages(book: PageBook) -> None:
    """Pages are used as often as sequences name them, and each is free, kept, held, or used."""
    for group, pool in enumerate(book._pools):
        named = Counter(
            page for own in book._sequences.values() for page in own.pages[group] if page != ABSENT
        )
        assert {page: n for page, n in enumerate(pool.users) if n} == dict(named)
        others = [page for page in range(len(pool.users)) if page not in named]
        assert sorted([*pool.free, *pool.kept]) == sorted(set(others) - set(pool.held))


def request(number: int, prompt: list[int], count: int = 8, **options: Any) -> Request:
    sampling = Sampling(seed=options.pop("seed", number))
    return Request(number, tuple(prompt), count, sampling, **options)


def random_request(pick: random.Random, number: int) -> Request:
    prompt = [pick.randrange(4) for _ in range(pick.choice([1, 3, 4, 9, 17, 40]))]
    if pick.random() < 0.5:  # a beginning that others have, too
        prompt = [k % 3 for k in range(pick.choice([8, 13, 24]))] + prompt[:5]
    return request(
        number,
        prompt,
        pick.choice([1, 2, 7, 20]),
        n=pick.choice([1, 1, 1, 2, 3]),
        ends=pick.choice([frozenset(), frozenset({3})]),
        adapter=pick.choice([-1, -1, 0, 1]),
        salt=pick.choice(["", "", "own"]),
        client=pick.choice(["", "a", "b"]),
        priority=pick.choice([0, 0, 0, -1, 2]),
    )


EVENTS = 100_000 if FULL else 1_500


@pytest.mark.parametrize("windows", [(0,), (0, 6)], ids=["all", "window"])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_events(seed: int, windows: tuple[int, ...]) -> None:
    """Requests come, are cancelled, and steps run and fail, in any order: pages are never lost nor shared wrongly, no
    limit is passed, and each text that ends well is that of the request alone."""
    pick = random.Random(seed)
    pages, chunk, running = 24, 12, 5
    model = FakeModel(pages, windows=windows)
    own = Engine(model, pages=pages, chunk=chunk, limits=Limits(running, 6, 16))
    requests: dict[int, Request] = {}
    asked: list[int] = []
    texts: Texts = {}
    ended: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for event in range(EVENTS):
        kind = pick.random()
        if kind < 0.25:
            one = random_request(pick, event)
            try:
                own.submit(one)
            except UsageError as error:
                refused[error.code] += 1
            else:
                requests[event] = one
                asked.append(event)
        elif kind < 0.28 and asked:
            number = pick.choice(asked)
            own.cancel(number)
            asked.remove(number)
            assert not own.scheduler.texts_of(number)
        else:
            if pick.random() < 0.01:
                model.failing.add(model.steps + 1)
            pieces = own.step()
            collect(pieces, texts)
            for piece in pieces:
                if piece.finish is None:
                    continue
                ended[piece.finish] += 1
                found = texts.pop((piece.request, piece.choice))
                one = requests[piece.request]
                if piece.finish == "error":
                    assert "a step that fails" in str(piece.error)
                    assert not own.scheduler.texts_of(piece.request)
                else:
                    assert found == expected(one, piece.choice, windows)
            asked = [number for number in asked if own.scheduler.texts_of(number)]
        check_pages(own.book)
        assert len(own.scheduler.running) <= running
        assert model.most_tokens <= chunk + 16
        assert own.scheduler.running == sorted(own.scheduler.running, key=lambda t: t.order)
    run(own)
    assert not own.scheduler._clients
    assert len(own.book) == 0
    assert own.book.available() == pages
    assert min(ended["stop"], ended["length"]) > 20
    assert ended["error"]
    assert [*refused] == ["queue-full"]
    counters = own.counters
    assert counters.preemptions > 5
    assert counters.cached_tokens > 0
    assert counters.accepted_tokens > 0


def test_a_text_is_that_of_the_request_alone() -> None:
    """With neighbours, choices, shared beginnings, little memory and drafts, or without drafts."""
    pick = random.Random(7)
    requests = [random_request(pick, number) for number in range(40)]
    for options in ({"drafts": False}, {}, {"chunk": 5}):
        own = engine(24, **options)
        for each in requests:
            own.submit(each)
        found = run(own)
        for each in requests:
            for choice in range(each.n):
                assert found[each.number, choice] == expected(each, choice)


def test_a_common_beginning_is_computed_once() -> None:
    own = engine()
    shared = [1, 2, 3, 0] * 8
    own.submit(request(0, [*shared, 1]))
    run(own)
    own.submit(request(1, [*shared, 2]))
    own.submit(request(2, [*shared, 2], salt="another"))
    own.submit(request(3, [*shared, 2], adapter=1))
    pieces = own.step()
    assert {piece.request: piece.cached for piece in pieces} == {1: 32, 2: 0, 3: 0}


def test_what_never_fits_is_refused_with_numbers() -> None:
    own = engine(4)
    with pytest.raises(
        UsageError, match=r"10 tokens, and 7 are to be written: together more than the 16"
    ):
        own.submit(request(0, [1] * 10, 7))
    own.submit(request(1, [1] * 10, 6))
    with pytest.raises(UsageError, match="1 to 16 texts, got n=17"):
        own.submit(request(2, [1], n=17))
    with pytest.raises(UsageError, match="token 4 is none of the model's"):
        own.submit(request(3, [1, 4]))
    with pytest.raises(UsageError, match="no adapter 2"):
        own.submit(request(3, [1], adapter=2))
    assert run(own)[1, 0] == expected(request(1, [1] * 10, 6), 0)


def test_a_full_queue_refuses() -> None:
    own = engine(limits=Limits(running=1, waiting=2))
    for number in range(2):
        own.submit(request(number, [1]))
    with pytest.raises(UsageError, match="2 requests wait, and no more than 2 may") as caught:
        own.submit(request(2, [1]))
    assert caught.value.code == "queue-full"


def test_a_queue_of_none() -> None:
    """What can run at once is taken, and nothing waits."""
    own = engine(limits=Limits(running=3, waiting=0))
    own.submit(request(0, [1]))
    own.submit(request(1, [1], n=2))
    with pytest.raises(UsageError, match="no more than 0 may"):
        own.submit(request(2, [1]))
    own.step()
    with pytest.raises(UsageError, match="no more than 0 may"):
        own.submit(request(3, [1]))
    own.cancel(0)
    own.submit(request(4, [1]))
    assert {number for number, _ in run(own)} == {1, 4}


def finished_order(own: Engine) -> list[int]:
    found: list[int] = []
    while own.is_busy:
        found += [piece.request for piece in own.step() if piece.finish]
    return found


def test_smaller_priorities_go_first() -> None:
    own = engine(limits=Limits(running=1))
    for number, priority in enumerate([0, 1, -1, 0]):
        own.submit(request(number, [1] * 8, priority=priority))
    assert finished_order(own) == [2, 0, 3, 1]


def test_an_urgent_request_takes_the_place_of_another() -> None:
    own = engine(limits=Limits(running=1))
    slow, quick = request(0, [1] * 8, 40, priority=1), request(1, [2] * 8, 3)
    own.submit(slow)
    texts: Texts = {}
    for _ in range(5):
        collect(own.step(), texts)
    own.submit(quick)
    order: list[int] = []
    while own.is_busy:
        pieces = own.step()
        collect(pieces, texts)
        order += [piece.request for piece in pieces if piece.finish]
    assert order == [1, 0]
    assert own.counters.preemptions == 1
    assert [texts[0, 0], texts[1, 0]] == [expected(each, 0) for each in (slow, quick)]


def test_nothing_starves() -> None:
    """A request of low priority runs although more urgent ones never cease to come."""
    own = engine(limits=Limits(running=2))
    own.submit(request(0, [1] * 8, 8, priority=1))
    done, number, computed = False, 1, 0
    while not done:
        while len(own.scheduler.waiting) < 4:
            own.submit(request(number, [2] * 8, 8, client=str(number % 3)))
            number += 1
        done = any(piece.request == 0 and piece.finish for piece in own.step())
        computed = own.counters.computed_tokens
        assert computed < 4 * (PRIORITY + 200)
    assert computed > PRIORITY  # it did wait


def test_clients_share_by_tokens() -> None:
    """Somebody who sends much at once does not keep others waiting; a client's own requests keep their order."""
    own = engine(limits=Limits(running=1))
    for number in range(20):
        own.submit(request(number, [1] * 8, 8, client="many"))
    own.step()
    own.submit(request(100, [2] * 8, 8, client="one"))
    order = finished_order(own)
    assert order.index(100) <= 2
    assert [number for number in order if number < 100] == [*range(20)]


def test_a_cancelled_request_gives_its_pages_back() -> None:
    own = engine(limits=Limits(running=2))
    for number in range(3):
        own.submit(request(number, [number] * 9, 30, n=2))
    own.step()
    own.step()
    own.cancel(0)
    own.cancel(2)
    own.cancel(5)
    check_pages(own.book)
    assert {number for number, _ in run(own)} == {1}
    assert own.book.available() == 64


def test_a_step_that_fails_ends_its_texts() -> None:
    """Others, and later ones, are not touched."""
    own = engine(limits=Limits(running=2))
    model: Any = own.model
    for number in range(3):
        own.submit(request(number, [1] * 9))
    model.failing = {1}
    pieces = own.step()
    assert [(p.request, p.finish, repr(p.error)) for p in pieces] == [
        (n, "error", "MemoryError('a step that fails')") for n in range(2)
    ]
    check_pages(own.book)
    assert run(own) == {(2, 0): expected(request(2, [1] * 9), 0)}


class Wrong(FakeModel):
    """A model whose logits are NaN after the token 2."""

    def sample(self, logits: Any, draws: Sequence[Draw]) -> tuple[np.ndarray, np.ndarray]:
        tokens, logprobs = super().sample(logits, draws)
        return tokens, np.where([seen[-1] == 2 for seen in logits], np.nan, logprobs)

    def logits(self, logits: Any) -> np.ndarray:
        return np.array([[0.5, 0, 0, np.nan if seen[-1] == 2 else 0] for seen in logits])


def test_logits_that_are_nan_end_one_request() -> None:
    """With an error that says so, instead of a token; the others go on as if alone."""
    own = Engine(Wrong(64), pages=64)
    requests = [
        request(number, [number % 3, number % 4], 3, n=1 + number % 2) for number in range(17)
    ]
    for each in requests:
        own.submit(each)
    pieces: list[Piece] = []
    while own.is_busy:
        pieces += own.step()
    failed = {piece.request: str(piece.error) for piece in pieces if piece.finish == "error"}
    texts: Texts = {}
    collect(pieces, texts)
    for each in requests:
        alone = [expected(each, choice) for choice in range(each.n)]
        seen = [each.prompt[-1:], *(tuple(text[:-1]) for text in alone)]
        assert (each.number in failed) == any(2 in tokens for tokens in seen)
        if each.number not in failed:
            assert [texts[each.number, choice] for choice in range(each.n)] == alone
    assert 0 < len(failed) < len(requests)
    assert own.counters.not_a_number == len(failed)
    (message,) = set(failed.values())
    assert "the logits after this text are not numbers: 1 of 4 are NaN" in message
    check_pages(own.book)


def test_why_there_is_no_token() -> None:
    ordinary = np.array([0.5, -np.inf, 2], np.float32)
    assert no_token(ordinary).code == "sampling"
    for wrong in ([0, np.nan], [0, np.inf], [-np.inf, -np.inf]):
        assert no_token(np.array(wrong, np.float32)).code == "not-a-number"


def test_drafts_save_steps() -> None:
    """A text that repeats itself takes fewer steps, and is the same."""

    class Copies(FakeModel):
        """Goes on as 12 tokens before."""

        def sample(self, logits: Any, draws: Any) -> Any:
            _, logprobs = super().sample(logits, draws)
            return np.array([draw.tokens[-12] for draw in draws]), logprobs

    prompt = [0, 1, 2, 3, 3, 2, 1, 1, 0, 2, 0, 3]
    steps = {}
    for drafts in (False, True):
        own = Engine(Copies(64), pages=64, drafts=drafts)
        own.submit(request(0, prompt, 96))
        assert run(own)[0, 0] == prompt * 8
        steps[drafts] = own.counters.steps
    assert steps[False] == 96
    assert steps[True] < 96 / 4


def test_chunks_follow_the_target() -> None:
    """Alone a prompt takes the largest chunk; beside others a step takes as long as the target says."""
    from relaxpy.serve.chunk_size import LEAST, ChunkSize

    chunk = ChunkSize(target=0.1, most=512)
    assert chunk.tokens(others_wait=False) == 512
    for _ in range(20):
        chunk.observe(0, 0.02)
        chunk.observe(64, 0.02 + 64 * 0.001)
    assert 72 <= chunk.tokens(others_wait=True) <= 80
    for _ in range(30):
        chunk.observe(80, 10.0)
    assert chunk.tokens(others_wait=True) == LEAST


def scores_of(prompt: list[int], adapter: int = -1, window: int = 0) -> list[tuple[float, int]]:
    """The log-probability and the rank of each token of a prompt but the first, by itself."""
    found: list[tuple[float, int]] = []
    for place in range(1, len(prompt)):
        seen = prompt[:place]
        logits = np.array(
            scores_after([adapter, *seen, *(seen[-window:] if window else [])], 4), np.float32
        )
        wide = logits.astype(np.float64)
        logprobs = wide - np.log(np.exp(wide).sum())
        rank = 1 + int((wide > wide[prompt[place]]).sum())
        found.append((logprobs[prompt[place]], rank))
    return found


@pytest.mark.parametrize("windows", [(0,), (0, 6)], ids=["all", "window"])
def test_scores_of_prompts(windows: tuple[int, ...]) -> None:
    """They do not depend on chunks, on the cache, on preemption, nor on others that run; each comes once."""
    pick = random.Random(5)
    model = FakeModel(15, windows=windows)
    own = Engine(model, pages=15, chunk=7, limits=Limits(4, 64))
    own.scheduler.scored = 5
    asked: dict[int, Request] = {}
    for number in range(60):
        plain = random_request(pick, number)
        fields = {"scored": pick.choice([None, 0, 2]), "max_tokens": pick.choice([0, 1, 17])}
        asked[number] = replace(plain, **fields, priority=pick.choice([0, 0, -2]), ends=frozenset())
        own.submit(asked[number])
        for _ in range(2):
            check_scores(own.step(), asked, windows[-1])
    while own.is_busy:
        check_scores(own.step(), asked, windows[-1])
    assert own.scheduler.preemptions
    assert not asked
    check_pages(own.book)


def check_scores(pieces: list[Piece], asked: dict[int, Request], window: int) -> None:
    """The first piece of a request has its scores; requests whose first text has ended are taken out."""
    for piece in pieces:
        assert piece.finish != "error", piece.error
        if piece.choice:
            assert not piece.scores
            continue
        one = asked[piece.request]
        if piece.cached is not None and one.scored is not None:
            expected_scores = scores_of([*one.prompt], one.adapter, window)
            assert [each.rank for each in piece.scores] == [rank for _, rank in expected_scores]
            assert [each.logprob for each in piece.scores] == pytest.approx(
                [logprob for logprob, _ in expected_scores], abs=1e-12
            )
            for each in piece.scores:
                assert len(each.top) == one.scored
                assert each.rank > one.scored or each.logprob in each.top.values()
        else:
            assert not piece.scores
        if piece.finish is not None:
            asked.pop(piece.request)


def test_no_tokens_are_written() -> None:
    """The prompt is computed, and is in the cache then."""
    own = engine()
    own.submit(request(0, [1] * 9, 0, n=2))
    (first, second) = [piece for _ in range(3) for piece in own.step()]
    assert (first.choice, first.tokens, first.finish, first.cached) == (0, (), "length", 0)
    assert (second.choice, second.tokens, second.finish, second.cached) == (1, (), "length", None)
    assert not own.is_busy
    own.submit(request(1, [1] * 9, 1))
    (piece,) = own.step()
    assert piece.cached == 8
    own.submit(request(2, [1] * 9, 0, scored=0))
    (piece,) = own.step()
    assert piece.cached == 0  # what is in the cache has no logits
    assert len(piece.scores) == 8


def test_scores_that_are_not_numbers_are_an_error() -> None:
    class Broken(FakeModel):
        def logits(self, logits: Any) -> np.ndarray:
            return super().logits(logits) * np.nan

    own = Engine(Broken(8), pages=8, chunk=3)
    own.submit(request(0, [1, 2, 3, 0, 1], 0, scored=0))
    (piece,) = own.step()
    assert isinstance(piece.error, UsageError)
    assert piece.error.code == "not-a-number"
    assert not own.is_busy
