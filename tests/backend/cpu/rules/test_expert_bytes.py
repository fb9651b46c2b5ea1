"""Linear maps chosen by index on bytes: near the program's numbers, each row by itself, and packed so that an expert is
in one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.nn import op
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.target import Target
from relaxpy.testing.interpret import interpret
from relaxpy.transform import QuantizeWeights
from tests.backend.cpu.rules.test_quantized_matmul import host_multiplies_bytes, kernels
from tests.sweeps import quick_target, sweep

CASES = [
    (WeightScheme(4, 32), 32, (5, 40, 96, 2)),
    (WeightScheme(4, 128, "minimum"), 64, (3, 33, 256, 1)),
    (WeightScheme(4, None, "zero_point", "float32"), 32, (4, 48, 64, 3)),
]
"""Scheme, group of activations, and experts, columns, depth and choices."""


class Map(nn.Module):
    """A map with a bias and an activation."""

    def __init__(self, experts: int, columns: int, depth: int) -> None:
        self.weight = nn.Parameter((experts, columns, depth))
        self.bias = nn.Parameter((experts, columns))

    def forward(self, x: nn.Tensor, chosen: nn.Tensor) -> nn.Tensor:
        """(n, depth), (n, choices) → (n, choices, columns)."""
        return op.nn.silu(op.nn.expert_linear(x, self.weight, chosen, self.bias))


def exported(experts: int, columns: int, depth: int, choices: int) -> Any:
    given = {"x": nn.spec.Tensor(("n", depth)), "chosen": nn.spec.Tensor(("n", choices), "int64")}
    mod, _ = Map(experts, columns, depth).export({"forward": given})
    return mod


@sweep(3)
@pytest.mark.skipif(not host_multiplies_bytes(), reason="needs AVX2 or VNNI")
@sweep
@pytest.mark.parametrize(("scheme", "group", "sizes"), CASES, ids=str)
def test_numbers_and_bits(
    scheme: WeightScheme, group: int, sizes: tuple[int, int, int, int]
) -> None:
    """A row is the same to the last bit whatever rows are beside it, in tiles that share unpacked codes and in those that
    do not; numbers of experts out of range are clamped. The first is optimised, the others in a full sweep only."""
    experts, columns, depth, choices = sizes
    mod, step = exported(*sizes), QuantizeWeights(scheme, activations=group)
    after, random = step(mod), np.random.default_rng(0)
    given = {
        "weight": random.standard_normal((experts, columns, depth), np.float32),
        "bias": random.standard_normal((experts, columns), np.float32),
    }
    params = step.quantized_params(mod, given)
    programs = kernels(after, "llvm")
    rules = [schedule_kernel(p.func, Target.parse("llvm")).rule for p in programs.values()]
    assert rules.count("expert_bytes") == 1
    target = Target.host() if scheme is CASES[0][0] else quick_target()
    vm = relaxpy.VirtualMachine(relaxpy.build(after, target, pack=True))
    weights = vm.pack(params, keep=False)["forward"]
    x = random.standard_normal((150, depth), np.float32)
    x[5] = 0
    chosen = random.integers(-1, experts + 1, (150, choices))
    found = vm["forward"](x, chosen, *weights).numpy()
    want = np.asarray(interpret(after, "forward", x, chosen, *params.values()))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    for rows in map(slice, (0, 3, 2, 1, 4, 10, 0), (1, 5, 5, 8, 29, 140, 0)):
        part = vm["forward"](x[rows], chosen[rows], *weights).numpy()
        np.testing.assert_array_equal(part, found[rows])


def test_where_it_is_not_used() -> None:
    """Without such instructions, without activations in int8, and where padding would double the weight: the rule for
    floats."""
    wide = exported(4, 40, 64, 2)
    cases = [
        (wide, QuantizeWeights(activations=32), "llvm -mcpu=x86-64"),
        (wide, QuantizeWeights(), "llvm -mcpu=haswell"),
        (exported(4, 7, 64, 2), QuantizeWeights(activations=32), "llvm -mcpu=haswell"),
    ]
    for mod, step, target in cases:
        found = {
            schedule_kernel(each.func, Target.parse(target)).rule
            for each in kernels(step(mod), target).values()
        }
        assert "expert_linear" in found
        assert "expert_bytes" not in found


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512", "znver4"])
def test_other_processors(cpu: str) -> None:
    target = f"llvm -mcpu={cpu}"
    found = kernels(QuantizeWeights(activations=32)(exported(4, 40, 64, 2)), target)
    rules = [schedule_kernel(each.func, Target.parse(target)).rule for each in found.values()]
    assert rules.count("expert_bytes") == 1
