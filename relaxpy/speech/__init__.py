"""Speech as people use it: recordings in, text out.

    from relaxpy.speech import load_transcriber

    transcriber = load_transcriber("openai/whisper-tiny")
    for segment in transcriber.transcribe("talk.mp3"):
        print(f"{segment.start:.2f} {segment.end:.2f} {segment.text}")

Sound is decoded by PyAV (`sound`), becomes log-mel features by a compiled program (`log_mel`, `spectrum`), and text by
a Whisper in relaxpy's engine (`transcriber`), by a Moonshine (`moonshine`), or by a model that gives a
token for each frame (`ctc`). `WhisperModel`
and `BatchedInferencePipeline` have faster-whisper's interfaces."""

from relaxpy.speech.ctc import CtcTranscriber, CtcTranscription
from relaxpy.speech.languages import LANGUAGES
from relaxpy.speech.live import LiveText, LiveTranscriber
from relaxpy.speech.load import load_transcriber
from relaxpy.speech.log_mel import LogMel
from relaxpy.speech.moonshine import MoonshineTranscriber, MoonshineTranscription
from relaxpy.speech.options import TranscriptionOptions
from relaxpy.speech.segments import Segment, TranscriptionInfo, Word
from relaxpy.speech.sound import Sound
from relaxpy.speech.sound_transcription import SoundTranscription
from relaxpy.speech.transcriber import Transcriber, Transcription
from relaxpy.speech.whisper_model import BatchedInferencePipeline, WhisperModel

__all__ = [
    "LANGUAGES",
    "BatchedInferencePipeline",
    "CtcTranscriber",
    "CtcTranscription",
    "LiveText",
    "LiveTranscriber",
    "LogMel",
    "MoonshineTranscriber",
    "MoonshineTranscription",
    "Segment",
    "Sound",
    "SoundTranscription",
    "Transcriber",
    "Transcription",
    "TranscriptionInfo",
    "TranscriptionOptions",
    "WhisperModel",
    "Word",
    "load_transcriber",
]


def __dir__() -> list[str]:
    return sorted(__all__)
