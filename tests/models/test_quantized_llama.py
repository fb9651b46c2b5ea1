"""A quantised Llama: with its weights alone it is the float model of the rounded weights, to the bit; the drift of its
logits under each scheme."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cpu.dots import Dots
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.models.llama import TINY, Llama, spec
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.target import Target
from relaxpy.transform import QuantizeWeights
from tests.sweeps import full, quick_target

CONFIG = dataclasses.replace(TINY, hidden_size=64, intermediate_size=128)
DRIFTS = {
    "int8": (WeightScheme(8, 32), None, 0.03),
    "int4": (WeightScheme(4, 32), None, 0.4),
    "int4, minimums": (WeightScheme(4, 32, "minimum"), None, 0.4),
    "int4, zero points": (WeightScheme(4, 32, "zero_point"), None, 0.4),
    "int3, minimums": (WeightScheme(3, 40, "minimum"), None, 0.8),
    "int4, int8 activations": (WeightScheme(4, 32), 32, 0.4),
}
"""Weights and activations, and a bound of the largest difference to float32's logits, over the largest logit."""


@cache
def model() -> tuple[Any, dict[str, np.ndarray]]:
    """The function `logits`, and random weights such that the residual stream has about the size of what is added."""
    mod, _ = Llama(CONFIG).export({"logits": spec(CONFIG)["logits"]})
    random = np.random.default_rng(0)
    params: dict[str, np.ndarray] = {}
    function: Any = mod["logits"]
    for param in function.params[function.attrs["num_input"] :]:
        shape = [dim.value for dim in param.annotation.dims]
        noise = random.standard_normal(shape, dtype=np.float32)
        if "norm" in param.name:
            params[param.name] = 1 + noise / 8
        else:
            size = 1 if "embedding" in param.name else shape[-1]
            params[param.name] = noise / np.float32(size**0.5)
    return mod, params


@cache
def floats() -> relaxpy.VirtualMachine:
    """The float model of any weights."""
    return relaxpy.VirtualMachine(relaxpy.build(model()[0], quick_target()))


def ids() -> np.ndarray:
    return np.random.default_rng(1).integers(0, CONFIG.vocab_size, (2, 9))


def float_logits(params: dict[str, np.ndarray]) -> np.ndarray:
    return floats()["logits"](ids(), *params.values()).numpy()


def rounded(step: QuantizeWeights) -> dict[str, np.ndarray]:
    """The weights that the codes mean."""
    mod, params = model()
    parts = step.quantized_params(mod, params)

    def of(name: str, weight: np.ndarray) -> np.ndarray:
        if name in parts:
            return weight
        start = f"{name}_"
        own = {key.removeprefix(start): p for key, p in parts.items() if key.startswith(start)}
        return step.scheme.dequantize(own, 1, weight.shape[1])

    return {name: of(name, weight) for name, weight in params.items()}


def logits(step: QuantizeWeights, rules: list[str | None] | None = None) -> np.ndarray:
    """The logits of the model as the step makes it; `rules` takes those of its kernels."""
    mod, params = model()
    seen: dict[str, Any] = {}
    exe = relaxpy.build(
        step(mod),
        quick_target(),
        params=step.quantized_params(mod, params),
        instruments=[lambda _n, each, _b, after: seen.update({each.name: after})],
    )
    if rules is not None:
        target = Target.parse("llvm")
        programs = seen["pack-weights"].prim_funcs.values()
        rules += [schedule_kernel(each.func, target).rule for each in programs]
    return relaxpy.VirtualMachine(exe)["logits"](ids()).numpy()


def drift(found: np.ndarray, want: np.ndarray) -> float:
    """The largest difference, over the largest logit."""
    return float(np.abs(found - want).max() / np.abs(want).max())


def test_weights_alone_change_nothing_else() -> None:
    """Fused into the products or not, the numbers are those of the rounded weights."""
    step = QuantizeWeights(DRIFTS["int4"][0])
    np.testing.assert_array_equal(logits(step), float_logits(rounded(step)))


@pytest.mark.parametrize("name", [name for name, (_, each, _) in DRIFTS.items() if each is None])
def test_drift_of_weights(name: str) -> None:
    scheme, _, bound = DRIFTS[name]
    found = drift(float_logits(rounded(QuantizeWeights(scheme))), float_logits(model()[1]))
    print(f"{name}: {found:.1e}")  # noqa: T201
    assert bound / 10 < found < bound


@full
def test_drift_of_activations() -> None:
    """Against the rounded weights, and against float32; every product multiplies bytes: queries, keys and values joined,
    output, gate and up joined, down, head."""
    scheme, group, bound = DRIFTS["int4, int8 activations"]
    step, rules = QuantizeWeights(scheme, activations=group), list[str | None]()
    found = logits(step, rules)
    own, whole = drift(found, float_logits(rounded(step))), drift(found, float_logits(model()[1]))
    print(f"activations alone {own:.1e}, with weights {whole:.1e}")  # noqa: T201
    assert 1e-4 < own < 0.02
    assert whole < bound
    target: Any = Target.host()
    if Dots.of(target) is not None:
        assert "matmul" not in rules
        assert rules.count("quantized_matmul") == 5
