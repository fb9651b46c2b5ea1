"""The LLaVA of tests/vision/shapes is trained anew, by its script: six minutes of a core."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sweeps import full

pytest.importorskip("torch")
pytest.importorskip("transformers")


@full
def test_it_learns(tmp_path: Path) -> None:
    from tests.vision.train_shapes import train

    assert train(tmp_path / "shapes", minutes=5) > 0.75
