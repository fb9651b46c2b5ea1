"""Tensors of safetensors files, mapped: as the package reads them, and damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.runtime.safetensors import map_tensors, weight_files

TENSORS: dict[str, np.ndarray] = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.arange(5, dtype=np.int8),  # so that the next one is misaligned
    "c": np.linspace(-2, 2, 7).astype(ml_dtypes.bfloat16),
    "empty": np.zeros((0, 4), np.float16),
    "scalar": np.array(3, np.int64),
}


def saved(path: Path, tensors: dict[str, np.ndarray], format: str = "np") -> Path:
    """A safetensors file, written by hand."""
    kinds = {
        "float32": "F32", "int8": "I8", "bfloat16": "BF16", "float16": "F16", "int64": "I64", "float64": "F64",
        "int32": "I32", "uint8": "U8", "float8_e4m3fn": "F8_E4M3",
    }  # fmt: skip
    header: dict[str, Any] = {"__metadata__": {"format": format}}
    data = b""
    for name, array in tensors.items():
        header[name] = {
            "dtype": kinds[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_tensors_are_mapped(tmp_path: Path) -> None:
    found = map_tensors([saved(tmp_path / "model.safetensors", TENSORS)])
    assert list(found) == list(TENSORS)
    for name, array in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
    with pytest.raises(ValueError, match="read-only"):
        found["a.weight"][0, 0] = 1


def test_as_the_package_writes(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    tensors = {k: v for k, v in TENSORS.items() if k != "c"}
    numpy.save_file(tensors, tmp_path / "x.safetensors")
    found = map_tensors([tmp_path / "x.safetensors"])
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array)


def test_shards(tmp_path: Path) -> None:
    saved(tmp_path / "one", {"a": TENSORS["a.weight"]})
    saved(tmp_path / "two", {"b": TENSORS["b"]})
    index = {"weight_map": {"a": "one", "b": "two"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert list(map_tensors(weight_files(tmp_path))) == ["a", "b"]
    (tmp_path / "two").unlink()
    with pytest.raises(UsageError, match="lacks two"):
        weight_files(tmp_path)
    saved(tmp_path / "two", {"a": TENSORS["b"]})
    with pytest.raises(UsageError, match="has a again"):
        map_tensors(weight_files(tmp_path))


def damaged(change: str, whole: bytes) -> bytes:
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    entry = header["a.weight"]
    match change:
        case "truncated":
            return whole[:-3]
        case "header":
            return whole[: 8 + length // 2]
        case "empty":
            return b""
        case "length":
            return (1 << 60).to_bytes(8, "little") + whole[8:]
        case "text":
            return whole[:8] + b"\xff" * length + whole[8 + length :]
        case "list":
            text = b"[]".ljust(length)
            return whole[:8] + text + whole[8 + length :]
        case "type":
            entry["dtype"] = "F31"
        case "size":
            entry["shape"] = [3, 5]
        case "negative":
            entry["shape"] = [-3, -4]
        case "offsets":
            entry["data_offsets"] = [-48, 0]
        case "fields":
            header["a.weight"] = 3
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + whole[8 + length :]


@pytest.mark.parametrize(
    "change",
    "truncated header empty length text list type size negative offsets fields".split(),
)
def test_damaged_files(tmp_path: Path, change: str) -> None:
    path = saved(tmp_path / "model.safetensors", TENSORS)
    path.write_bytes(damaged(change, path.read_bytes()))
    with pytest.raises(UsageError, match="cannot be read as safetensors") as caught:
        map_tensors([path])
    assert caught.value.code == "bad-checkpoint"


@pytest.mark.parametrize("format", ["tf", "flax"])
def test_tensors_of_other_frameworks(tmp_path: Path, format: str) -> None:
    path = saved(tmp_path / "model.safetensors", TENSORS, format)
    with pytest.raises(UsageError, match=f"as {format} has them, not as PyTorch does"):
        map_tensors([path])


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        map_tensors(weight_files(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"has no model\.safetensors"):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("pytorch_model.bin", b"PK", "pytorch_model.bin is a pickle, a program, and is not read; transformers writes"),
        ("consolidated.00.pth", b"PK", "is a pickle"),
        ("model-00001-of-00002.safetensors", b"", "but not the index of shards, model.safetensors.index.json"),
        ("README.md", b"", "weights are in model.safetensors, or in shards"),
    ],
)  # fmt: skip
def test_other_weights(tmp_path: Path, name: str, data: bytes, text: str) -> None:
    """The error says what is there instead, and what to do."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=r"has no model\.safetensors") as caught:
        weight_files(tmp_path)
    assert text in str(caught.value.help)


def test_a_pointer_instead_of_a_file(tmp_path: Path) -> None:
    """What a clone without Git LFS has."""
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123\n")
    with pytest.raises(UsageError, match="a pointer of Git LFS"):
        map_tensors([path])
