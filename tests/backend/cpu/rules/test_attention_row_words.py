"""Attention of few lanes by dot products of bfloat16 against the operator's reference: how many heads share keys,
lengths around tiles and blocks, masks, biases, and values that are infinite."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relaxpy.backend.cpu.rules.attention_access import Access
from relaxpy.backend.cpu.rules.attention_row_words import BLOCK, SUMS, has_row_words_program
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.op.attention import Attention
from relaxpy.testing.guard_pages import guarded, status_in_child
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.recognise.attention import attention_of
from tests.backend.cpu.rules.test_attention import Case
from tests.backend.cpu.words import SERIAL, B, agrees, run, words_kernels

BOTTOM = Attention(causal_mask="BottomRight")
CASES = {
    "one": Case(3, 3, 64, 32, dtype=B),
    "two": Case(4, 2, 32, 64, Attention(scale=2.5), dtype=B),
    "three": Case(6, 2, 96, 32, BOTTOM, dtype=B),
    "four": Case(8, 2, 128, 128, BOTTOM, dtype=B),
    "eight": Case(16, 2, 64, 64, dtype=B),
    "many columns": Case(5, 1, 32, 160, BOTTOM, dtype=B),
    "window": Case(2, 1, 32, 32, Attention(causal_mask="BottomRight", window_size=70), dtype=B),
    "negative scale": Case(8, 1, 32, 32, Attention(scale=-0.3), dtype=B),
    "bias by key": Case(8, 2, 32, 32, bias=("b", 1, 1, "t"), dtype=B),
    "bias by head": Case(4, 2, 32, 32, bias=(1, 4, 1, "t"), dtype=B),
}
LENGTHS = (0, 1, 2, SUMS // 2 + 1, SUMS + 7, 100, BLOCK - 1, BLOCK + 1, 2 * BLOCK + 16, 777)


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return words_kernels(CASES, "eight")


def test_which_programs_it_takes() -> None:
    def takes(case: Case, mcpu: str = "znver4") -> bool:
        target = CpuTarget.read(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={mcpu}")
        form = attention_of(case.program().func)
        assert form is not None
        return has_row_words_program(Access(form, target), target)

    assert all(takes(case) for case in CASES.values())
    assert not any(takes(CASES["eight"], mcpu) for mcpu in ("emeraldrapids", "skylake-avx512"))
    assert not takes(Case(2, 2, 48, 32, dtype=B))
    assert not takes(Case(2, 2, 32, 32, dtype="float16"))


@pytest.mark.parametrize("name", CASES)
def test_every_length(kernels: Kernels, name: str) -> None:
    """Of one query; and of two, which may be another program's."""
    for number, keys in enumerate(LENGTHS):
        agrees(kernels, name, CASES[name], CASES[name].inputs(b=1 + number % 2, s=1, t=keys))
    agrees(kernels, name, CASES[name], CASES[name].inputs(b=1, s=2, t=70))


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_infinite_values_stay_in_their_columns(kernels: Kernels, wrong: float) -> None:
    """The last key among them, which no other completes to a word."""
    case, keys = CASES["four"], BLOCK + 5
    inputs = case.inputs(b=2, s=1, t=keys)
    inputs[2][0, 3, 0, 4], inputs[2][0, keys - 1, 1, 9] = wrong, wrong
    result = run(kernels, "four", inputs)
    assert not np.isfinite(result[0, 0, :4, 4]).any()
    assert not np.isfinite(result[0, 0, 4:, 9]).any()
    assert (~np.isfinite(result)).sum() == 8


def test_what_is_not_seen_takes_no_part(kernels: Kernels) -> None:
    """Infinities and NaN before the window."""
    keys = BLOCK + 100
    inputs = CASES["window"].inputs(b=1, s=1, t=keys)
    clean = run(kernels, "window", inputs)
    inputs[1][:, : keys - 70], inputs[2][:, : keys - 70] = np.nan, np.inf
    np.testing.assert_array_equal(run(kernels, "window", inputs), clean)


def test_wrong_keys_spoil_their_results(kernels: Kernels) -> None:
    inputs = CASES["eight"].inputs(b=2, s=1, t=BLOCK + 40)
    inputs[1][0, BLOCK + 39, 0, 5] = np.nan
    result = run(kernels, "eight", inputs)
    assert np.isnan(result[0, 0, :8]).all()
    assert np.isfinite(result[0, 0, 8:]).all()
    assert np.isfinite(result[1]).all()


def test_nothing_seen_gives_zero(kernels: Kernels) -> None:
    *inputs, bias = CASES["bias by key"].inputs(b=2, s=1, t=70)
    bias[0], bias[1, ..., 3:] = -np.inf, -np.inf
    assert (run(kernels, "bias by key", [*inputs, bias])[0] == 0).all()
    agrees(kernels, "bias by key", CASES["bias by key"], [*inputs, bias])


def test_scores_far_apart_do_not_overflow(kernels: Kernels) -> None:
    """The largest score may come last, and be much larger."""
    query, key, value = CASES["eight"].inputs(b=1, s=1, t=3 * BLOCK + 10)
    query *= 30
    key *= np.linspace(1, 40, key.shape[1])[:, None, None].astype(key.dtype)
    agrees(kernels, "eight", CASES["eight"], [query, key, value])


@pytest.mark.parametrize("keys", [5, BLOCK + 33])
def test_it_reads_no_keys_that_do_not_exist(kernels: Kernels, keys: int) -> None:
    """On one thread: a forked process has no others."""
    inputs = [guarded(each) for each in CASES["eight"].inputs(b=1, s=1, t=keys)]
    assert status_in_child(lambda: run(kernels, SERIAL, inputs)) == 0


def test_all_keys_masked_as_far_as_numbers_go(kernels: Kernels) -> None:
    """Masks may add the lowest number of a dtype, and mask all keys of a sequence: their scores are still compared."""
    *inputs, bias = CASES["bias by key"].inputs(b=2, s=1, t=70)
    bias[0], bias[1, ..., 3:] = float(ml_dtypes.finfo(bias.dtype).min), -1e30
    agrees(kernels, "bias by key", CASES["bias by key"], [*inputs, bias])
