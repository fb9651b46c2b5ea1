"""The folder of compiled kernels: what is whole comes back, what is not does not, and no disk fails a build."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relaxpy.build import build_cache
from relaxpy.build.build_cache import BuildCache
from tests.odd_files import ODD_FILES


def key(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


@pytest.fixture
def kept(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "not" / "there" / "yet")


def test_what_was_put_is_found(kept: BuildCache) -> None:
    assert kept.get(key(1)) is None
    assert kept.put(key(1), b"one")
    assert kept.put(key(2), b"")
    assert kept.get(key(1)) == b"one"
    assert kept.get(key(2)) == b""
    assert kept.get(key(3)) is None
    assert len(kept.entries()) == 2


def test_a_damaged_entry_is_no_entry(kept: BuildCache) -> None:
    """Whatever byte is changed, and wherever the file is cut off."""
    data = bytes(range(40))
    kept.put(key(1), data)
    (entry,) = kept.entries()
    whole = entry.path.read_bytes()
    damaged = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    damaged += [whole[:i] for i in range(len(whole))] + [whole + b"\0", b"", b"other"]
    for wrong in damaged:
        entry.path.write_bytes(wrong)
        assert kept.get(key(1)) is None
        assert not entry.path.exists()
    entry.path.write_bytes(whole)
    assert kept.get(key(1)) == data


def test_an_entry_under_the_name_of_another_is_no_entry(kept: BuildCache) -> None:
    kept.put(key(1), b"one")
    kept.put(key(2), b"two")
    one, two = (kept.folder / "v2" / key(i).hex()[:2] / key(i).hex() for i in (1, 2))
    two.write_bytes(one.read_bytes())
    assert kept.get(key(2)) is None
    assert kept.get(key(1)) == b"one"


def test_verify_deletes_what_is_damaged(kept: BuildCache) -> None:
    for i in range(4):
        kept.put(key(i), b"x" * i)
    first, second, *_ = kept.entries()
    first.path.write_bytes(first.path.read_bytes()[:-1] + b"?")
    leftover = second.path.with_name(".new-killed")
    leftover.write_bytes(b"half")
    assert {entry.path for entry in kept.verify()} == {first.path, leftover}
    assert kept.verify() == []
    assert len(kept.entries()) == 3


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    kept = BuildCache(tmp_path, max_bytes=1)
    long_ago = time.time() - 1000
    for i in range(10):
        kept.put(key(i), bytes(1000))
        path = tmp_path / "v2" / key(i).hex()[:2] / key(i).hex()
        os.utime(path, (long_ago + i, long_ago + i))
    size = kept.entries()[0].size
    assert kept.get(key(0)) is not None  # is used now
    kept = BuildCache(tmp_path, max_bytes=5 * size)
    assert kept.trim() == 6
    assert [i for i in range(10) if kept.get(key(i)) is not None] == [0, 7, 8, 9]
    assert kept.trim() == 0


def test_clear(kept: BuildCache) -> None:
    for i in range(5):
        kept.put(key(i), b"x")
    kept.record(1, 2)
    assert kept.clear() == 5
    assert kept.entries() == []
    assert kept.usage() == (0, 0)
    assert kept.clear() == 0


def test_usage_is_summed(kept: BuildCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_cache, "_USAGE_BYTES", 50)
    for _ in range(100):
        kept.record(2, 3)
    assert kept.usage() == (200, 300)
    (file,) = kept.folder.rglob("usage")
    assert file.stat().st_size <= 60
    file.write_bytes(b"5 5\n\xff nonsense\n1")
    assert kept.usage() == (5, 5)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A file is where the folder should be (permissions do not stop root)."""
    (tmp_path / "file").write_text("")
    kept = BuildCache(tmp_path / "file")
    assert not kept.put(key(1), b"one")
    assert kept.get(key(1)) is None
    kept.record(1, 1)
    assert (kept.entries(), kept.trim(), kept.clear(), kept.verify()) == ([], 0, 0, [])


