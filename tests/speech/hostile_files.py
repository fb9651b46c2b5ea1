"""A hundred files that are no recordings, or bad ones: for `relaxpy.speech` and for the server.

files("127.0.0.1:80", "/etc/passwd")          name → (contents, whether there may be sound in it)
"""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib

import numpy as np

from tests.speech.recordings import encoded, video_only

RATE = 16_000


def files(address: str, path: str) -> dict[str, tuple[bytes, bool]]:
    """All of them. Playlists name an address of this machine, and the path of a file."""
    found: dict[str, tuple[bytes, bool]] = {}
    for name, data in {
        **_nothing(), **_other_types(), **_playlists(address, path), **_containers(address), **_wrong_wav()
    }.items():  # fmt: skip
        found[name] = data, False
    for name, data in _damaged().items():
        found[name] = data, True
    found["24 h of silence"] = silence_of(24 * 3600), True
    for name, data in _odd_wav().items():
        found[name] = data, True
    return found


def sound(seconds: float = 2) -> np.ndarray:
    return (np.random.default_rng(3).standard_normal(round(seconds * RATE)) / 10).astype(np.float32)


def wav(
    data: bytes, *, rate: int = RATE, channels: int = 1, bits: int = 16, kind: int = 1, length: int | None = None
) -> bytes:  # fmt: skip
    """A wav file with these numbers in its head, whatever they are."""
    align = channels * bits // 8
    head = struct.pack(
        "<HHIIHH", kind, channels & 0xFFFF, rate, (rate * align) & 0xFFFFFFFF, align & 0xFFFF, bits
    )
    body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data"
    body += struct.pack("<I", len(data) if length is None else length) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def silence_of(seconds: int, rate: int = 8000) -> bytes:
    """A flac file of silence: 17 bytes for each 65535 samples."""
    size = 65535
    total = seconds * rate
    info = struct.pack(">HH", size, size) + bytes(6)
    info += ((rate << 44) | (15 << 36) | total).to_bytes(8, "big") + bytes(16)
    parts = [b"fLaC\x80" + len(info).to_bytes(3, "big") + info]
    for number in range(total // size):
        head = b"\xff\xf8\x74\x08" + _as_utf8(number) + struct.pack(">H", size - 1)
        frame = head + bytes([_crc(head, 0x07, 8)]) + b"\x00\x00\x00"
        parts.append(frame + _crc(frame, 0x8005, 16).to_bytes(2, "big"))
    return b"".join(parts)


def _as_utf8(number: int) -> bytes:
    return chr(number).encode("utf-8", "surrogatepass") if number else b"\0"


def _crc(data: bytes, polynomial: int, bits: int) -> int:
    found, top, mask = 0, 1 << (bits - 1), (1 << bits) - 1
    for byte in data:
        found ^= byte << (bits - 8)
        for _ in range(8):
            found = ((found << 1) ^ (polynomial if found & top else 0)) & mask
    return found


def _nothing() -> dict[str, bytes]:
    return {
        "0 bytes": b"",
        "1 byte": b"R",
        "4 bytes": b"RIFF",
        "zeros": bytes(100_000),
        "spaces": b" " * 5000,
    }


def _other_types() -> dict[str, bytes]:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.wav", encoded(sound(), RATE, "wav"))
    pixel = zlib.compress(b"\0\0\0\0")
    return {
        "text": b"No sound at all. " * 300, "json": b'{"file": "/etc/passwd"}', "html": b"<!DOCTYPE html><p>" * 200,
        "png": b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 1, 1, 8, 2, 0, 0, 0) + bytes(4) + pixel,
        "gif": b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;",
        "jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF\0" + bytes(500), "pdf": b"%PDF-1.7\n" + b"1 0 obj\n" * 100,
        "elf": b"\x7fELF" + bytes(4000), "zip of a recording": archive.getvalue(), "python": b"import os\n" * 300,
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "subtitles": b"1\n00:00:00,000 --> 00:00:01,000\nHello\n\n" * 50, "midi": b"MThd\0\0\0\6\0\0\0\1\0\x60MTrk\0\0\0\4\0\xff\x2f\0",
        "random": random.Random(4).randbytes(50_000), "bitmap": b"BM" + bytes(3000),
    }  # fmt: skip


