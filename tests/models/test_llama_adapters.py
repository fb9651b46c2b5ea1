"""Low-rank adapters of several requests in one step of a Llama, against transformers with merged weights."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError, UsageError
from relaxpy.models.adapters import load_adapter
from relaxpy.models.llama import (
    LINEARS,
    TINY,
    Llama,
    LlamaConfig,
    load_weights,
    stack_adapters,
    step_spec,
)
from relaxpy.serve import PageBook
from tests.models.test_llama import reference_model
from tests.sweeps import quick_target

PLAIN = dataclasses.replace(TINY, num_hidden_layers=1, page_size=4)
CONFIG = dataclasses.replace(PLAIN, adapters=tuple(LINEARS))
PAGES = 64
RANKS = {0: (3, 0.5), 1: (1, 2.0)}
"""The rank and scale of each adapter."""
SECOND = ("query", "down")
"""The linear maps of the second adapter; the first one has all."""


def checkpoint(number: int) -> dict[str, np.ndarray]:
    """The tensors of an adapter, by PEFT's names."""
    rng, found = np.random.default_rng(number), dict[str, np.ndarray]()
    sizes = {"key": (32, 16), "value": (32, 16), "gate": (32, 48), "up": (32, 48), "down": (48, 32)}
    for linear, place in LINEARS.items():
        if number and linear not in SECOND:
            continue
        width, out = sizes.get(linear, (32, 32))
        name = f"base_model.model.model.layers.0.{place}"
        rank = RANKS[number][0]
        found[f"{name}.lora_A.weight"] = rng.standard_normal((rank, width)).astype(np.float32) * 0.3
        found[f"{name}.lora_B.weight"] = rng.standard_normal((out, rank)).astype(np.float32) * 0.3
    return found


class Served:
    """Both programs, with and without adapters, and what transformers says."""

    def __init__(self) -> None:
        self.reference = reference_model(PLAIN)
        state = {name: value.numpy().copy() for name, value in self.reference.state_dict().items()}
        self.state = state
        self.vm, self.plain = (self.built(config) for config in (CONFIG, PLAIN))
        self.adapters = stack_adapters(CONFIG, [(checkpoint(n), RANKS[n][1]) for n in RANKS])
        self.start()

    def built(self, config: LlamaConfig) -> relaxpy.VirtualMachine:
        model = Llama(config)
        load_weights(model, self.state)
        mod, params = model.export(step_spec(config))
        return relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), params=params))

    def start(self) -> None:
        self.caches, self.book = self.vm["alloc_pages"](PAGES), PageBook(PAGES, CONFIG.page_size)

    def run(self, counts: dict[int, int], adapters: Any = None) -> np.ndarray:
        batch = self.book.batch(counts)
        more = batch.adapters, self.adapters if adapters is None else adapters
        logits = self.vm["step"](*batch.arguments, self.caches, *more).numpy()
        self.book.commit(batch)
        return logits

    def expected(self, tokens: np.ndarray, adapter: int) -> np.ndarray:
        """The logits after the last token by transformers, with the adapter merged into its weights."""
        import torch

        merged = {name: value.copy() for name, value in self.state.items()}
        if adapter >= 0:
            tensors = checkpoint(adapter)
            for place in LINEARS.values():
                name = f"model.layers.0.{place}"
                down, up = (tensors.get(f"base_model.model.{name}.lora_{x}.weight") for x in "AB")
                if down is not None and up is not None:
                    merged[f"{name}.weight"] += RANKS[adapter][1] * (up @ down)
        self.reference.load_state_dict({n: torch.from_numpy(x) for n, x in merged.items()})
        with torch.no_grad():
            return self.reference(torch.from_numpy(tokens[None])).logits.numpy()[0, -1]


@pytest.fixture(scope="module")
def served() -> Served:
    return Served()


TEXT = np.random.default_rng(3).integers(0, TINY.vocab_size, 21)


