"""The drift of a Llama's logits under each scheme of weight-only quantisation."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.models.llama import TINY, Llama, spec
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.transform import QuantizeWeights

CONFIG = dataclasses.replace(TINY, hidden_size=64, intermediate_size=128)


@cache
def model() -> tuple[Any, dict[str, np.ndarray]]:
    """The function `logits`, and random weights."""
    mod, _ = Llama(CONFIG).export({"logits": spec(CONFIG)["logits"]})
    random = np.random.default_rng(0)
    params: dict[str, np.ndarray] = {}
    function: Any = mod["logits"]
    for param in function.params[function.attrs["num_input"] :]:
        noise = random.standard_normal([dim.value for dim in param.annotation.dims]) * 0.125
        params[param.name] = noise.astype(np.float32) + np.float32("norm" in param.name)
    return mod, params


def logits(step: QuantizeWeights | None) -> np.ndarray:
    """The logits of the model, with its weights quantised by the step."""
    mod, params = model()
    if step is not None:
        params = step.quantized_params(mod, params)
        mod = step(mod)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))
    ids = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (2, 9))
    return vm["logits"](ids).numpy()


DRIFTS = {
    "int8": (WeightScheme(8, 32), None, 0.01),
    "int4, groups of 32": (WeightScheme(4, 32), None, 0.2),
    "int4, minimums": (WeightScheme(4, 32, "minimum"), None, 0.2),
    "int4, zero points": (WeightScheme(4, 64, "zero_point"), None, 0.2),
    "3 bits": (WeightScheme(3, 40, "minimum"), None, 0.5),
    "int4, int8 activations": (WeightScheme(4, 32), 32, 0.2),
}
"""The largest difference to float32's logits, over the largest logit."""


@pytest.mark.parametrize("name", DRIFTS)
def test_drift(name: str) -> None:
    scheme, activations, bound = DRIFTS[name]
    want = logits(None)
    found = logits(QuantizeWeights(scheme, activations=activations))
    drift = np.abs(found - want).max() / np.abs(want).max()
    print(f"{name}: {drift:.2e}")  # noqa: T201
    assert 1e-6 < drift < bound
