"""The progress bar: on a terminal, for builds that take long, or where it is asked for."""

from __future__ import annotations

import io
import sys

import pytest

from relaxpy.build import progress
from relaxpy.build.progress import progress_bar


class Terminal(io.StringIO):
    """What looks like one."""

    def isatty(self) -> bool:
        return True


def shown(wanted: bool | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a build of three kernels writes to a terminal."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar(wanted) as on_kernel:
        for done in (1, 2, 3):
            if on_kernel is not None:
                on_kernel(done, 3, f"kernel{done}")
    return stream.getvalue()


def test_no_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar(None) as on_kernel:
        assert on_kernel is None


def test_no_bar_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(False, monkeypatch) == ""


def test_no_bar_for_a_short_build(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(None, monkeypatch) == ""


def test_a_bar_for_a_long_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    assert "compiling kernels" in shown(None, monkeypatch)


def test_a_bar_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(True, monkeypatch)
    assert "3/3" in text
    assert "kernel3" in text
