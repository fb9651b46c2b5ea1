"""The books of a paged cache: which pages of the cache hold which tokens of which sequence.

    book = PageBook(pages=1024, page_size=32)
    chat = book.add(prompt)                       # shares the pages of a prefix that is in the cache
    batch = book.batch({chat: len(book.pending(chat))})
    vm["copy_pages"](batch.sources, batch.targets, caches)
    logits = vm["step"](*batch.arguments, caches)
    book.commit(batch)
    book.append(chat, [token])                    # and so on, with other sequences in the same batches

Only numbers of pages are known here: how a page lies in memory is the executable's matter. A page is read by any number
of sequences, and written by one: a token that comes to a shared page goes to a copy. Pages of sequences that are freed
stay in the cache, by their tokens, until their memory is needed (the least recently used first).

Books are safe to use from several threads: a method runs alone. A batch that is not committed, because a step raised or
was interrupted, has changed nothing either: the sequences' pages are as before, and their tokens still pending. If an
exception from outside (KeyboardInterrupt, MemoryError) interrupts a method itself, the books forget all pages, and all
tokens of all sequences are pending.

A cache has groups of layers with a table each. The layers of a group with a sliding window read only the last tokens,
so older pages are given back while the sequence goes on.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from operator import index
from threading import RLock
from typing import Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

import numpy as np

from relaxpy.errors import UsageError

ABSENT = -1
"""The entry of a table for a page that is not there: the sequence ends before it, or no window reaches it."""


LEAST_WIDTH = 64
"""The least width of tables; wider ones have twice as much, and so on. A graph that a device has recorded of a step
(`relaxpy.runtime.graphs`) is for one width, and serves while the sequences grow."""

NONE = -1
"""The adapter of a sequence without one."""

_Tokens: TypeAlias = "tuple[int | tuple[str, int], ...]"
"""Of a page: the numbers of tokens; of one that stands for a part of a content, that content's digest and the place of
the part."""
_Key: TypeAlias = tuple[int, str, int, _Tokens]
"""Of a prefix: the adapter, the salt, the prefix before, the tokens of the page."""


class Content(NamedTuple):
    """Tokens of a sequence that stand for something else than a word, such as a picture: what is in the cache depends
    on it, not on the tokens' numbers."""

    start: int
    """The place of the first one."""
    end: int
    """The place after the last one."""
    digest: str
    """Of what they stand for."""


@dataclass(eq=False)
class _Prefix:
    """A full page of tokens after certain others: a node in the tree of prefixes that are in the cache."""

    parent: _Prefix | None
    tokens: _Tokens
    pages: list[int]
    """The page of each group; `ABSENT` if it was given back."""
    adapter: int = NONE
    salt: str = ""

    @property
    def key(self) -> _Key:
        return self.adapter, self.salt, id(self.parent), self.tokens


@dataclass(frozen=True)
class _Copy:
    """A shared page that a sequence's next tokens must not go to. Its source is held until the batch is committed."""

    group: int
    number: int
    """The page of the sequence."""
    source: int
    target: int
    done: int
    """So many first tokens of the sequence are needed of the source."""


@dataclass
class _Sequence:
    tokens: list[int]
    done: int = 0
    """The number of tokens, from the first on, whose keys and values are in the cache."""
    pages: list[list[int]] = field(default_factory=list[list[int]])
    """For each group, the pages; `ABSENT` where they were given back."""
    prefixes: list[_Prefix] = field(default_factory=list[_Prefix])
    """The full pages that are in the tree of prefixes, from the first on."""
    adapter: int = NONE
    salt: str = ""
    copies: list[_Copy] = field(default_factory=list[_Copy])
    """Of the last batch, until it is committed."""
    contents: tuple[Content, ...] = ()
    """What tokens stand for, in their order."""

    def tokens_of(self, start: int, end: int) -> _Tokens:
        """The tokens from one place up to another, as prefixes are told apart."""
        found: list[int | tuple[str, int]] = [*self.tokens[start:end]]
        for each in self.contents:
            for place in range(max(start, each.start), min(end, each.end)):
                found[place - start] = each.digest, place - each.start
        return tuple(found)


