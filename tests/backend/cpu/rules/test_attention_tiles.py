"""Attention by tiles against the operator's reference: masks, biases, lengths around blocks, and values that are not
seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from relaxpy.backend.cpu.rules.attention_access import Access
from relaxpy.backend.cpu.rules.attention_tile_writer import GROUP, tiles_of
from relaxpy.backend.cpu.rules.attention_tiles import BLOCK, LANES
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.op.attention import Attention
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.recognise.attention import attention_of
from tests.backend.cpu.rules.test_attention import Case, reference
from tests.backend.cpu.tile_places import PLACES, tiles_at
from tests.sweeps import FULL, sweep

SERVER = CpuTarget.read("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=sapphirerapids")
B = "bfloat16"
CASES = {
    "plain": Case(3, 3, 32, 64, dtype=B),
    "shared": Case(6, 2, 64, 32, Attention(scale=0.3), dtype=B),
    "larger scale": Case(2, 2, 32, 32, Attention(scale=2.5), dtype=B),
    "negative scale": Case(2, 1, 32, 32, Attention(scale=-0.3), dtype=B),
    "top left": Case(2, 2, 64, 64, Attention(causal_mask="TopLeft"), dtype=B),
    "bottom right": Case(8, 1, 96, 32, Attention(causal_mask="BottomRight"), dtype=B),
    "window": Case(2, 1, 32, 32, Attention(causal_mask="TopLeft", window_size=5), dtype=B),
    "wide window": Case(2, 1, 32, 64, Attention(causal_mask="TopLeft", window_size=100), dtype=B),
    "bias by key": Case(2, 2, 32, 32, bias=("b", 1, 1, "t"), dtype=B),
    "bias by query": Case(4, 2, 32, 32, Attention(causal_mask="TopLeft"), ("b", 1, "s", "t"), B),
    "bias by head": Case(2, 2, 32, 32, bias=(1, 2, 1, "t"), dtype=B),
}
LENGTHS = (
    (0, 3),
    (3, 0),
    (1, 1),
    (1, BLOCK + 37),
    (9, 1),
    (20, 31),
    (33, 64),
    (70, 131),
    (300, 290),
    (130, BLOCK + 5),
)


@pytest.fixture(scope="module", params=PLACES)
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """All cases, for emulated tiles quickly compiled."""
    with tiles_at(str(request.param)) as target:
        if request.param == "emulated":
            target = replace(target, opt_level=0)
        programs = {name.replace(" ", "_"): case.program() for name, case in CASES.items()}
        yield Kernels(programs, target)


def run(kernels: Kernels, name: str, inputs: list[np.ndarray]) -> np.ndarray:
    out = np.full((*inputs[0].shape[:3], inputs[2].shape[3]), 77, inputs[0].dtype)
    kernels.run(name.replace(" ", "_"), inputs, [out])
    return out.astype(np.float32)


def agrees(kernels: Kernels, name: str, inputs: list[np.ndarray]) -> None:
    """Powers and results are rounded to bfloat16."""
    exact = reference(CASES[name], [each.astype(np.float32) for each in inputs])
    np.testing.assert_allclose(run(kernels, name, inputs), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("mcpu", ["sapphirerapids", "znver4"])
def test_which_programs_it_takes(mcpu: str) -> None:
    target = CpuTarget.read(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={mcpu}")

    def takes(case: Case) -> bool:
        func = case.program().func
        assert schedule_kernel(func, target).rule == "attention"
        form = attention_of(func)
        assert form is not None
        return tiles_of(Access(form, target), target) is not None

    assert all(takes(case) is (mcpu == "sapphirerapids") for case in CASES.values())
    assert not takes(Case(2, 2, 48, 32, dtype=B))
    assert not takes(Case(2, 2, 32, 32, dtype="float16"))


@sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_every_length(kernels: Kernels, name: str) -> None:
    """Each with one number of images; with several, too, in a full run."""
    for number, (queries, keys) in enumerate(LENGTHS):
        for batch in (1, 3) if FULL else (1 + 2 * (number % 2),):
            agrees(kernels, name, CASES[name].inputs(b=batch, s=queries, t=keys))


def test_nothing_seen_gives_zero(kernels: Kernels) -> None:
    inputs = CASES["window"].inputs(b=1, s=40, t=3)
    assert (run(kernels, "window", inputs)[:, 8:] == 0).all()
    agrees(kernels, "window", inputs)
    *inputs, bias = CASES["bias by key"].inputs(b=2, s=40, t=70)
    bias[0] = -np.inf
    bias[1, ..., 3:] = -np.inf
    assert (run(kernels, "bias by key", [*inputs, bias])[0] == 0).all()
    agrees(kernels, "bias by key", [*inputs, bias])


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["top left", "bottom right", "window"])
def test_what_is_not_seen_takes_no_part(kernels: Kernels, name: str, wrong: float) -> None:
    """Infinities and NaN behind the mask, in a block that others see; those before it are not lost."""
    size = 2 * LANES + 3
    inputs = CASES[name].inputs(b=1, s=size, t=size)
    clean = run(kernels, name, inputs)
    at = LANES + 7
    inputs[2][:, at] = wrong
    result = run(kernels, name, inputs)
    assert np.isfinite(result[:, :at]).all()
    np.testing.assert_allclose(result[:, :at], clean[:, :at], rtol=2e-2, atol=2e-2)
    assert not np.isfinite(result[:, at : at + 5]).any()
    after = result[:, at + 5 :]
    assert np.isfinite(after).all() if name == "window" else not np.isfinite(after).any()
    inputs[1][:, at] = np.nan
    assert np.isnan(run(kernels, name, inputs)[:, at]).all()


def test_scores_far_apart_do_not_overflow(kernels: Kernels) -> None:
    """The largest score may come last, and be much larger."""
    query, key, value = CASES["plain"].inputs(b=1, s=40, t=2 * BLOCK + 10)
    query *= 30
    key *= np.linspace(1, 40, key.shape[1])[:, None, None].astype(key.dtype)
    agrees(kernels, "plain", [query, key, value])


def test_the_largest_scores_may_be_very_large(kernels: Kernels) -> None:
    """Exponents of 2 in the millions, of both signs: weights are of differences, and nothing overflows."""
    query, key, value = CASES["plain"].inputs(b=1, s=40, t=50)
    key[...] = np.linspace(1, 2, 50)[None, :, None, None]
    for factor in (1e6, -1e6):
        query[...] = factor
        agrees(kernels, "plain", [query, key, value])


def test_a_query_does_not_depend_on_others(kernels: Kernels) -> None:
    """The same bits among other queries, in another part and another task, wherever the blocks of keys begin alike."""
    query, key, value = CASES["plain"].inputs(b=1, s=700, t=300)
    every = run(kernels, "plain", [query, key, value])
    for start, count in ((0, 9), (5, GROUP), (33, 100), (400, 300)):
        some = run(kernels, "plain", [query[:, start : start + count].copy(), key, value])
        np.testing.assert_array_equal(some, every[:, start : start + count])


def test_all_keys_masked_as_far_as_numbers_go(kernels: Kernels) -> None:
    """Masks may add the lowest number of a dtype, and mask all keys of a sequence: their scores are still compared."""
    *inputs, bias = CASES["bias by key"].inputs(b=2, s=40, t=70)
    bias[0], bias[1, ..., 3:] = float(ml_dtypes.finfo(bias.dtype).min), -1e30
    agrees(kernels, "bias by key", [*inputs, bias])
