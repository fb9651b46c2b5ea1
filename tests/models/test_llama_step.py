"""The step of a Llama over a paged cache: agreement with transformers for any mixture of prompts, chunks and decoding,
equal bits whatever the neighbours, and errors instead of damage."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import RelaxError, UsageError
from relaxpy.models.llama import TINY, Llama, LlamaConfig, load_weights, step_spec
from relaxpy.nn.rotary import DynamicScaling, Rope
from relaxpy.serve import PageBook
from tests.e2e.devices import machine
from tests.models.test_llama import reference_model
from tests.runtime.devices.cuda import compiled as cuda
from tests.sweeps import FULL, quick_target, sweep

PAGES = 160
WIDE = dataclasses.replace(TINY, head_dim=16, page_size=16, max_position_embeddings=128)
CONFIGS = {
    "float32": dataclasses.replace(TINY, page_size=4),
    "bfloat16": dataclasses.replace(WIDE, dtype="bfloat16"),
    "int8": dataclasses.replace(WIDE, cache_dtype="int8"),
}
ARGUMENTS = ("tokens", "positions", "starts", "tables", "lengths", "rows")
TOLERANCE = {"float32": 3e-5, "bfloat16": 0.1, "int8": 0.1}
"""Of logits whose standard deviation is 1 or so."""


class Served:
    """A model with its cache and books."""

    def __init__(self, config: LlamaConfig, tolerance: float, target: Any = None) -> None:
        self.config, self.tolerance = config, tolerance
        self.reference = reference_model(config)
        model = Llama(config)
        state = self.reference.state_dict()
        load_weights(model, {name: value.numpy() for name, value in state.items()})
        mod, params = model.export(step_spec(config))
        self.vm = machine(mod, str(target or quick_target()), params)
        self.start()

    def start(self) -> None:
        """An empty cache."""
        self.caches = self.vm["alloc_pages"](PAGES)
        self.book = PageBook(PAGES, self.config.page_size)

    def run(self, counts: Mapping[int, int], every: bool = False) -> np.ndarray:
        """The logits of a step after each sequence's last token, or after every token."""
        batch = self.book.batch(counts)
        self.vm["copy_pages"](batch.sources, batch.targets, self.caches)
        *given, rows = batch.arguments
        rows = np.arange(len(batch.tokens), dtype=np.int32) if every else rows
        logits = self.vm["step"](*given, rows, self.caches)
        self.book.commit(batch)
        return logits.numpy()

    def expected(self, tokens: np.ndarray) -> np.ndarray:
        """Logits after every token by transformers."""
        import torch

        with torch.no_grad():
            return self.reference(torch.from_numpy(tokens[None])).logits.numpy()[0]

    def check(self, found: np.ndarray, expected: np.ndarray) -> None:
        np.testing.assert_allclose(found, expected, atol=self.tolerance, rtol=0)


PLACES = [
    *CONFIGS,
    pytest.param("float32 on cuda", marks=cuda.needs_cuda),
    *(
        pytest.param(f"{name} on cuda", marks=cuda.needs_cuda)
        for name in ("bfloat16", "int8")
        if FULL
    ),
]


@pytest.fixture(scope="module", params=PLACES)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """On the processor, and on the emulated device of CUDA."""
    name, _, device = str(request.param).partition(" on ")
    if not device:
        yield Served(CONFIGS[name], TOLERANCE[name])
        return
    with cuda.emulated_compiled():
        yield Served(CONFIGS[name], TOLERANCE[name], f"{cuda.TARGET} -batch-invariant=1")


