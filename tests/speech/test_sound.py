"""Sound from files, bytes and arrays."""

from __future__ import annotations

import socket
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.speech.sound import RATE, Sound
from tests.speech.hostile_files import wav
from tests.speech.recordings import KINDS, encoded, video_only


def tone(seconds: float, rate: int, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(
        np.float32
    )


def loudness_at(samples: np.ndarray, hertz: float) -> float:
    wave = np.exp(-2j * np.pi * hertz * np.arange(len(samples)) / RATE)
    return float(2 * abs((samples * wave).mean()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 2])
def test_kinds(kind: str, channels: int, tmp_path: Path) -> None:
    """Each container, from bytes and from a file: the tone that it has, at its time."""
    rate = 48_000
    data = encoded(tone(2, rate), rate, kind, channels)
    path = tmp_path / "sound with a space.bin"  # names say nothing
    path.write_bytes(data)
    sound = Sound(data)
    assert abs(sound.seconds - 2) < 0.15  # codecs add a frame
    found = sound.samples(0, sound.length)
    assert found.dtype == np.float32
    assert abs(loudness_at(found[8000:16000], 440) - 0.5) < 0.03
    assert np.array_equal(Sound(path).samples(0, sound.length), found)


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 22_050, 44_100, 96_000])
def test_rates(rate: int) -> None:
    sound = Sound(encoded(tone(1, rate), rate, "wav"))
    assert abs(sound.length - RATE) <= 2
    assert abs(loudness_at(sound.samples(4000, 12_000), 440) - 0.5) < 0.01


def test_samples_are_the_files() -> None:
    """At 16 kHz nothing is resampled."""
    given = np.random.default_rng(0).integers(-32768, 32767, 40_001).astype(np.int16)
    sound = Sound(encoded(given.astype(np.float32) / 32768, RATE, "wav"))
    assert np.array_equal(sound.samples(0, sound.length), given.astype(np.float32) / 32768)
    assert np.array_equal(Sound(given).samples(0, 40_001), given.astype(np.float32) / 32768)


