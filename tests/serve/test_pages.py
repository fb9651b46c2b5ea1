"""The books of a paged cache against a plain cache: after any sequence of operations, the pages that a table names hold
what the tokens of the sequence put there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.runtime.pages import check_pages
from relaxpy.runtime.tensor import from_numpy
from relaxpy.serve import Batch, PageBook
from tests.sweeps import FULL, sweep

SIZE = 4


class Cache:
    """A cache beside its books. What a slot holds is the adapter, and the sequence of tokens up to its own, as keys and
    values depend on all of them."""

    def __init__(self, pages: int, windows: tuple[int, ...] = (0,)) -> None:
        self.count, self.windows = pages, windows
        self.book = PageBook(pages, SIZE, windows)
        self.slots = [dict[int, tuple[int, ...]]() for _ in windows]

    def step(self, counts: Mapping[int, int], until: str = "commit") -> Batch:
        """Run the batch as an executable would; every key that a token reads must be the right one. `until` is the last
        of "batch", "copies", "step" and "commit" that is done."""
        batch = self.book.batch(counts)
        if until == "batch":
            return batch
        tables, positions, starts, lengths, rows = (
            from_numpy(np.ascontiguousarray(x))
            for x in (batch.tables, batch.positions, batch.starts, batch.lengths, batch.rows)
        )
        check_pages(tables, positions, starts, lengths, rows, self.count, SIZE, self.windows)
        for group, slots in enumerate(self.slots):
            for source, target in zip(batch.sources[group], batch.targets[group], strict=True):
                for i in range(SIZE) if source >= 0 else ():
                    slots[target * SIZE + i] = slots.get(source * SIZE + i, ())
        if until == "copies":
            return batch
        for group, (slots, window) in enumerate(zip(self.slots, self.windows, strict=True)):
            for row, name in enumerate(counts):
                tokens, table = self.book.tokens(name), batch.tables[group, row]
                first, last = batch.starts[row : row + 2]
                for token in range(first, last):
                    place = batch.positions[token]
                    assert batch.tokens[token] == tokens[place]
                    at = table[place // SIZE] * SIZE + place % SIZE
                    slots[at] = (batch.adapters[token], *tokens[: place + 1])
                for token in range(first, last):
                    place = batch.positions[token]
                    for key in range(max(0, place + 1 - window) if window else 0, place + 1):
                        at = table[key // SIZE] * SIZE + key % SIZE
                        expected = (batch.adapters[token], *tokens[: key + 1])
                        assert slots[at] == expected, (name, group, key)
        if until == "commit":
            self.book.commit(batch)
        return batch


def test_widths_of_tables() -> None:
    """They double, so that a sequence of a step more has the shape of the step before."""
    cache = Cache(200)
    name = cache.book.add([1])
    widths = [cache.step({name: 1}).tables.shape[2]]
    for _ in range(140 * SIZE):
        cache.book.append(name, [2])
        widths.append(cache.step({name: 1}).tables.shape[2])
    assert sorted(set(widths)) == [64, 128, 256]
    assert widths == sorted(widths)
    assert widths.count(64) == 64 * SIZE


STAGES = ("batch", "copies", "step", *["commit"] * 12)


def fill(cache: Cache, *names: int) -> None:
    """Steps of all pending tokens."""
    cache.step({name: len(cache.book.pending(name)) for name in names})


@sweep
@pytest.mark.parametrize("windows", [(0,), (0, 6), (5,)])
@pytest.mark.parametrize("seed", range(3))
def test_random_steps(windows: tuple[int, ...], seed: int) -> None:
    """Add, append, fork, pop, free, evict and step at random, in a cache that is mostly full."""
    rng = np.random.default_rng(seed)
    cache = Cache(24, windows)
    book, names, refused = cache.book, list[int](), 0
    prompts = [list(map(int, rng.integers(0, 3, 22))) for _ in range(3)]
    for _ in range(10_000 if FULL else 400):
        choice = rng.integers(0, 10)
        one = int(rng.choice(names)) if names else -1
        if choice <= 1 or one < 0:
            prompt = prompts[rng.integers(3)][: rng.integers(1, 22)]
            names.append(book.add([*prompt, int(rng.integers(3))], int(rng.integers(-1, 1))))
        elif choice == 2:
            names.append(book.fork(one))
        elif choice == 3:
            book.pop(one, int(rng.integers(0, min(7, len(book.tokens(one)) + 1))))
        elif choice == 4 and len(names) > 3:
            book.free(one)
            names.remove(one)
        elif choice == 5:
            book.evict(int(rng.integers(0, 4)))
        elif choice == 6:
            book.append(one, rng.integers(0, 3, rng.integers(0, 5)))
        else:
            counts: dict[int, int] = {}
            for name in rng.permutation(names)[: rng.integers(1, 4)]:
                pending = len(book.pending(int(name)))
                if pending:
                    counts[int(name)] = int(rng.integers(1, pending + 1))
            try:
                cache.step(counts, STAGES[rng.integers(len(STAGES))])
            except UsageError as error:
                if error.code != "cache-full":
                    raise
                refused += 1
                book.free(names.pop(0))
    assert refused or not FULL
    for name in names:
        book.free(name)
    book.evict()
    assert all(book.available(group) == 24 for group in range(len(windows)))
    assert len(book) == 0


def test_a_prefix_is_shared() -> None:
    """Full pages of a sequence that was freed serve the next one with the same beginning."""
    cache = Cache(8)
    first = cache.book.add(range(10))
    fill(cache, first)
    second = cache.book.add([*range(9), 7])
    assert len(cache.book.pending(second)) == 2
    fill(cache, second)
    assert cache.book.available() == 8 - 4
    cache.book.free(first)
    third = cache.book.add(range(8))  # one token is always computed
    assert len(cache.book.pending(third)) == 4
    cache.book.free(second)
    cache.book.free(third)
    assert cache.book.available() == 8
    assert cache.book.evict() == 2
    assert len(cache.book.pending(cache.book.add(range(10)))) == 10


def test_a_shared_page_is_copied() -> None:
    """The first of two forks that writes gets a copy; the other goes on in the page."""
    cache = Cache(8)
    one = cache.book.add(range(6))
    fill(cache, one)
    two = cache.book.fork(one)
    for name, token in ((one, 1), (two, 2)):
        cache.book.append(name, [token])
    batch = cache.step({one: 1, two: 1})
    assert batch.sources.shape == (1, 1)
    assert cache.book.available() == 8 - 3


def test_a_window_gives_pages_back() -> None:
    """A sequence in a window of 5 needs three pages, however long it is."""
    cache = Cache(4, (5,))
    one = cache.book.add([1])
    for token in range(50):
        fill(cache, one)
        cache.book.append(one, [token])
    assert cache.book.available() >= 1
    cache.book.pop(one, 12)
    assert len(cache.book.pending(one)) == 39  # what the window needs again is gone


def test_a_full_cache_changes_nothing() -> None:
    cache = Cache(2)
    one, two = cache.book.add(range(5)), cache.book.add(range(9))
    fill(cache, one)
    with pytest.raises(UsageError, match="needs 3 pages, and 0 are available") as caught:
        fill(cache, two)
    assert caught.value.code == "cache-full"
    cache.book.append(one, [5])
    fill(cache, one)


def test_a_batch_is_committed_once() -> None:
    """And not after its tokens were removed; what it refuses is as it was."""
    book = PageBook(4, SIZE)
    one, two = book.add(range(3)), book.add(range(2))
    batch = book.batch({one: 3, two: 2})
    book.pop(two, 1)
    with pytest.raises(UsageError, match=f"sequence {two} is not as it was"):
        book.commit(batch)
    assert len(book.pending(one)) == 3
    book.append(two, [1])
    book.commit(batch)
    with pytest.raises(UsageError, match="commit a batch once"):
        book.commit(batch)


def test_mistakes_are_refused() -> None:
    book = PageBook(4, SIZE)
    one = book.add([1, 2])
    for mistake in (
        lambda: PageBook(0),
        lambda: PageBook(4, windows=()),
        lambda: book.pop(one, 3),
        lambda: book.tokens(one + 1),
        lambda: book.batch({one: 3}),
        lambda: book.batch({one: 0}),
    ):
        with pytest.raises(UsageError):
            mistake()
    assert book.pending(one) == [1, 2]


@pytest.mark.parametrize("until", ["batch", "copies", "step"])
def test_a_batch_that_is_not_committed_has_no_effect(until: str) -> None:
    """An exception between `batch` and `commit`: also the copies of shared pages may not have been made. The other fork
    goes on meanwhile, and is freed."""
    cache = Cache(8)
    one = cache.book.add(range(6))
    fill(cache, one)
    two = cache.book.fork(one)
    for name, token in ((one, 1), (two, 2)):
        cache.book.append(name, [token])
    lost = cache.step({one: 1}, until)
    fill(cache, two)
    cache.book.free(two)
    cache.book.evict()
    third = cache.book.fork(one)
    with pytest.raises(UsageError, match="not as it was"):
        cache.book.commit(lost)
    fill(cache, one, third)
    for name in (one, third):
        cache.book.free(name)
    cache.book.evict()
    assert cache.book.available() == 8


def test_other_tokens_are_not_committed() -> None:
    book = PageBook(4, SIZE)
    one = book.add(range(3))
    batch = book.batch({one: 3})
    book.pop(one, 1)
    book.append(one, [7])
    with pytest.raises(UsageError, match="not as it was"):
        book.commit(batch)


@pytest.mark.parametrize("count", [-1, 0, 4, 1 << 70, -(1 << 70), 1.5, "2", None, float("nan")])
def test_counts_that_are_refused(count: Any) -> None:
    """And nothing has changed: the next batch is whole."""
    cache = Cache(4)
    one, two = cache.book.add(range(3)), cache.book.add(range(3))
    with pytest.raises(UsageError, match="tokens"):
        cache.book.batch({one: 1, two: count})
    with pytest.raises(UsageError, match="token"):
        cache.book.pop(one, count or 9)
    fill(cache, one, two)


@pytest.mark.parametrize("token", [1 << 63, -(1 << 63) - 1, 1.0, "a", None])
def test_tokens_that_are_refused(token: Any) -> None:
    book = PageBook(4, SIZE)
    one = book.add([1])
    with pytest.raises(UsageError, match="integer of 64 bits"):
        book.append(one, [2, token])
    with pytest.raises(UsageError, match="integer of 64 bits"):
        book.add([token])
    assert book.pending(one) == [1]
    assert len(book) == 1


def test_threads() -> None:
    """Each thread has sequences of its own, in books that all of them share. No page is lost, and none has two owners
    that do not know of each other."""
    book, failed = PageBook(64, SIZE), list[BaseException]()

    def serve(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(60):
                one = book.add(rng.integers(0, 2, rng.integers(1, 12)))
                other = book.fork(one)
                for _ in range(3):
                    book.append(one, [seed])
                    batch = book.batch({name: len(book.pending(name)) for name in (one, other)})
                    used = batch.tables[batch.tables >= 0]
                    assert ((used >= 0) & (used < 64)).all()
                    book.commit(batch)
                    book.append(other, [9])
                book.pop(one, 2)
                book.free(other)
                book.free(one)
        except BaseException as error:
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed, failed
    book.evict()
    assert book.available() == 64
    assert len(book) == 0


def test_an_interrupted_method() -> None:
    """An exception at any line of a method: the books are then empty or whole, and what they say of pages is right."""

    class Interrupt(BaseException):
        pass

    def run(stop: int) -> bool:
        """Interrupt after so many lines. Returns whether it came so far."""
        cache, lines, came = Cache(16), 0, False
        one = cache.book.add(range(10))
        fill(cache, one)
        two = cache.book.fork(one)
        cache.book.append(one, [1])
        cache.book.append(two, [2])

        def trace(frame: Any, event: str, arg: Any) -> Any:
            nonlocal lines
            if not frame.f_code.co_filename.endswith("serve/pages.py"):
                return None
            if event == "line":
                lines += 1
                if lines == stop:
                    raise Interrupt
            return trace

        sys.settrace(trace)
        try:
            batch = cache.book.batch({one: 1, two: 1})
            cache.book.pop(one, 3)
            cache.book.free(two)
            del batch
        except Interrupt:
            came = True
        finally:
            sys.settrace(None)
        names = [one, two][: len(cache.book)]  # the second one may be gone
        for name in names:
            cache.book.append(name, [3])
        fill(cache, *names)
        fill(cache, new := cache.book.add(range(9)))
        for name in (*names, new):
            cache.book.free(name)
        cache.book.evict()
        assert cache.book.available() == 16, stop
        return came

    stop = 1
    while run(stop):
        stop += 1
    assert stop > 100
