"""Pictures as patches, and with parts of them, beside transformers' processors with Pillow, pixel for pixel."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.vision.several import PanAndScan, PatchProcessor
from tests.sweeps import FULL
from tests.vision.test_processor import random_picture

Image: Any = pytest.importorskip("PIL.Image")
transformers: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")


def upright(data: bytes) -> Any:
    return transformers.image_utils.load_image(Image.open(io.BytesIO(data)))


def test_patches_equal_transformers() -> None:
    """Files of all modes by random settings; what theirs refuses is refused."""
    kinds = {"patches": 0, "refused": 0}
    for seed in range(300 if FULL else 20):
        pick = random.Random(seed)
        _, data = random_picture(pick)
        settings: dict[str, Any] = {
            "patch_size": pick.choice([3, 5, 14]), "merge_size": pick.choice([1, 2, 3]), "temporal_patch_size": pick.choice([1, 2]),
            "resample": pick.choice([2, 3]),
        }  # fmt: skip
        least = pick.choice([1, 400, 3136])
        sizes = least, least * pick.choice([1, 3, 40])
        if pick.random() < 0.5:
            settings["size"] = {"shortest_edge": sizes[0], "longest_edge": sizes[1]}
        else:
            settings |= {"min_pixels": sizes[0], "max_pixels": sizes[1]}
        for name in ("do_rescale", "do_normalize"):
            settings[name] = pick.random() < 0.9
        theirs = transformers.Qwen2VLImageProcessorPil(**settings)
        shown = upright(data)
        own = PatchProcessor.from_dict(settings)
        try:
            wanted = theirs(shown, return_tensors="np")
        except ValueError:
            with pytest.raises(UsageError, match=r"times longer|reads multiples"):
                own(data)
            kinds["refused"] += 1
            continue
        found = own(data)
        np.testing.assert_array_equal(
            found.numbers, wanted["pixel_values"], err_msg=f"{seed}: {settings}"
        )
        assert [1, *found.grid] == wanted["image_grid_thw"][0].tolist()
        assert found.numbers.dtype == np.float32
        kinds["patches"] += 1
    assert kinds["patches"] > 12
    thin = np.zeros((2, 402, 3), np.uint8)
    with pytest.raises(UsageError, match="more than 200 times longer"):
        PatchProcessor.from_dict({})(thin)
    with pytest.raises(UsageError, match="reads multiples of 28"):
        PatchProcessor.from_dict({"do_resize": False})(thin)
    whole = np.random.default_rng(0).integers(0, 256, (28, 56, 3), np.uint8)
    plain = transformers.Qwen2VLImageProcessorPil(do_resize=False)(whole, return_tensors="np")
    found = PatchProcessor.from_dict({"do_resize": False})(whole)
    np.testing.assert_array_equal(found.numbers, plain["pixel_values"])


def test_parts_equal_transformers() -> None:
    several = 0
    for seed in range(300 if FULL else 20):
        pick = random.Random(1000 + seed)
        _, data = random_picture(pick)
        settings: dict[str, Any] = {
            "size": {"height": pick.choice([17, 24]), "width": 24}, "resample": pick.choice([2, 3]),
            "do_pan_and_scan": pick.random() < 0.8, "pan_and_scan_min_crop_size": pick.choice([3, 8, 40]),
            "pan_and_scan_max_num_crops": pick.choice([2, 4, 5]), "pan_and_scan_min_ratio_to_activate": pick.choice([1.0, 1.2, 3]),
            "do_normalize": pick.random() < 0.9,
        }  # fmt: skip
        shown = upright(data)
        own = PanAndScan.from_dict(settings)
        try:
            wanted = transformers.Gemma3ImageProcessorPil(**settings)(shown, return_tensors="np")
        except (ValueError, ZeroDivisionError):
            with pytest.raises(UsageError, match="cannot be cut into"):
                own(data)
            continue
        found = own(data)
        np.testing.assert_array_equal(
            found, np.stack([*wanted["pixel_values"]]), err_msg=f"{seed}: {settings}"
        )
        assert len(found) == 1 + wanted["num_crops"][0]
        several += len(found) > 1
    assert several > 3


def test_checkpoints(tmp_path: Path) -> None:
    """As they are published; without settings of parts a picture is one."""
    fields = {
        "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor",
    }  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields))
    assert PatchProcessor.from_checkpoint(tmp_path).pixels == (3136, 12845056)
    transformers.Gemma3ImageProcessorPil(size={"height": 28, "width": 28}).save_pretrained(tmp_path)
    found = PanAndScan.from_checkpoint(tmp_path)
    assert found.crops == 0
    assert found(np.zeros((9, 90, 3), np.uint8)).shape == (1, 3, 28, 28)
    with pytest.raises(UsageError, match="is for a Gemma3ImageProcessor, which is not supported"):
        PatchProcessor.from_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"size": {"shortest_edge": 9}}, "size is"),
        ({"size": 224}, "must have shortest_edge and longest_edge"),
        ({"min_pixels": 9, "max_pixels": 8}, "the least and the most pixels"),
        ({"max_pixels": 1 << 40}, "up to 16777216"),
        ({"patch_size": 0}, "patch_size is 0: it must be an integer from 1 to 256"),
        ({"merge_size": True}, "merge_size is True"),
    ],
)
def test_settings_that_are_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        PatchProcessor.from_dict(fields)
    assert caught.value.code == "bad-config"
