"""What `relaxpy doctor` tries."""

from __future__ import annotations

import ctypes
import ctypes.util

import pytest

import relaxpy
from relaxpy.cli import probe
from relaxpy.errors import BuildError


@pytest.mark.parametrize("target", [name for name in probe.PROBES if name != "llvm"])
def test_a_probe_promises_no_more_than_build_does(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `build` has no code for does not work, whatever drivers there are, and nothing is said to install."""
    finding = probe.PROBES[target]()
    assert not finding.works
    assert f"does not compile for {target}" in finding.advice
    with pytest.raises(BuildError, match="there is no code generator for"):
        relaxpy.build(relaxpy.parse(probe.PROGRAM), target=target)
    monkeypatch.setattr(probe, "load_first", lambda *_: None)
    monkeypatch.setattr(probe.shutil, "which", lambda _: None)
    monkeypatch.setattr(probe.sys, "platform", "linux")
    finding = probe.PROBES[target]()
    assert not finding.works
    assert "install" not in finding.advice


def test_load_first_takes_the_first_that_loads() -> None:
    """Names that do not load are passed over."""
    assert probe.load_first("lib-that-is-nowhere.so") is None
    loaded = probe.load_first(
        "lib-that-is-nowhere.so", ctypes.util.find_library("c") or "libc.so.6"
    )
    assert loaded is not None
