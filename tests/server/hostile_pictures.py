"""Two hundred hostile pictures in bodies of requests: files that are none, lie, or would take much, too many of them,
and addresses that are not to be read.

Each is the `input` of a request for vectors, and may be answered with one only if its name ends with "may be read".
"""

from __future__ import annotations

import base64
import io
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from tests.vision.test_picture import animated, chunk, dib, ico, png, saved

KINDS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA", "AVIF", "JPEG2000")
ADDRESSES = (
    "http://127.0.0.1:{port}/a.png", "http://localhost:{port}/a.png", "https://localhost:{port}/a.png", "http://[::1]:{port}/a.png",
    "http://[::ffff:127.0.0.1]:{port}/a.png", "http://2130706433:{port}/a.png", "http://0x7f.1:{port}/a.png", "http://0177.0.0.1:{port}/",
    "http://127.1:{port}/a.png", "http://0.0.0.0:{port}/a.png", "http://0:{port}/", "http://169.254.169.254/latest/meta-data/",
    "http://10.0.0.1/a.png", "http://192.168.1.1/a.png", "http://172.16.0.1/a.png", "http://100.64.0.1/a.png", "http://[fe80::1]/a.png",
    "http://[fc00::1]/a.png", "http://224.0.0.1/a.png", "http://255.255.255.255/", "http://user:secret@localhost:{port}/a.png",
    "http://example.org@127.0.0.1:{port}/a.png", "http://127.0.0.1:{port}#@example.org/", "http://127.0.0.1:{port}\\@example.org/",
    "http://example.org\\.127.0.0.1:{port}/", "HTTP://LOCALHOST:{port}/a.png", "http://localhost.:{port}/a.png", "http://locaⅼhost:{port}/",
    "http://localhost:{port}/\r\nHost: example.org", "http://localhost:{port}/a b.png", "http://localhost:99999/a.png", "http://localhost:-1/",
    "http://[::1/a.png", "http:///a.png", "http:localhost:{port}/a.png", "//localhost:{port}/a.png", "http://" + "a" * 5000 + "/",
    "http://example.com/a.png", "file:///etc/passwd", "file:/etc/passwd", "FILE:///etc/passwd", "file://localhost/etc/passwd", "/etc/passwd",
    "../../etc/passwd", "C:\\secret.png", "\\\\host\\share\\a.png", "ftp://localhost:{port}/a.png", "gopher://localhost:{port}/_GET",
    "dict://localhost:{port}/", "jar:http://localhost:{port}/a.jar!/", "blob:http://localhost:{port}/a", "javascript:alert(1)", "about:blank",
    "unix:/run/docker.sock", "view-source:http://localhost:{port}/", "data:http://localhost:{port}/", "ws://localhost:{port}/",
)  # fmt: skip
"""Of this machine, of private networks, of hosts that nobody listed, and of no host. `localhost`, 127.0.0.1 and some
others are listed by the owner of the server of the tests."""
LISTED = ("localhost", "127.0.0.1", "[::1]", "10.0.0.1", "169.254.169.254", "127.1", "0x7f.1", "0")
URIS = (
    "", "data:", "data:,", "data:image/png", "data:image/png,abc", "data:image/png;base64", "data:image/png;base64,", "data:;base64,@@@@",
    "data:image/png;base64,A", "data:text/html;base64,PGI+", "data:application/pdf;base64,JVBERi0=", "data:image/png;base64,====",
    "data:image/png;charset=utf-8,%89PNG", "data:image/png;base64,iVBORw0KGgo\r\n", "data:image/png;base64;base64,iVBORw0KGgo", "x" * 3_000_000,
    "data:" + "a" * 3_000_000, "data:image/png;base64," + "A" * 3_000_000, "data:image/png;base64," + "%41" * 1000,
)  # fmt: skip


def uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def tiff(*entries: tuple[int, int, int, int]) -> bytes:
    """A TIFF with these entries: tag, type, count, value."""
    table = b"".join(struct.pack("<HHII", *each) for each in entries)
    return struct.pack("<2sHIH", b"II", 42, 8, len(entries)) + table + bytes(4)


