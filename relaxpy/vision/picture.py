"""Pictures from files, bytes, arrays and Pillow's images, as red, green and blue.

    pixels = read_picture("cat.jpg")     # (height, width, 3) uint8, upright

Files are decoded by Pillow, in formats whose decoders read one file and start no other program. A picture's size is
known before anything is decoded, and one that is too large is refused. What cannot be decoded whole is an error.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.files import read_regular
from relaxpy.narrow import is_ndarray

if TYPE_CHECKING:
    from PIL import Image

    Picture = str | os.PathLike[str] | bytes | np.ndarray | Image.Image

HELP = "pip install 'relaxpy[vision]'"
"""The command that installs what decodes pictures."""
MOST_PIXELS = 1 << 26
"""The most pixels of a picture; a decoded one takes seven bytes for each."""
MOST_BYTES = 1 << 28
"""The most bytes of a file."""
_STRIP = 1 << 20
"""Pixels that are converted at a time."""
_FORMATS = (
    "AVIF", "BMP", "DIB", "GIF", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "QOI", "SGI", "TGA", "TIFF",
    "WEBP",
)  # fmt: skip
"""Pillow's readers that decode the bytes themselves: those of EPS, for one, start a program."""
_SECOND_VIEWS = "MPO"
"""The JPEG of cameras whose further pictures are other views of the first."""


def read_picture(
    given: Picture,
    name: str = "",
    *,
    most_pixels: int = MOST_PIXELS,
    white: bool = True,
) -> np.ndarray:
    """A picture as (height, width, 3) uint8; `name` is what errors call it.

    Files and their bytes are turned upright as their EXIF data says. Their alpha is left out, as transformers'
    `load_image` does, and a color that stands for transparency becomes white, if `white`. Of a Pillow image, all
    that is transparent becomes white, as in transformers' processors. An array is (height, width, 3) or grey (height,
    width), uint8.

    Raises: UsageError: `bad-picture` for what is no picture, cannot be decoded, has several frames or more than
    `most_pixels` pixels; `extra-missing` without Pillow.
    """
    if is_ndarray(given):
        return _of_array(given, name or "the array", most_pixels)
    pillow = _pillow()
    other = cast("Any", given)
    if isinstance(given, bytes | bytearray):
        return _decoded(pillow, bytes(other), name or "the picture", most_pixels, white)
    if _is_image(pillow, given):
        _check_size(other.size, name or "the image", most_pixels)
        return _by_strips(other, lambda strip: _without_transparency(pillow, strip))
    place = ""
    try:
        place = os.fsdecode(other)
        data = read_regular(place, MOST_BYTES)
    except (TypeError, ValueError):
        raise _bad(
            f"a picture is the path of a file, its bytes, an array or a Pillow image, got {str(given)[:80]!r}"
        ) from None
    except OSError as error:
        advice = None
        if place.startswith(("http://", "https://", "data:")):
            advice = (
                "no address is read here: give the file's path after downloading it, or its bytes"
            )
        raise _bad(f"cannot read {place[:80]}: {error.strerror or error}", advice) from None
    return _decoded(pillow, data, name or place, most_pixels, white)


def _is_image(pillow: Any, given: object) -> bool:
    return isinstance(given, pillow.Image)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(
            "extra-missing", "reading pictures needs the package pillow", help=HELP
        ) from None
    return Image


def _decoded(pillow: Any, data: bytes, name: str, most_pixels: int, white: bool) -> np.ndarray:
    from PIL import ImageOps, UnidentifiedImageError

    for size in _sizes_inside(data):
        _check_size(size, name, most_pixels)
    try:
        with pillow.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_size(image.size, name, most_pixels)
            if getattr(image, "is_animated", False) and image.format != _SECOND_VIEWS:
                raise _bad(
                    f"{name} is {image.format} with several frames",
                    help="give one of them as a picture",
                )
            image.load()
            ImageOps.exif_transpose(image, in_place=True)

            def plain(strip: Any) -> Any:
                strip = strip.convert("RGB")
                return _without_transparency(pillow, strip) if white else strip

            return _by_strips(image, plain)
    except UsageError:
        raise
    except UnidentifiedImageError:
        raise _bad(
            f"{name} is no picture in a format that is read",
            help=f"formats are {', '.join(_FORMATS)}",
        ) from None
    except pillow.DecompressionBombError:
        raise _too_large(name, "far more", most_pixels) from None
    except Exception as error:  # decoders raise many
        reason = str(error) or type(error).__name__
        raise _bad(f"{name} cannot be decoded: {reason[:200]}") from None


def _of_array(given: np.ndarray, name: str, most_pixels: int) -> np.ndarray:
    if given.dtype != np.uint8 or given.ndim not in (2, 3) or given.shape[2:] not in ((), (3,)):
        raise _bad(
            f"a picture is an array (height, width, 3) or (height, width) of uint8, got {given.shape} of {given.dtype}"
        )
    _check_size((given.shape[1], given.shape[0]), name, most_pixels)
    return np.repeat(given[..., None], 3, axis=2) if given.ndim == 2 else given


def _sizes_inside(data: bytes) -> Iterator[tuple[int, int]]:
    """The sizes of the pictures in an icon, which may be others than the icon says, and which are decoded when it is
    opened."""
    if not data.startswith(b"\0\0\1\0"):
        return
    for place in range(6, 6 + 16 * int.from_bytes(data[4:6], "little"), 16):
        start = int.from_bytes(data[place + 12 : place + 16], "little")
        head = data[start : start + 24]
        if head.startswith(b"\x89PNG"):
            yield int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
        elif len(head) == 24:
            height = int.from_bytes(
                head[8:12], "little", signed=True
            )  # of the picture and of its mask
            yield int.from_bytes(head[4:8], "little"), abs(height) // 2


def _by_strips(image: Any, plain: Callable[[Any], Any]) -> np.ndarray:
    """The pixels of an image that `plain` makes red, green and blue. It does so strip by strip, so that the image and
    its pixels are in memory, and no further copy."""
    width, height = image.size
    found = np.empty((height, width, 3), np.uint8)
    rows = max(_STRIP // width, 1)
    for top in range(0, height, rows):
        end = min(top + rows, height)
        found[top:end] = np.asarray(plain(image.crop((0, top, width, end))))
    return found


def _without_transparency(pillow: Any, image: Any) -> Any:
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        white = pillow.new("RGBA", image.size, (255, 255, 255, 255))
        image = pillow.alpha_composite(white, image)
    return image.convert("RGB")


def _check_size(size: tuple[int, int], name: str, most_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise _bad(f"{name} has no pixels: {width} × {height}")
    if width * height > most_pixels:
        raise _too_large(name, f"{width} × {height}", most_pixels)


def _too_large(name: str, size: str, most_pixels: int) -> UsageError:
    return _bad(
        f"{name} has {size} pixels, at most {most_pixels} are decoded", help="make it smaller"
    )


def _bad(message: str, help: str | None = None) -> UsageError:
    return UsageError("bad-picture", message, help=help)
