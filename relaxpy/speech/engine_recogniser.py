"""A Whisper in an engine (`relaxpy.llm.seq2seq`) as what transcriptions ask of a model."""

from __future__ import annotations

import math

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

    def write(self, features: np.ndarray, request: WindowRequest) -> WindowText:
        """See `Recogniser.write`."""
        beams = None
        if request.temperature == 0 and request.beam_size > 1:
            if request.patience != 1:
                raise UsageError(
                    "bad-arguments",
                    f"patience is {request.patience}: a search ends with as many texts as it has beams",
                    help="patience=1, and a larger beam_size",
                )
            beams = Beams(request.beam_size, request.length_penalty, early_stopping=True)
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
            beams=beams,
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

    def align(
        self, features: np.ndarray, tokens: tuple[int, ...], texts: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Recogniser.align`."""
        found = self.model.align(Features(features), tokens, texts)
        return found.weights, found.logprobs


def _text(written: Written, end: int, probe: float) -> WindowText:
    tokens = written.tokens[:-1] if written.tokens[-1:] == (end,) else written.tokens
    return WindowText(tokens, sum(written.logprobs), probe)