def blank(width: int, height: int) -> bytes:
    """A PNG whose pixels are what it says, few bytes for many."""
    rows = zlib.compress(bytes((3 * width + 1) * height), 9)
    return png(width, height, chunk(b"IDAT", rows))


def files() -> Iterator[tuple[str, bytes]]:
    """Files, by what is wrong with them."""
    pick = random.Random(5)
    for kind in KINDS:
        data = saved(kind, (64, 48))
        yield f"{kind}, half of it may be read", data[: len(data) // 2]
        yield f"{kind}, its first 20 bytes", data[:20]
        yield f"{kind}, its head and zeros may be read", data[: len(data) // 3] + bytes(len(data))
        damaged = bytearray(data)
        for _ in range(9):
            damaged[pick.randrange(min(len(data), 120))] = pick.randrange(256)
        yield f"{kind}, damaged may be read", bytes(damaged)
    for kind in ("GIF", "PNG", "WEBP", "TIFF", "AVIF"):
        yield f"animated {kind}", animated(kind)
    for width, height in (
        (100_000, 100_000),
        (1 << 31, 1),
        (1, 1 << 30),
        (65_536, 65_536),
        (9000, 9000),
        (1 << 25, 1),
    ):
        zeros = chunk(b"IDAT", zlib.compress(bytes(1 << 20)))
        yield f"PNG that says {width} × {height}", png(width & 0x7FFFFFFF, height, zeros)
        yield (
            f"BMP that says {width} × {height}",
            b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + dib(width & 0x7FFFFFFF, height),
        )
        yield (
            f"PPM that says {width} × {height}",
            f"P6 {width} {height} 255\n".encode() + bytes(999),
        )
        yield (
            f"TIFF that says {width} × {height}",
            tiff((256, 4, 1, width), (257, 4, 1, height), (259, 3, 1, 1), (273, 4, 1, 0)),
        )
        yield (
            f"QOI that says {width} × {height}",
            b"qoif" + struct.pack(">IIBB", width & 0x7FFFFFFF, height, 3, 0) + bytes(99),
        )
        low, high = min(width, 65535), min(height, 65535)
        yield (
            f"GIF that says {low} × {high}",
            b"GIF89a"
            + struct.pack("<HHBBB", low, high, 0, 0, 0)
            + b","
            + struct.pack("<HHHHB", 0, 0, low, high, 0)
            + b"\2\0;",
        )
        yield (
            f"TGA that says {low} × {high}",
            struct.pack("<BBBHHBHHHHBB", 0, 0, 2, 0, 0, 0, 0, 0, low, high, 24, 0) + bytes(99),
        )
        yield (
            f"SGI that says {low} × {high}",
            struct.pack(">HBBHHHH", 474, 1, 1, 3, low, high, 3) + bytes(600),
        )
    for width, height in ((13_000, 13_000), (9000, 9000), (5000, 5000)):
        rows = chunk(b"IDAT", zlib.compress(bytes(1 << 20)))
        yield (
            f"icon of 16 × 16 with a PNG of {width} × {height}",
            ico(16, 16, png(width, height, rows)),
        )
        yield (
            f"icon of 16 × 16 with a bitmap of {width} × {height}",
            ico(16, 16, dib(width, 2 * height, 32)),
        )
        yield (
            f"icon of 16 × 16 with a bitmap of {width} × {height} of 24 bits",
            ico(16, 16, dib(width, 2 * height)),
        )
    for width in (5000, 4097):
        yield f"icon of 16 × 16 with a whole PNG of {width}", ico(16, 16, blank(width, 4096))
    head, end = saved("GIF", (9, 7)), b"\0;"
    start = head.index(b"\x21\xf9") if b"\x21\xf9" in head else head.index(b",")
    for size, count in ((1, 1_000_000), (255, 11_000)):
        comment = b"\x21\xfe" + (bytes([size]) + b"a" * size) * count + b"\0"
        yield f"GIF with a comment of {count} pieces", head[:start] + comment + head[start:]
    yield (
        "GIF with a million comments",
        head[:start] + b"\x21\xfe\1a\0" * 500_000 + head[start:] + end,
    )
    yield "GIF with zeros between blocks", head[:start] + bytes(2_000_000) + head[start:]
    plain = saved("JPEG", (9, 7))
    yield "JPEG of 500 000 segments", plain[:2] + b"\xff\xe5\0\2" * 500_000 + plain[2:]
    yield "JPEG with 2 million bytes between segments", plain[:2] + b"\xff" * 2_000_000 + plain[2:]
    yield (
        "QOI of single pixels",
        b"qoif" + struct.pack(">IIBB", 2000, 1000, 3, 0) + b"\x6a" * 2_000_000,
    )
    yield "PPM as text", b"P3 700 700 255\n" + b"1 " * 1_470_000
    yield "PPM with a comment", b"P6\n#" + b"a" * 2_000_000 + b"\n9 7 255\n" + bytes(999)
    runs = (
        struct.pack("<IiiHHIIiiII", 40, 4000, 4000, 1, 8, 1, 0, 0, 0, 0, 0)
        + bytes(1024)
        + b"\1\5" * 1_000_000
    )
    yield "BMP of runs", b"BM" + struct.pack("<IHHI", 54, 0, 0, 1078) + runs
    gif = bytearray(saved("GIF", (16, 16)))
    at = gif.rindex(b",", 0, len(gif) - 100)
    gif[at + 5 : at + 9] = struct.pack("<HH", 60_000, 60_000)
    yield "GIF of 16 × 16 with a frame of 60 000 × 60 000", bytes(gif)
    yield "PNG of 16.8 million pixels may be read", blank(4096, 4096)
    yield "PNG, a pixel too many", blank(4097, 4096)
    jpeg = saved("JPEG", (64, 48))
    at = jpeg.index(b"\xff\xc0")
    for height, width in ((65_535, 65_535), (20_000, 20_000), (4096, 4096)):
        yield (
            f"JPEG that says {width} × {height} may be read"
            if width == 4096
            else f"JPEG that says {width} × {height}",
            jpeg[: at + 5] + struct.pack(">HH", height, width) + jpeg[at + 9 :],
        )
    scans = saved("JPEG", (1024, 1024), progressive=True)
    first = scans.index(b"\xff\xda")
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x00\x00\x10"
    yield "JPEG of 100 000 scans", scans[:first] + scan * 100_000 + scans[first:]
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = io.BytesIO()
    Image.fromarray(np.zeros((4000, 4000, 3), np.uint8)).save(turned, "JPEG", exif=exif)
    yield "a large JPEG that is turned may be read", turned.getvalue()
    for mode in ("RGBA", "LA", "P", "CMYK", "I;16", "1", "F"):
        file = io.BytesIO()
        options = {"transparency": 0} if mode == "P" else {}
        Image.new(mode, (4096, 4096)).save(
            file,
            "TIFF" if mode in "CMYKF" and mode != "P" else "PNG",
            **options,
            **({"compression": "tiff_adobe_deflate"} if mode in ("CMYK", "F") else {}),
        )
        yield f"a large {mode} may be read", file.getvalue()
    bomb = zlib.compress(bytes(1 << 26))
    for kind, head in (
        (b"zTXt", b"a\0\0"),
        (b"iTXt", b"a\0\1\0\0\0"),
        (b"iCCP", b"a\0\0"),
        (b"tEXt", b"a\0"),
        (b"eXIf", b"II*\0"),
    ):
        body = chunk(kind, head + (bomb if kind != b"tEXt" else bytes(1 << 21)))
        yield (
            f"PNG with a bomb in {kind.decode()} may be read",
            png(9, 9, body, chunk(b"IDAT", zlib.compress(bytes(28 * 9)))),
        )
        yield (
            f"PNG with 50 of {kind.decode()} may be read",
            png(
                9,
                9,
                *[chunk(kind, head + zlib.compress(bytes(1 << 20)))] * 50,
                chunk(b"IDAT", zlib.compress(bytes(28 * 9))),
            ),
        )
    yield (
        "PNG with 150 000 chunks",
        png(9, 9, *[chunk(b"tEXt", b"")] * 150_000, chunk(b"IDAT", zlib.compress(bytes(28 * 9)))),
    )
    yield "PNG whose pixels are a bomb may be read", png(9, 9, chunk(b"IDAT", bomb))
    yield (
        "TIFF in a circle",
        tiff((256, 4, 1, 9), (257, 4, 1, 9), (330, 4, 1, 8))[:-4] + struct.pack("<I", 8),
    )
    yield (
        "TIFF of a billion strips",
        tiff((256, 4, 1, 9), (257, 4, 1, 9), (273, 4, 1 << 30, 8), (279, 4, 1 << 30, 8)),
    )
    yield "TIFF with EXIF in a circle", tiff((256, 4, 1, 9), (257, 4, 1, 9), (34665, 4, 1, 8))
    yield (
        "SVG",
        b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    )
    yield (
        "SVG of entities",
        b'<!DOCTYPE s [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><svg>&b;</svg>',
    )
    yield "PDF", b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj"
    yield "EPS", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99 99\n(/etc/passwd) run\n"
    yield "WMF", b"\xd7\xcd\xc6\x9a" + bytes(99)
    yield "FLI", bytes(4) + b"\x12\xaf" + bytes(999)
    yield "XBM", b"#define a_width 9\n#define a_height 9\nstatic char a_bits[] = {0};"
    yield "HTML", b"<html><img src=http://localhost></html>"
    yield "ZIP", b"PK\3\4" + bytes(999)
    yield "gzip", b"\x1f\x8b" + bytes(999)
    yield "ELF", b"\x7fELF" + bytes(999)
    yield "MP4", b"\0\0\0\x18ftypisom" + bytes(999)
    yield "HEIC", b"\0\0\0\x18ftypheic" + bytes(999)
    yield "noise", random.Random(3).randbytes(99_999)
    yield "zeros", bytes(1 << 20)
    yield "PSD", b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 9, 9, 8, 3) + bytes(99)
    yield "PNG after text", b"hello" + saved("PNG")
    yield "MPO of one, may be read", saved("JPEG")


def cases(port: int) -> Iterator[tuple[str, Any]]:
    """Names and inputs. At `port` of this machine somebody listens, to whom nobody comes."""
    for number, (name, given) in enumerate(_cases(port)):
        yield f"{number}: {name}", given


def _cases(port: int) -> Iterator[tuple[str, Any]]:
    for name, data in files():
        yield name, [{"image": uri(data)}]
    for text in (*ADDRESSES, *URIS):
        text = text.format(port=port) if "{port}" in text else text
        yield f"address {text[:60]}", [{"image": text}]
    small = {"image": uri(saved("PNG"))}
    yield "1 000 pictures", [small] * 1000
    yield "65 pictures", [small] * 65
    yield "a thousand addresses", [{"image": f"http://localhost:{port}/{n}"} for n in range(1000)]
    yield "64 addresses", [{"image": f"http://localhost:{port}/{n}"} for n in range(64)]
    yield "64 pictures of too many pixels", [{"image": uri(blank(1500, 1500))}] * 64
    yield "two pictures, one of them none", [small, {"image": uri(b"<svg/>")}]
    yield "50 MB of base64", [{"image": "data:image/png;base64," + "A" * 50_000_000}]
    yield "50 MB of a picture", [{"image": uri(saved("PNG") + bytes(37_000_000))}]
    yield "a picture and a text", [{**small, "text": "a"}]
    yield "a list", [{"image": [small]}]
    yield "a number", [{"image": 5}]
    yield "bytes", [{"image": {"data": "AAAA"}}]