def test_adapters_of_one_step(served: Served) -> None:
    """The same text with each adapter and without, in chunks and one by one, in one batch."""
    served.start()
    book = served.book
    names = {adapter: book.add(TEXT, adapter) for adapter in (-1, 0, 1)}
    served.run({name: 7 + adapter for adapter, name in names.items()})
    found = served.run({name: len(book.pending(name)) for name in names.values()})
    for row, adapter in enumerate(names):
        wanted = served.expected(TEXT, adapter)
        np.testing.assert_allclose(found[row], wanted, atol=5e-5)
    assert np.abs(found[0] - found[1]).max() > 0.1


def test_bits(served: Served) -> None:
    """A token without an adapter is as in the program that has none; one with is as alone, among any others."""
    served.start()
    book = PageBook(PAGES, PLAIN.page_size)
    batch = book.batch({book.add(TEXT): len(TEXT)})
    caches = served.plain["alloc_pages"](PAGES)
    none = served.plain["step"](*batch.arguments, caches).numpy()[0]
    alone = {-1: none}
    for adapter in (-1, 0, 1):
        served.start()
        found = served.run({served.book.add(TEXT, adapter): len(TEXT)})[0]
        np.testing.assert_array_equal(found, alone.setdefault(adapter, found))
    served.start()
    rng = np.random.default_rng(5)
    own = {adapter: served.book.add(TEXT, adapter) for adapter in (1, -1, 0)}
    others = [
        served.book.add(rng.integers(0, 101, rng.integers(1, 6)), int(rng.integers(-1, 2)))
        for _ in range(12)
    ]
    for count in (4, 1, 9, 7):
        some = {name: len(served.book.pending(name)) for name in [others.pop(), others.pop()]}
        together = served.run({**some, **dict.fromkeys(own.values(), count)})[len(some) :]
    for row, adapter in enumerate(own):
        np.testing.assert_array_equal(together[row], alone[adapter])
    huge = tuple(
        tuple((np.full_like(down, np.nan), up) for down, up in layer) for layer in served.adapters
    )
    served.start()
    found = served.run({served.book.add(TEXT): len(TEXT)}, huge)[0]
    np.testing.assert_array_equal(found, none)
    served.start()
    empty = tuple(tuple((a[:0], b[:0]) for a, b in layer) for layer in served.adapters)
    found = served.run({served.book.add(TEXT): len(TEXT)}, empty)[0]
    np.testing.assert_array_equal(found, none)


def test_prefixes_are_of_an_adapter(served: Served) -> None:
    """Keys depend on the adapter: the same text with another one is computed anew."""
    served.start()
    book = served.book
    first = served.run({book.add(TEXT, 0): len(TEXT)})[0]
    assert len(book.pending(book.add(TEXT, 1))) == len(book.pending(book.add(TEXT))) == len(TEXT)
    again = book.add(TEXT, 0)
    pending = len(book.pending(again))
    assert pending == 1
    np.testing.assert_array_equal(served.run({again: pending})[0], first)
    copy = book.fork(again)
    book.append(copy, [5])
    assert book.batch({copy: 1}).adapters.tolist() == [0]


@pytest.mark.parametrize("number", [2, -2, (1 << 31) - 1, -(1 << 31)])
def test_adapters_that_are_not_there(served: Served, number: int) -> None:
    served.start()
    batch = served.book.batch({served.book.add(TEXT): len(TEXT)})
    ids = batch.adapters.copy()
    ids[3] = number
    with pytest.raises(RelaxError, match=rf"adapters must be from -1 to 1, got {number} at \[3\]"):
        served.vm["step"](*batch.arguments, served.caches, ids, served.adapters)


