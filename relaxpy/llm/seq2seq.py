"""A model with an encoder and a decoder, ready to write: Whisper, and others of `relaxpy.models.families.SEQ2SEQ`.

    model = load_seq2seq("openai/whisper-tiny")                 # a folder, or a name on the hub
    window = Features(log_mel)                                  # float32 (mels, frames)
    written = model.write(Request(0, prompt, 224, sampling, ends, features=window))
    written.tokens, written.logprobs, written.finish

Tokens in, tokens out: what sound becomes features, and what tokens become text, are the caller's matter
(`relaxpy.speech`). All requests run in one engine (`relaxpy.serve.Engine`), together: `write_all` writes many texts in
the same steps, and several threads may write at once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from threading import Lock

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.llm.own_engine import own_engine
from relaxpy.models.loaded import LoadedDecoder, Scheme, load_decoder
from relaxpy.serve import Request, Sampling
from relaxpy.serve.request import Features, Finish, Piece
from relaxpy.serve.sources import SourceShape

FLOATS = Scheme(bits=None)
_GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Written:
    """A text that was written."""

    tokens: tuple[int, ...]
    """Those after the prompt, with the one that ended the text."""
    logprobs: tuple[float, ...]
    """The logarithm of each token's probability, after the rules of sampling, at temperature 1."""
    finish: Finish
    probes: tuple[float, ...] = ()
    """The answers to `Request.probes`."""
    score: float | None = None
    """Of a text that was searched with beams."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """What words are timed by."""

    weights: np.ndarray
    """(heads, tokens, positions) float32: row t is the attention of the alignment heads to the encoder's output when
    tokens[t] is read (softmax over positions, nothing normalised or filtered)."""
    logprobs: np.ndarray
    """(tokens - 1,) float32: the log-probability of tokens[t + 1] after those up to tokens[t]."""


def load_seq2seq(
    place: str | os.PathLike[str],
    *,
    scheme: Scheme | None = None,
    batch: int = 8,
    target: str = "llvm",
    keep: bool = True,
) -> Seq2SeqModel:
    """The model of a checkpoint, compiled and packed at its first start. Weights are floats unless `scheme` says
    otherwise. Memory is taken for `batch` texts of the greatest length, and as many inputs.

    Raises: UsageError: `bad-checkpoint`, `bad-config`, `bad-weights`.
    """
    from relaxpy.checkpoints.hub import local_checkpoint

    folder = local_checkpoint(place)
    decoder = load_decoder(folder, scheme or FLOATS, target=target, keep=keep)
    return Seq2SeqModel(decoder, batch=batch, folder=folder)


class Seq2SeqModel:
    """An encoder and decoder with its engine and its pages. Safe to use from several threads: steps run one after the
    other, and what several threads write is written together."""

    def __init__(
        self, decoder: LoadedDecoder, *, batch: int = 8, folder: Path | None = None
    ) -> None:
        """`folder` is where `request` finds the checkpoint's generation_config.json.

        Raises: UsageError: `bad-config` for a decoder without an encoder, `out-of-memory`.
        """
        if decoder.source is None:
            kind = decoder.config.get("model_type")
            raise UsageError(
                "bad-config",
                f"a model of type {kind!r} has no encoder",
                help="relaxpy.llm.load takes it",
            )
        if batch < 1:
            raise UsageError("bad-length", f"batch is at least 1, got {batch}")
        self.decoder = decoder
        """`decoder.config` has the fields of `config.json`, `decoder.positions` is the most tokens of a text,
        `decoder.source` says what is encoded, and `decoder.alignment_heads` which heads `alignment` gives."""
        self._model, self.engine = own_engine(decoder, tokens=decoder.positions, batch=batch)
        self._folder = folder
        self._lock = Lock()
        self._numbers = count()
        self._inboxes: dict[int, deque[Piece]] = {}

    @property
    def source(self) -> SourceShape:
        """What is encoded: `source.mels`, `source.frames` of a window, `source.positions`."""
        assert self.decoder.source is not None
        return self.decoder.source

    @property
    def alignment_heads(self) -> tuple[tuple[int, int], ...]:
        """(layer, head) of those that `alignment` gives."""
        return self.decoder.alignment_heads

    def request(
        self, features: Features, prompt: Sequence[int] = (), max_tokens: int | None = None
    ) -> Request:
        """What transformers' `generate` does with this checkpoint, by its generation_config.json, or without one by its
        config.json: a search with `num_beams`, or a draw, with all options of sampling, lengths, `forced_bos_token_id`
        and `forced_eos_token_id`. Without a prompt it is `decoder_start_token_id`. Fields that are not followed are
        named in a warning (`UnreadWarning`).

        Raises: UsageError: `bad-checkpoint` for wrong fields, `bad-prompt` without a prompt, `bad-length`.
        """
        from relaxpy.llm.generation_config import SEARCH, recommended

        found = recommended(self._folder, self.decoder.config, followed=SEARCH)
        given = tuple(prompt) or (() if found.start is None else (found.start,))
        if not given:
            raise UsageError(
                "bad-prompt", "the checkpoint names no decoder_start_token_id: give a prompt"
            )
        room = self.decoder.positions - len(given)
        most = found.most_tokens(len(given), room) if max_tokens is None else max_tokens
        sampling = found.sampling_after(len(given))
        forced = [(0, found.first)] if len(given) == 1 and found.first is not None else []
        if found.last is not None:
            forced.append((most - 1, found.last))
        sampling = replace(sampling, forced_tokens=tuple(forced))
        return Request(0, given, most, sampling, found.ends, features=features, beams=found.beams)

    def write(self, request: Request) -> Written:
        """Write the text of a request (its first one) to its end. Raises: UsageError, the error of its last piece."""
        return self.write_all([request])[0]

    def write_all(self, requests: Sequence[Request]) -> list[Written]:
        """The same of several, in the same steps. The texts are those that each has alone, to the bit. A request of
        several texts (`Request.n`) gives as many."""
        running = [self._begin(each) for each in requests]
        found: list[Written] = []
        try:
            for number, request in zip(running, requests, strict=True):
                texts = request.texts
                found += _written(texts, self._pieces_of(number, texts))
        finally:
            self._end(running)
        return found

    def pieces(self, request: Request) -> Iterator[Piece]:
        """The pieces of a request's texts as they are written. Closing the iterator ends them."""
        number = self._begin(request)
        try:
            yield from self._pieces_of(number, request.texts)
        finally:
            self._end([number])

    def log_probabilities(self, features: Features, tokens: Sequence[int]) -> np.ndarray:
        """The logarithms of the probabilities (vocabulary,) of the next token after these, without rules of sampling.
        After `<|startoftranscript|>` alone they tell the language. (`Request.probes` asks for a few of them.)"""
        vocab = self.decoder.vocab_size
        request = Request(0, tuple(tokens), 1, _GREEDY, top=vocab, features=features)
        (piece,) = self.pieces(request)
        found = np.full(vocab, -np.inf, np.float32)
        (top,) = piece.top
        found[[*top]] = [*top.values()]
        return found

    def alignment(self, features: Features, tokens: Sequence[int]) -> np.ndarray:
        """`Alignment.weights` of a text."""
        return self.align(features, tokens).weights

    def align(
        self, features: Features, tokens: Sequence[int], texts: int | None = None
    ) -> Alignment:
        """How the tokens of a text attend to the encoder's output, and how probable each is after those before it,
        among the tokens below `texts` (None: all). If `features` were encoded lately they are not encoded again.
        Raises: UsageError (`bad-length`, `bad-prompt`, `cache-full`; `bad-config` of a model that reads tokens)."""
        if not self.alignment_heads:
            raise UsageError(
                "bad-config", "words are timed by attention to sound, and this model reads tokens"
            )
        given = np.asarray(tokens, np.int64)
        if not 0 < given.size <= self.decoder.positions or given.ndim != 1:
            raise UsageError(
                "bad-length",
                f"a text has 1 to {self.decoder.positions} tokens, got {given.size}",
            )
        if not 0 <= given.min() <= given.max() < self.decoder.vocab_size:
            raise UsageError("bad-prompt", f"tokens are 0 to {self.decoder.vocab_size - 1}")
        book = self.engine.sources
        assert book is not None
        with self._lock:
            source = book.hold(features)
            if source is None:
                raise UsageError(
                    "cache-full", "texts that are being written have all pages of inputs"
                )
            try:
                tables, lengths = book.tables([source])
                if not source.is_filled:
                    self._model.encode([features], tables)
                    book.fill([source])
                most = self.decoder.vocab_size if texts is None else texts
                return Alignment(*self._model.align(given, most, tables, lengths))
            finally:
                book.release(source)

    # Inside

    def _begin(self, request: Request) -> int:
        number = next(self._numbers)
        with self._lock:
            self.engine.submit(replace(request, number=number, ruled=True, top=request.top or 0))
            self._inboxes[number] = deque()
        return number

    def _end(self, numbers: Sequence[int]) -> None:
        with self._lock:
            for number in numbers:
                if self._inboxes.pop(number, None) is not None:
                    self.engine.cancel(number)

    def _pieces_of(self, number: int, left: int) -> Iterator[Piece]:
        """The pieces of a request, of which so many texts are still to end. Whoever waits for one computes a step, in
        which the requests of others are, too. Raises: UsageError."""
        while left:
            with self._lock:
                inbox = self._inboxes[number]
                if not inbox:
                    for piece in self.engine.step():
                        self._inboxes[piece.request].append(piece)
                ready = [*inbox]
                inbox.clear()
            for piece in ready:
                if piece.error is not None:
                    raise piece.error
                left -= piece.finish is not None
                yield piece


def _written(count: int, pieces: Iterator[Piece]) -> list[Written]:
    """The texts of so many choices."""
    found = [Written((), (), "length") for _ in range(count)]
    for piece in pieces:
        old = found[piece.choice]
        found[piece.choice] = Written(
            old.tokens + piece.tokens,
            old.logprobs + piece.logprobs,
            piece.finish or old.finish,
            old.probes + piece.probes,
            piece.score,
        )
    return found
