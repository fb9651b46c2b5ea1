"""The scheduler: which tokens of which texts the next step computes. It computes no numbers itself.

    scheduler = Scheduler(book := PageBook(1024))
    text = scheduler.submit(Request(0, prompt, max_tokens=100))
    while plan := scheduler.plan():
        batch = book.batch(plan.counts)            # run the step, then book.commit(batch)
        scheduler.ran(plan, seconds)
        scheduler.append(text, [token])            # for each text whose tokens were all computed
    scheduler.finish(text)

Requests wait in a queue until there are pages for their prompts. A step takes the next token of every text that is
being written, and a part of the prompts. If pages run out, the text that is last in the order of service gives its own
back and waits again; its tokens are computed anew then, except those that are still in the cache.

**The order of service** is that of tags, given once, when a request comes (start-time fair queueing). A request of a
client that has no others gets the virtual time, one of a busy client the end of its request before, in tokens; each
step of priority adds `PRIORITY` tokens. Virtual time passes as tokens are computed. A request is charged with all
tokens that it may write; if it writes fewer, those of its client that wait move forward. So clients share the engine by
tokens, however many requests one of them sends; and nothing starves, since a later request gets a later tag.

**Encoders.** What the encoder of a model makes of an input is in pages of its own (`relaxpy.serve.sources`), which a
text holds while it runs. A step begins with inputs that are still to be encoded: with one, if a text waits for its next
token, so that none waits longer than for one input and a step; else with several at once.

**Pictures.** The rows that a tower makes of a picture (`relaxpy.serve.pictures`) are needed when its tokens are
computed. A step that comes to the tokens of a picture without rows begins with the tower, for one picture: the parts of
prompts end before the next such one. So others wait no longer than for one picture and a step. Where a picture's tokens
attend to each other, no part of a prompt ends within one: it may be longer for that.

The first text in the order is never preempted, and alone it always fits, because a request that does not fit the whole
cache is refused. So there is always progress.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from relaxpy.errors import UsageError
from relaxpy.serve.beams import BeamSearch
from relaxpy.serve.check_request import check_request
from relaxpy.serve.chunk_size import ChunkSize
from relaxpy.serve.pages import PageBook
from relaxpy.serve.pictures import Picture, PictureShape, PictureStore, Placed, within
from relaxpy.serve.request import Request, Score
from relaxpy.serve.sources import Source, SourceBook

PRIORITY = 4096
"""A step of priority, in tokens of the virtual time."""


@dataclass(frozen=True)
class Limits:
    """The most that an engine takes on."""

    running: int = 16
    """The most texts in a step."""
    waiting: int = 1024
    """The most requests that wait; with 0 those are taken that can run at once."""
    drafted: int = 32
    """The most rows of a step that are next tokens and drafts; with more texts than this there are no drafts."""
    encoded: int = 4
    """The most inputs that are encoded together."""

    def __post_init__(self) -> None:
        if self.running < 1 or self.waiting < 0 or self.drafted < 0 or self.encoded < 1:
            raise UsageError("bad-length", f"limits of an engine are not negative, got {self}")


@dataclass(eq=False)
class Text:
    """A text of a request, from its arrival to its end."""

    request: Request
    tag: float
    least: float
    """The tag that it would have if it were the only request of its client."""
    arrival: int
    tokens: list[int]
    """The prompt, and what was written."""
    choice: int = 0
    sequence: int | None = None
    """Its number in the page book, while it runs."""
    cached: int | None = None
    """The tokens of the prompt that were in the cache when it first ran."""
    is_forked: bool = False
    """Whether the other texts of its request have been made from it."""
    scores: list[Score] = field(default_factory=list[Score])
    """Those of its prompt so far, if its request wants them."""
    source: Source | None = None
    """What the encoder makes of its input, while it runs."""
    probes: dict[int, float] = field(default_factory=dict[int, float])
    """The answers so far to the probes of its request, by their numbers."""
    beams: BeamTexts | None = None
    """The texts of a search that it is one of."""

    @property
    def order(self) -> tuple[float, int, int]:
        """Its place in the order of service."""
        return self.tag, self.arrival, self.choice

    @property
    def is_running(self) -> bool:
        """Whether it has a sequence of the page book."""
        return self.sequence is not None

    @property
    def is_scoring(self) -> bool:
        """Whether scores of its prompt are still to be computed: what is in the cache has none."""
        request = self.request
        return request.scored is not None and len(self.scores) < len(request.prompt) - 1

    @property
    def is_probing(self) -> bool:
        """Whether probes of its prompt are still to be answered."""
        return not self.choice and len(self.probes) < len(self.request.probes)

    @property
    def is_encoded(self) -> bool:
        """Whether it has all that its tokens attend to: its input is encoded, if it has one."""
        return self.source is None or self.source.is_filled

    @property
    def written(self) -> int:
        """The number of tokens that were written."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def places(self) -> int:
        """The number of texts that it is, or will become."""
        return 1 if self.is_forked else self.request.places


