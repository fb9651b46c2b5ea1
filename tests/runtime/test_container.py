from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relaxpy.errors import ExecutableError
from relaxpy.runtime.container import VERSION, open_container, write_container


def test_sections_come_back(tmp_path: Path) -> None:
    file = tmp_path / "a"
    pieces = [np.arange(100, dtype=np.uint8), b"xyz"]
    write_container(file, {"one": b"hello", "none": b"", "two": pieces})
    container = open_container(file)
    assert container.read("one") == b"hello"
    assert container.read("none") == b""
    assert container.map("none").size == 0
    mapped = container.map("two")
    assert bytes(mapped) == bytes(range(100)) + b"xyz"
    assert mapped.__array_interface__["data"][0] % 64 == 0
    assert not mapped.flags.writeable


def test_same_sections_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        write_container(tmp_path / name, {"s": b"1" * 1000})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_every_byte_is_guarded(tmp_path: Path) -> None:
    """Flip each byte of a small file, headers and padding included: never accepted."""
    file = tmp_path / "a"
    write_container(file, {"one": b"hello", "two": b"world"})
    good = file.read_bytes()
    for at in range(len(good)):
        file.write_bytes(good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :])
        with pytest.raises(ExecutableError) as caught:
            open_container(file)
        assert caught.value.code in (
            "file-format",
            "file-version",
            "file-damaged",
            "file-truncated",
        )


def test_codes(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_container(file, {"one": b"hello" * 100})
    good = file.read_bytes()

    def code(data: bytes) -> str:
        file.write_bytes(data)
        with pytest.raises(ExecutableError) as caught:
            open_container(file)
        return caught.value.code

    assert code(b"") == "file-format"
    assert code(b"\x7fELF" + good[4:]) == "file-format"
    for other in (VERSION - 1, VERSION + 1):
        assert code(good[:8] + bytes([other]) + good[9:]) == "file-version"
    assert code(good[:20]) == "file-truncated"
    assert code(good[:-1]) == "file-truncated"
    assert code(good + b"x") == "file-damaged"
    assert code(good[:-100] + b"?" + good[-99:]) == "file-damaged"


def test_damage_names_the_section(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_container(file, {"one": b"a" * 64, "two": b"b" * 64})
    good = file.read_bytes()
    file.write_bytes(good[:-1] + b"?")
    with pytest.raises(ExecutableError, match="'two'"):
        open_container(file)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ExecutableError) as caught:
        open_container(tmp_path / "none")
    assert caught.value.code == "file-read"
    with pytest.raises(ExecutableError) as caught:
        open_container(tmp_path)
    assert caught.value.code == "file-read"
    with pytest.raises(ExecutableError) as caught:
        write_container(tmp_path / "no" / "such" / "place", {"a": b""})
    assert caught.value.code == "file-write"


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a"
    write_container(file, {"one": b"old"})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("relaxpy.runtime.container.os.replace", full)
    with pytest.raises(ExecutableError, match="No space left"):
        write_container(file, {"one": b"new"})
    assert open_container(file).read("one") == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_replaced_after_the_check(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_container(file, {"one": b"old"})
    container = open_container(file)
    write_container(file, {"one": b"new"})
    with pytest.raises(ExecutableError, match="changed"):
        container.read("one")


def test_random_truncations(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_container(file, {"one": random.Random(0).randbytes(5000)})
    good = file.read_bytes()
    for seed in range(100):
        file.write_bytes(good[: random.Random(seed).randrange(len(good))])
        with pytest.raises(ExecutableError) as caught:
            open_container(file)
        assert caught.value.code in ("file-truncated", "file-format")


def test_links_are_followed_and_pipes_are_not_replaced(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(real)
    write_container(link, {"a": b"1"})
    assert link.is_symlink()
    assert real.is_file()
    os.mkfifo(pipe)
    with pytest.raises(ExecutableError, match="not a regular file"):
        write_container(pipe, {"a": b"1"})
    assert pipe.is_fifo()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without pipes")
def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(ExecutableError, match=r"regular file|directory") as caught:
            open_container(path)
        assert caught.value.code == "file-read"


def rewritten(file: Path, change: Callable[[bytearray], None]) -> None:
    """Change the header of a file, its checksum too."""
    data = bytearray(file.read_bytes())
    change(data)
    header = int.from_bytes(data[12:16], "little")
    data[header - 32 : header] = hashlib.sha256(data[: header - 32]).digest()
    file.write_bytes(data)


@pytest.mark.parametrize("at", [16, 24, 32 + 16, 32 + 24])
def test_a_table_that_does_not_fit_its_file(at: int, tmp_path: Path) -> None:
    """Offsets and lengths of sections and of the file, and how many there are: right checksum, wrong number."""
    for step in (64, -64, 1 << 20) if at != 24 else (1, -1, 1 << 20):
        file = tmp_path / "c"
        write_container(file, {"a": b"x" * 100, "b": b"y" * 10})

        def change(data: bytearray, step: int = step) -> None:
            old = int.from_bytes(data[at : at + 8], "little")
            data[at : at + 8] = ((old + step) % (1 << 64)).to_bytes(8, "little")

        rewritten(file, change)
        with pytest.raises(ExecutableError) as caught:
            open_container(file)
        assert caught.value.code.startswith("file-")


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    write_container(tmp_path / "c", {"a": b"x"})
    rewritten(tmp_path / "c", lambda data: data.__setitem__(slice(32, 34), b"\xff\xfe"))
    assert list(open_container(tmp_path / "c").sections) == ["\ufffd\ufffd"]
    write_container(tmp_path / "c", {"a": b"x", "b": b"x"})
    rewritten(tmp_path / "c", lambda data: data.__setitem__(32 + 72, data[32]))
    with pytest.raises(ExecutableError, match="table of sections is not valid at 'a'"):
        open_container(tmp_path / "c")
