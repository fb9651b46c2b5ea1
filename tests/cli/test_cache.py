"""`relaxpy cache`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import relaxpy.version
from relaxpy.build.build_cache import BuildCache
from relaxpy.build.kernels import compiler_id
from tests.cli.test_compile import PROGRAM, run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, empty."""
    monkeypatch.setenv("RELAXPY_CACHE_DIR", str(tmp_path / "cache"))
    # Somebody may be editing the sources while the tests run; nothing would be kept.
    monkeypatch.setattr(relaxpy.version, "LOADED_AT", float("inf"))
    compiler_id.cache_clear()
    return tmp_path / "cache"


def test_a_build_is_found_in_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "module.py").write_text(PROGRAM)
    command = ("compile", tmp_path / "module.py", "-o", tmp_path / "m.rxe", "--timings")
    _, cold, _ = run(capsys, *command)
    _, warm, _ = run(capsys, *command)
    _, again, _ = run(capsys, *command, "--no-cache")
    assert "1 kernel, 0 from the cache" in cold
    assert "all of it from the cache; 1 kernel" in warm
    assert "1 kernel, 0 from the cache" in again
    code, out, _ = run(capsys, "cache")
    assert code == 0
    assert f"folder   {folder}" in out
    assert "entries  2 builds and kernels\n" in out
    assert "hits     1 of 2 kernels built (50%)" in out
    assert out == run(capsys, "cache", "show")[1]


def test_verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = BuildCache(folder)
    for i in range(3):
        kept.put(bytes([i] * 32), b"data")
    damaged = kept.entries()[1].path
    damaged.write_bytes(b"other")
    code, out, _ = run(capsys, "cache", "verify")
    assert (code, out) == (0, f"damaged, deleted: {damaged}\n2 entries of 3 whole\n")


def test_clear(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    BuildCache(folder).put(bytes(32), bytes(2048))
    assert run(capsys, "cache", "clear")[:2] == (0, "deleted 1 entry, 2.1 KiB\n")
    assert "entries  0 builds and kernels\n" in run(capsys, "cache")[1]


@pytest.mark.parametrize("command", [(), ("show",), ("clear",), ("verify",)])
def test_off(
    command: tuple[str, ...],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RELAXPY_CACHE_SIZE", "0")
    code, out, _ = run(capsys, "cache", *command)
    assert code == 0
    assert "the cache is off" in out
    assert not folder.exists()


def test_a_size_that_is_none(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAXPY_CACHE_SIZE", "lots")
    code, _, err = run(capsys, "cache")
    assert code == 1
    assert "error[cache-size]: 'lots' is not a size" in err


def test_json_says_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = BuildCache(folder)
    for i in range(3):
        kept.put(bytes([i] * 32), bytes(2048))
    text = run(capsys, "cache")[1]
    shown = json.loads(run(capsys, "cache", "--json")[1])
    assert shown == json.loads(run(capsys, "cache", "show", "--json")[1])
    assert f"folder   {shown['folder']}\n" in text
    assert f"entries  {shown['entries']} builds" in text
    assert f"of at most {shown['max_bytes'] / 2**30:.1f} GiB" in text
    assert (shown["hits"], shown["misses"], shown["writable"]) == (0, 0, True)
    assert shown["bytes"] == sum(entry.size for entry in kept.entries())
    damaged = kept.entries()[1].path
    damaged.write_bytes(b"other")
    verified = json.loads(run(capsys, "cache", "verify", "--json")[1])
    assert verified == {"entries": 3, "damaged": [str(damaged)]}
    cleared = json.loads(run(capsys, "cache", "clear", "--json")[1])
    assert (cleared["deleted"], cleared["left"]) == (2, 0)


@pytest.mark.parametrize("command", ["show", "clear", "verify"])
def test_json_without_a_cache(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELAXPY_CACHE_SIZE", "0")
    assert json.loads(run(capsys, "cache", command, "--json")[1]) == {"folder": None}
