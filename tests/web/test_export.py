"""Folders for browsers: their files, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.runtime.bytecode import HOST_SLOT, FunctionCode, Library, Packed, Slot, WeightParam
from relaxpy.web.export import builtins, export, refusals

TEXT = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 3), "float32")) -> R.Tensor(("n", 3), "float32"):
    y = R.matmul(x, w)
    return y
"""
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


@cache
def exe() -> relaxpy.Executable:
    return relaxpy.build(relaxpy.parse(TEXT), "webgpu", {"w": WEIGHT})


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_the_files(tmp_path: Path) -> None:
    """The manifest has their sizes and checksums; modules import only modules of the folder; the same bytes again."""
    written = export(exe(), tmp_path / "My Site", shard=16)
    found = files(tmp_path / "My Site")
    assert {path.relative_to(tmp_path / "My Site").as_posix() for path in written.files} == set(
        found
    )
    assert written.nbytes == sum(map(len, found.values()))
    manifest = json.loads(found["model/model.json"])
    (model,) = manifest["models"]
    entries = [model["program"], model["kernels"], *model["weights"]]
    for entry in entries:
        data = found[f"model/{entry['file']}"]
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["bytes"], entry["sha256"])
    assert {f"model/{e['file']}" for e in entries} == {
        n for n in found if n.startswith("model/")
    } - {"model/model.json"}
    program = json.loads(found["model/webgpu/program.json"])
    (constant,) = program["constants"]
    weights = b"".join(found[f"model/{each['file']}"] for each in model["weights"])
    assert [each["bytes"] for each in model["weights"]] == [16] * 4
    begin = constant["offset"]
    assert weights[begin : begin + WEIGHT.nbytes] == WEIGHT.tobytes()
    for name, data in found.items():
        if name.endswith((".js", ".html")):
            imported = [
                line.split('from "./')[1].split('"')[0]
                for line in data.decode().splitlines()
                if 'from "./' in line
            ]
            assert set(imported) <= set(found), name
    export(exe(), tmp_path / "again", name="my-site", shard=16)
    assert files(tmp_path / "again") == found


def test_a_folder_is_written_again(tmp_path: Path) -> None:
    """Shards of before go; a folder with other files is not touched."""
    export(exe(), tmp_path / "site", shard=16)
    export(exe(), tmp_path / "site")
    assert [p.name for p in (tmp_path / "site/model").rglob("*.bin")] == ["weights-00000.bin"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="has other files"):
        export(exe(), tmp_path / "other")
    with pytest.raises(UsageError, match="is not a folder"):
        export(exe(), tmp_path / "other/thesis.txt")
    assert files(tmp_path / "other") == {"thesis.txt": b"mine"}


def with_calls(
    *, packed: tuple[str, ...] = (), libraries: tuple[str, ...] = ()
) -> relaxpy.Executable:
    (code,) = exe().functions
    calls = [Packed(0, 0, i, ()) for i in range(len(packed))]
    calls += [Library(0, i, ()) for i in range(len(libraries))]
    changed: FunctionCode = replace(code, code=(*calls, *code.code))
    return replace(exe(), functions=(changed,), packed=packed, libraries=libraries)


OTHERS: list[tuple[Any, str]] = [
    (lambda: with_calls(packed=("relaxpy.all_class_non_max_suppression",)), "its machine has no relaxpy.all_class"),
    (lambda: with_calls(packed=("mine.own",)), "its machine has no mine.own"),
    (lambda: with_calls(libraries=("blas.sgemm",)), "library functions: blas.sgemm"),
    (lambda: replace(exe(), kernels=tuple(replace(k, slot=0) for k in exe().kernels)), "for a processor: matmul"),
    (lambda: replace(exe(), slots=(HOST_SLOT, Slot("a", "vulkan"))), "it is for vulkan"),
    (lambda: replace(exe(), slots=(*exe().slots, exe().slots[1])), "one webgpu device"),
    (lambda: replace(exe(), weight_params=(WeightParam(0, 0, ("w",), 1),)), "packed parameters"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "reason"), OTHERS)
def test_refusals(make: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        export(make(), tmp_path / "site")
    assert caught.value.code == "web-export"
    assert reason in str(caught.value)
    assert not (tmp_path / "site").exists()


def test_all_reasons_at_once() -> None:
    both = with_calls(packed=("mine.own", "vm.builtin.copy"), libraries=("blas.sgemm",))
    assert len(refusals(both)) == 2
    assert "vm.builtin.copy" in builtins()
    assert not refusals(exe())


def test_bytecode_is_verified(tmp_path: Path) -> None:
    """The machine in the browser relies on it."""
    (code,) = exe().functions
    wrong = replace(exe(), functions=(replace(code, code=code.code[:-1]),))
    with pytest.raises(relaxpy.RelaxError, match="does not end with a Return"):
        export(wrong, tmp_path / "site")


@pytest.mark.parametrize("name", ["Upper", "", "a b", "../x", "@scope", "-x"])
def test_names_that_npm_refuses(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no name of a package"):
        export(exe(), tmp_path / "site", name=name)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_npm_packs_it(tmp_path: Path) -> None:
    export(exe(), tmp_path / "site", name="@me/model")
    done = subprocess.run(
        ["npm", "pack", "--dry-run", "--json", "--offline"], cwd=tmp_path / "site",
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (packed,) = json.loads(done.stdout)
    assert {each["path"] for each in packed["files"]} == set(files(tmp_path / "site"))