def prompts(*lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(lengths)
    return [rng.integers(0, TINY.vocab_size, length) for length in lengths]


@sweep(2)
def test_mixtures(served: Served) -> None:
    """Prompts at once and in chunks, decoding, forks and taken-back drafts, in the same steps."""
    served.start()
    book, texts = served.book, prompts(37, 21, 9)
    wanted = [served.expected(text) for text in texts]
    one, two = book.add(texts[0][:30]), book.add(texts[1])
    found = served.run({one: 30, two: 5})
    served.check(found, np.stack([wanted[0][29], wanted[1][4]]))
    book.append(one, texts[0][30:31])
    three = book.add(texts[2])
    found = served.run({one: 1, two: 13, three: 9})
    served.check(found, np.stack([wanted[0][30], wanted[1][17], wanted[2][8]]))
    book.append(one, [*texts[0][31:34], 0, 0])  # two of five drafts are wrong
    twin = book.fork(one)
    found = served.run({one: 5, two: 3}, every=True)
    served.check(found[:3], wanted[0][31:34])
    served.check(found[5:], wanted[1][18:])
    book.pop(one, 2)
    book.append(one, texts[0][34:])
    book.pop(twin, 2)
    book.append(twin, texts[0][34:])
    found = served.run({twin: 6, one: 3})
    served.check(found, np.stack([wanted[0][-1]] * 2))
    if served.config.page_dtype == "float32":
        np.testing.assert_array_equal(found[0], found[1])


def test_bits_do_not_depend_on_neighbours(served: Served) -> None:
    """A sequence alone, in one step, is equal to the bit to the same in chunks, among 64 others, and after a prefix
    that was in the cache."""
    served.start()
    (text,) = prompts(40)
    rng = np.random.default_rng(1)
    alone = served.run({served.book.add(text): 40}, every=True)
    served.start()
    names = [served.book.add(x) for x in prompts(*rng.integers(1, 9, 64))]
    found: list[np.ndarray] = []
    own, left = served.book.add(text), list(names)
    while served.book.pending(own):
        count = min(int(rng.integers(1, 12)), len(served.book.pending(own)))
        some = [left.pop() for _ in range(min(len(left), int(rng.integers(8, 24))))]
        counts = {name: len(served.book.pending(name)) for name in some[: len(some) // 2]}
        first = sum(counts.values())
        counts[own] = count
        counts |= {name: len(served.book.pending(name)) for name in some[len(some) // 2 :]}
        found.append(served.run(counts, every=True)[first : first + count])
    np.testing.assert_array_equal(np.concatenate(found), alone)
    again = served.book.add(text)
    pending = len(served.book.pending(again))
    assert pending < 40
    np.testing.assert_array_equal(served.run({again: pending}, every=True), alone[-pending:])


def test_damage_is_an_error(served: Served) -> None:
    """50 wrong tables, positions, starts, lengths and rows: located errors, and the cache is as it was."""
    served.start()
    book = served.book
    names = [book.add(text) for text in prompts(40, 30)]
    served.run({names[0]: 37, names[1]: 30})
    batch = book.batch({names[0]: 3})
    wanted = served.vm["step"](*batch.arguments, served.caches).numpy()
    given = dict(zip(ARGUMENTS, batch.arguments, strict=True))
    wide = given["tables"]
    given["tables"] = wide[..., : -(-40 // served.config.page_size)]  # those that are read
    rng = np.random.default_rng(0)
    for number in range(50):
        damaged = {key: value.copy() for key, value in given.items()}
        name = ARGUMENTS[1 + number % 5]
        place = int(rng.integers(damaged[name].size))
        value = int(rng.choice([-1, -(1 << 31), PAGES, (1 << 31) - 1]))
        damaged[name].flat[place] = value
        with pytest.raises(RelaxError) as caught:
            served.vm["step"](*damaged.values(), served.caches)
        assert caught.value.code == "index-range"
        assert name in caught.value.message, (name, caught.value.message)
        assert "step" in str(caught.value)
    for name, missing in itertools.product(ARGUMENTS[1:5], (0, -1)):
        few = {**given, name: given[name][..., :missing]}
        with pytest.raises(RelaxError):
            served.vm["step"](*few.values(), served.caches)
    unread = {**given, "tables": np.where(wide < 0, PAGES, wide)}
    for arguments in (given, unread):
        found = served.vm["step"](*arguments.values(), served.caches)
        np.testing.assert_array_equal(found.numpy(), wanted)


def test_copies_are_checked(served: Served) -> None:
    """Numbers of pages that do not exist are refused; -1 is skipped."""
    served.start()
    none = np.full((1, 2), -1, np.int32)
    served.vm["copy_pages"](none, none, served.caches)
    for value in (-2, PAGES, (1 << 31) - 1):
        for place in (0, 1):
            copies = [none.copy(), none.copy()]
            copies[place][0, 1] = value
            with pytest.raises(RelaxError, match=f"got {value} at") as caught:
                served.vm["copy_pages"](*copies, served.caches)
            assert caught.value.code == "index-range"


def test_a_step_of_nothing(served: Served) -> None:
    served.start()
    assert served.run({}).shape == (0, TINY.vocab_size)
    empty = served.vm["alloc_pages"](0)
    batch = PageBook(1, served.config.page_size).batch({})
    assert served.vm["step"](*batch.arguments, empty).shape == (0, TINY.vocab_size)


def test_frequencies_by_length_are_refused() -> None:
    """The angles of a token would depend on the longest sequence of the step."""
    config = dataclasses.replace(TINY, rope=Rope(scaling=DynamicScaling(2.0, 64)))
    with pytest.raises(UsageError, match=r"rope_type dynamic\) depends on the length") as caught:
        Llama(config).export(step_spec(config))
    assert caught.value.code == "bad-config"


def test_a_cache_dtype_that_is_refused() -> None:
    with pytest.raises(UsageError, match="neither that of the model"):
        dataclasses.replace(TINY, cache_dtype="float16")