@pytest.mark.parametrize("count", [0, 1, 2, 159, 480_000, 480_001])
def test_arrays(count: int) -> None:
    given = np.random.default_rng(1).standard_normal(count).astype(np.float64) / 10
    sound = Sound(given)
    assert sound.length == count
    np.testing.assert_array_equal(
        sound.samples(-5, count + 7)[5 : count + 5], given.astype(np.float32)
    )
    assert not sound.samples(-5, 0).any()
    assert not sound.samples(count, count + 7).any()
    assert sum(map(len, sound.pieces())) == count


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_long_recordings_are_decoded_in_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows in any order, of a recording of which little is kept."""
    rng = np.random.default_rng(2)
    data = encoded((rng.standard_normal(150 * RATE) / 10).astype(np.float32), RATE, kind)
    whole = Sound(data)
    expected = whole.samples(0, whole.length)
    monkeypatch.setattr("relaxpy.speech.sound._KEPT", 0)
    heard: list[int] = []
    sound = Sound(data, heard=lambda piece: heard.append(len(piece)))
    assert sum(heard) == sound.length == whole.length
    assert max(heard) <= 30 * RATE
    places = [
        (0, 100),
        (-200, 480_000),
        (400_000, 900_000),
        (390_000, 400_000),
        (2_300_000, 2_500_000),
        (0, 1),
    ]
    for start, stop in places:
        found = sound.samples(start, stop)
        first, last = max(start, 0), min(stop, whole.length)
        np.testing.assert_array_equal(found[first - start : last - start], expected[first:last])
        assert not found[last - start :].any()


def test_memory_does_not_grow_with_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaxpy.speech.sound._KEPT", 20 * RATE)
    peaks: list[int] = []
    for minutes in (2, 5):
        data = encoded(np.zeros(minutes * 60 * RATE, np.float32), RATE, "flac")
        tracemalloc.start()
        sound = Sound(data)
        for start in range(0, sound.length, 25 * RATE):
            sound.samples(start, start + 30 * RATE)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] + 1e6


HOSTILE = {
    "empty": (b"", "0 bytes"),
    "one byte": (b"x", "no sound that can be decoded"),
    "zeros": (bytes(5000), "no sound that can be decoded"),
    "text": (b"hello world\n" * 100, "no sound that can be decoded"),
    "html": (b"<!DOCTYPE html><html>" + b"a" * 500, "no sound that can be decoded"),
    "riff": (b"RIFF\xff\xff\xff\xffWAVE", "no sound"),
    "playlist": (
        b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nhttp://127.0.0.1:PORT/a.ts\n#EXT-X-ENDLIST\n",
        "no sound that can be decoded",
    ),
    "playlist of a file": (
        b"#EXTM3U\n#EXTINF:10,\nPATH\n#EXT-X-ENDLIST\n",
        "no sound that can be decoded",
    ),
    "concat": (b"ffconcat version 1.0\nfile 'PATH'\n", "no sound that can be decoded"),
    "dash": (
        b'<?xml version="1.0"?><MPD><BaseURL>http://127.0.0.1:PORT/</BaseURL></MPD>',
        "no sound",
    ),
    "sdp": (
        b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
        "no sound",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(name: str, tmp_path: Path) -> None:
    """An error that says what came; no address is opened, and no other file is."""
    data, message = HOSTILE[name]
    secret = tmp_path / "secret.wav"
    secret.write_bytes(encoded(tone(1, RATE), RATE, "wav"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        data = data.replace(b"PORT", str(server.getsockname()[1]).encode()).replace(
            b"PATH", str(secret).encode()
        )
        path = tmp_path / "upload.m3u8"
        path.write_bytes(data)
        for given in (data, path):
            with pytest.raises(UsageError, match=message) as found:
                Sound(given)
            assert found.value.code == "bad-sound"
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("channels", [9, 12, 64])
@pytest.mark.parametrize(("bits", "kind"), [(8, 1), (16, 1), (32, 1), (32, 3)])
def test_channels_without_places(channels: int, bits: int, kind: int) -> None:
    """The mean of them: all but one are silent."""
    own = tone(1, RATE)
    samples = np.zeros((len(own), channels))
    samples[:, 2] = own
    if kind == 3:
        data = samples.astype("<f4")
    elif bits == 8:
        data = np.round(samples * 127 + 128).astype(np.uint8)
    else:
        data = np.round(samples * (2 ** (bits - 1) - 1)).astype(f"<i{bits // 8}")
    sound = Sound(wav(data.tobytes(), channels=channels, bits=bits, kind=kind))
    assert sound.length == RATE
    np.testing.assert_allclose(
        sound.samples(0, RATE), own / channels, atol=2e-2 if bits == 8 else 1e-4
    )


def test_video_without_sound() -> None:
    with pytest.raises(UsageError, match="has no sound: it has video"):
        Sound(video_only())


@pytest.mark.parametrize("kind", ["wav", "wav-f32", "flac", "m4a"])
def test_truncated(kind: str) -> None:
    data = encoded(
        (np.random.default_rng(3).standard_normal(4 * RATE) / 10).astype(np.float32), RATE, kind
    )
    with pytest.raises(
        UsageError, match=r"cut off|damaged|cannot be decoded|no sound that can"
    ) as found:
        Sound(data[: len(data) // 2], "talk.wav")
    assert "talk.wav" in str(found.value)


def test_no_length_in_the_header() -> None:
    """What is written to a pipe has no length: espeak-ng --stdout, ffmpeg."""
    data = bytearray(encoded(tone(1, RATE), RATE, "wav"))
    place = data.index(b"data")
    for unknown in (0xFFFFFFFF, 0x7FFFF000):
        data[4:8] = data[place + 4 : place + 8] = unknown.to_bytes(4, "little")
        assert Sound(bytes(data)).length == RATE


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_numbers_that_are_no_sound(value: float) -> None:
    samples = tone(1, RATE)
    samples[100] = value
    for given in (samples, encoded(samples, RATE, "wav-f32")):
        with pytest.raises(UsageError, match="from -1 to 1"):
            Sound(given)


def test_arguments_that_are_no_sound(tmp_path: Path) -> None:
    for given, message in (
        (np.zeros((2, 100), np.float32), r"one channel at 16 kHz, got \(2, 100\)"),
        (np.zeros(100, np.int32), "int16, got int32"),
        (tmp_path / "missing.wav", "missing.wav: No such file"),
        (tmp_path, "regular file|directory"),
        (3, "got int"),
        ("bad\0name", "cannot read"),
    ):
        with pytest.raises(UsageError, match=message) as found:
            Sound(given)  # type: ignore[arg-type]
        assert found.value.code == "bad-sound"


def test_longest() -> None:
    data = encoded(np.zeros(40 * RATE, np.float32), RATE, "flac")
    assert Sound(data, longest=40).seconds == 40
    with pytest.raises(UsageError, match="longer than 39 s"):
        Sound(data, longest=39)


def test_threads() -> None:
    data, found = encoded(tone(3, 44_100), 44_100, "mp3"), {}
    threads = [
        threading.Thread(target=lambda k=k: found.update({k: Sound(data).samples(0, 48_000)}))
        for k in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 4
    assert all(np.array_equal(found[0], each) for each in found.values())
