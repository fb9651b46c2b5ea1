"""Recordings as text over HTTP, by the Whisper of tests/speech/digits: by the client of OpenAI, and by plain forms."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("av")

from tests.server.running import ASKED, KEY, Running, server_process
from tests.speech.recordings import encoded, video_only

openai: Any = pytest.importorskip("openai")

SPEECH = Path(__file__).parents[1] / "speech"
DIGITS, RECORDED = SPEECH / "digits", SPEECH / "recorded"
SHORT, PAUSES = (RECORDED / name for name in ("short.wav", "pauses.flac"))
TRANSCRIBE, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
HEAD = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The Whisper that reads digits, with a key."""
    folder = tmp_path_factory.mktemp("hearing")
    options = (
        "--api-key",
        KEY,
        "--max-sound",
        "1",
        "--sound-seconds",
        "100",
        "--running",
        "4",
        "--waiting",
        "4",
    )
    with server_process(folder, f"digits={DIGITS}", *options) as found:
        yield found


@pytest.fixture(scope="module")
def ears(hearing: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{hearing.url}/v1", api_key=KEY, max_retries=0) as found:
        yield found.audio


@pytest.fixture(scope="module")
def http(hearing: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=hearing.url, headers=HEAD, timeout=60) as found:
        yield found


def sent(
    http: httpx.Client,
    path: str = TRANSCRIBE,
    sound: Any = SHORT,
    name: str = "a.wav",
    **fields: Any,
) -> Any:
    data = sound if isinstance(sound, bytes) else sound.read_bytes()
    return http.post(path, files={"file": (name, data)}, data=fields)


def message(answer: Any, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["type"]
    return error["message"]


# Answers


def test_json_and_text(ears: Any) -> None:
    found = ears.transcriptions.create(model="digits", file=SHORT)
    assert found.text == "one two"
    assert found.usage.type == "duration"
    assert abs(found.usage.seconds - 1.51) < 0.01
    text = ears.transcriptions.create(model="digits", file=PAUSES, response_format="text")
    assert text == "four\nnine zero\nseven\n"
    prompted = ears.transcriptions.create(
        model="digits", file=SHORT, prompt="one", language="en", temperature=0
    )
    assert prompted.text == "one two"


def test_verbose_json_with_words(ears: Any) -> None:
    found = ears.transcriptions.create(
        model="digits",
        file=PAUSES,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert found.language == "english"
    assert abs(found.duration - 3.44) < 0.01
    assert found.text == "four nine zero seven"
    assert [each.text for each in found.segments] == [" four", " nine zero", " seven"]
    assert [each.id for each in found.segments] == [0, 1, 2]
    assert [each.word for each in found.words] == ["four", "nine", "zero", "seven"]
    assert all(0 <= each.start < each.end <= found.duration for each in found.words)
    assert abs(found.segments[2].end - 2.91) < 0.15
    assert all(
        each.tokens and each.avg_logprob < 0 and each.temperature == 0 for each in found.segments
    )


def test_granularities(ears: Any) -> None:
    def verbose(**options: Any) -> Any:
        return ears.transcriptions.create(
            model="digits", file=SHORT, response_format="verbose_json", **options
        )

    assert [each.text for each in verbose().segments] == [" one two"]
    assert verbose().words is None
    words = verbose(timestamp_granularities=["word"])
    assert words.segments is None
    assert [each.word for each in words.words] == ["one", "two"]


def test_subtitles(ears: Any) -> None:
    srt = ears.transcriptions.create(model="digits", file=PAUSES, response_format="srt")
    blocks = srt.strip().split("\n\n")
    assert [block.splitlines()[2] for block in blocks] == ["four", "nine zero", "seven"]
    assert blocks[0].startswith("1\n00:00:00,")
    assert " --> " in blocks[0]
    vtt = ears.transcriptions.create(model="digits", file=PAUSES, response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n00:0")
    assert vtt.count(" --> ") == 3


def test_stream(ears: Any, http: httpx.Client) -> None:
    events = [*ears.transcriptions.create(model="digits", file=PAUSES, stream=True)]
    assert {each.type for each in events[:-1]} == {"transcript.text.delta"}
    assert [each.delta for each in events[:-1]] == ["four", " nine zero", " seven"]
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == "four nine zero seven"
    answer = sent(http, stream="true")
    assert answer.headers["content-type"].startswith("text/event-stream")
    *_, last = answer.text.strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["usage"]["type"] == "duration"


def test_translation(http: httpx.Client) -> None:
    """The digits' model knows the token of the task, and has not learned it: the answer's form is what is tested."""
    found = sent(http, TRANSLATE, response_format="verbose_json").json()
    assert (found["task"], found["language"]) == ("translate", "english")


def test_silence_has_no_text(http: httpx.Client) -> None:
    for count in (1, 401, 16_000):
        sound = encoded(np.zeros(count, np.float32), 16_000, "wav")
        found = sent(http, sound=sound, response_format="verbose_json").json()
        assert abs(found["duration"] - count / 16_000) < 1e-3


def test_two_clients_at_once(ears: Any) -> None:
    expected = {SHORT: "one two", PAUSES: "four nine zero seven"}
    files = [SHORT, PAUSES] * 3

    def text(file: Path) -> str:
        return ears.transcriptions.create(model="digits", file=file).text

    with ThreadPoolExecutor(len(files)) as pool:
        assert [*pool.map(text, files)] == [expected[file] for file in files]


# Mistakes


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"response_format": "diarized_json"}, "response_format", "verbose_json"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"temperature": "nan"}, "temperature", "finite"),
        ({"timestamp_granularities[]": ["word"]}, "timestamp_granularities", "verbose_json"),
        ({"timestamp_granularities[]": ["letter"], "response_format": "verbose_json"}, "timestamp_granularities.0", "word"),
        ({"include[]": ["logprobs"], "response_format": "verbose_json"}, "include", "avg_logprob"),
        ({"include[]": ["words"]}, "include.0", "logprobs"),
        ({"chunking_strategy": '{"type": "client_vad"}'}, "chunking_strategy", "server_vad"),
        ({"chunking_strategy": "none"}, "chunking_strategy", "auto"),
        ({"chunking_strategy[type]": "server_vad", "chunking_strategy[threshold]": "2"}, "chunking_strategy.threshold", "1"),
        ({"known_speaker_names[]": ["Ann"]}, "known_speaker_names", "who speaks"),
        ({"stream": "true", "response_format": "srt"}, "stream", "srt"),
        ({"langauge": "en"}, "langauge", "write language"),
        ({"language": "klingon"}, None, "klingon"),
        ({"model": ["digits", "digits"]}, "model", "twice"),
    ],
)  # fmt: skip
def test_wrong_fields(
    http: httpx.Client, fields: dict[str, Any], param: str | None, text: str
) -> None:
    answer = sent(http, **fields)
    assert text in message(answer)
    assert answer.json()["error"]["param"] == param


