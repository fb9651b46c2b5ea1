"""Linear maps that are chosen by index: the numbers of each form of weight, and equal bits of rows in any company."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.nn import op
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.target import Target
from relaxpy.transform import QuantizeWeights
from tests.sweeps import sweep

CASES: dict[str, tuple[tuple[int, int, int, int], str, WeightScheme | None]] = {
    "floats": ((5, 24, 96, 2), "float32", None),
    "a depth without whole vectors, one choice": ((5, 7, 37, 1), "float32", None),
    "less than a vector": ((3, 6, 5, 2), "float32", None),
    "many tasks": ((3, 132, 16, 2), "float32", None),
    "bfloat16": ((5, 24, 96, 2), "bfloat16", None),
    "float16": ((5, 24, 96, 2), "float16", None),
    "4 bits": ((5, 24, 96, 2), "float32", WeightScheme(4, 32)),
    "4 bits, minimums": ((5, 24, 256, 2), "float32", WeightScheme(4, 128, "minimum")),
    "4 bits, zero points": ((5, 26, 64, 1), "float32", WeightScheme(4, 32, "zero_point")),
    "4 bits, a scale for a row": ((5, 24, 96, 2), "float32", WeightScheme(4, None)),
    "4 bits, groups that no chunk divides": ((5, 24, 40, 2), "float32", WeightScheme(4, 24)),
    "8 bits": ((5, 24, 96, 2), "float32", WeightScheme(8, 32)),
    "3 bits": ((5, 24, 96, 2), "float32", WeightScheme(3, 40, "minimum")),
}
"""By name: experts, columns, depth and choices; the dtype; the scheme."""


@sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_bits(name: str) -> None:
    (experts, columns, depth, choices), dtype, scheme = CASES[name]

    class Map(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter((experts, columns, depth), dtype)
            self.bias = nn.Parameter((experts, columns), dtype)

        def forward(self, x: nn.Tensor, chosen: nn.Tensor) -> nn.Tensor:
            return op.nn.expert_linear(x, self.weight, chosen, self.bias)

    given = {
        "x": nn.spec.Tensor(("n", depth), dtype),
        "chosen": nn.spec.Tensor(("n", choices), "int64"),
    }
    mod, _ = Map().export({"forward": given})
    random = np.random.default_rng(0)
    kind: Any = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    params = {
        "weight": random.standard_normal((experts, columns, depth)).astype(kind),
        "bias": random.standard_normal((experts, columns)).astype(kind),
    }
    weight, bias = (each.astype(np.float64) for each in params.values())
    if scheme is not None:
        step = QuantizeWeights(scheme)
        params = step.quantized_params(mod, params)
        parts = {n.removeprefix("weight_"): x for n, x in params.items() if n != "bias"}
        weight, mod = scheme.dequantize(parts, 2, depth).astype(np.float64), step(mod)
    seen: dict[str, Any] = {}
    exe = relaxpy.build(
        mod, instruments=[lambda _n, each, _b, after: seen.update({each.name: after})]
    )
    (program,) = seen["fuse-tensor-ir"].prim_funcs.values()
    assert schedule_kernel(program.func, Target.parse("llvm")).rule == "expert_linear"
    vm = relaxpy.VirtualMachine(exe)

    def run(x: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        return vm["forward"](x, chosen, *params.values()).numpy()

    for rows in (0, 1, 2, 41):
        x = random.standard_normal((rows, depth)).astype(kind)
        chosen = random.integers(-1, experts + 1, (rows, choices))
        found, own = run(x, chosen), np.clip(chosen, 0, experts - 1)
        expected = np.einsum("ik,irjk->irj", x.astype(np.float64), weight[own]) + bias[own]
        within = 1e-5 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(found.astype(np.float64), expected, rtol=within, atol=within * 4)
        for i in range(0, rows, 13):
            np.testing.assert_array_equal(run(x[i : i + 1], chosen[i : i + 1])[0], found[i])


def test_all_rows_of_one_expert() -> None:
    """As many as there are, and no other weight is read: the others are not numbers."""

    class Map(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter((4, 8, 16), "float32")

        def forward(self, x: nn.Tensor, chosen: nn.Tensor) -> nn.Tensor:
            return op.nn.expert_linear(x, self.weight, chosen)

    given = {"x": nn.spec.Tensor(("n", 16)), "chosen": nn.spec.Tensor(("n", 1), "int32")}
    mod, _ = Map().export({"forward": given})
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    weight = np.full((4, 8, 16), np.nan, np.float32)
    weight[2] = 1
    x = np.ones((300, 16), np.float32)
    found = vm["forward"](x, np.full((300, 1), 2, np.int32), weight).numpy()
    np.testing.assert_array_equal(found, 16)
