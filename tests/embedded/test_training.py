"""Training the embedded model: the network is transformers' Llama, the optimiser does what it says, runs resume to the bit."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embedded import corpus, questions
from embedded.decoder import Config, Model
from embedded.export import best_state, config_fields, export, log_of, thinned
from embedded.optimizer import Muon, orthogonalised
from embedded.sources import Document
from embedded.stream import Stream
from embedded.train_embedded import Recipe, Run, train

TINY = Config(vocab_size=400, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
              num_key_value_heads=1, head_dim=16, max_position_embeddings=64)  # fmt: skip
RECIPE = Recipe(
    TINY, length=16, finish_length=32, batch_tokens=128, micro_tokens=64, warmup_steps=3
)


def weights(run: Run) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in run.model.state_dict().items()}


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(one[name], other[name]) for name in one
    )


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus of a few functions."""
    texts = [Document(f"f{i}.py", f"def f{i}(x):\n    return x + {i}\n" * 8) for i in range(12)]
    chats = questions.chats([(f"What does f{i} do?", f"It adds {i}.") for i in range(12)])
    made = corpus.Corpus(texts[2:], chats, texts[:2])
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            corpus.tokenizer, "train", lambda texts, train=corpus.tokenizer.train: train(texts, 400)
        )
        corpus.write(made, folder)
    return folder


def test_network_is_the_llama_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    own = Model(TINY)
    for parameter in own.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config_fields(TINY)))
    state = {f"model.{name}": value for name, value in own.state_dict().items()}
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    tokens = torch.randint(400, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(own(tokens), theirs.float()(tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 8, 20), (2, 20, 8), (1, 5, 5)])
def test_orthogonalised(shape: tuple[int, int, int]) -> None:
    """Directions are kept and their sizes evened out, as far as the five steps go."""
    torch.manual_seed(0)
    given = torch.randn(shape)
    found = orthogonalised(given)
    assert found.shape == given.shape
    sizes = torch.linalg.svdvals(found)
    assert sizes.min() > 0.4
    assert sizes.max() < 1.3
    u, _, v = torch.linalg.svd(given, full_matrices=False)
    assert torch.cosine_similarity(found.flatten(1), (u @ v).flatten(1)).min() > 0.95


def test_muon_takes_matrices_of_both_shapes() -> None:
    """A matrix and its transpose, with gradients likewise, stay transposes of each other up to the factor of the rate."""
    torch.manual_seed(0)
    wide, gradient = torch.randn(4, 16), torch.randn(4, 16)
    one, other = torch.nn.Parameter(wide.clone()), torch.nn.Parameter(wide.mT.clone())
    one.grad, other.grad = gradient.clone(), gradient.mT.clone()
    Muon([one, other], 0.1).step()
    torch.testing.assert_close((other - wide.mT) / 2, (one - wide).mT, rtol=1e-4, atol=1e-5)


def test_stream_reads_everything_once_an_epoch() -> None:
    starts = np.array([0, 5, 9, 20, 33], np.int64)
    stream = Stream(np.arange(33, dtype=np.uint16), starts, 4, 0)
    rows = stream.rows(0, stream.rows_of_epoch)
    assert rows.shape == (8, 5)
    assert len(np.unique(rows[:, :-1])) == 32
    assert not np.array_equal(rows, stream.rows(8, 8))
    again = Stream(np.arange(33, dtype=np.uint16), starts, 4, 0)
    assert np.array_equal(
        again.rows(11, 3), np.concatenate([stream.rows(11, 2), stream.rows(13, 1)])
    )
    with pytest.raises(ValueError, match="3 tokens are not enough"):
        Stream(np.arange(3, dtype=np.uint16), np.array([0, 3]), 4, 0)


def test_the_loss_falls(folder: Path) -> None:
    run = Run(folder, RECIPE)
    assert train(run, 128 * 40, every=10)
    assert log(folder)[-1]["training"] < 0.6 * log(folder)[0]["training"]
    assert log(folder)[-1]["held_out"] < log(folder)[0]["held_out"]
    assert log(folder)[-1]["tokens"] == 128 * 40


def test_an_interrupted_run_goes_on_to_the_bit(folder: Path) -> None:
    whole = Run(folder, RECIPE)
    train(whole, 128 * 25)
    (folder / "constant.pt").unlink()
    train(Run(folder, RECIPE), 128 * 11)
    resumed = Run(folder, RECIPE)
    assert resumed.steps == 11
    train(resumed, 128 * 25)
    assert equal(weights(whole), weights(resumed))
    assert [line["step"] for line in log(folder)] == [10, 11, 20, 25]


def test_a_signal_saves_and_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(folder, RECIPE)
    step = run.step

    def killed() -> float:
        loss = step()
        if run.steps == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    monkeypatch.setattr(run, "step", killed)
    before = signal.getsignal(signal.SIGTERM)
    assert not train(run, 128 * 20)
    assert signal.getsignal(signal.SIGTERM) is before
    assert Run(folder, RECIPE).steps == 7


