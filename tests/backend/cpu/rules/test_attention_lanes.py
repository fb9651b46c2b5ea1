"""Attention of many lanes by dot products of bfloat16 against the operator's reference: widths that are no words,
masks, biases, lengths around tiles and blocks, and values that are not seen."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy import parse
from relaxpy.backend.cpu.rules.attention_access import Access
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.op.attention import Attention
from relaxpy.testing.guard_pages import guarded, status_in_child
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.recognise.attention import attention_of
from tests.backend.cpu.rules.test_attention import Case, reference
from tests.backend.cpu.words import SERIAL, B, agrees, run, words_kernels, words_target

TOP, BOTTOM = (Attention(causal_mask=each) for each in ("TopLeft", "BottomRight"))
CASES = {
    "plain": Case(3, 3, 32, 64, dtype=B),
    "shared": Case(6, 2, 64, 32, Attention(scale=2.5), dtype=B),
    "odd widths": Case(2, 2, 5, 19, BOTTOM, dtype=B),
    "even width": Case(2, 1, 6, 7, TOP, dtype=B),
    "nine share": Case(18, 2, 16, 16, BOTTOM, dtype=B),
    "window": Case(2, 1, 32, 32, Attention(causal_mask="TopLeft", window_size=5), dtype=B),
    "wide window": Case(2, 1, 32, 64, Attention(causal_mask="TopLeft", window_size=100), dtype=B),
    "negative scale": Case(2, 1, 32, 32, Attention(scale=-0.3), dtype=B),
    "bias by key": Case(2, 2, 32, 32, bias=("b", 1, 1, "t"), dtype=B),
    "bias by query": Case(4, 2, 32, 32, TOP, ("b", 1, "s", "t"), B),
}
LENGTHS = ((0, 3), (9, 0), (9, 1), (17, 65), (20, 31), (40, 129), (70, 131))


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return words_kernels(CASES, "nine share")


def test_which_factors_are_words() -> None:
    def groups(name: str, mcpu: str) -> tuple[int, int]:
        form = attention_of(CASES[name].program().func)
        assert form is not None
        target = CpuTarget.read(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={mcpu}")
        access = Access(form, target)
        return access.scoring.group, access.weighing.group

    assert groups("plain", "znver4") == groups("even width", "znver4") == (2, 2)
    assert groups("odd widths", "znver4") == (1, 2)
    assert groups("plain", "emeraldrapids") == groups("plain", "haswell") == (1, 1)


@pytest.mark.parametrize("name", CASES)
def test_every_length(kernels: Kernels, name: str) -> None:
    for number, (queries, keys) in enumerate(LENGTHS):
        inputs = CASES[name].inputs(b=1 + number % 2, s=queries, t=keys)
        agrees(kernels, name, CASES[name], inputs)


def test_nothing_seen_gives_zero(kernels: Kernels) -> None:
    inputs = CASES["window"].inputs(b=1, s=40, t=3)
    assert (run(kernels, "window", inputs)[:, 8:] == 0).all()
    *inputs, bias = CASES["bias by key"].inputs(b=2, s=40, t=70)
    bias[0], bias[1, ..., 3:] = -np.inf, -np.inf
    assert (run(kernels, "bias by key", [*inputs, bias])[0] == 0).all()
    agrees(kernels, "bias by key", CASES["bias by key"], [*inputs, bias])


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("at", [38, 39])
@pytest.mark.parametrize("name", ["even width", "nine share", "window"])
def test_what_is_not_seen_takes_no_part(kernels: Kernels, name: str, at: int, wrong: float) -> None:
    """Infinities and NaN behind the mask, in a word with a key that others see; those before it are not lost."""
    inputs = CASES[name].inputs(b=1, s=67, t=67)
    clean = run(kernels, name, inputs)
    inputs[2][:, at] = wrong
    result = run(kernels, name, inputs)
    np.testing.assert_allclose(result[:, :at], clean[:, :at], rtol=1e-2, atol=1e-2)
    assert not np.isfinite(result[:, at : at + 5]).any()
    after = result[:, at + 5 :]
    assert np.isfinite(after).all() if name == "window" else not np.isfinite(after).any()
    inputs[1][:, at] = np.nan
    spoiled = run(kernels, name, inputs)
    assert np.isnan(spoiled[:, at]).all()
    np.testing.assert_allclose(spoiled[:, :at], clean[:, :at], rtol=1e-2, atol=1e-2)


def test_scores_far_apart_do_not_overflow(kernels: Kernels) -> None:
    """The largest score may come last, and be much larger."""
    query, key, value = CASES["plain"].inputs(b=1, s=40, t=150)
    query *= 30
    key *= np.linspace(1, 40, key.shape[1])[:, None, None].astype(key.dtype)
    agrees(kernels, "plain", CASES["plain"], [query, key, value])


def test_the_largest_scores_may_be_very_large(kernels: Kernels) -> None:
    """Exponents of 2 in the millions, of both signs: weights are of differences, and nothing overflows."""
    query, key, value = CASES["plain"].inputs(b=1, s=40, t=50)
    key[...] = np.linspace(1, 2, 50)[None, :, None, None]
    for factor in (1e6, -1e6):
        query[...] = factor
        agrees(kernels, "plain", CASES["plain"], [query, key, value])


@pytest.mark.parametrize("keys", [5, 97])
def test_it_reads_no_keys_that_do_not_exist(kernels: Kernels, keys: int) -> None:
    """On one thread: a forked process has no others."""
    inputs = [guarded(each) for each in CASES["nine share"].inputs(b=1, s=5, t=keys)]
    assert status_in_child(lambda: run(kernels, SERIAL, inputs)) == 0


def test_powers_are_not_rounded_where_results_are_not() -> None:
    """Products are of words, and errors those of float32."""
    mod = parse("""
@R.function
def main(q: R.Tensor(("s", "t", 2, 16), "bfloat16"), k: R.Tensor(("s", "u", 2, 16), "bfloat16")):
    with R.dataflow():
        w = R.astype(q, "float32")
        v = R.astype(k, "float32")
        y = R.nn.attention(w, v, v, causal_mask="BottomRight")
        R.output(y)
    return y
""")
    main = relaxpy.VirtualMachine(relaxpy.build(mod, words_target()))["main"]
    case = Case(2, 2, 16, 16, BOTTOM, dtype=B)
    query, key, _ = case.inputs(b=1, s=40, t=67)
    wide = [each.astype(np.float64) for each in (query, key, key)]
    np.testing.assert_allclose(main(query, key).numpy(), reference(case, wide), atol=2e-6)


def test_a_query_does_not_depend_on_others(kernels: Kernels) -> None:
    """The same bits among other queries, in another task."""
    query, key, value = CASES["plain"].inputs(b=1, s=100, t=200)
    every = run(kernels, "plain", [query, key, value])
    for start, count in ((0, 9), (33, 60)):
        some = run(kernels, "plain", [query[:, start : start + count].copy(), key, value])
        np.testing.assert_array_equal(some, every[:, start : start + count])


def test_all_keys_masked_as_far_as_numbers_go(kernels: Kernels) -> None:
    """Masks may add the lowest number of a dtype, and mask all keys of a sequence: their scores are still compared."""
    *inputs, bias = CASES["bias by key"].inputs(b=2, s=40, t=70)
    bias[0], bias[1, ..., 3:] = float(ml_dtypes.finfo(bias.dtype).min), -1e30
    agrees(kernels, "bias by key", CASES["bias by key"], [*inputs, bias])
