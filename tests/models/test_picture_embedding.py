"""Pictures and texts as vectors and labels, beside transformers; settings, caching, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.checkpoints.unread import UnreadWarning
from relaxpy.errors import UsageError
from relaxpy.models.embedders import load_embedder
from relaxpy.models.families import PICTURES
from relaxpy.models.picture_embedding import TEMPLATE, PictureEmbedder
from relaxpy.vision.processor import FAMILIES
from tests.models.picture_checkpoints import unit, write
from tests.sweeps import quick_target, sweep

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
Image: Any = pytest.importorskip("PIL.Image")
TOLERANCE = 2e-5
TEXTS = ["a photo of a red circle", "star", "blue square ."]


def load(place: Path, **options: Any) -> PictureEmbedder:
    return PictureEmbedder.from_checkpoint(
        place, target=str(quick_target()), **{"cache": False, **options}
    )


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Some of other sizes, formats and modes."""
    place = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for k, (width, height) in enumerate([(40, 31), (23, 23), (9, 60)]):
        noise = rng.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(noise).save(place / f"{k}.{('png', 'jpg', 'webp')[k]}")
    return sorted(place.iterdir())


def pixels_of(kind: str, pictures: list[Path]) -> Any:
    """By transformers' processor."""
    processor = getattr(transformers, kind)(size={"height": 23, "width": 23}, do_center_crop=False)
    images = [transformers.image_utils.load_image(str(each)) for each in pictures]
    return processor(images, return_tensors="pt")["pixel_values"]


@sweep(2)
@pytest.mark.parametrize(
    ("name", "kind"), [("clip", "CLIPImageProcessorPil"), ("siglip", "SiglipImageProcessorPil")]
)
def test_pictures_and_texts(name: str, kind: str, pictures: list[Path], tmp_path: Path) -> None:
    theirs = write(name, tmp_path)
    embedder = load(tmp_path)
    ids = [embedder.tokenizer.encode(text).ids for text in TEXTS]
    longest = 11 if name == "siglip" else max(map(len, ids))
    rows = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    with torch.inference_mode():
        theirs.logit_scale.fill_(1.7)
        out = theirs(input_ids=rows, pixel_values=pixels_of(kind, pictures))
        found = embedder.embed_pictures(pictures)
        texts = embedder.embed(TEXTS).vectors
    np.testing.assert_allclose(found, unit(out.image_embeds.numpy()), atol=TOLERANCE)
    np.testing.assert_allclose(texts, unit(out.text_embeds.numpy()), atol=TOLERANCE)
    # one by one, and as images and arrays
    alone = [embedder.embed_pictures([each])[0] for each in pictures]
    np.testing.assert_allclose(alone, found, atol=1e-6)
    arrays = [np.asarray(Image.open(each).convert("RGB")) for each in pictures]
    np.testing.assert_array_equal(embedder.embed_pictures(arrays), found)
    # probabilities
    embedder.facts["scale"] = float(np.exp(np.float32(1.7)))
    logits = out.logits_per_image
    wanted = torch.sigmoid(logits) if name == "siglip" else logits.softmax(1)
    np.testing.assert_allclose(
        embedder.probabilities(found @ texts.T), wanted.numpy(), atol=TOLERANCE
    )
    labels = embedder.classify(pictures, ["red", "star"])
    said = embedder.embed([TEMPLATE.replace("{}", each) for each in ("red", "star")]).vectors
    order = embedder.probabilities(found @ said.T)
    for row, own in zip(labels, order, strict=True):
        assert [each.name for each in row] == (
            ["red", "star"] if own[0] >= own[1] else ["star", "red"]
        )
        assert row[0].probability == pytest.approx(own.max(), abs=1e-6)
    with pytest.raises(UsageError, match="has no head that classifies"):
        embedder.classify(pictures)
    with pytest.raises(UsageError, match=r"has no \{\} for the label"):
        embedder.classify(pictures, ["red"], template="a photo")
    with pytest.raises(UsageError, match=r"no/such\.png"):
        embedder.embed_pictures([pictures[0], "no/such.png"])
    with pytest.raises(UsageError, match="picture 2 is no picture"):
        embedder.embed_pictures([pictures[0], b"GIF"])


