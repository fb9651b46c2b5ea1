"""What `relaxpy doctor` tries."""

from __future__ import annotations

import ctypes
import ctypes.util

import pytest

from relaxpy.cli import probe


@pytest.mark.parametrize("target", [name for name in probe.PROBES if name != "llvm"])
def test_a_probe_says_what_is_missing(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any driver or package every probe answers with advice."""
    monkeypatch.setattr(probe, "load_first", lambda *_: None)
    monkeypatch.setattr(probe.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(probe.shutil, "which", lambda _: None)
    monkeypatch.setattr(probe.sys, "platform", "linux")
    finding = probe.PROBES[target]()
    assert not finding.works
    assert finding.advice


def test_load_first_takes_the_first_that_loads() -> None:
    """Names that do not load are passed over."""
    assert probe.load_first("lib-that-is-nowhere.so") is None
    loaded = probe.load_first(
        "lib-that-is-nowhere.so", ctypes.util.find_library("c") or "libc.so.6"
    )
    assert loaded is not None
