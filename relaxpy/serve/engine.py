"""The engine: runs requests together, step by step (continuous batching).

    engine = Engine(model, pages=1024)
    engine.submit(Request(0, prompt, max_tokens=100))
    while engine.is_busy:
        for piece in engine.step():
            print(piece.request, piece.tokens, piece.finish)

`model` computes: a decoder (`relaxpy.serve.decoder_model`), or anything that has its methods. A text is the same,
whatever else runs, in whatever chunks its prompt was computed, whether its beginning was in the cache, whether it was
preempted, and with drafts or without: the rows of a step do not depend on each other, and the random number of a token
is a function of the request's seed, the choice and the position.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.serve.beams import Beam, beam_scores
from relaxpy.serve.chunk_size import ChunkSize
from relaxpy.serve.log_sum import log_sum
from relaxpy.serve.pages import NONE, Batch, PageBook
from relaxpy.serve.picture_rows import picture_rows
from relaxpy.serve.pictures import STORED, Picture, PictureShape, PictureStore
from relaxpy.serve.prompt_lookup import PromptLookup
from relaxpy.serve.request import NOT_A_NUMBER, Features, Finish, Piece, Request
from relaxpy.serve.sampling import Draw, no_token
from relaxpy.serve.scheduler import BeamTexts, Limits, Plan, Scheduler, Text
from relaxpy.serve.sources import SourceBook, SourceShape
from relaxpy.serve.step_rows import Matcher, StepRows, most_probable


class Model(Protocol):
    """The functions that compute a step."""

    vocab_size: int
    page_size: int
    windows: Sequence[int]
    adapters: int
    """The number of adapters."""
    source: SourceShape | None
    """What its encoder reads; None: it has no encoder."""
    pictures: PictureShape | None
    """What its tower makes of pictures; None: it sees none."""

    def encode(self, features: Sequence[Features], tables: np.ndarray) -> None:
        """Encode inputs of one shape into the pages `tables` (inputs, pages of an input) of sources."""
        ...

    def encode_picture(self, picture: Picture) -> np.ndarray:
        """The rows (tokens of the picture, hidden) float32 that stand for a picture in a step."""
        ...

    def step(self, batch: Batch, rows: np.ndarray) -> Any:
        """Compute a batch, after its copies. Returns the logits after the tokens that `rows` names, as `sample` and
        `logits` take them."""
        ...

    def sample(self, logits: Any, draws: Sequence[Draw]) -> tuple[np.ndarray, np.ndarray]:
        """The next token of each row, and its log-probability; -1 if there is none."""
        ...

    def logits(self, logits: Any) -> np.ndarray:
        """The logits (rows, vocabulary) as numbers."""
        ...


@dataclass
class Counters:
    """Counts of an engine's work."""

    steps: int = 0
    seconds: float = 0.0
    """Of steps."""
    model_seconds: float = 0.0
    """Of the model's functions. The others are those of the host."""
    prompt_tokens: int = 0
    """Tokens of prompts that were asked for."""
    cached_tokens: int = 0
    """Of these, those that were in the cache."""
    computed_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafts that were right."""
    preemptions: int = 0
    not_a_number: int = 0
    """Requests that ended since logits were NaN."""
    encoded_inputs: int = 0
    encoded_pictures: int = 0
    """How often the tower ran."""
    encode_seconds: float = 0.0
    """Of encoder and tower."""


class Engine:
    """Requests that run, and their cache. It is used by one thread."""

    def __init__(
        self,
        model: Model,
        *,
        pages: int,
        limits: Limits | None = None,
        target: float = 0.1,
        chunk: int = 512,
        drafts: bool = True,
        matcher: Callable[[str], Matcher] | None = None,
        source_pages: int = 0,
        picture_bytes: int = STORED,
    ) -> None:
        """`target` is the latency between tokens, in seconds, that chunks of prompts (of at most `chunk` tokens) in the
        same step must keep for texts that are running. `matcher` compiles a grammar. `source_pages` are for outputs of
        an encoder, `picture_bytes` for cached embeddings of pictures, if the model has such."""
        self.model = model
        self.book = PageBook(pages, model.page_size, model.windows)
        shape = model.source
        self.sources = None if shape is None else SourceBook(source_pages, model.page_size, shape)
        self.scheduler = Scheduler(
            self.book,
            pages * model.page_size,
            limits or Limits(),
            ChunkSize(target, chunk),
            self._draft if drafts else None,
            max(_SCORED // model.vocab_size, 8),
            self.sources,
            model.pictures,
            None if model.pictures is None else PictureStore(picture_bytes),
        )
        self.counters = Counters()
        self._make_matcher = matcher
        self._lookups: dict[Text, PromptLookup] = {}
        self._matchers: dict[Text, Matcher] = {}

    @property
    def is_busy(self) -> bool:
        """Whether there is something to compute."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def submit(self, request: Request) -> None:
        """Take on a request. Raises: UsageError for one that cannot run: `bad-length`, `bad-prompt`, `sampling`,
        `queue-full`, `grammar`."""
        vocab = self.model.vocab_size
        if wrong := [token for token in request.prompt if not 0 <= token < vocab]:
            raise UsageError(
                "bad-prompt", f"token {wrong[0]} is none of the model's, which are 0 to {vocab - 1}"
            )
        if not NONE <= request.adapter < self.model.adapters:
            raise UsageError("bad-prompt", f"the engine has no adapter {request.adapter}")
        for place, token in request.probes:
            if not (0 <= place < len(request.prompt) and 0 <= token < vocab):
                raise UsageError(
                    "bad-prompt",
                    f"a probe asks for token {token} at position {place}: positions are 0 to "
                    f"{len(request.prompt) - 1}, tokens 0 to {vocab - 1}",
                )
        request.sampling.check_vocabulary(vocab)
        matcher = None
        if request.grammar:
            if self._make_matcher is None:
                raise UsageError("grammar", "this engine follows no grammars")
            matcher = self._make_matcher(request.grammar)
        text = self.scheduler.submit(request)
        if matcher is not None:
            self._matchers[text] = matcher

    def cancel(self, number: int) -> None:
        """End the texts of a request, if there are any, and free their pages."""
        while texts := self.scheduler.texts_of(number):
            self._end(texts[0])

    def step(self) -> list[Piece]:
        """Compute a step. If the model fails, all requests of the step end with an error: one piece for each."""
        start = time.perf_counter()
        plan = self.scheduler.plan()
        return [] if plan is None else self._ran(plan, start)

    def step_of(self, number: int, chunk: int) -> list[Piece]:
        """Compute a step of one request by itself, with so many tokens of its prompt at most (`Scheduler.plan_of`)."""
        start = time.perf_counter()
        return self._ran(self.scheduler.plan_of(number, chunk), start)

    # Inside

    def _ran(self, plan: Plan, start: float) -> list[Piece]:
        """The pieces of a step that began at some time."""
        pieces, encoding = list[Piece](), 0.0
        if plan.encodes or plan.looks:
            pieces = self._encode(plan) if plan.encodes else []
            pieces += self._look(plan)
            encoding = time.perf_counter() - start
            plan = replace(plan, parts=tuple(part for part in plan.parts if part.text.is_running))
        try:
            pieces += self._computed(plan) if plan.parts else []
        except Exception as error:
            pieces += [
                self._failed(part.text, error) for part in plan.parts if part.text.is_running
            ]
        seconds = time.perf_counter() - start
        self.scheduler.ran(plan, seconds - encoding)
        self._count(plan, pieces, seconds)
        return pieces

    def _encode(self, plan: Plan) -> list[Piece]:
        """Encode inputs. If that fails the texts that wait for them end, and others go on."""
        assert self.sources is not None
        tables, _ = self.sources.tables(plan.encodes)
        start = time.perf_counter()
        try:
            self.model.encode([each.features for each in plan.encodes], tables)
        except Exception as error:
            texts = [t for t in self.scheduler.running if t.source in plan.encodes]
            return [self._failed(text, error) for text in texts if text.is_running]
        seconds = time.perf_counter() - start
        self.sources.fill(plan.encodes)
        self.counters.encoded_inputs += len(plan.encodes)
        self.counters.encode_seconds += seconds
        self.counters.model_seconds += seconds
        return []

    def _look(self, plan: Plan) -> list[Piece]:
        """Let the tower see a picture. If that fails the texts that come to it end, and others go on."""
        store, start = self.scheduler.store, time.perf_counter()
        for look in plan.looks:
            assert store is not None, "a model that sees pictures has one"
            try:
                rows = self.model.encode_picture(look.picture)
            except Exception as error:
                texts = [part.text for part in plan.parts if look in part.looks]
                return [self._failed(text, error) for text in texts if text.is_running]
            store.put(look.picture, look.salt, rows, [e for part in plan.parts for e in part.looks])
            seconds = time.perf_counter() - start
            self.counters.encoded_pictures += 1
            self.counters.encode_seconds += seconds
            self.counters.model_seconds += seconds
        return []

    def _computed(self, plan: Plan) -> list[Piece]:
        """Run a step, and go on with the tokens that are drawn."""
        for part in plan.parts:
            if part.drafts:
                self.book.append(part.sequence, part.drafts)
        batch = self.book.batch(plan.counts)
        if self.sources is not None:
            tables = self.sources.tables([part.text.source for part in plan.parts])
            batch = replace(batch, encoded=tables)
        if self.scheduler.store is not None and self.model.pictures is not None:
            rows = picture_rows(plan, self.scheduler.store, self.model.pictures)
            batch = replace(batch, pictures=rows)
        asked = StepRows(plan.parts, batch, self._matchers)
        before = time.perf_counter()
        logits = self.model.step(batch, np.array(asked.rows, np.int32))
        self.book.commit(batch)
        found = self.model.sample(logits, asked.draws) if asked.rows else (_NO_ROWS, _NO_ROWS)
        self.counters.model_seconds += time.perf_counter() - before
        drawn = _Drawn(self.model, logits, found[0].tolist(), found[1].tolist())
        if asked.has_answers:
            asked.answer(self.model.logits(logits))
        return self._gone_on(plan, asked, drawn)

    def _gone_on(self, plan: Plan, asked: StepRows, drawn: _Drawn) -> list[Piece]:
        """Go on with the texts of a step by what was drawn."""
        pieces: list[Piece] = []
        searched = set[BeamTexts]()
        for part in plan.parts:
            text, row = part.text, asked.first[part.text]
            if not text.is_running:
                continue
            if text in asked.wrong:
                pieces.append(self._failed(text, asked.wrong[text]))
            elif not part.is_last:
                continue
            elif text.beams is not None:
                if text.beams not in searched:
                    searched.add(text.beams)
                    own = [asked.first[each] for each in text.beams.texts]
                    pieces += self._searched(text.beams, self.model.logits(drawn.logits)[own])
            elif not text.request.max_tokens:
                pieces += self._read(text)
            elif text.is_forked:
                pieces.append(self._written(text, part.drafts, drawn, row))
            else:
                for place, each in enumerate((text, *self._forked(text))):
                    if each.is_running:
                        pieces.append(self._written(each, (), drawn, row + place))
        return pieces

    def _read(self, text: Text) -> Iterator[Piece]:
        """The pieces of a request for no tokens, whose prompt has been computed."""
        request = text.request
        self._end(text)
        for choice in range(request.n):
            cached, scores = (None, ()) if choice else (text.cached, tuple(text.scores))
            probes = () if choice else _answers(text)
            yield Piece(
                request.number,
                choice,
                (),
                cached=cached,
                finish="length",
                scores=scores,
                probes=probes,
            )

    def _searched(self, beams: BeamTexts, logits: np.ndarray) -> list[Piece]:
        """Go on with a search by the logits (beams, vocabulary). The pieces of its texts when it is over."""
        search, first = beams.search, beams.texts[0]
        request = first.request
        prompt = len(request.prompt)
        draws = [Draw(request.sampling, t.tokens, prompt, ends=request.ends) for t in beams.texts]
        scores = np.stack([beam_scores(row, each) for row, each in zip(logits, draws, strict=True)])

        def logprob_of(beam: int, token: int) -> float:
            row = logits[beam].astype(np.float64)
            if request.ruled:
                row = row[scores[beam] > -np.inf]
            return float(logits[beam, token] - log_sum(row))

        wrong = [row for row in logits if not np.isfinite(row.max(initial=-np.inf))]
        chosen = [] if wrong else search.advance(scores, logprob_of)
        if not wrong and not search.is_over:
            self.scheduler.go_on(beams, chosen)
            return []
        if not search.best:
            return [self._failed(first, no_token((wrong or logits)[0]))]
        cached, probes = first.cached, _answers(first)
        self._end(first)

        def piece(number: int, each: Beam) -> Piece:
            of_first = (cached, probes) if not number else (None, ())
            return Piece(
                request.number, number, each.tokens, () if request.top is None else each.logprobs,
                (), of_first[0], "stop" if each.is_ended else "length", probes=of_first[1], score=each.score,
            )  # fmt: skip

        return [piece(number, each) for number, each in enumerate(search.best)]

    def _forked(self, text: Text) -> list[Text]:
        made = self.scheduler.fork(text)
        matcher = self._matchers.get(text)
        if matcher is not None:
            self._matchers.update({each: matcher.copy() for each in made})
        return made

    def _written(self, text: Text, drafts: Sequence[int], drawn: _Drawn, row: int) -> Piece:
        """Go on with a text by the tokens that were drawn, as far as its drafts were right."""
        request, matcher = text.request, self._matchers.get(text)
        cached = text.cached if not text.written else None
        is_first = not (text.written or text.choice)
        scores, probes = (tuple(text.scores), _answers(text)) if is_first else ((), ())
        tokens: list[int] = []
        finish: Finish | None = None
        try:
            while finish is None:
                tokens.append(drawn.token(row + len(tokens)))
                token = tokens[-1]
                if token in request.ends:
                    finish = "stop"
                    continue
                if matcher is not None:
                    matcher.accept(token)
                    finish = "stop" if matcher.is_over else None
                if finish is None and text.written + len(tokens) >= request.max_tokens:
                    finish = "length"
                if len(tokens) > len(drafts) or drafts[len(tokens) - 1] != token:
                    break
        except UsageError as error:
            return self._failed(text, error)
        lookup = self._lookups.get(text)
        if lookup is not None and drafts:
            lookup.note(len(drafts), len(tokens) - 1)
        self.counters.accepted_tokens += len(tokens) - 1
        self.scheduler.append(text, tokens, len(drafts))
        if finish is not None:
            self._end(text)
        logprobs, top = drawn.probable(row, len(tokens), request.top)
        return Piece(
            request.number, text.choice, tuple(tokens), logprobs, top, cached, finish, scores=scores,
            probes=probes,
        )  # fmt: skip

    def _failed(self, text: Text, error: Exception) -> Piece:
        """End a request by a mistake in one of its texts."""
        self.cancel(text.request.number)
        self.counters.not_a_number += getattr(error, "code", "") == NOT_A_NUMBER
        return Piece(text.request.number, text.choice, (), finish="error", error=error)

    def _end(self, text: Text) -> None:
        self.scheduler.finish(text)
        self._lookups.pop(text, None)
        self._matchers.pop(text, None)

    def _draft(self, text: Text, most: int) -> Sequence[int]:
        matcher = self._matchers.get(text)
        if matcher is not None and (forced := matcher.forced()[:most]):
            return forced
        lookup = self._lookups.get(text)
        if lookup is None:
            lookup = self._lookups[text] = PromptLookup()
        found = lookup.draft(text.tokens, most)
        return found[: matcher.right(found)] if matcher is not None and found else found

    def _count(self, plan: Plan, pieces: Sequence[Piece], seconds: float) -> None:
        counters = self.counters
        counters.steps += 1
        counters.seconds += seconds
        counters.computed_tokens += plan.tokens
        counters.drafted_tokens += sum(len(part.drafts) for part in plan.parts)
        counters.generated_tokens += sum(len(piece.tokens) for piece in pieces)
        counters.preemptions = self.scheduler.preemptions
        first = {p.text.request.number: p.text for p in plan.parts if p.is_last}
        for piece in pieces:
            if piece.cached is not None and not piece.choice:
                counters.cached_tokens += piece.cached
                counters.prompt_tokens += len(first[piece.request].request.prompt)


