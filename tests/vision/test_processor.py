"""Pictures as models see them, beside transformers' processors with Pillow, pixel for pixel."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.checkpoints.unread import UnreadWarning
from relaxpy.errors import UsageError
from relaxpy.vision import PictureProcessor
from relaxpy.vision import processor as module
from relaxpy.vision.resample import FILTERS, resized_part
from tests.sweeps import FULL

Image: Any = pytest.importorskip("PIL.Image")
transformers: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")

KINDS = {
    "vit": "ViTImageProcessorPil", "clip": "CLIPImageProcessorPil", "siglip": "SiglipImageProcessorPil",
    "dinov2": "BitImageProcessorPil",
}  # fmt: skip
FORMATS = {
    "1": ("PNG", "TIFF"), "L": ("PNG", "TIFF", "JPEG"), "LA": ("PNG",), "P": ("PNG", "GIF"), "RGB": ("PNG", "WEBP"),
    "RGBA": ("PNG", "WEBP"), "CMYK": ("JPEG", "TIFF"), "YCbCr": ("JPEG",), "I;16": ("PNG", "TIFF"), "I": ("TIFF",),
    "F": ("TIFF",),
}  # fmt: skip
"""Modes of Pillow, and formats that have them."""


def random_picture(pick: random.Random) -> tuple[Any, bytes]:
    """A picture of any mode and shape, as Pillow has it and as a file."""
    mode = pick.choice([*FORMATS])
    width, height = (int(2 ** pick.uniform(0, 8.2)) for _ in range(2))
    if pick.random() < 0.1:
        width, height = pick.choice([(1, 1), (400, 3), (2, 300), (1, 224), (224, 224), (256, 257)])
    rng = np.random.default_rng(pick.randrange(1 << 30))
    noise = rng.integers(0, 256, (height, width, 4), np.uint8)
    ramp = np.add.outer(np.arange(height) * 3, np.arange(width)).astype(np.uint8)
    noise[..., pick.randrange(4)] = ramp
    if mode in ("I;16", "I", "F"):
        kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        made = Image.fromarray((noise[..., 0].astype(np.uint16) * 256 + noise[..., 1]).astype(kind))
    else:
        made = Image.fromarray(noise).convert(mode)
    options: dict[str, Any] = {}
    if mode == "P" and pick.random() < 0.5:
        options["transparency"] = pick.randrange(256)
    if mode == "RGB" and pick.random() < 0.6:
        options["exif"] = exif = Image.Exif()
        exif[0x0112] = pick.randrange(1, 9)
    file = io.BytesIO()
    made.save(file, pick.choice(FORMATS[mode]), **options)
    return made, file.getvalue()


def random_settings(pick: random.Random, family: str) -> dict[str, Any]:
    side = pick.choice([17, 24, 33])
    found: dict[str, Any] = {"resample": pick.choice([0, 1, 2, 3, 4, 5])}
    found["size"] = pick.choice(
        [{"height": side, "width": side + 4}, {"shortest_edge": side}, {"shortest_edge": side, "longest_edge": 2 * side}, side]
    )  # fmt: skip
    found["do_center_crop"] = pick.random() < 0.6
    found["crop_size"] = pick.choice([{"height": 21, "width": 26}, 19])
    for name in ("do_rescale", "do_normalize", "do_resize"):
        found[name] = pick.random() < 0.9
    if pick.random() < 0.3:
        found["rescale_factor"] = 1 / 127.5
    if pick.random() < 0.3:
        found |= {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.5, 0.2]}
    return found


def theirs_of(processor: Any, image: Any) -> np.ndarray:
    return np.asarray(processor(image, return_tensors="np")["pixel_values"][0])


def test_equals_transformers(tmp_path: Path) -> None:
    """Files of all modes, by random settings of all four classes."""
    path = tmp_path / "picture"
    compared = 0
    for seed in range(300 if FULL else 40):
        pick = random.Random(seed)
        family = pick.choice([*KINDS])
        _, data = random_picture(pick)
        settings = random_settings(pick, family)
        own = PictureProcessor.from_dict(settings, family)
        path.write_bytes(data)
        upright = transformers.image_utils.load_image(str(path))
        theirs = getattr(transformers, KINDS[family])(**settings)
        try:
            wanted = theirs_of(theirs, upright)
        except ValueError:  # a side of 0
            with pytest.raises(UsageError, match="would be resized to"):
                own(data)
            continue
        found = own(path)
        np.testing.assert_array_equal(found, wanted, err_msg=f"seed {seed}: {family} {settings}")
        assert found.dtype == np.float32
        if own.result is not None:
            assert found.shape[1:] == own.result
        compared += 1
    assert compared > (280 if FULL else 35)


@pytest.mark.parametrize("family", KINDS)
def test_classes_as_they_are(family: str) -> None:
    """Without settings; a Pillow image is read as the class reads it: transparency becomes white."""
    own, theirs = PictureProcessor.from_dict({}, family), getattr(transformers, KINDS[family])()
    for seed in range(40 if FULL else 3):
        made, data = random_picture(random.Random(1000 + seed))
        made = Image.open(io.BytesIO(data)) if seed % 2 else made
        theirs.do_convert_rgb = True
        np.testing.assert_array_equal(own(made), theirs_of(theirs, made))


@pytest.mark.parametrize("resample", FILTERS)
def test_parts_of_a_resized_picture(resample: int) -> None:
    """Equal to Pillow's whole one, enlarged and made smaller, with each of its filters."""
    rng = np.random.default_rng(resample)
    for (height, width), (down, across) in [
        ((3, 70), (31, 723)), ((70, 3), (723, 31)), ((50, 40), (9, 13)), ((1, 1), (5, 7)), ((9, 30), (9, 61)),
    ]:  # fmt: skip
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        whole = np.asarray(Image.fromarray(pixels).resize((across, down), resample=resample))
        top, left = down // 4, across // 3
        found = resized_part(pixels, (down, across), resample, top, left, (down // 2, across // 2))
        wanted = whole[top : top + down // 2, left : left + across // 2]
        np.testing.assert_array_equal(found, wanted)


def test_long_and_thin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is taken is computed, and it is what transformers takes of the whole."""
    rng = np.random.default_rng(0)
    shapes = [(4000, 3), (3, 4000)] if FULL else [(300, 2), (2, 300)]
    if not FULL:
        monkeypatch.setattr(module, "_MOST_RESIZED", 1 << 17)
    own, theirs = PictureProcessor.from_dict({}, "clip"), transformers.CLIPImageProcessorPil()
    for height, width in shapes:
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        assert np.prod(own.cut(pixels.shape[:2]).size) > module._MOST_RESIZED
        np.testing.assert_array_equal(own(pixels), theirs_of(theirs, Image.fromarray(pixels)))
    thin = np.zeros((1, 1 << 16, 3), np.uint8)
    assert own(thin).shape == (3, 224, 224)
    with pytest.raises(UsageError, match="so long and thin"):
        PictureProcessor.from_dict({"do_center_crop": False}, "clip")(thin)
    with pytest.raises(UsageError, match="so long and thin"):
        PictureProcessor.from_dict({"resample": 0}, "clip")(thin)


def test_where_settings_are(tmp_path: Path) -> None:
    """In the file of older versions of transformers, or below image_processor; what nobody follows is named."""
    transformers.CLIPImageProcessorPil(size=30, crop_size=28).save_pretrained(tmp_path)
    found = PictureProcessor.from_checkpoint(tmp_path, "clip")
    assert found.size == {"shortest_edge": 30}
    assert found.crop == found.result == (28, 28)
    path = tmp_path / "preprocessor_config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "do_sharpen": True, "do_blur": False}))
    with pytest.warns(UnreadWarning, match=r"config\.json: not followed: do_sharpen = True$"):
        PictureProcessor.from_checkpoint(tmp_path, "clip")
    path.unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": fields}))
    assert PictureProcessor.from_checkpoint(tmp_path, "clip") == found
    for text, match in (
        ("{}", "has no preprocessor_config.json"),
        ('{"image_processor": []}', "no settings of pictures: it is a list"),
        ("{", "is not JSON"),
    ):
        (tmp_path / "processor_config.json").write_text(text)
        with pytest.raises(UsageError, match=match):
            PictureProcessor.from_checkpoint(tmp_path, "clip")


def test_old_names() -> None:
    """CLIP's first file."""
    old = {
        "crop_size": 24,
        "feature_extractor_type": "CLIPFeatureExtractor",
        "resample": 3,
        "size": 25,
    }
    new = {"crop_size": {"height": 24, "width": 24}, "size": {"shortest_edge": 25}}
    assert PictureProcessor.from_dict(old, "?") == PictureProcessor.from_dict(new, "clip")
    fast = {"image_processor_type": "SiglipImageProcessorFast", "size": [3, 4], "do_resize": None}
    assert PictureProcessor.from_dict(fast, "?").result == (3, 4)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"image_processor_type": "LlavaNextImageProcessor"}, "is for a LlavaNextImageProcessor, which is not"),
        ({"do_pad": True}, "do_pad is True: pictures are not padded"),
        ({"size": {"height": 3}}, "size is {'height': 3}: it must have height and width"),
        ({"size": {"shortest_edge": 10**9}}, "up to 8192"),
        ({"size": {"shortest_edge": True}}, "size is"),
        ({"size": "224"}, "size is 224"),
        ({"crop_size": {"shortest_edge": 3}}, "it must have a height and a width"),
        ({"resample": 9}, "resample is 9: it must be the number"),
        ({"resample": "bicubic"}, "resample is bicubic"),
        ({"image_std": [1, 0, 1]}, "image_std is"),
        ({"image_mean": [1, 1]}, "image_mean is"),
        ({"image_mean": [1, 1, float("nan")]}, "image_mean is"),
        ({"rescale_factor": "1/255"}, "rescale_factor is"),
        ({"do_resize": 1}, "do_resize is 1: it must be true or false"),
    ],
)  # fmt: skip
def test_settings_that_are_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        PictureProcessor.from_dict(fields, "clip")
    assert caught.value.code == "bad-config"