def test_a_full_disk_leaves_nothing(kept: BuildCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not kept.put(key(1), b"one")
    assert kept.entries() == []


WRITER = """
import sys, hashlib
from pathlib import Path
from relaxpy.build.build_cache import BuildCache
kept = BuildCache(Path(sys.argv[1]), max_bytes=40_000)
for turn in range(25):
    for i in range(20):
        key = hashlib.sha256(str(i).encode()).digest()
        data = kept.get(key)
        assert data is None or data == str(i).encode() * 3000, (i, data[:9])
        kept.put(key, str(i).encode() * 3000)
    kept.trim()
    kept.record(1, 1)
"""


@pytest.mark.slow
def test_several_processes(tmp_path: Path) -> None:
    """They write, read and delete the same entries; what any of them reads is whole."""
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in processes:
        _, err = process.communicate()
        assert process.returncode == 0, err.decode()
    kept = BuildCache(tmp_path)
    assert kept.verify() == []
    assert kept.usage() == (50, 50)


def test_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAXPY_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("RELAXPY_CACHE_SIZE", "5M")
    assert BuildCache.default() == BuildCache(tmp_path / "here", 5 << 20)
    monkeypatch.setenv("RELAXPY_CACHE_SIZE", "off")
    assert BuildCache.default() is None


@pytest.mark.parametrize(
    ("platform", "environment", "place"),
    [
        ("linux", {"XDG_CACHE_HOME": "/cache", "HOME": "/home/u"}, "/cache/relaxpy"),
        ("linux", {"XDG_CACHE_HOME": "relative", "HOME": "/home/u"}, "/home/u/.cache/relaxpy"),
        ("linux", {"HOME": "/home/u"}, "/home/u/.cache/relaxpy"),
        ("darwin", {"HOME": "/Users/u"}, "/Users/u/Library/Caches/relaxpy"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/relaxpy/Cache"),
    ],
)
def test_the_platforms_place(
    platform: str, environment: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RELAXPY_CACHE_DIR", "RELAXPY_CACHE_SIZE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    kept = BuildCache.default()
    assert kept is not None
    assert kept.folder == Path(place)


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RELAXPY_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr(sys, "platform", "linux")
    assert BuildCache.default() is None


@pytest.mark.parametrize("kind", ODD_FILES)
def test_other_things_than_files(kept: BuildCache, kind: str) -> None:
    """They are no entries, block nobody, and are replaced (a folder stays)."""
    kept.put(key(1), b"one")
    kept.record(1, 1)
    for path in [path for path in kept.folder.rglob("*") if path.is_file()]:
        path.unlink()
        ODD_FILES[kind](path)
    kept.verify()
    assert kept.get(key(1)) is None
    kept.record(2, 3)
    assert kept.usage() in [(0, 0), (2, 3)]
    kept.trim()
    assert kept.put(key(1), b"one") == (kind != "folder")
    assert (kept.get(key(1)) == b"one") == (kind != "folder")
    kept.clear()


def test_a_folder_with_a_name_that_no_folder_has() -> None:
    kept = BuildCache(Path("a\0b"))
    assert not kept.put(key(1), b"one")
    assert kept.get(key(1)) is None
    kept.record(1, 1)
    assert (kept.usage(), kept.entries(), kept.trim(), kept.clear()) == ((0, 0), [], 0, 0)


def test_an_entry_of_another_user(kept: BuildCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be read, and neither marked as used nor deleted."""

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    kept.put(key(1), b"one")
    kept.put(key(2), b"two")
    (kept.folder / "v2" / key(2).hex()[:2] / key(2).hex()).write_bytes(b"damaged")
    for name in ("utime", "unlink"):
        monkeypatch.setattr(os, name, forbidden)
    assert kept.get(key(1)) == b"one"
    assert kept.get(key(2)) is None