def test_logprobs(ears: Any) -> None:
    """Of the tokens of the text, as the client of OpenAI reads them; all of a stream are in its last event."""
    found = ears.transcriptions.create(model="digits", file=PAUSES, include=["logprobs"])
    assert (
        "".join(each.token for each in found.logprobs).strip()
        == found.text
        == "four nine zero seven"
    )
    assert all(bytes(map(int, each.bytes)).decode() == each.token for each in found.logprobs)
    assert all(-5 < each.logprob <= 0 for each in found.logprobs)
    events = [
        *ears.transcriptions.create(model="digits", file=PAUSES, include=["logprobs"], stream=True)
    ]
    parts = [each for event in events[:-1] for each in event.logprobs]
    assert [each.token for each in parts] == [each.token for each in events[-1].logprobs]
    assert [each.token for each in parts] == [each.token for each in found.logprobs]
    plain = ears.transcriptions.create(model="digits", file=SHORT)
    assert plain.logprobs is None


def test_windows_at_pauses(ears: Any, http: httpx.Client) -> None:
    """OpenAI's chunking strategies, as its client sends them, and silence that is cut out."""
    strategies: list[Any] = [
        "auto",
        {"type": "server_vad", "silence_duration_ms": 300, "threshold": 0.4},
    ]
    for strategy in strategies:
        found = ears.transcriptions.create(
            model="digits", file=PAUSES, chunking_strategy=strategy, response_format="verbose_json"
        )
        assert found.text == "four nine zero seven"
        assert abs(found.segments[-1].end - 2.91) < 0.5
    assert sent(http, sound=PAUSES, vad_filter="true").json()["text"] == "four nine zero seven"
    as_json = '{"type": "server_vad"}'
    assert "nine" in sent(http, sound=PAUSES, chunking_strategy=as_json).json()["text"]


