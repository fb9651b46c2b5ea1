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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from relaxpy.models.loaded import LoadedDecoder, Scheme
from relaxpy.serve import Engine, Request
from relaxpy.serve.request import Features, Finish, Piece


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
    raise NotImplementedError


class Seq2SeqModel:
    """An encoder and decoder with its engine and its pages. Safe to use from several threads: steps run one after the
    other, and what several threads write is written together."""

    decoder: LoadedDecoder
    """`decoder.config` has the fields of `config.json`, `decoder.positions` is the most tokens of a text, and
    `decoder.source` says what is encoded: `source.mels`, `source.frames` (of a window), `source.positions`."""
    engine: Engine
    alignment_heads: tuple[tuple[int, int], ...]
    """(layer, head) of those that `alignment` gives: `alignment_heads` of generation_config.json; without one all of
    the upper half of the layers, as OpenAI has it."""

    def write(self, request: Request) -> Written:
        """Write the text of a request to its end. Raises: UsageError, the error of its last piece."""
        raise NotImplementedError

    def write_all(self, requests: Sequence[Request]) -> list[Written]:
        """The same of several, in the same steps. The texts are those that each has alone, to the bit."""
        raise NotImplementedError

    def pieces(self, request: Request) -> Iterator[Piece]:
        """The pieces of a text as they are written. Closing the iterator ends the text."""
        raise NotImplementedError

    def log_probabilities(self, features: Features, tokens: Sequence[int]) -> np.ndarray:
        """The logarithms of the probabilities (vocabulary,) of the next token after these, without rules of sampling.
        After `<|startoftranscript|>` alone they tell the language."""
        raise NotImplementedError

    def alignment(self, features: Features, tokens: Sequence[int]) -> np.ndarray:
        """Attention of the alignment heads to the encoder's output, (heads, tokens, positions) float32: row t is that of
        tokens[t] when it is read (softmax over positions, nothing normalised or filtered). If `features` were encoded
        lately they are not encoded again."""
        raise NotImplementedError
