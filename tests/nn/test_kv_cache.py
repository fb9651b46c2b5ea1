"""Caches of keys and values, updated in the caller's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.nn import op
from relaxpy.testing.interpret import interpret
from tests.sweeps import quick_target


class Attention(nn.Module):
    def step(self, q: nn.Tensor, k: nn.Tensor, v: nn.Tensor, cache: Any, past: Any) -> Any:
        keys, values = nn.KVCache(*cache, past).append(k, v)
        return op.nn.attention(q, keys, values, causal_mask="BottomRight")

    def full(self, q: nn.Tensor, k: nn.Tensor, v: nn.Tensor) -> Any:
        return op.nn.attention(q, k, v, causal_mask="BottomRight")


NEW = nn.spec.Tensor(("b", "s", 2, 8))
SPEC = {
    "step": {
        "q": nn.spec.Tensor(("b", "s", 4, 8)),
        "k": NEW,
        "v": NEW,
        "cache": nn.KVCache.spec("b", "capacity", 2, 8),
        "past": nn.spec.Int(),
    },
    "full": {"q": nn.spec.Tensor(("b", "s", 4, 8)), "k": NEW, "v": NEW},
}


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


@pytest.fixture(scope="module")
def exported() -> Any:
    mod, _ = Attention().export(SPEC)
    relaxpy.assert_structural_equal(relaxpy.parse(mod.script()), mod)
    return mod, relaxpy.VirtualMachine(relaxpy.build(mod, quick_target()))


def test_steps_give_what_all_tokens_give_at_once(exported: Any) -> None:
    mod, vm = exported
    q, k, v = random(2, 6, 4, 8), random(2, 6, 2, 8), random(2, 7, 2, 8)[:, :6].copy()
    expected = vm["full"](q, k, v).numpy()
    cache = np.full((2, 9, 2, 8), 9, np.float32), np.full((2, 9, 2, 8), 9, np.float32)
    for begin, end in ((0, 3), (3, 4), (4, 6)):
        part = [np.ascontiguousarray(x[:, begin:end]) for x in (q, k, v)]
        if begin == 3:
            copies = tuple(x.copy() for x in cache)
            found = interpret(mod, "step", *part, copies, begin)
            np.testing.assert_allclose(found, expected[:, begin:end], atol=1e-5)
        found = vm["step"](*part, cache, begin).numpy()
        np.testing.assert_allclose(found, expected[:, begin:end], atol=1e-5)
    np.testing.assert_array_equal(cache[0][:, :6], k)
    np.testing.assert_array_equal(cache[1][:, :6], v)
    assert (cache[0][:, 6:] == 9).all(), "what is not filled stays"


@pytest.mark.parametrize("past", [8, 9, -1, 2**40])
def test_tokens_that_do_not_fit_are_an_error_of_the_call(exported: Any, past: int) -> None:
    _, vm = exported
    q, new = random(1, 2, 4, 8), random(1, 2, 2, 8)
    cache = np.zeros((1, 9, 2, 8), np.float32), np.zeros((1, 9, 2, 8), np.float32)
    with pytest.raises(relaxpy.RelaxError):
        vm["step"](q, new, new, cache, past)
    assert not cache[0].any()


def test_the_module_is_impure_and_takes_the_cache(exported: Any) -> None:
    mod, _ = exported
    assert not mod["step"].pure
    assert mod["full"].pure


class Updates(nn.Module):
    def __init__(self, *args: Any, **options: Any) -> None:
        self.args, self.options = args, options

    def forward(self, x: nn.Tensor, y: nn.Tensor) -> Any:
        return nn.update_slice(x, y, *self.args, **self.options)


@pytest.mark.parametrize(
    ("x", "y", "args", "told"),
    [
        (("n", 4), ("k",), (0,), "value has 1 axes, x has 2"),
        (("n", 4), ("k", 5), (0,), "axis 1 has 4 elements in x, 5"),
        ((3, 4), (2, 4), (2,), "indices 2 to 4 are out of range for axis 0"),
        (("n", 4), (2, 4), (-1,), "indices -1 to 1"),
        (("n", 4), ("k", 4), (0, 2), "axis 2 of a tensor with 2 axes"),
    ],
)
def test_updates_that_cannot_fit(x: Any, y: Any, args: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        Updates(*args).export({"forward": {"x": nn.spec.Tensor(x), "y": nn.spec.Tensor(y)}})
    assert caught.value.span is not None
    assert caught.value.span.file == __file__


def test_a_dtype_is_not_cast() -> None:
    spec = {"x": nn.spec.Tensor((3,), "float16"), "y": nn.spec.Tensor((1,))}
    with pytest.raises(UsageError, match=r'op\.astype\(value, "float16"\)'):
        Updates(0).export({"forward": spec})


def test_what_is_no_cache() -> None:
    with pytest.raises(UsageError, match="the keys of a cache"):
        nn.KVCache(1, 2, 0)  # type: ignore[arg-type]
