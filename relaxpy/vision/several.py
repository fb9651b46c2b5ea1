"""What towers of language models see of a picture where it is more than one picture of one size.

    patches, grid = PatchProcessor.from_checkpoint(folder)("a.png")    # Qwen2-VL: (patches, numbers), (rows, columns)
    views = PanAndScan.from_checkpoint(folder)("a.png")            # Gemma 3: (views, 3, height, width)

Equal to transformers' processors that use Pillow, pixel for pixel (`Qwen2VLImageProcessor`, `Gemma3ImageProcessor`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from relaxpy.checkpoints.unread import unknown_fields, warn_unread
from relaxpy.errors import UsageError
from relaxpy.narrow import is_mapping
from relaxpy.vision.picture import MOST_PIXELS, read_picture
from relaxpy.vision.processor import (
    CLIP,
    FILES,
    KNOWN,
    VIT,
    PictureProcessor,
    SettingsReader,
    read_settings,
    resized_by_pillow,
    settings_of,
)

if TYPE_CHECKING:
    from relaxpy.vision.picture import Picture

_MOST_PATCHED = 1 << 24
"""The most pixels of a picture that is made patches."""
_LONGEST = 200
"""How many times longer than the other a side of a picture may be, for patches."""
_QWEN: dict[str, Any] = {
    **{name: CLIP[name] for name in ("resample", "image_mean", "image_std", "do_convert_rgb")},
    "do_center_crop": False, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
}  # fmt: skip
_GEMMA: dict[str, Any] = {
    **VIT, "do_convert_rgb": True, "do_pan_and_scan": False, "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2,
}  # fmt: skip


class Patches(NamedTuple):
    """A picture as its patches."""

    numbers: np.ndarray
    """(patches, 3 · temporal · side · side) float32: those of a square of `merge` × `merge` patches follow each other,
    squares row by row."""
    grid: tuple[int, int]
    """Rows and columns of patches."""


@dataclass(frozen=True)
class PatchProcessor:
    """Pictures that keep their shape: resized to whole squares of patches, between a least and a most number of
    pixels."""

    base: PictureProcessor
    """What is done with each pixel."""
    pixels: tuple[int, int] | None
    """The least and the most pixels; None: pictures are not resized."""
    patch: int
    """Pixels of a patch's side."""
    temporal: int
    """How often a picture stands in its patches, as so many frames of a film."""
    merge: int
    """Patches of the side of a square, which becomes one row of the decoder."""

    @classmethod
    def from_checkpoint(cls, directory: str | Path) -> Self:
        """That of a checkpoint. Warns (`UnreadWarning`) of settings that are not followed. Raises: UsageError:
        `bad-checkpoint` without a file that can be read, `bad-config` for what is not supported."""
        path, fields = read_settings(Path(directory))
        known = {*KNOWN, *_QWEN, "min_pixels", "max_pixels"}
        warn_unread(path, unknown_fields(fields, known))
        return cls.from_dict(fields, str(path))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], place: str = FILES[0]) -> Self:
        """The same by the fields of the file; `place` names it in errors."""
        kind = "Qwen2VLImageProcessor"
        read = settings_of(fields, kind, {kind: _QWEN}, place)
        sizes = _pixels_of(read) if read.flag("do_resize") else None
        rest = {**read.fields, "do_resize": False, "do_center_crop": False}
        return cls(
            PictureProcessor.from_settings(SettingsReader(rest, place)),
            sizes,
            read.whole("patch_size", 1, 256),
            read.whole("temporal_patch_size", 1, 16),
            read.whole("merge_size", 1, 16),
        )

    def __call__(
        self, given: Picture, name: str = "", *, most_pixels: int = MOST_PIXELS
    ) -> Patches:
        """A picture, as `read_picture` takes it, as patches. Raises: UsageError like it, and `bad-picture` for one that
        is too long and thin."""
        pixels = read_picture(given, name, most_pixels=most_pixels, white=self.base.white)
        height, width = self.size_of(pixels.shape[0], pixels.shape[1])
        if (height, width) != pixels.shape[:2]:
            pixels = resized_by_pillow(pixels, (height, width), self.base.resample)
        rows, columns, merge, side = (
            height // self.patch,
            width // self.patch,
            self.merge,
            self.patch,
        )
        found = self.base.numbers(pixels).reshape(
            3, rows // merge, merge, side, columns // merge, merge, side
        )
        found = found.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, np.newaxis]
        found = np.broadcast_to(found, (*found.shape[:5], self.temporal, side, side))
        return Patches(found.reshape(rows * columns, -1), (rows, columns))

    def places(self, grid: tuple[int, int]) -> np.ndarray:
        """Row and column (patches, 2) int64 of the patches of a grid, in their order."""
        rows, columns, merge = *grid, self.merge
        found = np.indices((rows, columns)).reshape(
            2, rows // merge, merge, columns // merge, merge
        )
        return np.ascontiguousarray(found.transpose(1, 3, 2, 4, 0).reshape(-1, 2), np.int64)

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Height and width to which a picture is resized. Raises: UsageError (`bad-picture`)."""
        square = self.patch * self.merge
        if self.pixels is None:
            if height % square or width % square or height * width > _MOST_PATCHED:
                raise UsageError(
                    "bad-picture",
                    f"a picture of {height} × {width} is not resized, and the model reads multiples of {square} up to "
                    f"{_MOST_PATCHED} pixels",
                )
            return height, width
        if max(height, width) > _LONGEST * min(height, width):
            raise UsageError(
                "bad-picture",
                f"a picture of {height} × {width} is more than {_LONGEST} times longer than wide",
                help="cut it into pieces",
            )
        least, most = self.pixels
        down, across = (round(side / square) * square for side in (height, width))
        if down * across > most:
            scale = math.sqrt((height * width) / most)
            down, across = (
                max(square, math.floor(side / scale / square) * square) for side in (height, width)
            )
        elif down * across < least:
            scale = math.sqrt(least / (height * width))
            down, across = (math.ceil(side * scale / square) * square for side in (height, width))
        return down, across


def _pixels_of(read: SettingsReader) -> tuple[int, int]:
    """The least and the most pixels, by the names of any version."""
    size = read.fields.get("size")
    if not is_mapping(size):
        raise read.wrong("size", "it must have shortest_edge and longest_edge")
    sizes: dict[str, Any] = {**_QWEN["size"], **size} if "max_pixels" in size else {**size}
    for own, other in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        if read.fields.get(other) is not None:
            sizes[own] = read.fields[other]
    least, most = sizes.get("shortest_edge"), sizes.get("longest_edge")
    if type(least) is not int or type(most) is not int or not 0 < least <= most <= _MOST_PATCHED:
        raise read.wrong(
            "size",
            f"shortest_edge (or min_pixels) and longest_edge (max_pixels) must be the least and the most pixels, up to "
            f"{_MOST_PATCHED}",
        )
    return least, most


@dataclass(frozen=True)
class PanAndScan:
    """A picture of one size, and with `crops` parts of one that is long beside it."""

    base: PictureProcessor
    crops: int
    """The most parts; 0: none."""
    least: int
    """The least pixels of a part's side."""
    ratio: float
    """How many times longer than the other a side is, for parts."""

    @classmethod
    def from_checkpoint(cls, directory: str | Path) -> Self:
        """That of a checkpoint; see `PatchProcessor.from_checkpoint`."""
        path, fields = read_settings(Path(directory))
        warn_unread(path, unknown_fields(fields, {*KNOWN, *_GEMMA}))
        return cls.from_dict(fields, str(path))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], place: str = FILES[0]) -> Self:
        """The same by the fields of the file; `place` names it in errors."""
        kind = "Gemma3ImageProcessor"
        read = settings_of(fields, kind, {kind: _GEMMA}, place)
        return cls(
            PictureProcessor.from_settings(read),
            read.whole("pan_and_scan_max_num_crops", 1, 64)
            if read.flag("do_pan_and_scan", False)
            else 0,
            read.whole("pan_and_scan_min_crop_size", 1, 1 << 13),
            read.number("pan_and_scan_min_ratio_to_activate", 1.2),
        )

    def __call__(
        self, given: Picture, name: str = "", *, most_pixels: int = MOST_PIXELS
    ) -> np.ndarray:
        """A picture, as `read_picture` takes it → itself and its parts (views, 3, height, width) float32. Raises:
        UsageError like it."""
        pixels = read_picture(given, name, most_pixels=most_pixels, white=self.base.white)
        return np.stack([self.base.of_pixels(each) for each in (pixels, *self._parts(pixels))])

    def _parts(self, pixels: np.ndarray) -> list[np.ndarray]:
        height, width = pixels.shape[:2]
        long, short = max(height, width), min(height, width)
        if not self.crops or long / short < self.ratio:
            return []
        count = min(math.floor(long / self.least), math.floor(long / short + 0.5))
        count = min(self.crops, max(2, count))
        along = math.ceil(long / count)
        if min(along, short) < self.least:
            return []
        if along * (count - 1) >= long:
            raise UsageError(
                "bad-picture", f"a picture of {height} × {width} cannot be cut into {count} parts"
            )
        down, across = (1, count) if width >= height else (count, 1)
        tall, wide = (height, along) if width >= height else (along, width)
        return [
            pixels[tall * row : tall * (row + 1), wide * column : wide * (column + 1)]
            for row, column in product(range(down), range(across))
        ]
