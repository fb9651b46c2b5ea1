"""`relaxpy web`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import relaxpy
from relaxpy.cli.main import describe
from relaxpy.cli.web import web
from tests.sweeps import full


def run(*args: str) -> Any:
    return CliRunner().invoke(web, args)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = '@R.function\ndef main(x: R.Tensor(("n",), "float32")):\n    return R.add(x, x)\n'
    path = tmp_path_factory.mktemp("web") / "double.rxe"
    relaxpy.build(relaxpy.parse(text), "webgpu").save(path)
    return path


def test_an_executable(file: Path, tmp_path: Path) -> None:
    """The files are listed, for people and for programs."""
    done = run(str(file), str(tmp_path / "site"))
    assert done.exit_code == 0, done.output
    assert "main(x" in done.output
    assert "python -m http.server --directory" in done.output
    as_json = json.loads(
        run(str(file), str(tmp_path / "site"), "--name", "double", "--json").output
    )
    assert json.loads((tmp_path / "site/package.json").read_text())["name"] == "double"
    assert set(as_json) == {"folder", "files", "bytes", "weights", "functions"}
    assert as_json["bytes"] == sum(Path(each).stat().st_size for each in as_json["files"])


def test_mistakes(file: Path, tmp_path: Path) -> None:
    """They are told before anything is written."""
    host = tmp_path / "host.rxe"
    text = '@R.function\ndef main(x: R.Tensor(("n",), "float32")):\n    return R.add(x, x)\n'
    relaxpy.build(relaxpy.parse(text), "llvm").save(host)
    (tmp_path / "empty").mkdir()
    site = str(tmp_path / "site")
    for args, expected in [
        ((str(host), site), "these kernels are for a processor: add"),
        (("nowhere.rxe", site), "there is no nowhere.rxe"),
        ((str(tmp_path / "empty"), site), "it has no config.json"),
        ((str(file), site, "--dtype", "float32"), "--dtype is for checkpoints"),
        (
            (str(file), site, "--bits", "4", "--target", "wasm"),
            "--target and --bits are for checkpoints",
        ),
        ((str(file), str(file), site), "two executables are for webgpu"),
        ((str(file), "embedded", site), "--target both compiles it for both"),
        (("minilm", site, "--bits", "4"), "is an encoder, and --bits is for decoders"),
    ]:
        done = run(*args)
        assert done.exit_code != 0
        said = (
            describe(done.exception)[0]
            if isinstance(done.exception, relaxpy.RelaxError)
            else done.output
        )
        assert expected in said
        assert not (tmp_path / "site").exists()


@full
def test_a_checkpoint_for_both_targets(tmp_path: Path) -> None:
    """Weights in 8 bits: a quarter of those in float32, and targets with equal shards have them once."""
    site = tmp_path / "site"
    done = run(
        "embedded", str(site), "--target", "both", "--bits", "8", "--dtype", "float32", "--json"
    )
    assert done.exit_code == 0, done.output
    manifest = json.loads((site / "model/model.json").read_text())
    assert [model["target"] for model in manifest["models"]] == ["webgpu", "wasm"]
    assert set(manifest["files"]) == {"page.json", "tokenizer.json"}
    for model in manifest["models"]:
        assert sum(each["bytes"] for each in model["weights"]) < 9 << 20  # 22 MB in float32
    types = (site / "functions.d.ts").read_text()
    assert 'prefill(input_ids: TensorLike<"int64">)' in types
