"""`relaxpy download`, and commands that take a model by name, as processes beside a hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from relaxpy.cli.download import download
from relaxpy.errors import UsageError
from tests.hub_server import COMMIT, hub_server
from tests.llm.checkpoints import write_model

pytest.importorskip("huggingface_hub")


@pytest.mark.parametrize("name", ["gpt2", "./model", "owner/model/file"])
def test_what_is_no_name_is_not_downloaded(name: str) -> None:
    """A path was printed, as if it were the place of a model."""
    failed = CliRunner().invoke(download, [name])
    assert isinstance(failed.exception, UsageError)
    assert failed.exception.code == "hub-name"
    assert "OWNER/MODEL" in str(failed.exception.help)


def test_download_then_generate_without_a_network(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    with hub_server({"owner/tiny": tmp_path / "model"}) as hub:
        environment = {
            **os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0",
            "RELAXPY_CACHE_DIR": str(tmp_path / "cache"),
        }  # fmt: skip

        def relaxpy(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "relaxpy", *arguments]
            return subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=300, check=False
            )

        wrong = relaxpy("download", "owner/tinny")
        assert wrong.returncode == 1
        assert "error[hub-name]" in wrong.stderr
        done = relaxpy("download", "owner/tiny", "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["version"] == COMMIT
        assert Path(told["place"], "model.safetensors").is_file()
        assert f"owner/tiny at {COMMIT[:12]}: 4 files, " in done.stderr
    done = relaxpy("generate", "owner/tiny", "Once", "-n", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr.startswith("tiny: weights in 4 bits, activations in 8, llvm")