def test_checkpoints_that_do_not_fit() -> None:
    bad = checkpoint(0)
    place = "base_model.model.model.layers.0.self_attn.q_proj"
    bad[f"{place}.lora_A.weight"] = bad[f"{place}.lora_A.weight"][:, :5]
    del bad["base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"]
    bad["base_model.model.lm_head.lora_A.weight"] = np.zeros((3, 32), np.float32)
    with pytest.raises(UsageError) as caught:
        stack_adapters(CONFIG, [(checkpoint(1), 1.0), (bad, 1.0)])
    assert caught.value.code == "bad-weights"
    assert caught.value.notes == (
        "adapter 1: model.layers.0.self_attn.q_proj needs (r, 32) and (32, r)",
        "adapter 1: model.layers.0.mlp.up_proj needs (r, 32) and (48, r)",
        "adapter 1: unexpected base_model.model.lm_head.lora_A.weight",
    )
    with pytest.raises(UsageError, match="no linear map is named head"):
        dataclasses.replace(TINY, adapters=("query", "head"))
    with pytest.raises(UsageError, match="adapter -2 is neither"):
        PageBook(4).add([1], -2)


class Folder:
    """An adapter that PEFT made and wrote, with random weights, and what PEFT says of a text."""

    def __init__(self, path: Path, **settings: Any) -> None:
        import torch

        peft = pytest.importorskip("peft")
        base = reference_model(PLAIN)
        self.state = {name: value.numpy().copy() for name, value in base.state_dict().items()}
        names = [place.split(".")[1] for place in LINEARS.values()]
        made = peft.LoraConfig(target_modules=names, **settings)
        self.model = peft.get_peft_model(base, made).eval()
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                if "lora_" in name:
                    weight.copy_(torch.randn_like(weight) * 0.2)
        self.model.save_pretrained(path)

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        import torch

        with torch.no_grad():
            return self.model(torch.from_numpy(tokens[None])).logits.numpy()[0, -1]


