"""A model with adapters, beside another model: each is a name in requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from relaxpy.models.checkpoint import read_weights

pytest.importorskip("fastapi")
from relaxpy.server.chat import Chat, prompt_of
from relaxpy.server.context import in_thread
from relaxpy.server.errors import ApiError
from relaxpy.server.served_model import ServedModel
from relaxpy.server.settings import ModelSettings
from tests.llm.checkpoints import write_model
from tests.runtime.test_safetensors import saved
from tests.server.running import Running, server_process

httpx: Any = pytest.importorskip("httpx")
LAYER = "model.layers.0"
PLACES = {"self_attn.q_proj": (64, 64), "mlp.down_proj": (64, 96)}
"""What is adapted, and its shape."""


def write_adapter(folder: Path, seed: int) -> dict[str, np.ndarray]:
    """An adapter as PEFT writes it. Returns what it adds to weights, by their names."""
    random, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    added: dict[str, np.ndarray] = {}
    for place, (out, width) in PLACES.items():
        down = random.standard_normal((4, width), dtype=np.float32) / 8
        up = random.standard_normal((out, 4), dtype=np.float32) / 4
        name = f"base_model.model.{LAYER}.{place}"
        tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
        added[f"{LAYER}.{place}.weight"] = up @ down * 2
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "down_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    saved(folder / "adapter_model.safetensors", tensors)
    return added


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The model `base` with two adapters, and `merged`, into whose weights the second adapter is merged."""
    folder: Path = tmp_path_factory.mktemp("adapters")
    base, merged = write_model(folder / "base"), write_model(folder / "merged")
    write_adapter(folder / "first", 1)
    weights = read_weights(merged)
    for name, more in write_adapter(folder / "second", 2).items():
        weights[name] = weights[name] + more
    saved(merged / "model.safetensors", weights)
    short, damaged = write_model(folder / "short"), write_model(folder / "damaged")
    (short / "generation_config.json").write_text(
        json.dumps({"max_new_tokens": 5, "no_repeat_ngram_size": 1})
    )
    weights = {name: array.copy() for name, array in read_weights(damaged).items()}
    weights["model.embed_tokens.weight"][100:] = np.nan
    saved(damaged / "model.safetensors", weights)
    with server_process(
        folder, str(base), str(merged), str(short), str(damaged), "--adapter", f"first={folder / 'first'}", "--adapter",
        f"second={folder / 'second'}", "--bits", "none", "--context", "128", "--target", "llvm -opt-level=0",
    ) as found:  # fmt: skip
        yield found


def test_adapters_are_models(own: Running) -> None:
    """A model with an adapter writes what the model with merged weights does."""
    with httpx.Client(base_url=own.url, timeout=60) as http:
        listed = http.get("/v1/models").json()["data"]
        assert [each["id"] for each in listed] == [
            "base",
            "first",
            "second",
            "merged",
            "short",
            "damaged",
        ]
        assert [each.get("parent") for each in listed][:4] == [None, "base", "base", None]

        def write(model: str) -> Any:
            body = {"model": model, "prompt": "Compile once", "max_tokens": 6, "temperature": 0, "logprobs": 1, "ignore_eos": True}  # fmt: skip
            return http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]

        found = {name: write(name) for name in ("base", "first", "second", "merged", "")}
        assert found["second"]["tokens"] == found["merged"]["tokens"]
        np.testing.assert_allclose(
            found["second"]["token_logprobs"], found["merged"]["token_logprobs"], atol=1e-3
        )
        assert found[""] == found["base"]
        texts = [tuple(found[name]["token_logprobs"]) for name in ("base", "first", "second")]
        assert len(set(texts)) == 3
        wrong = http.post("/v1/completions", json={"model": "third", "prompt": "a"})
        assert wrong.status_code == 404
        assert "base, first, second, merged" in wrong.json()["error"]["message"]


def test_what_a_checkpoint_recommends(own: Running) -> None:
    """Its length and its rules hold where a body says nothing; a body's own length goes first."""
    with httpx.Client(base_url=own.url, timeout=60) as http:
        body = {
            "model": "short",
            "messages": [{"role": "user", "content": "Compile"}],
            "ignore_eos": True,
        }

        def count(**fields: int) -> int:
            answer = http.post(
                "/v1/chat/completions", json={**body, **fields, "logprobs": True}
            ).json()
            (choice,) = answer["choices"]
            assert choice["finish_reason"] == "length"
            tokens = [tuple(each["bytes"]) for each in choice["logprobs"]["content"]]
            assert len(set(tokens)) == len(tokens)  # no token twice
            return answer["usage"]["completion_tokens"]

        assert count() == 5
        assert count(max_tokens=9) == 9


def test_logits_that_are_nan_are_an_error_of_one_request(own: Running) -> None:
    """Where the prompt has a token whose embedding is damaged; other prompts are answered. It is counted."""
    with httpx.Client(base_url=own.url, timeout=60) as http:
        body = {"model": "damaged", "max_tokens": 1, "logit_bias": {"40": 100}}
        answers = [
            http.post("/v1/completions", json={**body, "prompt": prompt})
            for prompt in ([5, 6, 7], [5, 319, 7], [5, 6, 8])
        ]
        assert [each.status_code for each in answers] == [200, 500, 200]
        error = answers[1].json()["error"]
        assert error["code"] == "not-a-number"
        assert "320 of 320 are NaN" in error["message"]
        assert 'relaxpy_not_a_number_total{model="damaged"} 1.0' in http.get("/metrics").text


def test_errors_name_the_model_and_not_its_place(tmp_path: Path) -> None:
    place = write_model(tmp_path / "secret")
    (place / "chat_template.jinja").write_text("{{ raise_exception('no ' + messages[0].content) }}")

    async def start(factory: str, options: Any) -> Any:
        return SimpleNamespace(facts={"context": 64, "vocab_size": 64})

    async def refused() -> ApiError:
        model = await ServedModel.start(ModelSettings(name="mine", place=str(place)), start)
        with pytest.raises(ApiError) as caught:
            await in_thread(prompt_of, model, Chat([{"role": "user", "content": "tuples"}]))
        return caught.value

    message = asyncio.run(refused()).message
    assert message == "the template of mine refuses these messages: no tuples"
