"""Where a checkpoint is, and what is told if it is not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from relaxpy.checkpoints import open_checkpoint
from relaxpy.checkpoints.config_file import config_of
from relaxpy.errors import UsageError

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123\n"


def refused(place: Path) -> UsageError:
    """The error, which opening the checkpoint gives, too."""
    with pytest.raises(UsageError) as caught:
        config_of(place)
    with pytest.raises(UsageError) as again:
        open_checkpoint(place)
    assert again.value.render() == caught.value.render()
    assert caught.value.code == "bad-checkpoint"
    return caught.value


def test_nothing_is_there(tmp_path: Path) -> None:
    for place in (tmp_path / "none", tmp_path / "none.gguf", Path("owner/model"), Path("a\0b")):
        error = refused(place)
        assert "there is no checkpoint at" in error.message
        assert "a name on the Hugging Face hub" in str(error.help)


def test_folders_inside(tmp_path: Path) -> None:
    """The folder of a hub's cache, and one that has models."""
    error = refused(tmp_path)
    assert f"{tmp_path} is not a checkpoint: it has no config.json" in error.message
    assert error.help == "use the folder that config.json is in"
    (tmp_path / "inner").mkdir()
    for name in ("inner/config.json", "model.Q4_0.gguf"):
        (tmp_path / name).write_text("{}")
    found = f"use {tmp_path / 'inner'}, {tmp_path / 'model.Q4_0.gguf'}"
    assert refused(tmp_path).help == found
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0a1b"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert refused(tmp_path / "models--a--b").help == f"use {snapshot}"
    for name in "abcd":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert str(refused(tmp_path).help).endswith(f"{tmp_path / 'c'} …")


def test_an_adapter(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "give the folder of the model that it is for" in str(refused(tmp_path).help)


def test_a_file_of_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    assert refused(path).help == "use the folder that config.json is in"
    (tmp_path / "config.json").write_text("{}")
    error = refused(path)
    assert "is neither a folder with config.json nor a GGUF file" in error.message
    assert error.help == f"use the folder, {tmp_path}"


def test_pointers_instead_of_files(tmp_path: Path) -> None:
    """What a clone without Git LFS has."""
    for name in ("config.json", "model.gguf"):
        (tmp_path / name).write_text(POINTER)
        with pytest.raises(UsageError, match="a pointer of Git LFS"):
            open_checkpoint(tmp_path if name == "config.json" else tmp_path / name)


def test_files_that_are_none(tmp_path: Path) -> None:
    """A pipe would block, and a sparse file would take all memory."""
    path = tmp_path / "config.json"
    os.mkfifo(path)
    assert "not a regular file" in refused(tmp_path).message
    path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert "is larger than 64 MiB" in refused(tmp_path).message
    path.write_bytes(b"\xff")
    assert "is not text in UTF-8 (byte 0)" in refused(tmp_path).message
    path.write_text("[1]")
    assert "has no fields: it is a list" in refused(tmp_path).message


def test_an_index_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    index = tmp_path / "model.safetensors.index.json"
    for text in ("[" * 100_000, "{", POINTER, '{"weight_map": [1]}'):
        index.write_text(text)
        with pytest.raises(UsageError, match=r"index\.json (is not|cannot be read)"):
            open_checkpoint(tmp_path)
    with index.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match="is larger than 64 MiB"):
        open_checkpoint(tmp_path)
