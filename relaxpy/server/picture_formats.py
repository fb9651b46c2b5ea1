"""The formats of pictures in requests, and what would take long in each of them.

Decoders take time for pixels, of which there are so many at most, and for parts of a file, which may be many in few
bytes: a GIF with a comment of a million pieces takes minutes. So parts are counted first. Formats whose decoders are
slow for what they read (QOI, PPM as text, BMP of runs) are for files of one's own (`relaxpy.vision.picture`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from relaxpy.errors import UsageError

_MOST_PARTS = 2048
"""Chunks of a PNG, segments of a JPEG, pieces of what a GIF has beside pixels."""
_MOST_SCANS = 100
"""Of a JPEG: each goes over all pixels."""


def check_format(data: bytes) -> str:
    """The name of the format of a file. Raises: UsageError (`bad-picture`) for another one, and for too many parts."""
    for name, (is_one, parts) in _FORMATS.items():
        if is_one(data):
            if (
                parts is not None
                and sum(1 for _ in islice(parts(data), _MOST_PARTS + 1)) > _MOST_PARTS
            ):
                raise UsageError("bad-picture", f"is {name} with more than {_MOST_PARTS} parts")
            if name == "JPEG" and data.count(b"\xff\xda") > _MOST_SCANS:
                raise UsageError("bad-picture", f"is JPEG with more than {_MOST_SCANS} scans")
            return name
    raise UsageError(
        "bad-picture",
        "is no picture in a format that is read over HTTP",
        help=f"formats are {', '.join(_FORMATS)}",
    )


def _chunks(data: bytes) -> Iterator[int]:
    """Where the chunks of a PNG begin."""
    at = 8
    while at + 8 <= len(data):
        yield at
        at += 12 + int.from_bytes(data[at : at + 4], "big")


def _segments(data: bytes) -> Iterator[int]:
    """Where the segments of a JPEG begin, up to its pixels. Bytes between them count, which a decoder skips one by
    one."""
    at = 2
    while at + 4 <= len(data):
        yield at
        if data[at] != 0xFF or data[at + 1] in (0x00, 0xFF):
            at += 1
        elif data[at + 1] == 0xDA:
            return
        elif 0xD0 <= data[at + 1] <= 0xD9:
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def _pieces(data: bytes) -> Iterator[int]:
    """Where pieces of extensions of a GIF begin."""
    at = 13
    if data[10:11] and data[10] & 0x80:
        at += 3 << ((data[10] & 7) + 1)
    while at < len(data):
        yield at
        is_image = data[at] == 0x2C
        if is_image:
            flags = data[at + 9] if at + 9 < len(data) else 0
            at += 11 + ((3 << ((flags & 7) + 1)) if flags & 0x80 else 0)
        elif data[at] == 0x21:
            at += 2
        else:
            at += 1  # what is no block is skipped byte by byte
            continue
        while at < len(data) and data[at]:
            if not is_image:
                yield at
            at += 1 + data[at]
        at += 1


_FORMATS: Mapping[str, tuple[Callable[[bytes], bool], Callable[[bytes], Iterator[int]] | None]] = {
    "PNG": (lambda data: data[:8] == b"\x89PNG\r\n\x1a\n", _chunks),
    "JPEG": (lambda data: data[:3] == b"\xff\xd8\xff", _segments),
    "GIF": (lambda data: data[:6] in (b"GIF87a", b"GIF89a"), _pieces),
    "WebP": (lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP", None),
    "AVIF": (lambda data: data[4:12] in (b"ftypavif", b"ftypavis", b"ftypmif1"), None),
}
"""Formats: whether a file begins so, and its parts, where they could be many."""