@dataclass(eq=False)
class BeamTexts:
    """The texts of a search with beams: they wait, run and go on together."""

    search: BeamSearch
    texts: list[Text]
    """In the order of the search's beams."""


class Look(NamedTuple):
    """A picture for the tower."""

    picture: Picture
    salt: str


@dataclass(frozen=True)
class Chunk:
    """The part of a text that a step computes."""

    text: Text
    sequence: int
    count: int
    """So many of its pending tokens."""
    is_last: bool
    """They are all that are pending: the step gives the next token."""
    drafts: tuple[int, ...] = ()
    """Guesses of the tokens after these, computed along."""
    start: int = 0
    """The place of the first one in the text."""

    @property
    def pictures(self) -> list[Placed]:
        """The pictures of which it has tokens."""
        return within(self.text.request.pictures, self.start, self.start + self.count)

    @property
    def looks(self) -> list[Look]:
        """What the tower must have seen before it."""
        return [Look(each.picture, self.text.request.salt) for each in self.pictures]


@dataclass(frozen=True)
class Plan:
    """A step."""

    parts: tuple[Chunk, ...]
    encodes: tuple[Source, ...] = ()
    """Inputs of one shape that are encoded first."""
    looks: tuple[Look, ...] = ()
    """A picture, if there is one, that the tower sees first."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of prompts, and of texts that are computed anew."""
        return sum([part.count for part in self.parts if part.count > 1])

    @property
    def counts(self) -> Mapping[int, int]:
        """For `PageBook.batch`, after the drafts were appended."""
        return {part.sequence: part.count + len(part.drafts) for part in self.parts}

    @property
    def tokens(self) -> int:
        """The number of all tokens of the step."""
        return sum([part.count + len(part.drafts) for part in self.parts])


@dataclass
class _Client:
    end: float = 0.0
    """The tag at which the next request of the client begins."""
    texts: int = 0
    """Those that wait or run, or will be made from one that does."""


class _Reach:
    """How far the parts of a step may come: up to a picture without rows, but for the first one, which the tower sees
    before."""

    def __init__(self, store: PictureStore | None, has_spans: bool) -> None:
        self.store, self.has_spans, self.looks = store, has_spans, list[Look]()

    def count(self, text: Text, start: int, count: int) -> int:
        """How many of so many tokens of a text, from a place on, can be computed."""
        if self.store is None:
            return count
        for each in within(text.request.pictures, start, start + count):
            look = Look(each.picture, text.request.salt)
            if look in self.store or look in self.looks:
                continue
            if self.looks:
                return max(each.start - start, 0)
            self.looks.append(look)
        return self._whole(text, start, count) if self.has_spans and count else count

    def _whole(self, text: Text, start: int, count: int) -> int:
        """The same without a part of a picture at its end, unless it begins with the picture."""
        for each in within(text.request.pictures, start + count - 1, start + count):
            if each.end > start + count:
                return each.start - start if each.start > start else each.end - start
        return count


Drafter = Callable[[Text, int], Sequence[int]]
"""Guesses at most so many next tokens of a text."""