def test_labels_of_a_head(
    pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of their probabilities, by the names of the configuration; from the cache, too."""
    monkeypatch.setenv("RELAXPY_CACHE_DIR", str(tmp_path / "cache"))
    place = tmp_path / "vit"
    theirs = write("vit", place)
    config = json.loads((place / "config.json").read_text())
    names = ["cat", "dog", "owl", "cow", "elk"]
    config["id2label"] = {str(k): name for k, name in enumerate(names)}
    (place / "config.json").write_text(json.dumps(config))
    with torch.inference_mode():
        logits = theirs(pixels_of("ViTImageProcessorPil", pictures)).logits
    wanted = logits.softmax(1).numpy()
    compiled: list[int] = []
    for _ in range(2):
        embedder = load(place, cache=True, on_compile=lambda: compiled.append(1))
        assert embedder.labels == tuple(names)
        for row, own in zip(embedder.classify(pictures), wanted, strict=True):
            assert [each.name for each in row] == [names[k] for k in np.argsort(-own)]
            np.testing.assert_allclose(
                [each.probability for each in row], -np.sort(-own), atol=TOLERANCE
            )
    assert compiled == [1]
    with pytest.raises(UsageError, match="a vit reads pictures, and no texts"):
        embedder.embed(["a cat"])
    other = load_embedder(place, target=str(quick_target()))
    assert isinstance(other, PictureEmbedder)
    assert other.embed_pictures(pictures).shape == (3, 24)
    assert {*FAMILIES} == {*PICTURES}


def test_products_of_bytes_are_near(pictures: list[Path], tmp_path: Path) -> None:
    theirs = write("vit without a head", tmp_path)
    settings = json.dumps({"size": [23, 17]})
    (tmp_path / "preprocessor_config.json").write_text(settings)
    embedder = load(tmp_path, precision="int8", pooling="mean")
    pixels = np.stack([embedder.processor(each) for each in pictures])
    with torch.inference_mode():
        states = theirs(torch.from_numpy(pixels)).last_hidden_state.numpy()
    wanted = unit(states[:, 1:].mean(1))
    found = embedder.embed_pictures(pictures)
    assert np.abs(found - wanted).max() > 1e-5
    assert (found * wanted).sum(1).min() > 0.99


@pytest.mark.parametrize(
    ("name", "settings", "options", "match"),
    [
        ("vit", {"size": 30}, {}, "get the size 30 × 30, and the model reads 23 × 23"),
        ("clip", {"do_center_crop": False}, {}, "keep sizes of their own, and the model reads 23 × 23"),
        ("dinov2", {"crop_size": 6}, {}, "pictures of 6 × 6 have no patch"),
        ("clip", None, {"pooling": "mean"}, "a clip says itself how"),
        ("vit", None, {"pooling": "max"}, "pooling is one of cls, mean, got 'max'"),
        ("vit", None, {"precision": "int4"}, "precision is one of float32, bfloat16, int8, got 'int4'"),
        ("clip", None, {"max_tokens": 12}, "max_tokens is 12; it must be from 3 to 11"),
    ],
)  # fmt: skip
def test_what_is_refused(
    name: str, settings: Any, options: dict[str, Any], match: str, tmp_path: Path
) -> None:
    write(name, tmp_path)
    if settings is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(UsageError, match=match):
        load(tmp_path, **options)


def test_files_of_a_checkpoint(tmp_path: Path) -> None:
    """What is missing, what is not followed, and what is of another kind."""
    write("clip", tmp_path)
    config = tmp_path / "config.json"
    fields = json.loads(config.read_text())
    fields["text_config"]["rope_theta"] = 3.0
    config.write_text(json.dumps(fields))
    (tmp_path / "preprocessor_config.json").unlink()
    warned = pytest.warns(UnreadWarning, match="not followed: text_config.rope_theta = 3.0")
    with warned, pytest.raises(UsageError, match=r"no preprocessor_config\.json"):
        load(tmp_path)
    config.write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UsageError, match="'llama', which reads no pictures"):
        load(tmp_path)
    config.write_text(json.dumps({"model_type": "llava"}))
    for wrong in (load, load_embedder):
        with pytest.raises(UsageError, match="'llava', which talks about pictures"):
            wrong(tmp_path)
