"""Low-rank adapters of several requests in one step of a Llama, against transformers with merged weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError, UsageError
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