def _playlists(address: str, path: str) -> dict[str, bytes]:
    def m3u8(url: str) -> bytes:
        return f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{url}\n#EXT-X-ENDLIST\n".encode()

    http = f"http://{address}/a.wav"
    return {
        "m3u8 of an address": m3u8(http), "m3u8 of a path": m3u8(path), "m3u8 of file": m3u8(f"file://{path}"),
        "m3u8 of concat": m3u8(f"concat:{path}|{http}"), "m3u8 of subfile": m3u8(f"subfile,,start,0,end,99,,:{path}"),
        "m3u8 of crypto": m3u8(f"crypto+file:{path}"), "m3u8 of data": m3u8("data:audio/wav;base64,UklGRg=="),
        "m3u8 of tcp": m3u8(f"tcp://{address}"), "m3u8 after a mark": b"\xef\xbb\xbf" + m3u8(http),
        "m3u8 after ID3": b"ID3\4\0\0\0\0\0\0" + m3u8(http),
        "m3u8 with a key": f'#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI="{http}"\n#EXTINF:9,\n{path}\n'.encode(),
        "m3u": f"{http}\n{path}\n".encode(), "ffconcat of a path": f"ffconcat version 1.0\nfile '{path}'\n".encode(),
        "ffconcat of an address": f"ffconcat version 1.0\nfile '{http}'\nduration 5\n".encode(),
        "sdp": f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio {address.split(':')[1]} RTP/AVP 0\n".encode(),
        "dash": f'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><Period><BaseURL>{http}</BaseURL></Period></MPD>'.encode(),
        "pls": f"[playlist]\nFile1={http}\nNumberOfEntries=1\nVersion=2\n".encode(),
        "asx": f'<asx version="3.0"><entry><ref href="{http}"/></entry></asx>'.encode(),
        "cue": f'FILE "{path}" WAVE\n  TRACK 01 AUDIO\n    INDEX 01 00:00:00\n'.encode(),
        "rtsp text": f"RTSPtextRTSP://{address}/a\n".encode(), "ram": f"rtsp://{address}/a.rm\n".encode(),
        "metadata": f";FFMETADATA1\ntitle={path}\n[CHAPTER]\nSTART=0\nEND=1\n".encode(),
        "avisynth": f'WavSource("{path}")\n'.encode(), "image sequence": b"/etc/%03d.png\n" * 20,
    }  # fmt: skip


def _containers(address: str) -> dict[str, bytes]:
    """Containers without sound, in containers, and of other files."""
    whole, mp4 = encoded(sound(), RATE, "wav"), encoded(sound(), RATE, "mp4")
    data = bytearray(mp4)
    place = data.index(b"url \0\0\0\1")
    data[place : place + 8] = b"url \0\0\0\0"
    url = f"http://{address}/a\0".encode()
    elsewhere = b"\0\0\0" + bytes([12 + len(url)]) + b"url \0\0\0\0" + url
    moov = mp4.index(b"moov") - 4
    return {
        "video only": video_only(),
        "wav in wav": b"RIFF" + struct.pack("<I", len(whole) + 4) + b"RIFF" + whole,
        "lists in lists": b"RIFF\xff\xff\xff\x7fWAVE" + b"LIST\xff\xff\xff\x7fINFO" * 20_000,
        "boxes in boxes": mp4[:moov] + b"\0\1\0\0moov" * 20_000,
        "mp4 without samples": mp4[: mp4.index(b"mdat") - 4] + b"\0\0\0\x08mdat" if mp4.index(b"mdat") < moov else mp4[:moov],
        "mp4 with a place elsewhere": mp4[:moov] + elsewhere + mp4[moov + 8 : moov + 400],
        "a matroska of matroskas": video_only()[:60] * 200,
        "ogg of nothing": b"OggS\0\2" + bytes(21) + b"\1\0" + b"OggS\0\0" + bytes(22),
        "ID3 without end": b"ID3\4\0\0\x7f\x7f\x7f\x7f" + bytes(5000),
    }  # fmt: skip


def _wrong_wav() -> dict[str, bytes]:
    data = (sound() * 32767).astype("<i2").tobytes()
    floats = sound()
    found = {
        "1 Hz": wav(data, rate=1), "0 Hz": wav(data, rate=0), "99 Hz": wav(data, rate=99),
        "65 channels": wav(data, channels=65), "0 channels": wav(data, channels=0), "65535 channels": wav(data, channels=65535),
        "codec 0xfffe": wav(data, kind=0xFFFE), "codec 0x7777": wav(data, kind=0x7777),
        "less than it says": wav(data, length=len(data) + 1), "only a head": wav(b"", length=100_000),
    }  # fmt: skip
    for name, value in (("NaN", np.nan), ("infinity", np.inf), ("1e30", 1e30)):
        floats[100] = value
        found[name] = wav(floats.tobytes(), bits=32, kind=3)
    return found


def _odd_wav() -> dict[str, bytes]:
    data = (sound() * 32767).astype("<i2").tobytes()
    return {
        "64 channels": wav(data, channels=64), "2 GHz": wav(data, rate=2_000_000_000), "7 bits": wav(data, bits=7),
        "255 bits": wav(data, bits=255), "0 bits": wav(data, bits=0), "no samples": wav(b""), "one byte of samples": wav(b"a"),
    }  # fmt: skip


def _damaged() -> dict[str, bytes]:
    """Files that are cut, and files with wrong bytes: some decoders go on."""
    found: dict[str, bytes] = {}
    rng = random.Random(5)
    for kind in ("wav", "flac", "mp3", "webm", "ogg", "m4a", "mkv"):
        whole = encoded(sound(), RATE, kind)
        for share in (0.02, 0.5, 0.97):
            found[f"{kind}, {share:.0%} of it"] = whole[: round(share * len(whole))]
        data = bytearray(whole)
        for _ in range(len(data) // 300):
            data[rng.randrange(len(data))] = rng.randrange(256)
        found[f"{kind}, damaged"] = bytes(data)
    return found