def test_harmless_fields_are_taken(http: httpx.Client) -> None:
    given = {
        "n": "1",
        "vad": "false",
        "user": "me",
        "seed": "7",
    }
    assert sent(http, **given).json()["text"] == "one two"


def test_models_of_other_kinds(hearing: Running, running: Running, http: httpx.Client) -> None:
    assert [each["id"] for each in http.get("/v1/models").json()["data"]] == ["digits"]
    assert "there is digits" in message(sent(http, model="whisper-1"), 404)
    for model in ({}, {"model": "digits"}):
        answer = http.post("/v1/chat/completions", json={"messages": ASKED, **model})
        assert TRANSCRIBE in message(answer)
    with httpx.Client(base_url=running.url, headers=HEAD) as chat:
        assert "relaxpy serve" in message(sent(chat, model="relaxpy"), 404)


def test_speech_beside_chats(tmp_path: Path) -> None:
    """Each kind is the first of its own without a name, and a chat goes on while recordings are heard."""
    from relaxpy.embedded import embedded_model

    with (
        server_process(tmp_path, f"digits={DIGITS}", f"chat={embedded_model()}") as both,
        httpx.Client(base_url=both.url, timeout=60) as http,
        ThreadPoolExecutor(4) as pool,
    ):
        body = {"messages": ASKED, "max_tokens": 8, "temperature": 0}
        expected = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        heard = [pool.submit(sent, http) for _ in range(8)]
        for model in ({}, {"model": "chat"}):
            found = http.post("/v1/chat/completions", json={**body, **model}).json()
            assert found["choices"][0]["message"] == expected
        assert {each.result().json()["text"] for each in heard} == {"one two"}
        assert "chat hears nothing: digits does" in message(sent(http, model="chat"))
        assert TRANSCRIBE in message(
            http.post("/v1/completions", json={"model": "digits", "prompt": "a"})
        )
        assert [each["id"] for each in http.get("/v1/models").json()["data"]] == ["chat", "digits"]


def playlist() -> bytes:
    return f"#EXTM3U\n#EXTINF:1,\nfile://{SHORT}\n".encode()


@pytest.mark.parametrize(
    ("sound", "text"),
    [
        (b"", "0 bytes"),
        (PAUSES.read_bytes()[:-2000], "cut off|damaged"),
        (SHORT.read_bytes()[:-2000], "cut off"),
        (b"No sound at all. " * 100, "no sound that can be decoded"),
        (playlist(), "no sound that can be decoded"),
        (b'{"file": "/etc/passwd"}', "no sound that can be decoded"),
        (video_only(), "has no sound"),
    ],
    ids=["empty", "cut", "cut-wav", "text", "playlist", "json", "video"],
)  # fmt: skip
@pytest.mark.parametrize("stream", ["true", "false"])
def test_hostile_files(http: httpx.Client, sound: bytes, text: str, stream: str) -> None:
    answer = sent(http, sound=sound, name="../../talk.wav", stream=stream)
    found = message(answer)
    assert any(each in found for each in text.split("|")), found
    assert found.startswith("talk.wav ")
    assert answer.json()["error"]["code"] == "bad-sound"


def test_limits(http: httpx.Client) -> None:
    assert "at most 1048576 bytes" in message(sent(http, sound=bytes(1 << 20)), 413)
    long = encoded(np.zeros(101 * 16_000, np.float32), 16_000, "flac")
    assert len(long) < 1 << 20
    assert "longer than 100 s" in message(sent(http, sound=long))