@dataclass(frozen=True, eq=False)
class Batch:
    """The arguments of a step, and the copies to make before it."""

    counts: Mapping[int, int]
    """The number of new tokens of each sequence, in the order of the batch."""
    tokens: np.ndarray
    positions: np.ndarray
    starts: np.ndarray
    tables: np.ndarray
    lengths: np.ndarray
    rows: np.ndarray
    """The last token of each sequence."""
    sources: np.ndarray
    """(groups, copies): pages to copy to `targets`, one for each group; `ABSENT` where a group has fewer."""
    targets: np.ndarray
    adapters: np.ndarray
    """The adapter of each token, -1 for none: the argument `ids` of a step with adapters."""
    encoded: tuple[np.ndarray, np.ndarray] | None = None
    """Of models with an encoder, the pages and lengths of the sequences' sources (`relaxpy.serve.sources`)."""
    pictures: tuple[np.ndarray, ...] | None = None
    """Of models that see pictures, the rows (embedded, hidden) float32 that stand for tokens of this step, and which of
    them stands for each token (tokens,), -1 for none; where tokens have several rotary positions, these, too,
    and where those of a picture attend to each other, the last place of each (`relaxpy.serve.picture_rows`)."""

    @property
    def arguments(self) -> tuple[np.ndarray, ...]:
        """The arguments of a step before the caches."""
        return self.tokens, self.positions, self.starts, self.tables, self.lengths, self.rows


class _Pool:
    """The pages of a group: free, read by sequences, or kept for their tokens alone."""

    def __init__(self, count: int) -> None:
        self.free = deque(range(count))
        self.users = [0] * count
        self.prefix: list[_Prefix | None] = [None] * count
        self.kept: OrderedDict[int, None] = OrderedDict()
        """Pages without users that hold a prefix, the least recently used first."""
        self.held: dict[int, list[_Copy]] = {}
        """Pages that are sources of copies whose batch is not committed. They are neither free nor kept."""

    @property
    def available(self) -> int:
        return len(self.free) + len(self.kept)


class _Change:
    """A change of the books. If one was interrupted, the next one begins with books that have no pages."""

    def __init__(self, reset: Callable[[], None]) -> None:
        self.reset, self.is_open = reset, False

    def __enter__(self) -> None:
        if self.is_open:
            self.reset()
        self.is_open = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Mistakes are found before anything is changed.
        self.is_open = not (kind is None or issubclass(kind, UsageError))


P = ParamSpec("P")
T = TypeVar("T")