@dataclass(eq=False)
class Scheduler:
    """The requests of an engine. It is used by one thread."""

    book: PageBook
    capacity: int
    """The tokens that the cache has room for, in pages."""
    limits: Limits = field(default_factory=Limits)
    chunk: ChunkSize = field(default_factory=ChunkSize)
    drafter: Drafter | None = None
    scored: int = 512
    """The most tokens of a step whose scores are computed."""
    sources: SourceBook | None = None
    """Of a model with an encoder."""
    pictures: PictureShape | None = None
    """Of a model that sees pictures."""
    store: PictureStore | None = None
    """The same."""
    waiting: list[Text] = field(default_factory=list[Text])
    """In the order of service."""
    running: list[Text] = field(default_factory=list[Text])
    """In the order of service."""
    preemptions: int = 0
    """How many times a text has given its pages back."""
    _clients: dict[str, _Client] = field(default_factory=dict[str, _Client])
    _now: float = 0.0
    """The virtual time."""
    _arrivals: int = 0
    _refused: tuple[Text, int, list[int]] | None = None
    """The text that found no room last, the number that ran, and the pages that were available."""

    # Requests

    def submit(self, request: Request) -> Text:
        """Let a request wait. Raises: UsageError: `bad-length` for one that the cache never has room for, or of more
        texts than a step; `queue-full`."""
        check_request(
            request, self.limits.running, self.capacity, self.book.page_size,
            None if self.sources is None else self.sources.shape, self.pictures,
        )  # fmt: skip
        places = sum(text.places for text in (*self.running, *self.waiting)) + request.places
        if len(self.waiting) >= self.limits.waiting and places > self.limits.running:
            raise UsageError(
                "queue-full",
                f"{len(self.waiting)} requests wait, and no more than {self.limits.waiting} may",
                help="try again later",
            )
        client = self._clients.setdefault(request.client, _Client())
        client.texts += request.places
        start = max(self._now, client.end)
        client.end = start + len(request.prompt) + request.places * request.max_tokens
        offset, arrival = PRIORITY * request.priority, self._arrivals
        text = Text(request, start + offset, self._now + offset, arrival, [*request.prompt])
        text.is_forked = request.places == 1
        if request.beams is not None:
            search = BeamSearch(request.beams, request.max_tokens, request.ends)
            text.beams = BeamTexts(search, [text])
        self._arrivals += 1
        insort(self.waiting, text, key=_order)
        return text

    def fork(self, text: Text) -> list[Text]:
        """The other texts of a request of several, made from the first one when its prompt has been computed."""
        assert text.sequence is not None, "a text is forked while it runs"
        text.is_forked = True
        made = [
            Text(
                text.request, text.tag, text.least, text.arrival, list(text.tokens), choice,
                self.book.fork(text.sequence), text.cached, True, source=text.source,
            )
            for choice in range(1, text.request.n)
        ]  # fmt: skip
        for each in made:
            if each.source is not None:
                each.source.users += 1
            insort(self.running, each, key=_order)
        return made

    def go_on(self, beams: BeamTexts, chosen: Sequence[tuple[int, int]]) -> None:
        """Let the texts of a search be those that continue its beams: for each the number of the beam, and a token."""
        old, new = beams.texts, list[Text]()
        taken = {beam for beam, _ in chosen}
        for number, text in enumerate(old):
            text.is_forked = True
            if number not in taken:
                self._stop(text)
        numbers = iter(sorted({*range(len(chosen))} - {old[beam].choice for beam in taken}))
        kept = set[int]()
        for beam, _ in chosen:
            text = old[beam]
            if beam in kept:
                assert text.sequence is not None, "beams go on while they run"
                text = Text(
                    text.request, text.tag, text.least, text.arrival, list(text.tokens), next(numbers),
                    self.book.fork(text.sequence), text.cached, True, text.scores, text.source, text.probes, beams,
                )  # fmt: skip
                if text.source is not None:
                    text.source.users += 1
                insort(self.running, text, key=_order)
            kept.add(beam)
            new.append(text)
        beams.texts = new
        for text, (_, token) in zip(new, chosen, strict=True):
            self.append(text, [token])

    def append(self, text: Text, tokens: Sequence[int], drafted: int = 0) -> None:
        """Add tokens that were written. All but the last were drafts, of which so many were computed."""
        assert text.sequence is not None, "tokens are written while a text runs"
        right = len(tokens) - 1
        text.tokens += tokens
        if drafted > right:
            self.book.pop(text.sequence, drafted - right)
        self.book.append(text.sequence, tokens[right:])

    def finish(self, text: Text) -> None:
        """End a text, wherever it is; with all beams of its search."""
        together = _together(text)
        for each in together:
            if each.sequence is not None:
                self._stop(each)
            else:
                self.waiting.remove(each)
        self._refused = None
        name, client = text.request.client, self._clients[text.request.client]
        places = text.places if text.beams is None else text.request.places
        unused = places * text.request.max_tokens - sum(each.written for each in together)
        client.end -= unused
        for each in self.waiting:
            if each.request.client == name and each.tag > text.tag:
                each.tag = max(each.tag - unused, each.least)
        self.waiting.sort(key=_order)
        client.texts -= places
        if not client.texts:
            del self._clients[name]

    def texts_of(self, number: int) -> list[Text]:
        """The texts of a request that wait or run."""
        return [
            t for all in (self.running, self.waiting) for t in all if t.request.number == number
        ]

    # Steps

    def plan(self) -> Plan | None:
        """The next step; None if there is nothing to compute. Raises: UsageError (`cache-full`) if somebody else holds
        pages of the book."""
        self._admit()
        drafts_allowed = self.drafter is not None
        while self.running:
            encodes = self._encodes(self.running)
            plan = self._plan(self.running, None, drafts_allowed, encodes)
            if self.book.fits(plan.counts):
                return plan
            parts = plan.parts
            if drafts_allowed and any(part.drafts for part in parts):
                drafts_allowed = False
            elif len(self.running) > len(_together(self.running[-1])):
                self._preempt(self.running[-1])
            else:
                raise UsageError("cache-full", "one text alone does not fit the cache")
        return None

    def plan_of(self, number: int, chunk: int) -> Plan:
        """The next step of one request by itself, with so many tokens of its prompt at most. It takes no turns, and
        nobody gives pages back for it: the books refuse a step that finds none."""
        texts = self.texts_of(number)
        for text in texts:
            if text.sequence is None:
                if not self._hold(text):
                    raise UsageError(
                        "cache-full",
                        "there are no pages for what the encoder makes of the input",
                        help="write fewer texts of different inputs at a time",
                    )
                self._run(text, self._sequence_of(text))
        encodes = self._encodes(texts)
        return self._plan(texts, chunk, self.drafter is not None, encodes)

    def ran(self, plan: Plan, seconds: float) -> None:
        """Note that a step has run, and its time."""
        self.chunk.observe(plan.prompt_tokens, seconds)
        self._now += plan.tokens / max(len(self._clients), 1)

    # Inside

    def _admit(self) -> None:
        """Let texts run, in the order of service, as long as there is room."""
        while self.waiting:
            text = self.waiting[0]
            state = [self.book.available(group) for group in range(len(self.book.windows))]
            state += [] if self.sources is None else [self.sources.available]
            if self._refused != (text, len(self.running), state) and self._starts(text):
                continue
            worst = self.running[-1] if self.running else text
            if worst.request.priority > text.request.priority and worst.order > text.order:
                self._preempt(worst)
                continue
            self._refused = text, len(self.running), state
            return

    def _starts(self, text: Text) -> bool:
        """Run a text if there is room for it, and for all that run to grow by a page."""
        others = sum(each.places for each in self.running)
        places = sum(each.places for each in _together(text))
        if self.running and others + places > self.limits.running:
            return False
        book, own = self.book, _together(text)
        if not all([self._hold(each) for each in own]):
            for each in own:
                self._let_go(each)
            return False
        made = [(self._sequence_of(each), each) for each in own]
        grown = [
            book.missing(each, len(t.tokens) + book.page_size, self.chunk.most)
            for each, t in [*made, *((t.sequence, t) for t in self.running)]
            if each is not None
        ]
        room = all(
            sum(row) <= book.available(group) for group, row in enumerate(zip(*grown, strict=True))
        )
        is_refused = bool(self.running) and not room
        for sequence, each in made:
            if is_refused:
                book.free(sequence)
                self._let_go(each)
            else:
                self._run(each, sequence)
        return not is_refused

    def _sequence_of(self, text: Text) -> int:
        """A sequence of the book for a text."""
        request = text.request
        salt, again = request.salt, text.is_scoring or text.is_probing
        if request.features is not None:  # on which keys and values of tokens depend
            salt = f"{salt}\0{request.features.digest}"
        contents = [each.content for each in request.pictures]
        return self.book.add(text.tokens, request.adapter, salt, not again, contents)

    def _hold(self, text: Text) -> bool:
        """Let a text hold its source. Is there room for it?"""
        request = text.request
        if self.sources is not None and request.features is not None and text.source is None:
            text.source = self.sources.hold(request.features, request.salt)
            return text.source is not None
        return True

    def _let_go(self, text: Text) -> None:
        if self.sources is not None and text.source is not None:
            self.sources.release(text.source)
            text.source = None

    def _stop(self, text: Text) -> None:
        """Take a text's pages."""
        assert text.sequence is not None
        self.book.free(text.sequence)
        text.sequence = None
        self._let_go(text)
        self.running.remove(text)

    def _encodes(self, texts: Sequence[Text]) -> tuple[Source, ...]:
        """The inputs to encode before the next step of texts, in the order of service."""
        missing = [t.source for t in texts if t.source is not None and not t.source.is_filled]
        if not missing:
            return ()
        others_wait = any(t.is_encoded and t.is_running for t in self.running)
        shape = missing[0].features.values.shape
        alike = [s for s in dict.fromkeys(missing) if s.features.values.shape == shape]
        return tuple(alike[: 1 if others_wait else self.limits.encoded])

    def _run(self, text: Text, sequence: int) -> None:
        """Let a text run as a sequence."""
        text.sequence = sequence
        if text.cached is None:
            text.cached = len(text.tokens) - self.book.pending_count(sequence)
        self.waiting.remove(text)
        insort(self.running, text, key=_order)

    def _plan(
        self,
        texts: Sequence[Text],
        chunk: int | None,
        drafts_allowed: bool,
        encodes: tuple[Source, ...],
    ) -> Plan:
        """A step of texts: the next token of each, and a chunk of prompts (None: as many tokens as leave others their
        time). Texts whose input is not encoded, even by `encodes`, wait."""
        pending = [
            (t, s, self.book.pending_count(s))
            for t in texts
            if (s := t.sequence) is not None
            and (t.source is None or t.is_encoded or t.source in encodes)
        ]
        behind = {t.beams for t, _, count in pending if t.beams is not None and count > 1}
        writing = sum(1 for *_, count in pending if count == 1)
        chunk = self.chunk.tokens(writing > 0) if chunk is None else chunk
        each = self.limits.drafted // writing - 1 if drafts_allowed and writing else 0
        parts: list[Chunk] = []
        shape = self.pictures
        scored, reach = self.scored, _Reach(self.store, shape is not None and shape.spans)
        for text, sequence, count in pending:
            start = len(text.tokens) - count
            if text.beams in behind and text.beams is not None and len(text.beams.texts) > 1:
                # the last tokens of all beams come in one step
                if (now := reach.count(text, start, min(count - 1, chunk))) > 0:
                    chunk = max(chunk - now, 0)
                    parts.append(Chunk(text, sequence, now, False, (), start))
            elif count == 1:
                if not reach.count(text, start, 1):
                    continue
                drafts = self._drafts(text, sequence, each) if each > 0 else ()
                parts.append(Chunk(text, sequence, 1, True, drafts, start))
            elif chunk:
                now = min(count, chunk, scored) if text.is_scoring else min(count, chunk)
                now = reach.count(text, start, now)
                if not now:
                    continue
                chunk = max(chunk - now, 0)
                scored = max(scored - now, 0) if text.is_scoring else scored
                parts.append(Chunk(text, sequence, now, now == count, (), start))
        return Plan(tuple(parts), encodes, tuple(reach.looks))

    def _drafts(self, text: Text, sequence: int, most: int) -> tuple[int, ...]:
        assert self.drafter is not None
        if not text.is_forked or text.beams is not None:
            return ()
        left = max(text.request.max_tokens - text.written - 1, 0)
        most = self.book.undoable(sequence, min(most, left))
        return tuple(self.drafter(text, most)) if most > 0 else ()

    def _preempt(self, text: Text) -> None:
        """Preempt a text: it gives its pages back, waits again, and is computed anew. With it go all beams of its
        search."""
        for each in _together(text):
            self._stop(each)
            insort(self.waiting, each, key=_order)
            self.preemptions += 1
        self._refused = None


def _together(text: Text) -> list[Text]:
    """The texts that wait and run together with one."""
    return [text] if text.beams is None else text.beams.texts


def _order(text: Text) -> tuple[float, int, int]:
    return text.order
