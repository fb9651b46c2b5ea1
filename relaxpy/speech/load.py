"""The transcriber of a checkpoint: of a Whisper, a Moonshine, or a model that gives a token for each frame."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from relaxpy.checkpoints.config_file import config_of
from relaxpy.checkpoints.hub import checkpoint_name, local_checkpoint
from relaxpy.errors import UsageError
from relaxpy.llm.checkpoint_files import optional_json
from relaxpy.llm.generation_config import GENERATION_CONFIG_FILE
from relaxpy.llm.seq2seq import load_seq2seq
from relaxpy.llm.tokenizer import Tokenizer
from relaxpy.models.loaded import Scheme
from relaxpy.models.loaded_ctc import load_ctc
from relaxpy.speech.ctc import CtcTranscriber
from relaxpy.speech.ctc_vocabulary import read_ctc_vocabulary
from relaxpy.speech.engine_recogniser import EngineRecogniser
from relaxpy.speech.log_mel import RATE
from relaxpy.speech.moonshine import MoonshineTranscriber, check_features
from relaxpy.speech.transcriber import Transcriber
from relaxpy.speech.vocabulary import Vocabulary

AnyTranscriber = Transcriber | CtcTranscriber | MoonshineTranscriber
CTC_TYPES = ("wav2vec2", "hubert", "parakeet_ctc")
"""The `model_type` of models that give a token for each frame."""
FEATURES_FILE = "preprocessor_config.json"
_FIXED = {"sampling_rate": 16_000, "hop_length": 160, "n_fft": 400, "dither": 0.0}
"""Settings of features that all Whispers share."""
_FIXED_OF_FRAMES = {
    "sampling_rate": RATE, "hop_length": 160, "n_fft": 512, "win_length": 400, "preemphasis": 0.97,
}  # fmt: skip
"""The same of models that give a token for each frame, of those that have features."""
_MULTILINGUAL = 51_865
"""Vocabularies of so many tokens, or more, have languages (openai-whisper)."""


def load_transcriber(
    place: str | os.PathLike[str],
    *,
    scheme: Scheme | None = None,
    batch: int = 8,
    target: str = "llvm",
    keep: bool = True,
) -> AnyTranscriber:
    """The transcriber of a checkpoint of Whisper, Moonshine, wav2vec 2.0, HuBERT or Parakeet, a folder or a name on
    the Hugging Face hub. Options are those of `relaxpy.llm.seq2seq.load_seq2seq`.

    Raises: UsageError: `bad-checkpoint`, `bad-config`, `bad-weights`; those of `local_checkpoint` for a name.
    """
    folder = local_checkpoint(place)
    config = config_of(folder) or {}
    if config.get("model_type") in CTC_TYPES:
        return _ctc_transcriber(folder, scheme, target, keep)
    features = optional_json(folder / FEATURES_FILE)
    if config.get("model_type") == "moonshine":
        check_features(features, f"{folder / FEATURES_FILE}")
        tokenizer = Tokenizer.from_checkpoint(folder)
        model = load_seq2seq(folder, scheme=scheme, batch=batch, target=target, keep=keep)
        return MoonshineTranscriber(model, tokenizer, name=checkpoint_name(folder))
    for name, value in _FIXED.items():
        if features.get(name, value) != value:
            raise UsageError(
                "bad-checkpoint",
                f"{folder / FEATURES_FILE}: {name} is {features[name]!r}, and must be {value}",
                help="features are those of Whisper: 16 kHz, 400 samples each 160",
            )
    tokenizer = Tokenizer.from_checkpoint(folder)
    model = load_seq2seq(folder, scheme=scheme, batch=batch, target=target, keep=keep)
    recogniser = EngineRecogniser(model)
    vocabulary = Vocabulary(
        tokenizer,
        is_multilingual=_is_multilingual(folder, model.decoder.vocab_size),
        positions=model.source.positions,
    )
    last = vocabulary.time + model.source.positions
    if last >= model.decoder.vocab_size:
        raise UsageError(
            "bad-checkpoint",
            f"{folder}: the times of a window of {model.source.positions} positions are tokens up to {last}, and the "
            f"model has {model.decoder.vocab_size}",
            help="check that tokenizer.json belongs to this model",
        )
    return Transcriber(recogniser, vocabulary, name=checkpoint_name(folder))


def _ctc_transcriber(
    folder: Path, scheme: Scheme | None, target: str, keep: bool
) -> CtcTranscriber:
    features = optional_json(folder / FEATURES_FILE)
    features = optional_json(folder / "processor_config.json").get("feature_extractor") or features
    for name, value in _FIXED_OF_FRAMES.items():
        if features.get(name, value) != value:
            raise UsageError(
                "bad-checkpoint",
                f"the features of {folder}: {name} is {features[name]!r}, and must be {value}",
            )
    model = load_ctc(folder, scheme, target=target, keep=keep)
    vocabulary = read_ctc_vocabulary(folder, model.blank, model.vocab_size)
    normalise = not model.has_features and features.get("do_normalize", True) is not False
    return CtcTranscriber(model, vocabulary, normalise=normalise, name=checkpoint_name(folder))


def _is_multilingual(folder: Path, vocab_size: int) -> bool:
    given: Any = optional_json(folder / GENERATION_CONFIG_FILE).get("is_multilingual")
    return given if isinstance(given, bool) else vocab_size >= _MULTILINGUAL