def _alone(method: Callable[Concatenate[PageBook, P], T]) -> Callable[Concatenate[PageBook, P], T]:
    """A method of a book that one thread runs at a time."""

    @wraps(method)
    def run(self: PageBook, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock, self._change:  # pyright: ignore[reportPrivateUsage]
            return method(self, *args, **kwargs)

    return run


class PageBook:
    """Sequences, and the pages of a cache that hold them. Sequences are named by numbers that are not used again.

    A method that raises has changed nothing.
    """

    def __init__(self, pages: int, page_size: int = 32, windows: Sequence[int] = (0,)) -> None:
        """A cache of `pages` pages in each group. `windows` has the sliding window of each group, 0 for none."""
        if pages < 1 or page_size < 1 or not windows or min(windows) < 0:
            raise UsageError(
                "page-book",
                f"a cache needs pages, a page size and windows, got {pages}, {page_size}, {list(windows)}",
                help="PageBook(1024, 32, windows=(0,)): a window of 0 keeps all tokens",
            )
        self.page_size, self.windows, self._pages = page_size, tuple(windows), pages
        self._pools = [_Pool(pages) for _ in windows]
        self._sequences: dict[int, _Sequence] = {}
        self._prefixes: dict[_Key, _Prefix] = {}
        self._next = 0
        self._lock, self._change = RLock(), _Change(self._forget_all)

    # What there is

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self._sequences)

    @_alone
    def tokens(self, sequence: int) -> list[int]:
        """All tokens of a sequence."""
        return list(self._of(sequence).tokens)

    @_alone
    def pending(self, sequence: int) -> list[int]:
        """The tokens of a sequence that are not in the cache yet."""
        own = self._of(sequence)
        return own.tokens[own.done :]

    @_alone
    def available(self, group: int = 0) -> int:
        """The number of pages that no sequence uses."""
        return self._pools[group].available

    @_alone
    def pending_count(self, sequence: int) -> int:
        """The number of tokens of a sequence that are not in the cache yet."""
        own = self._of(sequence)
        return len(own.tokens) - own.done

    @_alone
    def fits(self, counts: Mapping[int, int]) -> bool:
        """Whether there are pages for a step of the next `counts[s]` tokens of each sequence s; tokens may be counted
        that are appended later."""
        return all(
            sum(self._needed(self._of(name), group, count) for name, count in counts.items())
            <= pool.available
            for group, pool in enumerate(self._pools)
        )

    @_alone
    def missing(self, sequence: int, tokens: int, at_once: int) -> list[int]:
        """The number of pages of each group that a sequence lacks to reach a length, if at most `at_once` tokens are
        computed in a step: a window needs no more than what it reads, and a step."""
        own, found = self._of(sequence), list[int]()
        for window, pages in zip(self.windows, own.pages, strict=True):
            needed = self._pages_for(tokens) - len(pages)
            if window:
                held = sum(page != ABSENT for page in pages)
                needed = min(needed, self._pages_for(window + at_once) + 1 - held)
            found.append(max(needed, 0))
        return found

    @_alone
    def undoable(self, sequence: int, count: int) -> int:
        """How many tokens, at most `count`, may be computed after the next one and be popped again at no cost: the
        window of no group gives a page back meanwhile."""
        done = self._of(sequence).done + 1
        while count and any(
            self._first_page(group, done + count) != self._first_page(group, done)
            for group in range(len(self.windows))
        ):
            count -= 1
        return count

    # Sequences

    def add(
        self,
        tokens: Iterable[int],
        adapter: int = NONE,
        salt: str = "",
        reuse: bool = True,
        contents: Sequence[Content] = (),
    ) -> int:
        """Start a sequence. It shares the pages of its longest prefix that is in the cache; its last token is always
        pending, since a step is needed for its logits. Keys and values depend on the adapter (`nn.Adapters`), so
        sequences share pages with those of the same adapter; and with those of the same salt, so that nobody learns
        from the time of an answer what another one has asked. Tokens that stand for something else are told apart by
        their `contents`, not by their numbers. Without `reuse` all its tokens are pending."""
        if not NONE <= adapter < 1 << 31:
            raise UsageError("page-book", f"adapter {adapter} is neither a number nor {NONE}, none")
        return self._add(_checked_tokens(tokens), int(adapter), salt, reuse, tuple(contents))

    def append(self, sequence: int, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        self._append(sequence, _checked_tokens(tokens))

    @_alone
    def _append(self, sequence: int, tokens: list[int]) -> None:
        self._of(sequence).tokens.extend(tokens)

    @_alone
    def _add(
        self, tokens: list[int], adapter: int, salt: str, reuse: bool, contents: tuple[Content, ...]
    ) -> int:
        empty: list[list[int]] = [[] for _ in self.windows]
        own = _Sequence(tokens, pages=empty, adapter=adapter, salt=salt, contents=contents)
        found = self._longest_prefix(own) if reuse else []
        own.done = len(found) * self.page_size
        own.prefixes = found
        for group, pages in enumerate(own.pages):
            first = self._first_page(group, own.done)
            for number, prefix in enumerate(found):
                pages.append(prefix.pages[group] if number >= first else ABSENT)
                self._use(group, pages[-1])
        return self._named(own)

    @_alone
    def fork(self, sequence: int) -> int:
        """A second sequence with the same tokens, which shares all pages."""
        own = self._of(sequence)
        self._roll_back(own)
        for group, pages in enumerate(own.pages):
            for page in pages:
                self._use(group, page)
        copied = [list(pages) for pages in own.pages]
        return self._named(
            _Sequence(
                list(own.tokens), own.done, copied, list(own.prefixes), own.adapter, own.salt,
                contents=own.contents,
            )
        )  # fmt: skip

    @_alone
    def pop(self, sequence: int, count: int) -> None:
        """Remove the last tokens, such as drafts that were refused. Where a window has moved on, keys that it needs
        again are gone: then as many of the last tokens as needed are pending once more."""
        own = self._of(sequence)
        if not 0 <= _whole(count) <= len(own.tokens):
            raise UsageError(
                "page-book", f"{count} tokens to remove from a sequence of {len(own.tokens)}"
            )
        self._roll_back(own)
        del own.tokens[len(own.tokens) - count :]
        end = len(own.tokens)
        cut = [each._replace(end=min(each.end, end)) for each in own.contents if each.start < end]
        own.contents = tuple(cut)
        self._shorten(own, min(own.done, len(own.tokens)))

    @_alone
    def free(self, sequence: int) -> None:
        """End a sequence. Its full pages stay for sequences with the same beginning, as long as there is room."""
        own = self._of(sequence)
        self._roll_back(own)
        for group, pages in enumerate(own.pages):
            for page in reversed(pages):  # the end of a sequence is forgotten before its beginning
                self._release(group, page)
        del self._sequences[sequence]

    @_alone
    def evict(self, count: int | None = None) -> int:
        """Forget up to `count` pages of each group (None: all) that are kept for their tokens alone. Returns the number
        of those that were forgotten."""
        forgotten = 0
        for group, pool in enumerate(self._pools):
            for _ in range(len(pool.kept) if count is None else min(count, len(pool.kept))):
                self._forget(group, next(iter(pool.kept)))
                forgotten += 1
        return forgotten

    # Steps

    @_alone
    def batch(self, counts: Mapping[int, int]) -> Batch:
        """The step for the next `counts[s]` pending tokens of each sequence s. A batch that is not committed has no
        effect: a later one of the same sequences begins anew. Raises UsageError (`cache-full`) if there are not enough
        pages; freeing a sequence helps, or fewer tokens."""
        self._check(counts)
        for name in counts:
            self._roll_back(self._sequences[name])
        self._reserve(counts)
        copies: list[list[tuple[int, int]]] = [[] for _ in self.windows]
        width = 1
        for name, count in counts.items():
            own = self._sequences[name]
            width = max(width, self._pages_for(own.done + count))
            for group in range(len(self.windows)):
                copies[group] += self._make_room(own, group, own.done + count)
        width = max(LEAST_WIDTH, 1 << (width - 1).bit_length())
        tables = np.full((len(self.windows), len(counts), width), ABSENT, np.int32)
        tokens: list[int] = []
        positions: list[int] = []
        adapters: list[int] = []
        starts, lengths = [0], list[int]()
        for row, (name, count) in enumerate(counts.items()):
            own = self._sequences[name]
            end = own.done + count
            tokens += own.tokens[own.done : end]
            positions += range(own.done, end)
            adapters += [own.adapter] * count
            starts.append(len(tokens))
            lengths.append(end)
            for group, pages in enumerate(own.pages):
                needed = pages[: self._pages_for(end)]
                tables[group, row, : len(needed)] = needed
        most = max(map(len, copies))
        moved = np.full((2, len(self.windows), most), ABSENT, np.int32)
        for group, pairs in enumerate(copies):
            for n, pair in enumerate(pairs):
                moved[:, group, n] = pair
        return Batch(
            dict(counts),
            np.array(tokens, np.int64),
            np.array(positions, np.int64),
            np.array(starts, np.int32),
            tables,
            np.array(lengths, np.int32),
            np.array([end - 1 for end in starts[1:]], np.int32),
            moved[0],
            moved[1],
            np.array(adapters, np.int32),
        )

    @_alone
    def commit(self, batch: Batch) -> None:
        """Note that a step has run: its tokens are in the cache."""
        starts, lengths = batch.starts.tolist(), batch.lengths.tolist()
        for row, (name, count) in enumerate(batch.counts.items()):
            own, start, end = self._of(name), *starts[row : row + 2]
            pages = [of_group[: self._pages_for(own.done + count)] for of_group in own.pages]
            is_same = (
                own.done + count == lengths[row]
                and own.tokens[own.done : own.done + count] == batch.tokens[start:end].tolist()
                and pages
                == [t[: len(p)].tolist() for t, p in zip(batch.tables[:, row], pages, strict=True)]
            )
            if not is_same:
                raise UsageError(
                    "page-book",
                    f"sequence {name} is not as it was when the batch was made",
                    help="commit a batch once, before tokens of its sequences are removed",
                )
        for name, count in batch.counts.items():
            own = self._of(name)
            self._let_go(own)
            own.done += count
            self._keep_full_pages(own)
            for group, pages in enumerate(own.pages):
                for number in range(min(self._first_page(group, own.done), len(pages))):
                    self._release(group, pages[number])
                    pages[number] = ABSENT

    # Inside

    def _of(self, sequence: int) -> _Sequence:
        own = self._sequences.get(sequence)
        if own is None:
            raise UsageError("page-book", f"there is no sequence {sequence}")
        return own

    def _named(self, own: _Sequence) -> int:
        self._sequences[self._next] = own
        self._next += 1
        return self._next - 1

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _first_page(self, group: int, done: int) -> int:
        """The first page that the token after `done` others reads."""
        window = self.windows[group]
        return max(done + 1 - window, 0) // self.page_size if window else 0

    def _check(self, counts: Mapping[int, int]) -> None:
        for name, count in counts.items():
            own = self._of(name)
            pending = len(own.tokens) - own.done
            if not 0 < _whole(count) <= pending:
                raise UsageError(
                    "page-book",
                    f"{count} tokens of sequence {name} are asked for, {pending} are pending",
                )

    def _reserve(self, counts: Mapping[int, int]) -> None:
        """Evict what the batch needs; raise if that is not enough."""
        own = [(self._sequences[name], count) for name, count in counts.items()]
        groups = range(len(self._pools))
        every = [sum([self._needed(each, group, count) for each, count in own]) for group in groups]
        for needed, pool in zip(every, self._pools, strict=True):
            if needed > pool.available:
                raise UsageError(
                    "cache-full",
                    f"the step needs {needed} pages, and {pool.available} are available",
                    help="run fewer tokens or sequences in a step, or free a sequence",
                )
        for group, (needed, pool) in enumerate(zip(every, self._pools, strict=True)):
            while len(pool.free) < needed:
                self._forget(group, next(iter(pool.kept)))

    def _needed(self, own: _Sequence, group: int, count: int) -> int:
        """The number of new pages for some tokens: those that are missing, and a copy of the last one if others use
        it."""
        have = len(own.pages[group])
        copied = self._is_shared(own, group)
        return max(self._pages_for(own.done + count) - have, 0) + copied

    def _is_shared(self, own: _Sequence, group: int) -> bool:
        """Is the page of the next token one that others read?"""
        number = own.done // self.page_size
        if number >= len(own.pages[group]):
            return False
        page, pool = own.pages[group][number], self._pools[group]
        if page == ABSENT:
            return False
        held = pool.held.get(page, ())
        return pool.users[page] > 1 or any(copy.done > own.done for copy in held)

    def _make_room(self, own: _Sequence, group: int, end: int) -> list[tuple[int, int]]:
        """Give a sequence pages up to a length. Returns the copy to make, source and target, if there is one."""
        pages, pool, copies = own.pages[group], self._pools[group], list[tuple[int, int]]()
        number = own.done // self.page_size
        if self._is_shared(own, group):
            source, target = pages[number], self._take(group)
            copy = _Copy(group, number, source, target, own.done)
            pool.held.setdefault(source, []).append(copy)
            own.copies.append(copy)
            self._release(group, source)
            pages[number] = target
            copies.append((source, target))
        elif number < len(pages) and (kept := pool.prefix[pages[number]]) is not None:
            self._detach(group, pages[number], kept)  # its tokens change
        while len(pages) < self._pages_for(end):
            pages.append(self._take(group))
        return copies

    def _take(self, group: int) -> int:
        pool = self._pools[group]
        page = pool.free.popleft()
        pool.users[page] = 1
        return page

    def _use(self, group: int, page: int) -> None:
        if page == ABSENT:
            return
        pool = self._pools[group]
        pool.users[page] += 1
        pool.kept.pop(page, None)

    def _release(self, group: int, page: int) -> None:
        if page == ABSENT:
            return
        pool = self._pools[group]
        pool.users[page] -= 1
        self._keep_or_free(group, page)

    def _keep_or_free(self, group: int, page: int) -> None:
        """Let a page that nobody needs any more be found by its prefix, or taken."""
        pool = self._pools[group]
        if pool.users[page] or page in pool.held:
            return
        if pool.prefix[page] is None:
            pool.free.append(page)
        else:
            pool.kept[page] = None

    def _let_go(self, own: _Sequence) -> None:
        """Hold the sources of a sequence's copies no longer."""
        for copy in own.copies:
            pool = self._pools[copy.group]
            left = [each for each in pool.held.pop(copy.source) if each is not copy]
            if left:
                pool.held[copy.source] = left
            self._keep_or_free(copy.group, copy.source)
        own.copies = []

    def _roll_back(self, own: _Sequence) -> None:
        """Undo the copies of a batch that was not committed: they may not have been made."""
        for copy in own.copies:
            own.pages[copy.group][copy.number] = copy.source
            self._pools[copy.group].users[copy.source] += 1
            self._release(copy.group, copy.target)
        self._let_go(own)

    def _forget_all(self) -> None:
        """Forget all pages: the tokens of all sequences are pending."""
        self._pools = [_Pool(self._pages) for _ in self.windows]
        self._prefixes = {}
        for own in self._sequences.values():
            own.done, own.prefixes, own.copies = 0, [], []
            own.pages = [[] for _ in self.windows]

    def _forget(self, group: int, page: int) -> None:
        """Free a page that is kept for its tokens alone."""
        pool = self._pools[group]
        del pool.kept[page]
        prefix = pool.prefix[page]
        assert prefix is not None, "what is kept holds a prefix"
        self._detach(group, page, prefix)
        pool.free.append(page)

    def _detach(self, group: int, page: int, prefix: _Prefix) -> None:
        """Remove a page from the tree of prefixes."""
        self._pools[group].prefix[page] = None
        prefix.pages[group] = ABSENT
        if all(each == ABSENT for each in prefix.pages):
            self._prefixes.pop(prefix.key, None)

    def _longest_prefix(self, own: _Sequence) -> list[_Prefix]:
        """The longest prefix of full pages in the cache that leaves a token."""
        found: list[_Prefix] = []
        while (len(found) + 1) * self.page_size < len(own.tokens):
            start = len(found) * self.page_size
            chunk = own.tokens_of(start, start + self.page_size)
            each = self._prefixes.get(
                (own.adapter, own.salt, id(found[-1] if found else None), chunk)
            )
            if each is None:
                break
            found.append(each)
        while found and not self._is_complete(found):
            found.pop()
        return found

    def _is_complete(self, prefixes: Sequence[_Prefix]) -> bool:
        """Are the pages that the next token reads all there?"""
        done = len(prefixes) * self.page_size
        return all(
            prefix.pages[group] != ABSENT
            for group in range(len(self.windows))
            for prefix in prefixes[self._first_page(group, done) :]
        )

    def _keep_full_pages(self, own: _Sequence) -> None:
        """Enter full pages into the tree of prefixes. A page whose tokens are there already is the sequence's own."""
        for number in range(len(own.prefixes), own.done // self.page_size):
            chunk = own.tokens_of(number * self.page_size, (number + 1) * self.page_size)
            parent = own.prefixes[-1] if own.prefixes else None
            absent = [ABSENT] * len(self.windows)
            made = _Prefix(parent, chunk, absent, own.adapter, own.salt)
            prefix = self._prefixes.setdefault(made.key, made)
            own.prefixes.append(prefix)
            for group, pages in enumerate(own.pages):
                page, pool = pages[number], self._pools[group]
                if page == ABSENT or pool.prefix[page] is not None:
                    continue
                if prefix.pages[group] == ABSENT:
                    prefix.pages[group] = page
                    pool.prefix[page] = prefix

    def _shorten(self, own: _Sequence, done: int) -> None:
        """Let a sequence have only `done` tokens in the cache."""
        for group in range(len(self.windows)):
            first = self._first_page(group, done)
            present = own.pages[group][first : self._pages_for(done)]
            if ABSENT in present:
                # The window cannot go back: what it read is gone. From its first page on, tokens are computed again.
                done = 0
        own.done = done
        for group, pages in enumerate(own.pages):
            for page in reversed(pages[self._pages_for(done) :]):
                self._release(group, page)
            del pages[self._pages_for(done) :]
        del own.prefixes[done // self.page_size :]


def _whole(number: int) -> int:
    """The number, which must be an integer. Raises: UsageError (`page-book`)."""
    try:
        return index(number)
    except TypeError:
        raise UsageError("page-book", f"a number of tokens is an integer, got {number!r}") from None


def _checked_tokens(tokens: Iterable[int]) -> list[int]:
    """Raises: UsageError (`page-book`) if something else than integers of 64 bits is among the tokens."""
    found: list[int] = []
    for each in tokens:
        try:
            token = index(each)
        except TypeError:
            token = 1 << 63
        if not -(1 << 63) <= token < 1 << 63:
            raise UsageError("page-book", f"a token is an integer of 64 bits, got {each!r}")
        found.append(token)
    return found
