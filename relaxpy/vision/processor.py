"""What a checkpoint says of pictures before its model sees them: resized, cropped, and as normalised numbers.

    processor = PictureProcessor.from_checkpoint(folder, "clip")
    pixels = processor("cat.jpg")     # (3, height, width) float32

Equal to transformers' processors that use Pillow, pixel for pixel (`ViTImageProcessor`, `CLIPImageProcessor`,
`SiglipImageProcessor`, `BitImageProcessor`). Their settings are in `preprocessor_config.json`, or in
`processor_config.json` below `image_processor`; what is left out there is as the class has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from relaxpy.checkpoints.unread import unknown_fields, warn_unread
from relaxpy.errors import UsageError
from relaxpy.narrow import is_list, is_mapping
from relaxpy.runtime.safetensors import read_json
from relaxpy.vision.picture import HELP, MOST_PIXELS, read_picture
from relaxpy.vision.resample import FILTERS, resized_part

if TYPE_CHECKING:
    from relaxpy.vision.picture import Picture

FILES = ("preprocessor_config.json", "processor_config.json")
_MOST_SIDE = 1 << 13
_MOST_RESIZED = 1 << 23
"""The most pixels of a resized picture that is made whole, and the most that are given to a model."""
_NEAREST = 0
CLIP: dict[str, Any] = {
    "resample": 3, "size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True, "default_to_square": False, "do_convert_rgb": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
}  # fmt: skip
VIT: dict[str, Any] = {
    "resample": 2, "size": {"height": 224, "width": 224}, "do_center_crop": False, "default_to_square": True,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "ViTImageProcessor": VIT,
    "CLIPImageProcessor": CLIP,
    "BitImageProcessor": CLIP,
    "SiglipImageProcessor": {
        **VIT,
        "resample": 3,
        "default_to_square": False,
        "do_convert_rgb": True,
    },
}
"""transformers' classes, and the settings that they have where a file has none."""
FAMILIES = {
    "vit": "ViTImageProcessor", "clip": "CLIPImageProcessor", "siglip": "SiglipImageProcessor",
    "dinov2": "BitImageProcessor",
}  # fmt: skip
"""Models of pictures, by `model_type`, and the class where a file names none."""
KNOWN = frozenset(
    "image_processor_type feature_extractor_type processor_class size crop_size resample do_resize do_center_crop "
    "do_rescale rescale_factor do_normalize image_mean image_std default_to_square do_convert_rgb do_pad "
    # how the class works, and what the same file says elsewhere
    "_processor_class auto_map return_tensors disable_grouping image_seq_length _valid_processor_keys "
    "transformers_version".split()
)


class Cut(NamedTuple):
    """A part of a resized picture."""

    size: tuple[int, int]
    """Height and width after resizing."""
    top: int
    left: int
    shape: tuple[int, int]
    """Height and width of the part. What is outside of the resized picture is black."""


