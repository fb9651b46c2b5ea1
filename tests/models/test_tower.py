"""Models of pictures against transformers on the same random weights, from one executable for all batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.checkpoints import open_checkpoint
from relaxpy.errors import UsageError
from relaxpy.models.families import PICTURES
from relaxpy.models.tower import PictureModel, load_weights, spec
from relaxpy.models.tower_config import PictureModelConfig
from tests.models.picture_checkpoints import CASES, END, TOKENS, unit, write
from tests.sweeps import full, quick_target, sweep

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")
TOLERANCE = 2e-5

Made = tuple[Any, PictureModelConfig, dict[str, np.ndarray]]
SHARED: dict[str, relaxpy.VirtualMachine] = {}
"""Executables of cases."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """transformers' model of a case, our configuration, and the tensors."""
    found: dict[str, Made] = {}

    def get(name: str) -> Made:
        if name not in found:
            place: Path = tmp_path_factory.mktemp("m") / "m"
            theirs = write(name, place)
            checkpoint = open_checkpoint(place)
            tensors = {key: each.read() for key, each in checkpoint.tensors.items()}
            family = PICTURES[checkpoint.config["model_type"]]
            config = family.from_checkpoint(place).with_head(tensors, [])
            found[name] = theirs, config, tensors
        return found[name]

    return get


def machine(
    config: PictureModelConfig, tensors: dict[str, np.ndarray], size: tuple[int, int] | None = None
) -> relaxpy.VirtualMachine:
    model = PictureModel(config)
    load_weights(model, tensors)
    mod, params = model.export(spec(config, size))
    return relaxpy.VirtualMachine(relaxpy.build(mod, target=quick_target(), params=params))


def pixels(batch: int, size: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng([batch, *size]).standard_normal((batch, 3, *size), np.float32)


def theirs_of(model: Any, x: np.ndarray, pooling: str) -> np.ndarray:
    """The vectors of transformers."""
    with torch.inference_mode():
        if hasattr(model, "get_image_features"):
            return unit(model.get_image_features(torch.from_numpy(x)).pooler_output.numpy())
        base = getattr(model, model.base_model_prefix, model)
        states = base(torch.from_numpy(x)).last_hidden_state.numpy()
        return unit(states[:, 0] if pooling == "cls" else states[:, 1:].mean(1))


@sweep(2)
@pytest.mark.parametrize("name", [name for name in CASES if name != "vit without a head"])
def test_equals_transformers(name: str, made: Callable[[str], Made]) -> None:
    """Vectors of pictures and texts, and logits, in several batch sizes."""
    theirs, config, tensors = made(name)
    vm = SHARED[name] = machine(config, tensors)
    for batch in (1, 2, 7):
        x = pixels(batch, config.pictures.image_size)
        wanted = theirs_of(theirs, x, "cls")
        np.testing.assert_allclose(vm["embed_pictures"](x).numpy(), wanted, atol=TOLERANCE, rtol=0)
        if config.labels:
            with torch.inference_mode():
                logits = theirs(torch.from_numpy(x)).logits.numpy()
            np.testing.assert_allclose(vm["classify"](x).numpy(), logits, atol=1e-4, rtol=TOLERANCE)
    if config.texts is None:
        return
    for batch, seq in ((1, 2), (3, 7), (5, 11)):
        ids = np.random.default_rng(seq).integers(3, TOKENS - 1, (batch, seq))
        ids[:, -1] = END
        ids[0, seq // 2 :] = END  # a text that ends earlier, and is padded
        with torch.inference_mode():
            wanted = theirs.get_text_features(torch.from_numpy(ids)).pooler_output.numpy()
        found = vm["embed_texts"](ids).numpy()
        np.testing.assert_allclose(found, unit(wanted), atol=TOLERANCE, rtol=0)
    with pytest.raises(relaxpy.RelaxError, match="11"):
        vm["embed_texts"](np.zeros((1, 12), np.int64))


def test_the_mean_of_patches(made: Callable[[str], Made]) -> None:
    theirs, config, tensors = made("vit without a head")
    vm = machine(replace(config, pooling="mean"), tensors)
    x = pixels(3, config.pictures.image_size)
    wanted = theirs_of(theirs, x, "mean")
    np.testing.assert_allclose(vm["embed_pictures"](x).numpy(), wanted, atol=TOLERANCE, rtol=0)


def test_pictures_of_other_sizes(made: Callable[[str], Made]) -> None:
    """DINOv2 has positions in between, for all sizes from one executable; others say which size they read."""
    theirs, config, tensors = made("dinov2")
    vm = SHARED.get("dinov2") or machine(config, tensors)
    for size in ((7, 7), (23, 23), (14, 35), (50, 29)):
        x = pixels(2, size)
        wanted = theirs_of(theirs, x, "cls")
        np.testing.assert_allclose(vm["embed_pictures"](x).numpy(), wanted, atol=TOLERANCE, rtol=0)
    _, config, tensors = made("vit")
    vm = SHARED.get("vit") or machine(config, tensors)
    with pytest.raises(relaxpy.RelaxError, match="23"):
        vm["embed_pictures"](pixels(1, (30, 30)))


@full
def test_bfloat16_is_near(made: Callable[[str], Made]) -> None:
    theirs, config, tensors = made("dinov2 with gates")
    narrow = type(config).from_dict(theirs.config.to_dict(), "bfloat16")
    x = pixels(3, config.pictures.image_size)
    found = machine(narrow, tensors)["embed_pictures"](x).numpy()
    wanted = theirs_of(theirs, x, "cls")
    assert found.dtype == np.float32
    assert 1e-5 < np.abs(found - wanted).max() < 0.05
    assert (found * wanted).sum(1).min() > 0.998


def test_weights_that_do_not_fit(made: Callable[[str], Made]) -> None:
    _, config, tensors = made("clip")
    wrong = {**tensors, "odd": np.zeros(1, np.float32)}
    del wrong["vision_model.pre_layrnorm.bias"]
    with pytest.raises(UsageError) as caught:
        load_weights(PictureModel(config), wrong)
    assert caught.value.notes == (
        "missing: vision_model.pre_layrnorm.bias (24,)",
        "unexpected: odd",
    )


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("vit", {"hidden_size": 25}, "not a multiple"),
        ("vit", {"num_channels": 1}, "num_channels is 1"),
        ("vit", {"patch_size": 225}, "no patch"),
        ("vit", {"image_size": [3, 4, 5]}, "image_size must be"),
        ("vit", {"hidden_act": "swoosh"}, "unknown activation 'swoosh'"),
        ("dinov2", {"image_size": [23, 37]}, "a grid of positions is square"),
        ("siglip", {"vision_config": {"vision_use_head": False}}, "gives no vectors"),
        ("siglip", {"text_config": {"projection_size": 7}}, "have 7 numbers, and those of pictures 768"),
        ("clip", {"text_config": [3]}, "text_config has no fields"),
    ],
)  # fmt: skip
def test_configurations_that_are_refused(name: str, change: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        PICTURES[name].from_dict({**change, "model_type": name})