@dataclass
class _Drawn:
    """The tokens that were drawn in a step."""

    model: Model
    logits: Any
    tokens: Sequence[int]
    logprobs: Sequence[float]

    def token(self, row: int) -> int:
        """The token of a row. Raises: UsageError (`not-a-number`, `sampling`) if there is none."""
        token = self.tokens[row]
        if token < 0 or math.isnan(self.logprobs[row]):
            raise no_token(self.model.logits(self.logits)[row])
        return token

    def probable(
        self, row: int, count: int, top: int | None
    ) -> tuple[tuple[float, ...], tuple[Mapping[int, float], ...]]:
        """The log-probabilities of tokens of rows, and the `top` most probable ones of each."""
        if top is None:
            return (), ()
        chosen = tuple(self.logprobs[row : row + count])
        if not top:
            return chosen, ()
        logits = self.model.logits(self.logits)[row : row + count].astype(np.float64)
        return chosen, tuple(
            {**found, token: logprob} if token in (found := most_probable(each, top)) else found
            for each, token, logprob in zip(logits, self.tokens[row:], chosen, strict=False)
        )


_SCORED = 1 << 24
"""The most logits of a step that are made scores of prompts."""
_NO_ROWS = np.zeros(0, np.int64)


def _answers(text: Text) -> tuple[float, ...]:
    return tuple(text.probes[number] for number in range(len(text.request.probes)))
