"""Products of int8 activations and 4-bit weights: on bytes, near the program's numbers, each row by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cpu.dots import Dots
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.build.pack_option import with_packed_params
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import ExecutableError
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.target import Target
from relaxpy.testing.interpret import interpret
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform import QuantizeWeights
from relaxpy.transform.base import PassContext
from tests.backend.cpu.rules.test_matmul_formula import arrays, layer
from tests.sweeps import quick_target, sweep

CASES = [
    (WeightScheme(4, 32), 32, 96, 40, True),
    (WeightScheme(4, 128, "zero_point"), 64, 256, 33, False),
    (WeightScheme(4, 64, "minimum"), 128, 384, 48, True),
    (WeightScheme(4, None, scale_dtype="float32"), 32, 64, 24, False),
    (WeightScheme(4, 32), 32, 17 * 32, 24, True),  # more than a block of the depth
]


def host_multiplies_bytes() -> bool:
    target: Any = Target.host()
    return Dots.of(target) is not None


def kernels(mod: Any, target: str) -> dict[str, PrimFunc]:
    """The tensor programs with weights in the layouts of the target."""
    own = Target.parse(target)
    steps = default_pipeline(own).through("pack-weights")
    found = steps.run(with_packed_params(mod, True), PassContext(own)).prim_funcs
    return {name: each for name, each in found.items() if isinstance(each, PrimFunc)}


@sweep(2)
@pytest.mark.skipif(not host_multiplies_bytes(), reason="needs AVX2 or VNNI")
@sweep
@pytest.mark.parametrize(("scheme", "group", "depth", "columns", "transposed"), CASES, ids=str)
def test_near_the_program(
    scheme: WeightScheme, group: int, depth: int, columns: int, transposed: bool
) -> None:
    """Sums of integers are exact, so the kernel differs from the interpreted program by float32's roundings only; and a
    row is the same to the last bit whatever rows are beside it, in tiles that share unpacked codes (from 24 or 36 rows
    on) and in those that do not. The first is optimised, the others in a full sweep only."""
    mod, given = (
        layer(depth, columns, transposed=transposed),
        arrays(depth, columns, transposed=transposed),
    )
    step = QuantizeWeights(scheme, activations=group)
    after = step(mod)
    programs = kernels(after, "llvm")
    rules = [schedule_kernel(p.func, Target.parse("llvm")).rule for p in programs.values()]
    assert rules.count("quantized_matmul") == 1
    target = Target.host() if scheme is CASES[0][0] else quick_target()
    vm = relaxpy.VirtualMachine(relaxpy.build(after, target, pack=True))
    params = step.quantized_params(mod, given)
    weights = vm.pack(params, keep=False)["main"]
    x = np.random.default_rng(1).standard_normal((199, depth), dtype="float32")
    x[5] = 0
    found = vm["main"](x, *weights).numpy()
    # Rows of all places in tiles of 24 and of 36: rows do not look at each other, and the interpreter is slow.
    some = slice(0, None, 5)
    want = np.asarray(interpret(after, "main", x[some], *params.values()))
    np.testing.assert_allclose(found[some], want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    for rows in (
        slice(0, 1),
        slice(3, 5),
        slice(2, 5),
        slice(1, 8),
        slice(4, 29),
        slice(60, 190),
        slice(190, 199),
        slice(0, 0),
    ):
        np.testing.assert_array_equal(vm["main"](x[rows], *weights).numpy(), found[rows])


@sweep(2)
@pytest.mark.parametrize(
    ("cpu", "joins"),
    [("haswell", False), ("skylake-avx512", False), ("znver4", True), ("alderlake", True)],
)
def test_other_processors(cpu: str, joins: bool) -> None:
    """Code for each kind of dot product, one of two instructions, compiles here; a processor that lacks it refuses
    it."""
    target: Any = quick_target(f"llvm -mcpu={cpu}")
    dots = Dots.of(target)
    assert dots is not None
    assert (dots.arithmetic is not None) is joins
    after = QuantizeWeights(activations=32)(layer(64, 40, transposed=True))
    exe = relaxpy.build(after, target=target, pack=True)
    if target.is_host_loadable:
        assert relaxpy.VirtualMachine(exe)
    else:
        with pytest.raises(ExecutableError, match="features that this machine lacks") as refused:
            relaxpy.VirtualMachine(exe)
        assert refused.value.code == "cpu-features"


def test_without_such_instructions() -> None:
    """A processor with neither: the same program by another rule."""
    target = "llvm -mcpu=x86-64"
    after = QuantizeWeights(activations=32)(layer(64, 24, transposed=True))
    rules = {
        schedule_kernel(p.func, Target.parse(target)).rule for p in kernels(after, target).values()
    }
    assert "quantized_matmul" not in rules