@dataclass(frozen=True)
class PictureProcessor:
    """The settings, and what they do. Sizes are (height, width)."""

    size: Mapping[str, int]
    """What pictures are resized to: height and width, or shortest_edge (and longest_edge); {}: they are not."""
    crop: tuple[int, int] | None
    """The part around the center that is taken; None: all."""
    resample: int
    """Pillow's number of the filter."""
    factor: float | None
    """By which bytes are multiplied; None: they are not."""
    mean: tuple[float, ...] | None
    """Subtracted from each channel, which is divided by `std` then; None: neither."""
    std: tuple[float, ...] | None
    white: bool = True
    """Whether a color that stands for transparency becomes white."""

    @classmethod
    def from_checkpoint(cls, directory: str | Path, family: str) -> PictureProcessor:
        """The processor of a checkpoint of a family, by its `model_type`. Warns (`UnreadWarning`) of settings that are
        not followed. Raises: UsageError: `bad-checkpoint` without a file that can be read, `bad-config` for what is not
        supported."""
        path, fields = read_settings(Path(directory))
        warn_unread(path, unknown_fields(fields, KNOWN))
        return cls.from_dict(fields, family, str(path))

    @classmethod
    def from_dict(
        cls, fields: Mapping[str, Any], family: str, place: str = FILES[0]
    ) -> PictureProcessor:
        """The same by the fields of the file; `place` names it in errors."""
        return cls.from_settings(settings_of(fields, FAMILIES.get(family, family), _KINDS, place))

    @classmethod
    def from_settings(cls, read: SettingsReader) -> PictureProcessor:
        """The same by checked fields. Raises: UsageError (`bad-config`)."""
        if read.flag("do_pad", False):
            raise read.wrong("do_pad", "pictures are not padded")
        square = read.flag("default_to_square", True)
        normalizes = read.flag("do_normalize")
        return cls(
            read.size("size", square) if read.flag("do_resize") else {},
            read.both("crop_size") if read.flag("do_center_crop") else None,
            read.filter(),
            read.number("rescale_factor", 1 / 255) if read.flag("do_rescale") else None,
            read.channels("image_mean") if normalizes else None,
            read.channels("image_std") if normalizes else None,
            read.flag("do_convert_rgb", False),
        )

    @property
    def result(self) -> tuple[int, int] | None:
        """The size of all pictures that it gives; None: it depends on the picture."""
        if self.crop is not None:
            return self.crop
        return (self.size["height"], self.size["width"]) if "height" in self.size else None

    def __call__(
        self, given: Picture, name: str = "", *, most_pixels: int = MOST_PIXELS
    ) -> np.ndarray:
        """A picture, as `read_picture` takes it → (3, height, width) float32. Raises: UsageError like it, and for what
        would become too large."""
        pixels = read_picture(given, name, most_pixels=most_pixels, white=self.white)
        return self.of_pixels(pixels)

    def of_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(height, width, 3) uint8 → (3, height, width) float32."""
        return self.numbers(self._cut(pixels, self.cut(pixels.shape[:2])))

    def numbers(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels as they are → (3, height, width) float32, multiplied and normalised."""
        tables = self._tables()
        return np.stack([table[pixels[..., channel]] for channel, table in enumerate(tables)])

    def cut(self, shape: tuple[int, ...]) -> Cut:
        """What is taken of a picture (height, width)."""
        height, width = self._resized(shape[0], shape[1])
        down, across = self.crop or (height, width)
        middle = (height - down) // 2, (width - across) // 2
        return Cut((height, width), *middle, (down, across))

    def _cut(self, pixels: np.ndarray, cut: Cut) -> np.ndarray:
        height, width = cut.size
        down, across = cut.shape
        if down * across > _MOST_RESIZED:
            raise _too_large(pixels, cut.shape)
        # What is inside of the resized picture.
        top, left = max(cut.top, 0), max(cut.left, 0)
        inside = min(cut.top + down, height) - top, min(cut.left + across, width) - left
        if cut.size == pixels.shape[:2]:
            part = pixels[top : top + inside[0], left : left + inside[1]]
        elif height * width <= _MOST_RESIZED:
            part = resized_by_pillow(pixels, cut.size, self.resample)
            part = part[top : top + inside[0], left : left + inside[1]]
        elif self.resample in FILTERS:
            part = resized_part(pixels, cut.size, self.resample, top, left, inside)
        else:
            raise _too_large(pixels, cut.size)
        if inside == cut.shape:
            return part
        found = np.zeros((down, across, 3), np.uint8)
        at = top - cut.top, left - cut.left
        found[at[0] : at[0] + inside[0], at[1] : at[1] + inside[1]] = part
        return found

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """The size that a picture is resized to."""
        size = self.size
        if not size:
            return height, width
        if "height" in size:
            return size["height"], size["width"]
        if "longest_edge" in size:
            found = _with_longest(height, width, size["shortest_edge"], size["longest_edge"])
        else:
            short = size["shortest_edge"]
            long = int(short * max(height, width) / min(height, width))
            found = (long, short) if width <= height else (short, long)
        if min(found) < 1:
            raise UsageError(
                "bad-picture",
                f"a picture of {height} × {width} would be resized to {found[0]} × {found[1]}",
            )
        return found

    def _tables(self) -> list[np.ndarray]:
        """The number of each byte, of each channel."""
        values = np.arange(256)
        if self.factor is not None:
            values = (values.astype(np.float64) * self.factor).astype(np.float32)
        values = values.astype(np.float32)
        if self.mean is None or self.std is None:
            return [values] * 3
        return [
            (values - np.float32(mean)) / np.float32(std)
            for mean, std in zip(self.mean, self.std, strict=True)
        ]


def _with_longest(height: int, width: int, shortest: int, longest: int) -> tuple[int, int]:
    """The size whose shorter side is `shortest`, if the longer one is no more than `longest` then."""
    short, long = float(min(height, width)), float(max(height, width))
    raw: float = shortest
    if long / short * shortest > longest:
        raw = longest * short / long
        shortest = round(raw)
    if shortest in (height, width) and shortest == min(height, width):
        return height, width
    if width < height:
        return int(raw * height / width), shortest
    return shortest, int(raw * width / height)


def resized_by_pillow(pixels: np.ndarray, size: tuple[int, int], resample: int) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(
            "extra-missing", "resizing pictures needs the package pillow", help=HELP
        ) from None
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize((size[1], size[0]), resample=Image.Resampling(resample)))


