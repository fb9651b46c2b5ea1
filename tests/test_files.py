"""Files are written whole or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import relaxpy
from relaxpy import llm
from relaxpy.checkpoints import open_checkpoint
from relaxpy.errors import RelaxError, UsageError
from relaxpy.files import (
    CACHE_SIZE,
    cache_size,
    evict,
    given_path,
    kept_folder,
    locked,
    open_regular,
    parse_size,
    read_regular,
    replacing,
    write_text,
)
from tests.odd_files import ODD_FILES


def test_a_file_takes_the_place_of_another(tmp_path: Path) -> None:
    """It keeps who may read it; a link stays a link."""
    file, link = tmp_path / "a.txt", tmp_path / "link.txt"
    write_text(file, "one")
    file.chmod(0o640)
    link.symlink_to(file)
    write_text(link, "zwölf")
    assert file.read_text(encoding="utf-8") == "zwölf"
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "link.txt"]


class Module:
    """As a model of torch, which has its weights by name."""

    def state_dict(self) -> dict[str, object]:
        return {}


@pytest.mark.parametrize("load", [relaxpy.load, llm.load, open_checkpoint])
def test_a_model_in_memory_is_no_path(load: Callable[[object], object]) -> None:
    with pytest.raises(RelaxError, match="is expected, got Module") as caught:
        load(Module())
    assert "model.load_state_dict(theirs.state_dict())" in (caught.value.help or "")
    with pytest.raises(RelaxError, match="is expected, got int") as caught:
        load(7)
    assert caught.value.help is None


def test_paths_of_every_type() -> None:
    for given in ("a/ä", "a/ä".encode(), Path("a/ä")):
        assert given_path(given, "a file", UsageError, "bad-checkpoint") == Path("a/ä")


def test_a_new_file_is_as_others_are(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def write_half(file: Path, failure: BaseException) -> None:
    with replacing(file) as beside:
        beside.write_text("half of i")
        raise failure


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_what_was_there(tmp_path: Path, failure: BaseException) -> None:
    file = tmp_path / "a.txt"
    file.write_text("before")
    raised = UsageError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(raised) as caught:
        write_half(file, failure)
    if isinstance(caught.value, UsageError):
        assert caught.value.message == f"cannot write {file}: No space left on device"
        assert caught.value.code == "file-write"
    assert file.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_no_such_folder(tmp_path: Path) -> None:
    """The file that was asked for is named, not the one beside it."""
    with pytest.raises(UsageError, match=r"cannot write .*a\.txt: No such file"):
        write_text(tmp_path / "nowhere" / "a.txt", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        write_text(tmp_path / "folder", "x")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_a_pipe_is_written_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_text, args=(pipe, "through"))
    writer.start()
    assert pipe.read_text() == "through"
    writer.join()
    assert pipe.is_fifo()


def test_a_locked_folder(tmp_path: Path) -> None:
    """Others are kept away until the block ends, also in threads of this process."""
    folder = tmp_path / "new"
    with locked(folder):
        with pytest.raises(BlockingIOError), locked(folder, wait=False):
            pass
        assert [*folder.iterdir()] == []
    with locked(folder, wait=False):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to") as caught, locked(tmp_path / "file"):
        pass
    assert caught.value.code == "file-write"


@pytest.mark.parametrize("kind", sorted(set(ODD_FILES) - {"unreadable", "empty"}))
def test_a_reader_waits_for_nobody(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    ODD_FILES[kind](path)
    with pytest.raises(OSError, match=r"not a regular|No such|Too many|larger"):
        read_regular(path, 1000)
    if kind not in ("huge", "link to nothing"):
        with pytest.raises(OSError, match=r"not a regular|No such|Too many|directory"):
            open_regular(path, append=True)


def test_a_name_that_no_file_has() -> None:
    with pytest.raises(OSError, match="null"):
        open_regular("a\0b")


def test_lines_are_appended(tmp_path: Path) -> None:
    for line in (b"one\n", b"two\n"):
        with open_regular(tmp_path / "a", append=True) as file:
            file.write(line)
    assert read_regular(tmp_path / "a", 8) == b"one\ntwo\n"
    with pytest.raises(OSError, match="larger than 7 bytes"):
        read_regular(tmp_path / "a", 7)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("off", 0), ("123", 123), ("2K", 2048), ("1.5 MiB", 3 << 19), ("1gb", 1 << 30)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1", "1 X", "G", "1e9"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert caught.value.code == "cache-size"


def test_the_size_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable for all that is kept: builds, executables, downloads."""
    monkeypatch.setenv("RELAXPY_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("RELAXPY_CACHE_SIZE", raising=False)
    assert (cache_size(), kept_folder("weights")) == (CACHE_SIZE, tmp_path / "weights")
    monkeypatch.setenv("RELAXPY_CACHE_SIZE", "3K")
    assert (cache_size(), kept_folder("")) == (3072, tmp_path)
    for off in ("0", " off ", "0K", "0.0 GiB"):
        monkeypatch.setenv("RELAXPY_CACHE_SIZE", off)
        assert (cache_size(), kept_folder("weights")) == (0, None)
    monkeypatch.setenv("RELAXPY_CACHE_SIZE", "plenty")
    with pytest.raises(UsageError, match="'plenty' is not a size"):
        kept_folder("weights")


def test_the_least_recently_used_files_go_first(tmp_path: Path) -> None:
    entries: list[tuple[float, str, int]] = []
    for number, size in enumerate((5, 3, 7, 2)):
        path = tmp_path / f"{number}"
        path.write_bytes(bytes(size))
        entries.insert(0, (float(number), str(path), size))
    assert evict(entries, 17) == 0
    entries.append(
        (0.5, str(tmp_path / "gone"), 4)
    )  # another process was quicker: its size still counts
    assert evict(entries, 14, newest=tmp_path / "0") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "3"]
