"""A Whisper in an engine (`relaxpy.llm.seq2seq`) as what transcriptions ask of a model."""

from __future__ import annotations

import math


import numpy as np

from relaxpy.errors import UsageError
from relaxpy.llm.seq2seq import Seq2SeqModel, Written
from relaxpy.serve import Request, Sampling
from relaxpy.serve.request import Features
from relaxpy.speech.recogniser import WindowRequest, WindowText

_GREEDY = Sampling(temperature=0.0)


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

    def write(self, features: np.ndarray, request: WindowRequest) -> WindowText:
        """See `Recogniser.write`."""
        if request.temperature == 0 and request.beam_size > 1:
            raise UsageError(
                "bad-arguments",
                f"beam_size is {request.beam_size}, and this engine has no search with beams",
                help="beam_size=1",
            )
        sampling = Sampling(
            temperature=request.temperature,
            repetition_penalty=request.repetition_penalty,
            no_repeat_ngram_size=request.no_repeat_ngram_size,
            suppress_tokens=request.suppress,
            begin_suppress_tokens=request.begin_suppress,
            timestamps=request.rules,
            seed=request.seed,
        )
        given = Request(
            0, request.prompt, request.most, sampling, frozenset({request.end}),
            n=request.best_of if request.temperature else 1, features=Features(features), probes=(request.probe,),
        )  # fmt: skip
        written = self.model.write_all([given])
        probe = math.exp(next(each.probes[0] for each in written if each.probes))
        texts = [_text(each, request.end, probe) for each in written]
        return max(
            texts,
            key=lambda text: text.logprob / max(1, len(text.tokens)) ** request.length_penalty,
        )

    def logprobs(self, features: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
        """See `Recogniser.logprobs`."""
        return self.model.log_probabilities(Features(features), tokens)

    def scores(self, features: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
        """See `Recogniser.scores`."""
        request = Request(0, tokens, 1, _GREEDY, scored=0, features=Features(features))
        found = [score for piece in self.model.pieces(request) for score in piece.scores]
        return np.array([score.logprob for score in found])

    def alignment(self, features: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
        """See `Recogniser.alignment`."""
        return self.model.alignment(Features(features), tokens)


def _text(written: Written, end: int, probe: float) -> WindowText:
    tokens = written.tokens[:-1] if written.tokens[-1:] == (end,) else written.tokens
    return WindowText(tokens, sum(written.logprobs), probe)