@pytest.mark.parametrize("is_rs", [False, True], ids=["lora", "rslora"])
def test_folders_of_peft(served: Served, tmp_path: Path, is_rs: bool) -> None:
    folder = Folder(tmp_path, r=4, lora_alpha=6, use_rslora=is_rs, lora_dropout=0.5)
    for name, value in served.state.items():
        np.testing.assert_array_equal(folder.state[name], value)
    tensors, scale = load_adapter(tmp_path)
    assert scale == (3.0 if is_rs else 1.5)
    served.start()
    adapters = stack_adapters(CONFIG, [(checkpoint(0), 1.0), (tensors, scale)])
    found = served.run({served.book.add(TEXT, 1): len(TEXT)}, adapters)[0]
    np.testing.assert_allclose(found, folder.logits(TEXT), atol=5e-5)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"use_dora": True}, "use_dora = True"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save = \['lm_head'\]"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 2}, "lora_bias": True}, "alpha_pattern .*, lora_bias = True"),
        ({"init_lora_weights": "pissa"}, r"init_lora_weights = 'pissa' \(the model's own"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3'"),
        ({"r": 0}, "r = 0"),
        ({"r": 4.0}, "r = 4.0"),
        ({"lora_alpha": float("nan")}, "lora_alpha = nan"),
        ({"a_new_kind": {"x": 1}}, "a_new_kind"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    write_adapter(tmp_path, **settings)
    with pytest.raises(UsageError, match=named) as caught:
        load_adapter(tmp_path)
    assert caught.value.code == "bad-config"


def test_folders_that_are_damaged(tmp_path: Path) -> None:
    """Each says which file, and none is read as far as it goes."""
    with pytest.raises(UsageError, match=r"is not an adapter: it has no adapter_config\.json"):
        load_adapter(tmp_path)
    with pytest.raises(UsageError, match="is not an adapter"):
        load_adapter(write_adapter(tmp_path) / "adapter_config.json")
    config, weights = (
        tmp_path / name for name in ("adapter_config.json", "adapter_model.safetensors")
    )
    assert load_adapter(tmp_path)[1] == 2.0
    whole = weights.read_bytes()
    for end in (0, 7, 30, len(whole) - 1):
        weights.write_bytes(whole[:end])
        with pytest.raises(UsageError, match=r"adapter_model\.safetensors cannot be read"):
            load_adapter(tmp_path)
    weights.unlink()
    with pytest.raises(UsageError, match=r"has no adapter_model\.safetensors"):
        load_adapter(tmp_path)
    for text in ("", "{", "[1]", "3", "[" * 100_000):
        config.write_text(text)
        with pytest.raises(UsageError) as caught:
            load_adapter(tmp_path)
        assert caught.value.code == "bad-checkpoint"
    write_adapter(tmp_path, r=5)
    with pytest.raises(UsageError, match=r"says r = 5, but .* has the shape \(4, 32\)"):
        load_adapter(tmp_path)


def write_adapter(folder: Path, **settings: Any) -> Path:
    """An adapter of the queries, with rank 4."""
    from safetensors.numpy import save_file

    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "modules_to_save": None}
    (folder / "adapter_config.json").write_text(json.dumps({**config, **settings}))
    place = f"base_model.model.model.layers.0.{LINEARS['query']}"
    arrays = {"A": np.ones((4, 32), np.float32), "B": np.ones((32, 4), np.float32)}
    save_file(
        {f"{place}.lora_{half}.weight": x for half, x in arrays.items()},
        folder / "adapter_model.safetensors",
    )
    return folder


def test_joined_maps(tmp_path: Path) -> None:
    """An adapter of Phi-3's joined maps, by its names, is that of the maps apart; where the configuration names only
    some of them, it is refused."""
    from relaxpy.models.phi3 import Phi3Config

    sizes = {n: getattr(PLAIN, n) for n in (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "vocab_size",
    )}  # fmt: skip
    maps = "query", "key", "value", "output", "gate", "up", "down"
    config = Phi3Config(**sizes, adapters=maps)
    rng = np.random.default_rng(5)
    apart: dict[str, np.ndarray] = {}
    joined: dict[str, np.ndarray] = {}
    start = "base_model.model.model.layers.0"
    outs = {"query": 32, "key": 16, "value": 16, "output": 32, "gate": 48, "up": 48, "down": 32}
    for name, together in (
        ("self_attn.qkv_proj", ("query", "key", "value")),
        ("mlp.gate_up_proj", ("gate", "up")),
        ("self_attn.o_proj", ("output",)),
        ("mlp.down_proj", ("down",)),
    ):
        width = 48 if name == "mlp.down_proj" else 32
        down = rng.standard_normal((3, width), dtype=np.float32)
        ups = [rng.standard_normal((outs[each], 3), dtype=np.float32) for each in together]
        joined[f"{start}.{name}.lora_A.weight"] = down
        joined[f"{start}.{name}.lora_B.weight"] = np.concatenate(ups)
        for each, up in zip(together, ups, strict=True):
            apart[f"{start}.{LINEARS[each]}.lora_A.weight"] = down
            apart[f"{start}.{LINEARS[each]}.lora_B.weight"] = up
    plain = LlamaConfig(**sizes, adapters=maps)
    expected, found = stack_adapters(plain, [(apart, 0.5)]), stack_adapters(config, [(joined, 0.5)])
    for pair, own in zip(expected[0], found[0], strict=True):
        for one, other in zip(pair, own, strict=True):
            np.testing.assert_array_equal(one, other)
    some = dataclasses.replace(config, adapters=("query", "output", "gate", "up", "down"))
    with pytest.raises(UsageError, match="2 problems") as caught:
        stack_adapters(some, [(joined, 0.5)])
    assert "unexpected" in caught.value.notes[0]
    assert "qkv_proj" in caught.value.notes[0]
    short = {
        n: x[:-1] if n.endswith("gate_up_proj.lora_B.weight") else x for n, x in joined.items()
    }
    with pytest.raises(UsageError) as caught:
        stack_adapters(config, [(short, 0.5)])
    assert any("needs (r, 32) and (96, r)" in note for note in caught.value.notes)