def test_bodies_that_are_no_forms(http: httpx.Client) -> None:
    assert "multipart/form-data" in message(http.post(TRANSCRIBE, json={"file": "a"}), 415)
    assert "file" in message(http.post(TRANSCRIBE, files={"sound": b"a"}))
    assert "required" in message(http.post(TRANSCRIBE, files={"model": (None, "digits")}))
    assert "should be a file" in message(
        http.post(TRANSCRIBE, files={"file": (None, "/etc/passwd")})
    )
    assert "Too many files" in message(
        http.post(TRANSCRIBE, files=[("file", b"a"), ("file", b"b")])
    )
    many = [(f"a{n}", (None, "")) for n in range(300)]
    assert "Too many fields" in message(http.post(TRANSCRIBE, files=many))
    for kind, body in (
        ("multipart/form-data", b"a"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="file"'),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", b"--y\r\n\r\n--y--"),
    ):
        answer = http.post(TRANSCRIBE, content=body, headers={"content-type": kind})
        assert message(answer), kind


def test_the_key_covers_the_routes(hearing: Running) -> None:
    with httpx.Client(base_url=hearing.url) as http:
        for path in (TRANSCRIBE, TRANSLATE):
            assert "API key" in message(sent(http, path), 401)
            answer = http.post(path, files={"file": b""}, headers={"authorization": "Bearer wrong"})
            assert "wrong" in message(answer, 401)


def test_metrics_count_them(http: httpx.Client) -> None:
    def counted(name: str) -> float:
        lines = http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    route = f'relaxpy_requests_total{{route="{TRANSCRIBE}",status="200"}}'
    requests, seconds = counted(route), counted("relaxpy_sound_seconds_total")
    assert sent(http).status_code == 200
    assert counted(route) == requests + 1
    assert abs(counted("relaxpy_sound_seconds_total") - seconds - 1.51) < 0.01


def test_pages_of_other_origins() -> None:
    """They may send forms without asking first: a server without a key does not work for them."""
    from starlette.requests import Request

    from relaxpy.server.audio import SpeechBody
    from relaxpy.server.errors import ApiError
    from relaxpy.server.forms import FormReader
    from relaxpy.server.settings import ServerSettings

    def status(origin: str | None, **settings: Any) -> int:
        given = {"content-type": "multipart/form-data", "host": "localhost:8000"}
        headers = [*given.items(), *([("origin", origin)] if origin else [])]
        raw = [(name.encode(), value.encode()) for name, value in headers]

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def read() -> None:
            async with FormReader(ServerSettings(**settings)).read(
                Request({"type": "http", "headers": raw}, receive), SpeechBody
            ):
                pass

        with pytest.raises(ApiError) as caught:
            asyncio.run(read())
        return caught.value.status

    assert status("http://evil.example") == status("null") == 403
    assert status(None) == status("http://localhost:8000") == 400  # the form has no boundary
    assert (
        status("http://a.example", origins=("http://a.example",))
        == status("null", origins=("*",))
        == 400
    )
    assert status("http://evil.example", api_keys=("k",)) == 400


# Ends


class Slow:
    """A transcriber of windows that take a while."""

    def __init__(self) -> None:
        self.windows, self.began = 0, threading.Event()

    def transcribe(self, sound: bytes, *, check: Any, **_: Any) -> Any:
        from relaxpy.speech import Segment, TranscriptionInfo, TranscriptionOptions

        def segments() -> Iterator[Any]:
            yield Segment(1, 0, 0.0, 1.0, " one", (1,), -0.1, 1.0, 0.0, None, 0.0)
            while self.windows < 500:
                check()
                self.windows += 1
                self.began.set()
                time.sleep(0.01)

        return Found(
            segments(), TranscriptionInfo("en", 1.0, 1.0, 1.0, None, TranscriptionOptions(), None)
        )


class Found:
    def __init__(self, segments: Any, info: Any) -> None:
        self.segments, self.info = segments, info

    def __iter__(self) -> Any:
        return self.segments


def test_what_nobody_waits_for_ends() -> None:
    """A client that goes, a time that is over, and too many at once."""
    from relaxpy.errors import UsageError
    from relaxpy.server.speech_model import SpeechModel

    slow = Slow()
    transcriber: Any = slow

    async def work() -> None:
        model = SpeechModel("slow", transcriber, running=1, waiting=1)

        async def hear(seconds: float = 60) -> None:
            async for _ in model.transcribe(b"", "a", longest=1, seconds=seconds):
                pass

        first = asyncio.create_task(hear())
        await asyncio.to_thread(slow.began.wait, 10)
        second = asyncio.create_task(hear())
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="2 recordings are heard or wait"):
            await hear()
        second.cancel()
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await asyncio.sleep(0.1)
        seen = slow.windows
        await asyncio.sleep(0.1)
        assert slow.windows == seen
        with pytest.raises(UsageError, match="not heard within"):
            await hear(0.05)
        last = asyncio.create_task(hear())
        await asyncio.sleep(0.05)
        await model.close()
        with pytest.raises(UsageError, match="stops"):
            await last
        assert slow.windows < 100

    asyncio.run(work())


