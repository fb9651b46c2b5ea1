"""Adapters that are trained, beside PEFT on transformers' model with the same weights and batches."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.llm.examples import IGNORED
from relaxpy.models.adapters import load_adapter
from relaxpy.models.decoder import stack_adapters
from relaxpy.models.families import decoder_config
from relaxpy.models.finetune import Lora, Tuned, load_tuned
from relaxpy.models.loaded import Scheme
from relaxpy.models.lora import adapted_modules, target_modules
from relaxpy.train import AdamW
from tests.models.agreement import with_rounded_weights
from tests.models.family_checkpoints import CASES, checkpoint, text
from tests.sweeps import FULL, full, quick_target

LORA = Lora(3, 7.0)
RATE = AdamW(1e-2, weight_decay=0.0)
CHEAP = ("phi3",)
"""The family that is always tried: its maps are joined."""


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and labels, of other sizes each time."""
    rows, length = ((2, 13), (1, 7), (3, 10))[number % 3]
    ids = np.stack([text(length + 1, row + number) for row in range(rows)])
    labels = ids[:, 1:].copy()
    labels[:, :3] = IGNORED
    return ids[:, :-1], labels


def begun(tuned: Tuned) -> list[np.ndarray]:
    """Adapters that add something from the start."""
    rng = np.random.default_rng(5)
    return [rng.normal(0, 0.05, s).astype(np.float32) for s in tuned.model.sizes().values()]


def beside_peft(tuned: Tuned, reference: Any, folder: Path, steps: int = 4) -> list[Any]:
    """Train both from the same adapters, which PEFT reads from our files, and compare the losses. Returns ours."""
    torch: Any = pytest.importorskip("torch")
    peft: Any = pytest.importorskip("peft")

    weights: list[Any] = begun(tuned)
    tuned.save(folder, weights)
    theirs = peft.PeftModel.from_pretrained(reference, folder, is_trainable=True).eval()
    trained = [p for p in theirs.parameters() if p.requires_grad]
    assert len(trained) == len(weights)
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.0)
    state = tuned.step.start(weights)
    for number in range(steps):
        ids, labels = batch(number)
        logits = theirs(torch.from_numpy(ids)).logits.flatten(0, 1)
        wanted = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels).flatten())
        optimizer.zero_grad()
        torch.autograd.backward(wanted)
        optimizer.step()
        loss, weights, state = tuned.step(weights, state, ids, labels, packed=tuned.packed["step"])
        np.testing.assert_allclose(loss.numpy(), wanted.detach().numpy(), rtol=1e-4)
    return weights


@pytest.mark.parametrize("name", CASES if FULL else CHEAP)
def test_a_family_is_trained_as_peft_trains_it(name: str, tmp_path: Path) -> None:
    layers = {} if FULL else {"num_hidden_layers": 1}
    reference = checkpoint(name, tmp_path / "base", **layers)
    tuned = load_tuned(tmp_path / "base", RATE, LORA, clip_norm=None, target=quick_target())
    trained = beside_peft(tuned, reference, tmp_path / "adapter")
    tuned.save(tmp_path / "trained", trained)
    config = tuned.model.config
    config = dataclasses.replace(config, adapters=config.linears)
    served = stack_adapters(config, [load_adapter(tmp_path / "trained")])
    given = dict(zip(tuned.model.sizes(), trained, strict=True))
    for module in tuned.model.modules_with:
        for linear, (start, end) in module.parts.items():
            down, up = served[module.layer][config.linears.index(linear)]
            np.testing.assert_array_equal(down[0], given[f"{module.name}_down"].numpy())
            rows = given[f"{module.name}_up"].numpy()[start:end] * np.float32(7 / 3)
            np.testing.assert_allclose(up[0], rows, rtol=1e-6)


@full
def test_a_base_in_4_bits(tmp_path: Path) -> None:
    """The weights are codes, and the losses those of transformers on what the codes mean."""
    checkpoint("llama", tmp_path / "base", num_hidden_layers=1)
    scheme = Scheme(4, activations=None)
    reference = with_rounded_weights(tmp_path / "base", tmp_path / "rounded", scheme)
    tuned = load_tuned(
        tmp_path / "base", RATE, LORA, scheme, clip_norm=None, target=quick_target(), keep=False
    )
    beside_peft(tuned, reference, tmp_path / "adapter")


def test_targets(tmp_path: Path) -> None:
    checkpoint("gpt2", tmp_path, n_layer=1)
    config = decoder_config(tmp_path)

    def names(*given: str) -> list[str]:
        return target_modules(config, adapted_modules(config, given))

    assert names("all") == ["c_attn", "c_fc", "c_proj"]
    assert names("query") == names("attn.c_attn") == ["c_attn"]
    assert names("output") == ["attn.c_proj"]
    with pytest.raises(UsageError, match="no linear map is named 'q_proj'"):
        names("q_proj")


def test_a_model_that_sees_is_refused() -> None:
    shapes = Path(__file__).parents[1] / "vision/shapes"
    with pytest.raises(UsageError, match="shapes reads pictures, and adapters are of models that"):
        load_tuned(shapes, RATE, LORA)
