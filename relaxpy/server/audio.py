"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`: recordings as text, as OpenAI has them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from time import perf_counter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from relaxpy.errors import UsageError
from relaxpy.server import known_fields
from relaxpy.server.bodies import Body
from relaxpy.server.context import Server, answer, event, in_thread, stream, unless_gone
from relaxpy.server.errors import ApiError
from relaxpy.server.forms import FORM
from relaxpy.server.logprobs import LEAST
from relaxpy.server.speech_model import SpeechModel
from relaxpy.speech import LANGUAGES, Segment, Transcriber, TranscriptionInfo
from relaxpy.speech.formats import written
from relaxpy.speech.options import TEMPERATURES, TranscriptionOptionsDict

_FILES = {"text": "txt", "srt": "srt", "vtt": "vtt"}
"""Formats of answers that are files, and their names in `relaxpy.speech.formats`."""
_WINDOWS = 8
"""Windows of a recording that are heard together, where it is cut at pauses."""


def _listed(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


class ServerVad(Body):
    """How speech is told from silence, with OpenAI's names and defaults."""

    type: Literal["server_vad"]
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=10_000)] = 300
    silence_duration_ms: Annotated[int, Field(ge=0, le=60_000)] = 200

    def parameters(self) -> dict[str, Any]:
        """As `vad_parameters`."""
        return {
            "threshold": self.threshold,
            "speech_pad_ms": self.prefix_padding_ms,
            "min_silence_duration_ms": self.silence_duration_ms,
        }


def _object(given: Any) -> Any:
    """JSON in the field of a form."""
    if isinstance(given, str) and given.lstrip().startswith("{"):
        with suppress(ValueError):
            return from_json(given)
    return given


class SpeechBody(Body):
    """The form of a request for the text of a recording."""

    others = known_fields.SPEECH
    content_type: ClassVar[str] = FORM
    file: Annotated[bytes, Field(max_length=1 << 40)]
    model: Annotated[str, Field(max_length=1000)] = ""
    language: Annotated[str, Field(max_length=100)] | None = None
    """Code or name; None: it is heard."""
    prompt: Annotated[str, Field(max_length=1 << 16)] | None = None
    """Text before the recording."""
    hotwords: Annotated[str, Field(max_length=1 << 16)] | None = None
    """Words that come up, for every window."""
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.0
    """0: the most probable text, and others where it fails a threshold."""
    timestamp_granularities: (
        Annotated[
            list[Literal["segment", "word"]],
            BeforeValidator(_listed),
            Field(min_length=1, max_length=2),
        ]
        | None
    ) = None
    """What has times in verbose JSON; None: segments."""
    include: Annotated[
        list[Literal["logprobs"]],
        BeforeValidator(_listed),
        Field(default_factory=list, max_length=1),
    ]
    """`logprobs`: the log-probabilities of the tokens of the text, in JSON."""
    chunking_strategy: Annotated[Literal["auto"] | ServerVad | None, BeforeValidator(_object)] = (
        None
    )
    """Whether windows are cut at pauses and heard together, and without silence if it says what that is."""
    vad_filter: bool = False
    """Whether silence is cut out."""
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] = 0
    stream: bool = False

    @property
    def has_words(self) -> bool:
        """Whether words have times."""
        return "word" in (self.timestamp_granularities or ())

    @property
    def has_segments(self) -> bool:
        """Whether segments are shown in verbose JSON."""
        return "segment" in (self.timestamp_granularities or ("segment",))

    def check(self) -> None:
        """Raises: ApiError for fields that do not go together."""
        form = self.response_format
        if self.timestamp_granularities is not None and form != "verbose_json":
            raise ApiError(
                f"timestamp_granularities: only with response_format verbose_json, which has times, not {form}",
                param="timestamp_granularities",
            )
        if self.include and form != "json":
            raise ApiError(
                f"include: logprobs are in the format json, not in {form}: its segments have avg_logprob"
                if form == "verbose_json"
                else f"include: logprobs are in the format json, not in {form}",
                param="include",
            )
        if self.stream and form not in ("json", "text"):
            raise ApiError(
                f"stream: events have text, and are not in the format {form}: leave stream out, or response_format",
                param="stream",
            )

    def options(self, task: str) -> TranscriptionOptionsDict:
        """As `Transcriber.transcribe` takes them."""
        chunks = self.chunking_strategy
        cut: TranscriptionOptionsDict = {"vad_filter": self.vad_filter}
        if chunks is not None:
            cut["batch_size"] = _WINDOWS
        if isinstance(chunks, ServerVad):
            cut |= {"vad_filter": True, "vad_parameters": chunks.parameters()}
        return {
            **cut,
            "task": task,
            "language": self.language or None,
            "initial_prompt": self.prompt or None,
            "hotwords": self.hotwords or None,
            "temperature": self.temperature or TEMPERATURES,
            "word_timestamps": self.has_words,
            "seed": self.seed,
        }


async def transcriptions(server: Server, request: Request) -> Response:
    """The text of a recording."""
    return await _answer(server, request, "transcribe")