def _too_large(pixels: np.ndarray, size: tuple[int, int]) -> UsageError:
    return UsageError(
        "bad-picture",
        f"a picture of {pixels.shape[0]} × {pixels.shape[1]} would be resized to {size[0]} × {size[1]}, more than "
        f"{_MOST_RESIZED} pixels",
        help="cut it, so that it is not so long and thin",
    )


def settings_of(
    fields: Mapping[str, Any],
    usual: str,
    kinds: Mapping[str, Mapping[str, Any]],
    place: str = FILES[0],
) -> SettingsReader:
    """The fields of a file, with those that its class has where the file has none: one of `kinds`, by transformers'
    name; `usual` if the file names none. Raises: UsageError (`bad-config`) for another class."""
    said = fields.get("image_processor_type") or fields.get("feature_extractor_type")
    kind = re.sub("FeatureExtractor$|ImageProcessor(Fast|Pil)$", "ImageProcessor", str(said))
    kind = kind if said else usual
    if kind not in kinds:
        raise UsageError(
            "bad-config",
            f"{place} is for a {said or usual}, which is not supported",
            help=f"supported are {', '.join(kinds)}",
        )
    given = {key: value for key, value in fields.items() if value is not None}
    return SettingsReader({**kinds[kind], **given}, place)


def read_settings(directory: Path) -> tuple[Path, Mapping[str, Any]]:
    """The file with the settings, and its fields."""
    for name in FILES:
        path = directory / name
        if not path.is_file():
            continue
        fields = read_json(path)
        if name == FILES[1] and is_mapping(fields):
            fields = fields.get("image_processor")
        if is_mapping(fields):
            return path, fields
        if name == FILES[0] or fields is not None:
            raise UsageError(
                "bad-checkpoint",
                f"{path} has no settings of pictures: it is a {type(fields).__name__}",
            )
    raise UsageError(
        "bad-checkpoint",
        f"{directory} has no {FILES[0]}, which says how pictures are resized and normalised",
        help="copy it from where the checkpoint is from",
    )


class SettingsReader:
    """The fields of a file, checked."""

    def __init__(self, fields: Mapping[str, Any], place: str) -> None:
        self.fields, self.place = fields, place

    def wrong(self, name: str, what: str) -> UsageError:
        """The error of a field."""
        value = str(self.fields.get(name))[:100]
        return UsageError("bad-config", f"{self.place}: {name} is {value}: {what}")

    def flag(self, name: str, default: bool = True) -> bool:
        value = self.fields.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "it must be true or false")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.fields.get(name, default)
        if not _is_number(value) or not 0 < value < 1e6:
            raise self.wrong(name, "it must be a positive number")
        return float(value)

    def channels(self, name: str) -> tuple[float, ...]:
        """A number for each channel, or one for all."""
        value: Any = self.fields.get(name)
        given: list[Any] = value if is_list(value) else [value] * 3
        found = [float(each) for each in given if _is_number(each) and abs(each) < 1e6]
        if len(given) != 3 or len(found) != 3 or (name == "image_std" and min(found) <= 0):
            raise self.wrong(name, "it must be a number for each of red, green and blue")
        return tuple(found)

    def whole(self, name: str, least: int, most: int) -> int:
        """An integer within bounds."""
        value = self.fields.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"it must be an integer from {least} to {most}")
        return value

    def filter(self) -> int:
        value = self.fields.get("resample")
        if type(value) is not int or value not in {_NEAREST, *FILTERS}:
            raise self.wrong("resample", "it must be the number of one of Pillow's filters, 0 to 5")
        return value

    def size(self, name: str, square: bool) -> dict[str, int]:
        """What pictures are resized to."""
        value = self.fields.get(name)
        if is_list(value) and len(value) == 2:
            value = {"height": value[0], "width": value[1]}
        elif type(value) is int:
            value = {"height": value, "width": value} if square else {"shortest_edge": value}
        sizes = dict(value) if is_mapping(value) else {}
        known = {"height", "width"}, {"shortest_edge"}, {"shortest_edge", "longest_edge"}
        right = all(type(each) is int and 0 < each <= _MOST_SIDE for each in sizes.values())
        if {*sizes} not in known or not right:
            raise self.wrong(
                name,
                f"it must have height and width, or shortest_edge, in pixels up to {_MOST_SIDE}",
            )
        return {str(side): int(each) for side, each in sizes.items()}

    def both(self, name: str) -> tuple[int, int]:
        """A height and a width."""
        sizes = self.size(name, square=True)
        if "height" not in sizes:
            raise self.wrong(name, "it must have a height and a width")
        return sizes["height"], sizes["width"]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