def test_a_finish_leaves_the_first_phase(folder: Path) -> None:
    """It begins where the first phase is, is resumed to the bit, and the first phase can go on and be finished again."""
    train(Run(folder, RECIPE), 128 * 6)
    kept = (folder / "constant.pt").read_bytes()
    whole = Run(folder, RECIPE, finish=128 * 8)
    assert (whole.steps, whole.length, whole.rate) == (6, 32, 1.0)
    assert train(whole, 0)
    assert whole.rate == 0
    assert whole.tokens == 128 * 14
    assert (folder / "constant.pt").read_bytes() == kept

    (folder / "finish.pt").unlink()
    half = Run(folder, RECIPE, finish=128 * 8)
    for _ in range(3):
        half.step()
    half.save()
    again = Run(folder, RECIPE, finish=128 * 8)
    assert again.steps == 9
    train(again, 0)
    assert equal(weights(whole), weights(again))
    assert best_state(folder)["finish"] == 128 * 8
    assert Run(folder, RECIPE, finish=128 * 4).steps == 6

    train(Run(folder, RECIPE), 128 * 9)
    assert Run(folder, RECIPE, finish=128 * 8).steps == 9
    assert {line["phase"] for line in log(folder)} == {"constant"}


def test_a_finish_can_be_made_shorter(folder: Path) -> None:
    """While it is under way; the rate falls to zero all the same."""
    train(Run(folder, RECIPE), 128 * 6)
    begun = Run(folder, RECIPE, finish=128 * 8)
    for _ in range(2):
        begun.step()
    begun.save()
    assert (begun.rate, Run(folder, RECIPE, finish=128 * 4).rate) == (0.75, 0.5)
    shorter = Run(folder, RECIPE, finish=128 * 4)
    assert shorter.steps == 8
    assert train(shorter, 0)
    assert (shorter.tokens, shorter.rate) == (128 * 10, 0.0)
    assert Run(folder, RECIPE, finish=128 * 8).steps == 6
    assert Run(folder, RECIPE, finish=128 * 3).steps == 6


def test_another_recipe_or_nothing_to_finish_is_refused(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no constant\.pt to finish"):
        Run(folder, RECIPE, finish=128)
    train(Run(folder, RECIPE), 128)
    with pytest.raises(ValueError, match="another recipe or corpus"):
        Run(folder, Recipe(TINY, length=16, batch_tokens=64, micro_tokens=64))
    facts = json.loads((folder / "corpus.json").read_text())
    (folder / "corpus.json").write_text(json.dumps(facts | {"sha256": "other"}))
    with pytest.raises(ValueError, match="another recipe or corpus"):
        Run(folder, RECIPE)


def test_a_loss_that_is_not_finite_is_not_saved(folder: Path) -> None:
    train(Run(folder, RECIPE), 128)
    run = Run(folder, RECIPE)
    with torch.no_grad():
        run.model.norm.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="the loss is nan at step 1"):
        train(run, 128 * 9)
    assert np.isfinite(weights(Run(folder, RECIPE))["norm.weight"]).all()


def test_exported_checkpoints_are_those_of_transformers(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    run = Run(folder, RECIPE)
    train(run, 128 * 3)
    place = tmp_path / "exported"
    assert export(folder, place)["tokens"] == 128 * 3
    theirs = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    rounded = Model(TINY)
    rounded.load_state_dict(
        {name: value.bfloat16().float() for name, value in run.model.state_dict().items()}
    )
    tokens = torch.randint(400, (1, 20))
    with torch.no_grad():
        torch.testing.assert_close(rounded(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)
    assert {path.name for path in place.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja",
    }  # fmt: skip


def test_log_of_a_finish(folder: Path) -> None:
    """Has the first phase up to where the finish began, whatever came after it."""
    train(Run(folder, RECIPE), 128 * 20)
    train(Run(folder, RECIPE, finish=128 * 10), 0)
    train(Run(folder, RECIPE), 128 * 40)
    lines = (folder / "log.jsonl").read_text().splitlines()
    assert len(lines) == 5
    kept = [json.loads(line) for line in log_of(best_state(folder), lines)]
    assert [(line["phase"], line["step"]) for line in kept] == [
        ("constant", 10),
        ("constant", 20),
        ("finish", 30),
    ]
    (folder / "finish.pt").unlink()
    kept = [json.loads(line) for line in log_of(best_state(folder), lines)]
    assert {line["phase"] for line in kept} == {"constant"}
    assert kept[-1]["step"] == 40


def test_thinned_logs_keep_what_was_measured() -> None:
    lines = [
        json.dumps({"step": i} | ({"held_out": 1.0} if i % 50 == 0 else {})) for i in range(1000)
    ]
    kept = thinned(lines, 100)
    assert 100 <= len(kept) <= 120
    assert sum("held_out" in line for line in kept) == 20
