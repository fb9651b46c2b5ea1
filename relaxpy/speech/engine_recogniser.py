"""A Whisper in an engine (`relaxpy.llm.seq2seq`) as what transcriptions ask of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.llm.seq2seq import Seq2SeqModel, Written
from relaxpy.serve import Request, Sampling
from relaxpy.serve.beams import Beams
from relaxpy.serve.request import Features
from relaxpy.speech.recogniser import WindowRequest, WindowText


class EngineRecogniser:
    """Implements `relaxpy.speech.recogniser.Recogniser`. Safe to use from several threads: what they write is written
    together."""

    def __init__(self, model: Seq2SeqModel) -> None:
        """Raises: UsageError (`bad-config`) for a model whose encoder reads tokens."""
        source = model.source
        if not source.mels:
            kind = model.decoder.config.get("model_type")
            raise UsageError(
                "bad-config",
                f"a model of type {kind!r} reads text, and no sound",
                help="use generate",
            )
        self.model = model
        self.mels, self.frames, self.positions = source.mels, source.frames, model.decoder.positions

    def write(self, asked: Sequence[tuple[np.ndarray, WindowRequest]]) -> list[WindowText]:
        """See `Recogniser.write`."""
        written = iter(self.model.write_all([_request(*each) for each in asked]))
        return [_best([next(written) for _ in range(_texts(each))], each) for _, each in asked]

    def logprobs(self, features: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
        """See `Recogniser.logprobs`."""
        return self.model.log_probabilities(Features(features), tokens)

    def align(
        self, features: np.ndarray, tokens: tuple[int, ...], texts: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Recogniser.align`."""
        found = self.model.align(Features(features), tokens, texts)
        return found.weights, found.logprobs


def _texts(request: WindowRequest) -> int:
    """Those of which the best one is taken."""
    return request.best_of if request.temperature else 1


def _request(features: np.ndarray, asked: WindowRequest) -> Request:
    beams = None
    if asked.temperature == 0 and asked.beam_size > 1:
        if asked.patience != 1:
            raise UsageError(
                "bad-arguments",
                f"patience is {asked.patience}: a search ends with as many texts as it has beams",
                help="patience=1, and a larger beam_size",
            )
        beams = Beams(asked.beam_size, asked.length_penalty, early_stopping=True)
    sampling = Sampling(
        temperature=asked.temperature,
        repetition_penalty=asked.repetition_penalty,
        no_repeat_ngram_size=asked.no_repeat_ngram_size,
        suppress_tokens=asked.suppress,
        begin_suppress_tokens=asked.begin_suppress,
        timestamps=asked.rules,
        seed=asked.seed,
    )
    return Request(
        0, asked.prompt, asked.most, sampling, frozenset({asked.end}), n=_texts(asked),
        features=Features(features), probes=(asked.probe,), beams=beams,
    )  # fmt: skip


def _best(written: Sequence[Written], asked: WindowRequest) -> WindowText:
    probe = math.exp(next(each.probes[0] for each in written if each.probes))
    texts = [_text(each, asked.end, probe) for each in written]
    return max(
        texts, key=lambda text: text.logprob / max(1, len(text.tokens)) ** asked.length_penalty
    )


def _text(written: Written, end: int, probe: float) -> WindowText:
    tokens = written.tokens[:-1] if written.tokens[-1:] == (end,) else written.tokens
    own = written.logprobs[: len(tokens)]
    return WindowText(tokens, sum(written.logprobs), probe, own)
