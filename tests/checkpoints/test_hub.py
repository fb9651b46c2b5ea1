"""Models by name, from a hub on loopback."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from relaxpy.checkpoints.hub import (
    Download,
    HubName,
    checkpoint_name,
    headers_of,
    is_inside,
    local_checkpoint,
)
from relaxpy.errors import UsageError
from relaxpy.models.decoder_plan import plan_decoder
from tests.hub_server import COMMIT, Hub, hub_server
from tests.llm.checkpoints import byte_level, write_model, write_tokenizer

pytest.importorskip("huggingface_hub")
constants = importlib.import_module("huggingface_hub.constants")
NAME = "owner/tiny-1B"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    write_tokenizer(folder, byte_level())
    for other in ("pytorch_model.bin", "README.md", "onnx/model.onnx", "tf_model.h5"):
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).write_bytes(b"not wanted" * 999)
    return folder


@pytest.fixture
def hub(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The model under its name, and empty caches."""
    with hub_server({NAME: model}) as found:
        use(monkeypatch, found.address, tmp_path)
        yield found


def use(monkeypatch: pytest.MonkeyPatch, address: str, folder: Path) -> None:
    """Programs ask the hub at this address, and keep files in this folder."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("RELAXPY_CACHE_DIR", str(folder / "cache"))


def refused(name: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        local_checkpoint(name)
    return caught.value


def test_names() -> None:
    assert HubName.of("Qwen/Qwen2.5-0.5B-Instruct") == HubName("Qwen/Qwen2.5-0.5B-Instruct")
    assert HubName.of("01-ai/Yi-6B@main:x.gguf") == HubName("01-ai/Yi-6B", "main", "x.gguf")
    assert HubName.of("a/b@refs/pr/3") == HubName("a/b", "refs/pr/3")
    for text in (
        "b",
        "a/b/c",
        "./a/b",
        "/a/b",
        "a/1",
        "a b/c",
        "a/b:c d",
        "a/x.gguf",
        "../b",
        "a/../b",
        "",
    ):
        assert HubName.of(text) is None, text


def test_only_what_is_needed_once(hub: Hub, model: Path) -> None:
    seen: list[Download] = []
    folder = local_checkpoint(NAME, seen.append)
    (download,) = seen
    assert {path.name for path in folder.iterdir()} == {*download.sizes}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {*download.sizes}
    assert download.left == download.sizes
    assert not {"pytorch_model.bin", "README.md", "onnx/model.onnx"} & {*download.sizes}
    assert download.commit == COMMIT
    assert (
        download.nbytes == hub.sent == sum((model / file).stat().st_size for file in download.sizes)
    )
    assert (folder / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert checkpoint_name(folder) == "tiny-1B"
    hub.requests.clear()
    assert local_checkpoint(NAME, seen.append) == folder
    assert not hub.requests
    assert len(seen) == 1


def test_a_newer_version(hub: Hub) -> None:
    folder = local_checkpoint(NAME)
    hub.commit = "f" * 40
    assert local_checkpoint(NAME) == folder
    assert local_checkpoint(NAME, update=True).name == hub.commit
    assert local_checkpoint(NAME).name == hub.commit
    assert local_checkpoint(f"{NAME}@{'f' * 7}").name == hub.commit


def test_what_is_here_needs_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noted by us, or downloaded by another program; and not a part of a model."""
    folder = local_checkpoint(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert local_checkpoint(NAME) == folder
    monkeypatch.setenv("RELAXPY_CACHE_DIR", str(folder / "none"))
    assert local_checkpoint(NAME) == folder
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert local_checkpoint(NAME) == folder
    (folder / "model.safetensors").unlink()
    error = refused(NAME)
    assert error.code == "hub-offline"
    assert "http://127.0.0.1:1 cannot be asked" in error.message
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refused(NAME).message


def test_names_that_are_not_there(hub: Hub, tmp_path: Path) -> None:
    error = refused("owner/other")
    assert error.code == "hub-name"
    assert "no folder owner/other, and no model of this name" in error.message
    error = refused(f"{NAME}@v9")
    assert error.code == "hub-name"
    assert "no revision 'v9'" in error.message
    pickles = tmp_path / "pickles"
    pickles.mkdir()
    (pickles / "config.json").write_text("{}")
    hub.models["owner/nothing"] = pickles
    assert "neither safetensors nor a GGUF file" in refused("owner/nothing").message
    (pickles / "pytorch_model.bin").write_bytes(b"x")
    error = refused("owner/nothing")
    assert "pytorch_model.bin: a program" in error.message
    assert "save_pretrained" in str(error.help)
    (pickles / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../x"}}')
    assert refused("owner/nothing").code == "bad-checkpoint"
    (pickles / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')
    hub.commit = "e" * 40
    assert "it lacks b.safetensors" in refused("owner/nothing").message


def test_answers_that_no_hub_gives(hub: Hub) -> None:
    hub.broken = True
    error = refused(NAME)
    assert error.code == "hub-download"
    assert "answers as no hub does" in error.message


@pytest.mark.parametrize(
    "file", ["../x.gguf", "/x.gguf", "a/../../x.gguf", "..\\x.gguf", "C:x.gguf", "", "a//b", None]
)
def test_names_outside_of_the_models_folder(file: object) -> None:
    """They are not among a model's files, whatever a hub lists."""
    assert not is_inside(file)


def test_private_models(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.private[NAME] = "hf_secret"
    error = refused(NAME)
    assert error.code == "hub-name"
    assert "HF_TOKEN" in str(error.help)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.gated.add(NAME)
    error = refused(NAME)
    assert error.code == "hub-private"
    assert "accepted its terms" in error.message
    hub.gated.clear()
    assert local_checkpoint(NAME).is_dir()


def test_files_that_do_not_arrive_whole(hub: Hub) -> None:
    """A cut is taken up where it was; another content is not kept."""
    hub.wrong = True
    error = refused(NAME)
    assert error.code == "hub-download"
    assert "checksum" in error.message
    hub.wrong, hub.cut = False, 1
    folder = local_checkpoint(NAME)
    assert hub.cut == 0
    assert folder.is_dir()


def test_gguf_files(hub: Hub, tmp_path: Path) -> None:
    """By name, by a part of it, all parts of one; several are listed with their sizes."""
    repo = tmp_path / "quantised"
    repo.mkdir()
    for file in (
        "m-Q4_K_M.gguf",
        "m-Q8_0-00001-of-00002.gguf",
        "m-Q8_0-00002-of-00002.gguf",
        "mmproj-f16.gguf",
    ):
        (repo / file).write_bytes(file.encode())
    hub.models["owner/m-GGUF"] = repo
    error = refused("owner/m-GGUF")
    assert "several GGUF files" in error.message
    assert error.notes == (
        "owner/m-GGUF:m-Q4_K_M.gguf  13 B", "owner/m-GGUF:m-Q8_0-00001-of-00002.gguf  52 B"
    )  # fmt: skip
    place = local_checkpoint("owner/m-GGUF:q4_k_m")
    assert place.name == "m-Q4_K_M.gguf"
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    assert checkpoint_name(place) == "m-GGUF"
    assert local_checkpoint("owner/m-GGUF:Q8_0").name == "m-Q8_0-00001-of-00002.gguf"
    assert len([*place.parent.iterdir()]) == 3
    assert "no GGUF file 'Q5'" in refused("owner/m-GGUF:Q5").message


def test_a_plan_before_anything_large_is_downloaded(hub: Hub, model: Path) -> None:
    with headers_of(NAME) as headers:
        there = (headers / "model.safetensors").stat().st_size
        found = plan_decoder(headers)
    assert there == (model / "model.safetensors").stat().st_size
    expected = plan_decoder(model)
    assert (found.weights, found.cache, found.activations) == (
        expected.weights, expected.cache, expected.activations
    )  # fmt: skip


def test_paths_are_paths(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the name is that folder; a Path is never a name."""
    monkeypatch.chdir(tmp_path)
    assert local_checkpoint(Path(NAME)) == Path(NAME)
    shutil.copytree(hub.models[NAME], tmp_path / NAME)
    assert local_checkpoint(NAME) == Path(NAME)
    assert not hub.requests
