"""faster-whisper's interface: `from relaxpy.speech import WhisperModel`."""

from __future__ import annotations

import os
from typing import Any, Unpack

from relaxpy.errors import UsageError
from relaxpy.models.loaded import Scheme
from relaxpy.speech.load import load_transcriber
from relaxpy.speech.options import TranscriptionOptionsDict
from relaxpy.speech.segments import TranscriptionInfo
from relaxpy.speech.transcriber import Given, Transcriber, Transcription

_SCHEMES = {"default": Scheme(bits=None), "auto": Scheme(bits=None), "float32": Scheme(bits=None)}
_DEVICES = ("cpu", "auto")


class WhisperModel:
    """A model with the methods of `faster_whisper.WhisperModel`.

    segments, info = WhisperModel("openai/whisper-tiny").transcribe("talk.mp3")
    """

    def __init__(
        self,
        model_size_or_path: str | os.PathLike[str],
        device: str = "auto",
        compute_type: str = "default",
        **options: Any,
    ) -> None:
        """A folder, or a name on the Hugging Face hub, of a checkpoint of transformers. `compute_type` is "float32" or
        "default"; other schemes are those of `load_transcriber`.

        Raises: UsageError: `bad-arguments` for other arguments; those of `load_transcriber`.
        """
        if device not in _DEVICES:
            raise UsageError(
                "bad-arguments",
                f"device is one of {', '.join(_DEVICES)}, got {device!r}",
                help="load_transcriber(place, target=…) compiles for another target",
            )
        if compute_type not in _SCHEMES:
            raise UsageError(
                "bad-arguments",
                f"compute_type is one of {', '.join(_SCHEMES)}, got {compute_type!r}",
                help="load_transcriber(place, scheme=…) quantises weights",
            )
        if options:
            raise UsageError(
                "bad-arguments",
                f"WhisperModel has no option {next(iter(options))}",
                help="threads are set by TVM_NUM_THREADS",
            )
        found = load_transcriber(model_size_or_path, scheme=_SCHEMES[compute_type])
        if not isinstance(found, Transcriber):
            raise UsageError(
                "bad-arguments",
                f"{found.name} is no Whisper: it {found.nature}",
                help="load_transcriber(place).transcribe(path)",
            )
        self.transcriber = found

    @property
    def is_multilingual(self) -> bool:
        return self.transcriber.vocabulary.is_multilingual

    @property
    def supported_languages(self) -> list[str]:
        """Codes."""
        return [*self.transcriber.vocabulary.languages] if self.is_multilingual else ["en"]

    def transcribe(
        self, audio: Given, **options: Unpack[TranscriptionOptionsDict]
    ) -> tuple[Transcription, TranscriptionInfo]:
        """The segments, an iterator, and what is known before them. As in faster-whisper, `beam_size` is 5 unless it is
        given."""
        options.setdefault("beam_size", 5)
        found = self.transcriber.transcribe(audio, **options)
        return found, found.info

    def detect_language(
        self,
        audio: Given,
        *,
        language_detection_segments: int = 1,
        language_detection_threshold: float = 0.5,
    ) -> tuple[str, float, list[tuple[str, float]]]:
        """The language, its probability, and those of all."""
        code, share, others = self.transcriber.detect_language(
            audio, segments=language_detection_segments, threshold=language_detection_threshold
        )
        return code, share, [*others]


class BatchedInferencePipeline:
    """As `faster_whisper.BatchedInferencePipeline`: a recording is cut at pauses into windows, of which `batch_size`
    are heard together. `vad_filter` and `without_timestamps` are True, unless they are given."""

    def __init__(self, model: WhisperModel) -> None:
        self.model = model

    def transcribe(
        self, audio: Given, **options: Unpack[TranscriptionOptionsDict]
    ) -> tuple[Transcription, TranscriptionInfo]:
        """The segments, an iterator, and what is known before them."""
        options.setdefault("batch_size", 8)
        options.setdefault("vad_filter", True)
        options.setdefault("without_timestamps", True)
        return self.model.transcribe(audio, **options)
