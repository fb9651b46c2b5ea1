"""Files that are no pictures, or that would take much: errors that say which and why, soon and in little memory."""

from __future__ import annotations

import io
import random
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.vision import read_picture
from tests.sweeps import FULL

Image: Any = pytest.importorskip("PIL.Image")


def saved(kind: str, size: tuple[int, int] = (9, 7), **options: Any) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, kind, **options)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes) -> bytes:
    """A PNG that says a size, whatever its chunks have."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join([chunk(b"IHDR", header), *chunks, chunk(b"IEND", b"")])


def ico(width: int, height: int, inside: bytes) -> bytes:
    """An icon that says a size, whatever is inside."""
    entry = struct.pack("<BBBBHHII", width, height, 0, 0, 1, 32, len(inside), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + inside


def dib(width: int, height: int, bits: int = 24) -> bytes:
    return struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, 0, 0, 0, 0, 0, 0)


def animated(kind: str) -> bytes:
    file = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in (0, 99, 200)]
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    return file.getvalue()


ZEROS = chunk(b"IDAT", zlib.compress(bytes(1 << 26)))
CASES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is no picture in a format that is read"),
    "text": (b"a text" * 99, "is no picture"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "is no picture"),
    "pdf": (b"%PDF-1.7\n1 0 obj", "is no picture"),
    "eps, which starts a program": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is no picture"),
    "truncated": (saved("PNG", (300, 200))[:20000], "cannot be decoded"),
    "truncated JPEG": (saved("JPEG", (300, 200))[:9000], "cannot be decoded"),
    "header alone": (png(9, 9), "cannot be decoded"),
    "large": (png(100_000, 100_000, ZEROS), "has .* pixels, at most 67108864"),
    "large, as it says": (png(9000, 9000, ZEROS), "has 9000 × 9000 pixels"),
    "no pixels": (png(0, 9, ZEROS), "(no picture|cannot be decoded|no pixels)"),
    "less than it says": (png(4000, 4000, chunk(b"IDAT", zlib.compress(bytes(99)))), "cannot be decoded"),
    "a bomb of text": (png(9, 9, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 27)))), "cannot be decoded"),
    "icon, larger than it says": (ico(16, 16, png(9000, 9000, ZEROS)), "has 9000 × 9000 pixels"),
    "icon of a bitmap, larger than it says": (ico(16, 16, dib(9000, 18000)), "has 9000 × 9000 pixels"),
    "animated GIF": (animated("GIF"), "is GIF with several frames"),
    "animated PNG": (animated("PNG"), "is PNG with several frames"),
    "animated WebP": (animated("WEBP"), "is WEBP with several frames"),
    "pages": (animated("TIFF"), "is TIFF with several frames"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_files_that_are_refused(name: str) -> None:
    data, match = CASES[name]
    start = time.process_time()
    with pytest.raises(UsageError, match=match) as caught:
        read_picture(data, "cat.png")
    assert caught.value.code == "bad-picture"
    assert caught.value.message.startswith("cat.png ")
    assert time.process_time() - start < 0.5


def damaged(pick: random.Random) -> Iterator[bytes]:
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA", "AVIF", "JPEG2000"):
        data = bytearray(saved(kind))
        for _ in range(pick.randrange(1, 6)):
            at = pick.randrange(min(len(data), 200))
            if pick.random() < 0.3:
                del data[at : at + pick.randrange(1, 30)]
            else:
                data[at] = pick.randrange(256)
        yield bytes(data)


@pytest.mark.filterwarnings("ignore")
def test_damaged_files() -> None:
    """They are decoded, or refused by our own error, and by no other."""
    refused = 0
    for seed in range(300 if FULL else 12):
        for data in damaged(random.Random(seed)):
            try:
                assert read_picture(data, most_pixels=1 << 20).shape[2] == 3
            except UsageError as error:
                refused += error.code == "bad-picture"
    assert refused > 20


def test_where_pictures_are(tmp_path: Path) -> None:
    """A path, bytes, an array, an image."""
    data = saved("PNG")
    path = tmp_path / "a.png"
    path.write_bytes(data)
    found = read_picture(path)
    assert found.shape == (7, 9, 3)
    assert found.dtype == np.uint8
    for given in (str(path), data, bytearray(data), found, Image.open(path)):
        np.testing.assert_array_equal(read_picture(given), found)
    np.testing.assert_array_equal(read_picture(found[..., 0])[..., 2], found[..., 0])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("no/such.png", "cannot read no/such.png: No such file"),
        (3.5, "got '3.5'"),
        (None, "got 'None'"),
        (np.zeros((3, 4, 3)), "uint8, got .3, 4, 3. of float64"),
        (np.zeros((4, 4, 4), np.uint8), "got .4, 4, 4."),
        (np.zeros((0, 4, 3), np.uint8), "has no pixels: 4 × 0"),
        (np.zeros((60, 60), np.uint8), "has 60 × 60 pixels, at most 3599"),
        (b"", "the picture is no picture"),
    ],
)
def test_what_is_no_picture(given: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        read_picture(given, most_pixels=3599)
    assert caught.value.code == "bad-picture"


@pytest.mark.parametrize(
    "address", ["https://example.org/a.png", "data:image/png;base64," + "A" * 99]
)
def test_an_address_is_not_fetched(address: str) -> None:
    with pytest.raises(UsageError, match="cannot read") as caught:
        read_picture(address)
    assert "no address is read here" in str(caught.value.help)
    assert len(caught.value.message) < 200


def test_icons() -> None:
    """A picture inside, a PNG or a bitmap."""
    made = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 4), np.uint8))
    for options in ({}, {"bitmap_format": "bmp"}):
        file = io.BytesIO()
        made.save(file, "ICO", sizes=[(16, 16)], **options)
        np.testing.assert_array_equal(read_picture(file.getvalue()), np.asarray(made)[..., :3])


def test_upright(tmp_path: Path) -> None:
    """As the EXIF data says."""
    exif = Image.Exif()
    exif[0x0112] = 6
    turned, plain = read_picture(saved("PNG", exif=exif)), read_picture(saved("PNG"))
    np.testing.assert_array_equal(turned, np.rot90(plain, -1))
