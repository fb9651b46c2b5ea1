"""A hundred hostile files, sent to the server: answers of 4xx that say which file, in bounded time and memory, and nothing
is opened but the upload. Some of them, unless in a full sweep."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("av")

from tests.server.hostile_bodies import Process
from tests.server.running import Running, server_process
from tests.speech.hostile_files import files, silence_of
from tests.sweeps import FULL

DIGITS = Path(__file__).parent / "digits"
SOME = ("0 bytes", "zip of a recording", "m3u8 of a path", "m3u8 after ID3", "ffconcat of an address", "sdp", "video only",
        "1 Hz", "65 channels", "64 channels", "NaN", "24 h of silence", "lists in lists", "webm, damaged")  # fmt: skip
MOST_SECONDS = 8.0
"""Of the processor, for a file: the server hears 100 seconds of it at most."""
MOST_BYTES = 150 << 20
"""That the server may grow by, for a file."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc and inotify are Linux's")


@contextmanager
def watched(path: Path) -> Iterator[list[int]]:
    """What is done with a file: the masks of inotify's events, complete at the end."""
    library = ctypes.CDLL(None, use_errno=True)
    handle = library.inotify_init1(os.O_NONBLOCK)
    assert library.inotify_add_watch(handle, os.fsencode(path), 0x20 | 0x1) >= 0  # opened, read
    found: list[int] = []
    try:
        yield found
    finally:
        with suppress(BlockingIOError):
            found += [struct.unpack_from("iI", os.read(handle, 1 << 16))[1]]
        os.close(handle)


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    options = ("--sound-seconds", "100", "--request-seconds", "60")
    with server_process(tmp_path_factory.mktemp("hearing"), f"digits={DIGITS}", *options) as found:
        yield found


def test_the_files() -> None:
    found = files("127.0.0.1:80", "/nowhere")
    assert len(found) >= 100
    assert {*SOME} <= {*found}
    assert len(found["24 h of silence"][0]) < 1 << 20
    assert len(silence_of(60)) > 17 * 7


@pytest.mark.sweep(1)
def test_hostile_files(hearing: Running, tmp_path: Path) -> None:
    assert hearing.process is not None
    process, secret = Process(hearing.process.pid), tmp_path / "secret.wav"
    secret.write_bytes(files("127.0.0.1:80", "/nowhere")["64 channels"][0])
    wrong: list[str] = []
    largest = 0.0, ""
    with (
        socket.create_server(("127.0.0.1", 0)) as address,
        httpx.Client(base_url=hearing.url, timeout=90) as http,
    ):
        address.settimeout(0.05)
        given = files(f"127.0.0.1:{address.getsockname()[1]}", str(secret))
        http.post("/v1/audio/transcriptions", files={"file": ("a.wav", given["64 channels"][0])})
        with watched(secret) as events:
            for number, (name, (data, may_sound)) in enumerate(given.items()):
                if not FULL and name not in SOME:
                    continue
                process.begin()
                answer = http.post(
                    "/v1/audio/transcriptions", files={"file": (f"f{number}.m3u8", data)}
                )
                spent, grown = process.seconds(), process.bytes()
                if answer.status_code == 200 and not may_sound:
                    wrong.append(f"{name}: it was heard: {answer.text[:100]}")
                elif answer.status_code != 200 and (
                    answer.status_code // 100 != 4
                    or answer.json()["error"]["code"] != "bad-sound"
                    or not answer.json()["error"]["message"].startswith(f"f{number}.m3u8 ")
                ):
                    wrong.append(f"{name}: {answer.status_code} {answer.text[:300]}")
                if spent > MOST_SECONDS or grown > MOST_BYTES:
                    wrong.append(f"{name}: {spent:.1f} s, {grown >> 20} MB")
                largest = max(largest, (spent, name))
        assert not wrong, "\n".join(wrong)
        assert events == []
        with pytest.raises(TimeoutError):
            address.accept()
        print("the longest of the processor:", largest)
        assert http.get("/health").status_code == 200
