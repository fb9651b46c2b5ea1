"""Attention of one query by tiles in place against the operator's reference: how many heads share keys, lengths around
tiles and blocks, masks, results of other types, and values that are infinite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relaxpy.backend.cpu.rules.attention_access import Access
from relaxpy.backend.cpu.rules.attention_in_place import BLOCK, has_in_place_program
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.annotation import TensorType
from relaxpy.op import te
from relaxpy.op.attention import Attention
from relaxpy.testing.guard_pages import guarded, status_in_child
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.attention import attention_of
from tests.backend.cpu.rules.test_attention import Case, reference
from tests.backend.cpu.tile_places import PLACES, tiles_at
from tests.sweeps import FULL, sweep

SERVER = CpuTarget.read("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=sapphirerapids")
B = "bfloat16"
BOTTOM = Attention(causal_mask="BottomRight")


@dataclass(frozen=True)
class One(Case):
    """With one query, which the program knows."""

    def shapes(self, values: Mapping[str, int] | None = None) -> list[tuple[Any, ...]]:
        query, *others = super().shapes(None if values is None else {**values, "s": 1})
        return [(query[0], 1, *query[2:]), *others]


@dataclass(frozen=True)
class Wide(Case):
    """With results in float32: twice the attention."""

    def program(self) -> PrimFunc:
        shapes = self.shapes()
        names = ("query", "key", "value")
        inputs = [te.placeholder(s, self.dtype, n) for s, n in zip(shapes, names, strict=True)]
        dims, (query, key, value) = (*shapes[0][:3], shapes[2][3]), inputs
        made: te.Tensor = self.op.legalize(TensorType(dims, self.dtype), query, key, value, None)

        def twice(b: Any, i: Any, h: Any, c: Any) -> Any:
            return te.cast(te.element(made(b, i, h, c)), "float32") * te.const(2, "float32")

        return PrimFunc.from_te(inputs, [te.compute(dims, twice, "twice")])


CASES = {
    "three": Case(9, 3, 64, 32, dtype=B),
    "four": Case(8, 2, 32, 96, Attention(scale=2.5), dtype=B),
    "five": Case(10, 2, 96, 64, BOTTOM, dtype=B),
    "seven": One(14, 2, 64, 64, BOTTOM, dtype=B),
    "eight": Case(16, 2, 64, 64, dtype=B),
    "eight of 128": One(16, 2, 128, 128, BOTTOM, dtype=B),
    "many columns": Case(16, 2, 32, 256, dtype=B),
    "great depth": Case(12, 2, 256, 32, BOTTOM, dtype=B),
    "nine": Case(18, 2, 64, 96, BOTTOM, dtype=B),
    "sixteen": One(32, 2, 64, 64, dtype=B),
    "top left": Case(16, 2, 64, 64, Attention(causal_mask="TopLeft"), dtype=B),
    "window": Case(10, 2, 64, 64, replace(BOTTOM, window_size=BLOCK + 70), dtype=B),
    "negative scale": Case(12, 2, 64, 64, Attention(scale=-0.3), dtype=B),
    "bias by key": Case(16, 2, 64, 64, bias=("b", 1, 1, "t"), dtype=B),
    "wide result": Wide(16, 2, 64, 64, BOTTOM, dtype=B),
}
SERIAL = "eight_serial"
LENGTHS = (0, 1, 15, 16, 17, 100, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 16, 1000)


@pytest.fixture(scope="module", params=PLACES)
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """All cases, for emulated tiles quickly compiled."""
    with tiles_at(str(request.param)) as target:
        if request.param == "emulated":
            target = replace(target, opt_level=0)
        programs: dict[str, PrimFunc] = {}
        for name, case in CASES.items():
            scheduled = schedule_kernel(case.program().func, target)
            assert scheduled.rule == "attention"
            programs[name.replace(" ", "_")] = PrimFunc(scheduled.parallel)
            if name == "eight":
                programs[SERIAL] = PrimFunc(scheduled.serial)
        yield Kernels(programs, target, schedule=False)


def run(kernels: Kernels, name: str, inputs: list[np.ndarray]) -> np.ndarray:
    dtype = np.float32 if name == "wide result" else inputs[0].dtype
    out = np.full((*inputs[0].shape[:3], inputs[2].shape[3]), 77, dtype)
    kernels.run(name.replace(" ", "_"), inputs, [out])
    return out.astype(np.float32) / (2 if name == "wide result" else 1)


def agrees(kernels: Kernels, name: str, inputs: list[np.ndarray]) -> None:
    """Powers and results are rounded to bfloat16."""
    exact = reference(CASES[name], [each.astype(np.float32) for each in inputs])
    np.testing.assert_allclose(run(kernels, name, inputs), exact, rtol=2e-2, atol=2e-2)


def takes(case: Case) -> bool:
    form = attention_of(case.program().func)
    assert form is not None
    return has_in_place_program(Access(form, SERVER))


def test_which_programs_it_takes() -> None:
    """Scores of a query's own heads, too many heads, few that are wide, and masks by head are left to others."""
    assert all(takes(case) for case in CASES.values())
    assert not takes(Case(8, 2, 32, 32, bias=("b", 8, 1, "t"), dtype=B))
    assert not takes(Case(34, 2, 32, 32, dtype=B))
    assert not takes(Case(4, 2, 32, 32, dtype=B))
    assert not takes(Case(8, 2, 64, 128, dtype=B))


@sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_every_length(kernels: Kernels, name: str) -> None:
    """Of one query; and of two, which may be another program's."""
    for number, keys in enumerate(LENGTHS):
        for batch in (1, 3) if FULL else (1 + 2 * (number % 2),):
            agrees(kernels, name, CASES[name].inputs(b=batch, s=1, t=keys))
    agrees(kernels, name, CASES[name].inputs(b=1, s=2, t=70))


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["four", "eight", "sixteen"])
def test_infinite_values_stay_in_their_columns(kernels: Kernels, name: str, wrong: float) -> None:
    """Each in a block of its own, an even column and an odd one."""
    inputs = CASES[name].inputs(b=2, s=1, t=2 * BLOCK + 5)
    inputs[2][0, 3, 0, 4] = wrong
    inputs[2][0, BLOCK + 50, 0, 9] = wrong
    result = run(kernels, name, inputs)
    exact = reference(CASES[name], [each.astype(np.float32) for each in inputs])
    sharing = inputs[0].shape[2] // inputs[2].shape[2]
    np.testing.assert_array_equal(np.isfinite(result), np.isfinite(exact))
    assert (~np.isfinite(result)).sum() == 2 * sharing
    np.testing.assert_allclose(result, exact, rtol=2e-2, atol=2e-2)


def test_what_is_not_seen_takes_no_part(kernels: Kernels) -> None:
    """Infinities and NaN before the window, and after the mask."""
    keys = 2 * BLOCK + 100
    inputs = CASES["window"].inputs(b=1, s=1, t=keys)
    clean = run(kernels, "window", inputs)
    inputs[1][:, : keys - BLOCK - 70] = np.nan
    inputs[2][:, : keys - BLOCK - 70] = np.inf
    np.testing.assert_array_equal(run(kernels, "window", inputs), clean)
    inputs = CASES["top left"].inputs(b=1, s=1, t=keys)
    clean = run(kernels, "top left", inputs)
    inputs[1][:, 1:], inputs[2][:, 1:] = np.nan, np.nan
    np.testing.assert_array_equal(run(kernels, "top left", inputs), clean)


def test_wrong_keys_spoil_the_result(kernels: Kernels) -> None:
    inputs = CASES["eight"].inputs(b=2, s=1, t=BLOCK + 40)
    inputs[1][0, BLOCK + 3, 0, 5] = np.nan
    result = run(kernels, "eight", inputs)
    assert np.isnan(result[0, 0, :8]).all()
    assert np.isfinite(result[0, 0, 8:]).all()
    assert np.isfinite(result[1]).all()


def test_nothing_seen_gives_zero(kernels: Kernels) -> None:
    *inputs, bias = CASES["bias by key"].inputs(b=2, s=1, t=70)
    bias[0] = -np.inf
    bias[1, ..., 3:] = -np.inf
    assert (run(kernels, "bias by key", [*inputs, bias])[0] == 0).all()
    agrees(kernels, "bias by key", [*inputs, bias])


def test_scores_far_apart_do_not_overflow(kernels: Kernels) -> None:
    """The largest score may come last, and be much larger."""
    query, key, value = CASES["eight"].inputs(b=1, s=1, t=3 * BLOCK + 10)
    query *= 30
    key *= np.linspace(1, 40, key.shape[1])[:, None, None].astype(key.dtype)
    agrees(kernels, "eight", [query, key, value])


@pytest.mark.parametrize("keys", [5, 16, BLOCK + 33])
def test_it_reads_no_keys_that_do_not_exist(kernels: Kernels, keys: int) -> None:
    """On one thread: a forked process has no others."""
    inputs = [guarded(each) for each in CASES["eight"].inputs(b=1, s=1, t=keys)]
    assert status_in_child(lambda: run(kernels, SERIAL, inputs)) == 0


def test_an_image_does_not_depend_on_others(kernels: Kernels) -> None:
    """The same bits beside others, on any thread."""
    query, key, value = CASES["eight"].inputs(b=5, s=1, t=300)
    every = run(kernels, "eight", [query, key, value])
    np.testing.assert_array_equal(run(kernels, SERIAL, [query, key, value]), every)
    for n in range(5):
        own = [each[n : n + 1].copy() for each in (query, key, value)]
        np.testing.assert_array_equal(run(kernels, "eight", own)[0], every[n])


def test_all_keys_masked_as_far_as_numbers_go(kernels: Kernels) -> None:
    """Masks may add the lowest number of a dtype, and mask all keys of a sequence: their scores are still compared."""
    *inputs, bias = CASES["bias by key"].inputs(b=2, s=1, t=70)
    bias[0], bias[1, ..., 3:] = float(ml_dtypes.finfo(bias.dtype).min), -1e30
    agrees(kernels, "bias by key", [*inputs, bias])