async def translations(server: Server, request: Request) -> Response:
    """The text of a recording in English."""
    return await _answer(server, request, "translate")


@dataclass
class _Heard:
    """A recording that is heard, and what was found."""

    server: Server
    model: SpeechModel
    body: SpeechBody
    name: str
    """The file's."""
    task: str
    start: float = field(default_factory=perf_counter)
    info: TranscriptionInfo | None = None

    def __post_init__(self) -> None:
        """Raises: ApiError for what the model does not have."""
        if self.body.include and not isinstance(self.model.transcriber, Transcriber):
            raise ApiError(
                f"{self.model.name} {self.model.transcriber.nature}, and takes no include: a Whisper does",
                param="include",
            )

    async def segments(self) -> AsyncGenerator[Segment]:
        """The segments as they come, counted at the end. Raises: ApiError."""
        settings = self.server.settings
        source = self.model.transcribe(
            self.body.file,
            self.name,
            longest=settings.sound_seconds,
            seconds=settings.request_seconds,
            **self.body.options(self.task),
        )
        try:
            async with aclosing(source):
                async for each in source:
                    if isinstance(each, TranscriptionInfo):
                        self.info = each
                    else:
                        yield each
        except UsageError as error:
            raise ApiError.of(error) from None
        self.server.metrics.note_sound(self.model.name, self.seconds, perf_counter() - self.start)

    @property
    def seconds(self) -> float:
        """Of the recording, once it is known."""
        assert self.info is not None
        return self.info.duration

    def logprobs(self, segments: Sequence[Segment]) -> dict[str, Any]:
        """Those of the tokens of text, if they were asked for."""
        transcriber = self.model.transcriber
        if not self.body.include or not isinstance(transcriber, Transcriber):
            return {}
        vocabulary = transcriber.vocabulary
        found: list[dict[str, Any]] = []
        for each in segments:
            for token, logprob in zip(each.tokens, each.logprobs, strict=True):
                if token < vocabulary.end and logprob is not None:
                    data = vocabulary.tokenizer.token_bytes(token)
                    text = data.decode("utf-8", "replace")
                    found.append({"token": text, "bytes": [*data], "logprob": max(logprob, LEAST)})
        return {"logprobs": found}

    @property
    def usage(self) -> dict[str, Any]:
        """As OpenAI counts recordings."""
        return {"type": "duration", "seconds": round(self.seconds, 3)}


async def _answer(server: Server, request: Request, task: str) -> Response:
    server.check_speech()
    async with AsyncExitStack() as stack:
        body, file_name = await stack.enter_async_context(server.forms.read(request, SpeechBody))
        body.check()
        heard = _Heard(server, server.speech_of(body.model), body, _shown(file_name), task)
        if body.stream:
            events = _events(heard, stack.pop_all())
            return await unless_gone(
                request, stream(events, lambda error: event({"type": "error", **error.openai()}))
            )
        return await unless_gone(request, _whole(heard))


def _shown(name: str) -> str:
    """What errors call the file."""
    last = PurePath(name.replace("\\", "/")).name[:100]
    return last if last.isprintable() and last else "the file"


async def _events(heard: _Heard, held: AsyncExitStack) -> AsyncGenerator[str]:
    text, probable = "", list[dict[str, Any]]()
    async with held, aclosing(heard.segments()) as segments:
        async for segment in segments:
            delta = segment.text if text else segment.text.lstrip()
            text += delta
            own = heard.logprobs([segment])
            probable += own.get("logprobs", [])
            yield event({"type": "transcript.text.delta", "delta": delta, **own})
    last = {"logprobs": probable} if heard.body.include else {}
    yield event({"type": "transcript.text.done", "text": text, **last, "usage": heard.usage})


async def _whole(heard: _Heard) -> Response:
    found: list[Segment] = []
    async with aclosing(heard.segments()) as segments:
        async for segment in segments:
            found.append(segment)
    return await in_thread(_written, heard, found)


def _written(heard: _Heard, segments: Sequence[Segment]) -> Response:
    body, info = heard.body, heard.info
    assert info is not None
    if body.response_format in _FILES:
        text = "".join(written(segments, _FILES[body.response_format]))
        return Response(text, media_type="text/plain; charset=utf-8")
    text = "".join(each.text for each in segments).strip()
    if body.response_format == "json":
        return answer({"text": text, **heard.logprobs(segments), "usage": heard.usage})
    code = "en" if heard.task == "translate" else info.language
    data: dict[str, Any] = {
        "task": heard.task,
        "language": LANGUAGES.get(code, ""),
        "duration": info.duration,
        "text": text,
    }
    if body.has_segments:
        data["segments"] = [_segment(each) for each in segments]
    if body.has_words:
        words = [word for each in segments for word in each.words or ()]
        data["words"] = [
            {"word": each.word.strip(), "start": each.start, "end": each.end} for each in words
        ]
    return answer({**data, "usage": heard.usage})


def _segment(segment: Segment) -> dict[str, Any]:
    """A segment as OpenAI writes it."""
    found = segment.as_dict()
    found.pop("words", None)
    return {**found, "id": segment.id - 1}