@contextmanager
def slow_server(**settings: Any) -> Iterator[tuple[str, Slow]]:
    """A server in a thread whose one model hears one recording at a time, and lets one wait."""
    from relaxpy.server.connections import bound
    from relaxpy.server.context import Server
    from relaxpy.server.run import run
    from relaxpy.server.settings import ServerSettings
    from relaxpy.server.speech_model import SpeechModel

    slow, is_ready = Slow(), threading.Event()
    found: dict[str, Any] = {}
    transcriber: Any = slow

    def ready(url: str) -> None:
        found["url"] = url
        is_ready.set()

    async def work() -> None:
        model = SpeechModel("slow", transcriber, running=1, waiting=1)
        found["loop"] = asyncio.get_running_loop()
        server = found["server"] = Server(ServerSettings(**settings), {}, {}, {"slow": model})
        try:
            await run(server, bound("127.0.0.1", 0), ready)
        finally:
            await model.close()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        assert is_ready.wait(20)
        yield found["url"], slow
    finally:
        found["loop"].call_soon_threadsafe(found["server"].stop)
        thread.join(20)


@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_client_that_goes_ends_its_transcription(stream: str) -> None:
    form: dict[str, Any] = {"files": {"file": b"a"}, "data": {"stream": stream}}
    with slow_server() as (url, slow):
        with httpx.Client(base_url=url, timeout=20) as http:
            if stream == "true":
                with http.stream("POST", TRANSCRIBE, **form) as answer:
                    first = next(answer.iter_lines())
                assert json.loads(first.removeprefix("data: "))["delta"] == "one"
            else:
                with pytest.raises(httpx.TimeoutException):
                    http.post(TRANSCRIBE, timeout=0.3, **form)
        deadline = time.monotonic() + 4
        seen = -1
        while seen != slow.windows:
            assert time.monotonic() < deadline
            seen = slow.windows
            time.sleep(0.1)
        assert 0 < seen < 400


def test_many_recordings_wait_for_a_while_only() -> None:
    """One is heard, one waits, a third is refused; both end with the time of answers."""
    with (
        slow_server(request_seconds=1.0) as (url, slow),
        httpx.Client(base_url=url, timeout=20) as http,
    ):
        with ThreadPoolExecutor(2) as pool:
            two = [
                pool.submit(http.post, TRANSCRIBE, files={"file": ("a.wav", b"a")})
                for _ in range(2)
            ]
            assert slow.began.wait(10)
            time.sleep(0.3)
            third = http.post(TRANSCRIBE, files={"file": b"a"})
            assert "2 recordings are heard or wait" in message(third, 429)
            assert third.headers["retry-after"]
            for each in two:
                assert "was not heard within 1 seconds" in message(each.result(), 408)
        with http.stream(
            "POST", TRANSCRIBE, files={"file": b"a"}, data={"stream": "true"}
        ) as answer:
            *_, last = [line for line in answer.iter_lines() if line]
        event = json.loads(last.removeprefix("data: "))
        assert event["type"] == "error"
        assert event["error"]["code"] == "time-limit"


@pytest.mark.parametrize(
    "options", [("--cache-tokens", "9"), ("--target-ms", "100"), ("--no-drafts",)]
)
def test_options_that_do_nothing(options: tuple[str, ...]) -> None:
    """A server that only hears refuses them by name."""
    from click.testing import CliRunner

    from relaxpy.cli.serve import serve

    error = CliRunner().invoke(serve, [f"digits={DIGITS}", *options]).exception
    assert f"{options[0]} is for models that write texts, and digits hears" in str(error)


def test_models_of_speech_take_no_options_of_texts() -> None:
    from relaxpy.errors import UsageError
    from relaxpy.server.settings import ModelSettings
    from relaxpy.server.speech_model import SpeechModel

    given: list[dict[str, Any]] = [
        {"context": 8},
        {"chat_template": "x"},
        {"adapters": (("a", "b"),)},
        {"mmproj": "mmproj.gguf"},
    ]
    for settings in given:
        with pytest.raises(UsageError, match="is a model of speech"):
            asyncio.run(SpeechModel.start(ModelSettings(name="m", place=str(DIGITS), **settings)))
