"""`relaxpy finetune`: adapters of a tiny Llama with the tokenizer of the embedded model."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from relaxpy.cli.finetune import INTERRUPTED, finetune
from relaxpy.embedded import embedded_model
from relaxpy.errors import UsageError
from relaxpy.llm import examples
from relaxpy.llm.examples import batches
from relaxpy.models.adapters import load_adapter
from tests.models.family_checkpoints import checkpoint

LINES = [{"prompt": f"{n} and one?", "completion": f" {n + 1}."} for n in range(5)]
OPTIONS = (
    "--module", "query", "--batch", "2", "--accumulate", "2", "--rate", "0.01", "--schedule", "constant", "--json",
    "--target", "llvm -opt-level=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finetune")
    config = json.loads((Path(embedded_model()) / "config.json").read_text())
    checkpoint("llama", folder / "base", vocab_size=config["vocab_size"], num_hidden_layers=1)
    for each in Path(embedded_model()).glob("*token*"):
        shutil.copy(each, folder / "base")
    text = "\n".join(map(json.dumps, LINES))
    (folder / "data.jsonl").write_text(text + "\n")
    return folder


def run(place: Path, output: str, *more: str) -> dict[str, Any]:
    given = [str(place / "base"), str(place / "data.jsonl"), "-o", str(place / output)]
    result = CliRunner().invoke(finetune, [*given, *OPTIONS, *more], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_training_goes_on(place: Path) -> None:
    """Five steps at once are two and then three more, to the bit, and the adapter is one that is served."""
    whole = run(place, "whole", "--steps", "5")
    first = run(place, "parts", "--steps", "2")
    rest = run(place, "parts", "--steps", "5", "--resume")
    assert first["losses"] + rest["losses"] == whole["losses"]
    assert whole["losses"][-1] < whole["losses"][0]
    (one, scale), (two, _) = load_adapter(place / "whole"), load_adapter(place / "parts")
    assert scale == 2
    assert sorted(one) == [
        f"base_model.model.model.layers.0.self_attn.q_proj.lora_{x}.weight" for x in "AB"
    ]
    assert all((one[name] == two[name]).all() for name in one)
    assert (place / "parts" / "loss.svg").read_text().startswith("<svg")
    with pytest.raises(UsageError, match="has a training already"):
        run(place, "whole")
    with pytest.raises(UsageError, match="5 steps are done, and 5 were asked for"):
        run(place, "whole", "--steps", "5", "--resume")


def test_what_is_refused(place: Path) -> None:
    """Before anything is compiled."""
    with pytest.raises(UsageError, match=r"no training.safetensors to go on from"):
        run(place, "new", "--resume")
    with pytest.raises(UsageError, match="no linear map is named 'router'"):
        run(place, "new", "--module", "router")
    with pytest.raises(
        UsageError, match="5 examples have nothing to learn in their first 2 tokens"
    ):
        run(place, "new", "--length", "2")
    (place / "before").mkdir()
    (place / "before" / "training.safetensors").touch()
    (place / "before" / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 8.0}')
    for given, other in (
        (("--rank", "5"), "5 and 10"),
        (("--rank", "4", "--alpha", "7"), "4 and 7"),
    ):
        with pytest.raises(
            UsageError, match=f"trained with rank 4 and alpha 8.0, not {other}"
        ) as raised:
            run(place, "before", *given, "--resume")
        assert "go on with --rank 4 --alpha 8.0" in str(raised.value.help)
    for wrong in ("nan", "inf", "0", "-1"):
        given = [str(place / "base"), str(place / "data.jsonl"), "-o", str(place / "new")]
        result = CliRunner().invoke(finetune, [*given, "--lr", wrong])
        assert (result.exit_code, "Invalid value for '--rate' / '--lr'" in result.stderr) == (
            2,
            True,
        )
    settings = {
        "data": hashlib.sha256((place / "data.jsonl").read_bytes()).hexdigest(), "batch": 2, "accumulate": 2,
        "length": 512, "seed": 0, "bits": None, "dtype": None, "module": ["query"],
    }  # fmt: skip
    for own, more, told in (
        ({"data": "0"}, (), "trained with other data"),
        ({}, ("--batch", "3"), "trained with --batch 2, not --batch 3"),
        ({"seed": 7}, (), "trained with --seed 7, not --seed 0"),
        (
            {"bits": "4"}, ("--module", "q_proj", "--accumulate", "1"),
            "trained with --accumulate 2, --bits 4, --module query, "
            "not --accumulate 1, --bits as it is by default, --module q_proj, query",
        ),
    ):  # fmt: skip
        (place / "before" / "training.json").write_text(json.dumps(settings | own))
        with pytest.raises(UsageError, match=rf"before was {told}\n"):
            run(place, "before", "--rank", "4", *more, "--resume")


def test_an_interrupted_training_is_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a step ends the training after it; --resume goes on from there."""

    def interrupting(*args: Any) -> Any:
        for number, batch in enumerate(batches(*args)):
            if number == 2:  # the first batch of the second step
                signal.raise_signal(signal.SIGINT)
            yield batch

    monkeypatch.setattr(examples, "batches", interrupting)
    given = [str(place / "base"), str(place / "data.jsonl"), "-o", str(place / "ended"), *OPTIONS]
    result = CliRunner().invoke(finetune, [*given, "--steps", "3"], catch_exceptions=False)
    assert (result.exit_code, json.loads(result.stdout)["steps"]) == (INTERRUPTED, 2)
    assert "ended at step 2 of 3: the same command goes on with --resume" in result.stderr
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    rest = run(place, "ended", "--steps", "3", "--resume")
    assert (rest["steps"], len(rest["losses"])) == (3, 1)
