"""Executables that are kept on disk, whatever happens to their files."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
import relaxpy.files
import relaxpy.runtime.executable_cache as kept
from relaxpy.runtime import codec, links, translation
from relaxpy.runtime.executable import Executable
from tests.odd_files import ODD_FILES
from tests.sweeps import sweep

SOURCE = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return R.add(x, x)
"""
KEY = "0123456789abcdef"
FACTS = {"name": "Grüße", "sizes": [1, 2]}
TURNS = 200


@pytest.fixture(scope="module")
def exe() -> Executable:
    return relaxpy.build(relaxpy.parse(SOURCE))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "kept_folder", lambda name: tmp_path / name)
    return tmp_path / "executables"


def test_kept_is_found(exe: Executable, folder: Path) -> None:
    assert kept.find_executable(KEY) is None
    kept.keep_executable(KEY, relaxpy.VirtualMachine(exe), FACTS)
    found = kept.find_executable(KEY)
    assert found is not None
    assert found[1] == FACTS
    assert found[0].as_text() == exe.as_text()
    assert kept.find_executable(KEY[::-1]) is None


def test_the_limit_is_that_of_the_cache(
    exe: Executable, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above `RELAXPY_CACHE_SIZE` the least recently used files go; a folder of one's own has the usual limit."""
    monkeypatch.setenv("RELAXPY_CACHE_SIZE", "1")
    for key in ("first", "second"):
        kept.keep_executable(key, relaxpy.VirtualMachine(exe), FACTS)
        kept.keep_executable(key, relaxpy.VirtualMachine(exe), FACTS, tmp_path / "own")
    assert [path.name for path in folder.iterdir()] == ["second.rxe"]
    assert kept.find_executable("first", tmp_path / "own") is not None


@pytest.mark.parametrize("suffix", ["rxe", "json"])
@pytest.mark.parametrize("damage", [b"", b"\xff\xfe{", None])
def test_damaged(exe: Executable, folder: Path, suffix: str, damage: bytes | None) -> None:
    """Neither file is trusted, and both are written anew."""
    kept.keep_executable(KEY, relaxpy.VirtualMachine(exe), FACTS)
    path = folder / f"{KEY}.{suffix}"
    path.unlink() if damage is None else path.write_bytes(damage)
    assert kept.find_executable(KEY) is None
    kept.keep_executable(KEY, relaxpy.VirtualMachine(exe), FACTS)
    assert kept.find_executable(KEY) is not None


def test_functions_that_were_linked_are_not_translated(
    exe: Executable, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor decoded, before they are looked at; and what they say of errors is the same."""
    kept.keep_executable(KEY, relaxpy.VirtualMachine(exe), FACTS)
    found = kept.find_executable(KEY)
    assert found is not None
    with monkeypatch.context() as patch:
        patch.setattr(translation, "translated", None)
        patch.setattr(codec, "decode", None)
        main = relaxpy.VirtualMachine(found[0])["main"]
        assert main(np.array([1, 2], np.float32)).numpy().tolist() == [2, 4]
    fresh = relaxpy.VirtualMachine(exe)["main"]
    for argument in (np.zeros((2, 2), np.float32), np.zeros(2, np.int8), "text"):
        errors: list[str] = []
        for function in (main, fresh):
            with pytest.raises(relaxpy.RelaxError) as caught:
                function(argument)
            errors.append(str(caught.value))
        assert errors[0] == errors[1]
    assert main.signature.parameters == fresh.signature.parameters
    assert main.source == fresh.source
    assert relaxpy.VirtualMachine(found[0], check_memory=True)["main"](np.ones(1, np.float32))
    assert found[0].sections() == exe.sections()
    copied = pickle.loads(pickle.dumps(found[0]))
    assert relaxpy.VirtualMachine(copied)["main"](np.ones(1, np.float32)).numpy().tolist() == [2]
    (kernel,) = found[0].kernels
    changed = replace(found[0], functions=(replace(found[0].functions[0], name="other"),))
    assert "other" in relaxpy.VirtualMachine(changed)
    assert kernel == exe.kernels[0]


@pytest.mark.parametrize("what", ["python", "user", "bytes"])
def test_links_of_others_are_left_alone(
    exe: Executable, folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Of another Python, another user, and another format: the bytecode is decoded and verified instead."""
    machine = relaxpy.VirtualMachine(exe)
    if what == "bytes":
        monkeypatch.setattr(relaxpy.VirtualMachine, "links", lambda self: b"no pickle")
    kept.keep_executable(KEY, machine, FACTS)
    if what == "python":
        monkeypatch.setattr(links, "MAGIC_NUMBER", b"another")
    elif what == "user":
        monkeypatch.setattr(os, "geteuid", lambda: -1)
    found = kept.find_executable(KEY)
    assert found is not None
    assert found[0].links is None
    assert found[0].as_text() == exe.as_text()


def test_a_folder_that_cannot_be_written(exe: Executable, folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file in its place")
    kept.keep_executable(KEY, relaxpy.VirtualMachine(exe), FACTS)
    assert kept.find_executable(KEY) is None


def keep_often(exe: bytes, folder: Path, hangs: bool) -> None:
    """Keeps an executable again and again; `hangs`: waits for ever with half a file."""
    kept.kept_folder = lambda name: folder / name  # pyright: ignore

    def half(path: Path, sections: object) -> None:
        path.write_bytes(b"half")
        time.sleep(100)

    if hangs:
        kept.write_container = half  # pyright: ignore
    whole = relaxpy.VirtualMachine(pickle.loads(exe))
    for _ in range(TURNS):
        kept.keep_executable(KEY, whole, FACTS)


def started(exe: Executable, folder: Path, hangs: bool) -> Any:
    context = multiprocessing.get_context("spawn")
    args = (pickle.dumps(exe), folder.parent, hangs)
    process = context.Process(target=keep_often, args=args, daemon=True)
    process.start()
    return process


def test_two_processes_and_a_reader(exe: Executable, folder: Path) -> None:
    kept.keep_executable(KEY, relaxpy.VirtualMachine(exe), FACTS)
    writers = [started(exe, folder, False) for _ in range(2)]
    reads = 0
    while any(writer.is_alive() for writer in writers):
        found = kept.find_executable(KEY)
        assert found is not None
        assert found[1] == FACTS
        reads += 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert reads > 10
    assert sorted(path.name for path in folder.iterdir()) == [f"{KEY}.json", f"{KEY}.rxe"]


def test_a_killed_process(exe: Executable, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a file is never found, and the next processes delete it."""
    writer = started(exe, folder, True)
    end = time.monotonic() + 120
    while not list(folder.glob(".relaxpy-*")) or not (folder / f"{KEY}.json").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join(30)
    assert kept.find_executable(KEY) is None
    assert list(folder.glob(".relaxpy-*"))
    monkeypatch.setattr(relaxpy.files, "_ABANDONED_SECONDS", -1.0)
    kept.keep_executable(KEY, relaxpy.VirtualMachine(exe), FACTS)
    assert kept.find_executable(KEY) is not None
    assert not list(folder.glob(".relaxpy-*"))


@sweep(3)
@pytest.mark.parametrize("suffix", ["rxe", "json"])
@pytest.mark.parametrize("kind", ODD_FILES)
def test_other_things_than_files(exe: Executable, folder: Path, suffix: str, kind: str) -> None:
    kept.keep_executable(KEY, relaxpy.VirtualMachine(exe), FACTS)
    path = folder / f"{KEY}.{suffix}"
    path.unlink()
    ODD_FILES[kind](path)
    assert kept.find_executable(KEY) is None
    kept.keep_executable(KEY, relaxpy.VirtualMachine(exe), FACTS)
    assert (kept.find_executable(KEY) is None) == (kind == "folder")


def test_facts_that_are_nested_deep(exe: Executable, folder: Path) -> None:
    kept.keep_executable(KEY, relaxpy.VirtualMachine(exe), FACTS)
    (folder / f"{KEY}.json").write_text("[" * 100_000)
    assert kept.find_executable(KEY) is None


def test_files_of_another_user(
    exe: Executable, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their times cannot be set; they are used nevertheless."""

    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    kept.keep_executable(KEY, relaxpy.VirtualMachine(exe), FACTS)
    monkeypatch.setattr(os, "utime", forbidden)
    assert kept.find_executable(KEY) is not None


def test_what_is_kept_is_not_made_again(
    exe: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAXPY_CACHE_DIR", str(tmp_path))
    made: list[Any] = []

    def make() -> tuple[Executable, Any]:
        made.append(FACTS)
        return exe, FACTS

    for key, times in ((KEY, 1), (KEY, 1), (KEY[::-1], 2), (None, 3), (None, 4)):
        machine, facts = kept.kept_or_made(key, make)
        assert facts == FACTS
        assert len(made) == times, key
        assert machine["main"](np.ones(3, np.float32)).numpy().tolist() == [2, 2, 2]
