"""`relaxpy classify`, and pictures of `relaxpy embed`: what they read, print and refuse, with a stand-in for the
model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from relaxpy.cli.classify import classify
from relaxpy.cli.embed import embed
from relaxpy.errors import RelaxError
from relaxpy.models import picture_embedding
from relaxpy.models.picture_embedding import Label, PictureEmbedder
from relaxpy.models.sentence_embedding import Embeddings, SentenceEmbedder


class StandIn(PictureEmbedder):
    """A vector of a name is its length."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def embed(self, sentences: Sequence[str], **_: Any) -> Embeddings:
        return Embeddings(np.array([[len(each), 1.0] for each in sentences], np.float32), ())

    def embed_pictures(self, pictures: Sequence[Any], **_: Any) -> np.ndarray:
        return np.array([[len(each), 0.0] for each in pictures], np.float32)

    def classify(
        self, pictures: Sequence[Any], texts: Sequence[str] | None = None, **options: Any
    ) -> list[list[Label]]:
        self.asked.append((texts, options["template"]))
        names = texts or ["cat", "dog", "owl"]
        shares = [0.75, 0.2, 0.05]
        return [[Label(n, p) for n, p in zip(names, shares, strict=False)] for _ in pictures]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    made = StandIn()
    monkeypatch.setattr(PictureEmbedder, "from_checkpoint", lambda *_, **__: made)
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    for name in ("a.jpg", "bb.jpg"):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return made


def run(command: Any, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def error_of(result: Result) -> str:
    assert isinstance(result.exception, RelaxError)
    return result.exception.render()


def test_labels_of_the_model(stand_in: StandIn) -> None:
    result = run(classify, "a.jpg", "bb.jpg", "-m", ".", "--top", "2")
    assert (
        result.stdout == "a.jpg\n  75.0%  cat\n  20.0%  dog\n\nbb.jpg\n  75.0%  cat\n  20.0%  dog\n"
    )
    assert stand_in.asked == [(None, picture_embedding.TEMPLATE)]
    assert run(classify, "a.jpg", "-m", ".", "--top", "1").stdout == "  75.0%  cat\n"


def test_labels_of_ones_own_as_json(stand_in: StandIn) -> None:
    result = run(classify, "a.jpg", "-m", ".", "-l", "x", "-l", "y", "--template", "a {}", "--json")
    assert json.loads(result.stdout) == [
        {"image": "a.jpg", "labels": [{"name": "x", "probability": 0.75}, {"name": "y", "probability": 0.2}]}
    ]  # fmt: skip
    assert stand_in.asked == [(("x", "y"), "a {}")]
    result = run(classify, "a.jpg", "-m", ".", "--template", "a {}")
    assert "--template is for labels of your own" in error_of(result)


def test_pictures_and_texts_in_one_table(stand_in: StandIn) -> None:
    """A shell writes the files of *.jpg as a value and arguments."""
    result = run(embed, "-m", ".", "--image", "a.jpg", "bb.jpg", "a text")
    assert result.exit_code == 0, result.output
    assert "similarity" in result.stdout
    assert "2 pictures and 1 sentence × 2 numbers" in result.output
    result = run(embed, "-m", ".", "--json", "--image", "a.jpg", "--image", "bb.jpg", "no.jpg")
    assert json.loads(result.stdout) == [
        {"image": "a.jpg", "embedding": [5.0, 0.0]},
        {"image": "bb.jpg", "embedding": [6.0, 0.0]},
        {"sentence": "no.jpg", "embedding": [6.0, 1.0]},
    ]
    result = run(embed, "-m", ".", "--save", "out.npy", "--image", "a.jpg")
    assert np.load("out.npy").tolist() == [[5.0, 0.0]]
    assert "1 picture × 2 numbers" in result.output


def test_models_without_pictures(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SentenceEmbedder, "from_checkpoint", lambda *_, **__: object())
    assert "reads sentences, and no pictures" in error_of(run(embed, "--image", "a.jpg"))
    result = run(embed, "--pooling", "mean", "a text")
    assert "pooling is for models of pictures" in error_of(result)
