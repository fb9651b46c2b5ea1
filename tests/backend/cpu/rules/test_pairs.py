"""bfloat16 in pairs: every bit as without them, at every extent and address."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cpu.rules.pairs import has_pairs
from relaxpy.target import Target
from relaxpy.tir.recognise.stages import stages_of
from relaxpy.tir.tvm import te
from tests.backend.support import AVX2, HOST, compute, i64, m, n, tensor

SSE2 = Target.parse("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64")
BF16 = np.dtype(ml_dtypes.bfloat16)
PROGRAM = """
@I.ir_module
class Module:
    @R.function
    def gated(x: R.Tensor(("n", "m"), "bfloat16"), y: R.Tensor(("n", "m"), "bfloat16")):
        z = R.multiply(R.maximum(x, y), y)
        return z
    @R.function
    def scaled(x: R.Tensor(("n", "m"), "bfloat16"), s: R.Tensor(("n", 1), "float32"), w: R.Tensor(("m",), "bfloat16")):
        z = R.multiply(R.astype(R.multiply(R.astype(x, "float32"), s), "bfloat16"), w)
        return z
    @R.function
    def squares(x: R.Tensor(("n", "m"), "bfloat16")):
        wide = R.astype(x, "float32")
        z = R.sum(R.multiply(wide, wide), axis=1)
        return z
    @R.function
    def numbered(x: R.Tensor(("m",), "bfloat16"), y: R.Tensor(("m",), "float32")):
        z = R.astype(R.add(R.astype(x, "float32"), y), "bfloat16")
        return z
    @R.function
    def silu(x: R.Tensor(("n", "m"), "bfloat16")):
        z = R.nn.silu(x)
        return z
"""
WIDTHS = (0, 1, 15, 16, 31, 32, 33, 64, 100)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Of all magnitudes: subnormal numbers, infinities and NaN among them."""
    bits = np.random.default_rng(seed).integers(0, 1 << 16, shape, dtype=np.uint16)
    return bits.view(BF16)


@pytest.fixture(scope="module", params=[HOST, AVX2, SSE2], ids=["host", "avx2", "sse2"])
def machine(request: pytest.FixtureRequest) -> relaxpy.VirtualMachine:
    return relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(PROGRAM), target=request.param))


def same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """NaN for NaN, whatever its sign and payload; else equal, the signs of zeros included."""
    nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    np.testing.assert_array_equal(found.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])


@pytest.mark.parametrize("width", WIDTHS)
def test_products(machine: relaxpy.VirtualMachine, width: int) -> None:
    x, y = numbers(3, width), numbers(3, width, seed=1)
    found = machine["gated"](x, y).numpy()
    wide = y.astype(np.float32)
    with np.errstate(all="ignore"):
        expected = (np.maximum(x.astype(np.float32), wide) * wide).astype(BF16)
    same_bits(found, expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_does_not_move_and_what_is_rounded_in_between(
    machine: relaxpy.VirtualMachine, width: int
) -> None:
    x, w = numbers(3, width), numbers(width, seed=1)
    s = np.array([[1.3], [-1e-3], [np.inf]], np.float32)
    found = machine["scaled"](x, s, w).numpy()
    with np.errstate(all="ignore"):
        rounded = (x.astype(np.float32) * s).astype(BF16).astype(np.float32)
        expected = (rounded * w.astype(np.float32)).astype(BF16)
    same_bits(found, expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_sums(machine: relaxpy.VirtualMachine, width: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, width)).astype(BF16)
    found = machine["squares"](x).numpy()
    np.testing.assert_allclose(found, (x.astype(np.float64) ** 2).sum(1), rtol=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_float32_beside_it(machine: relaxpy.VirtualMachine, width: int) -> None:
    x, y = numbers(width), np.linspace(-1, 1, width, dtype=np.float32)
    found = machine["numbered"](x, y).numpy()
    with np.errstate(all="ignore"):
        same_bits(found, (x.astype(np.float32) + y).astype(BF16))


@pytest.mark.parametrize("width", [*WIDTHS, 127, 128, 129, 1 << 16])
def test_long_chains_side_by_side(machine: relaxpy.VirtualMachine, width: int) -> None:
    """The result is rounded once, from a number that is accurate to 17 bits."""
    x = np.arange(width, dtype=np.uint16).view(BF16)[None]
    result = machine["silu"](x).numpy()
    with np.errstate(all="ignore"):
        found, wide = result.astype(np.float64), x.astype(np.float64)
        expected = wide / (1 + np.exp(-wide))
        unit = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(expected), 2.0**-126))) - 7)
        error = np.abs(found - expected) / unit
    finite = np.isfinite(expected) & (np.abs(expected) < 3.3e38)
    assert (error[finite] <= 0.51).all()
    unknown = np.isnan(wide) | (wide == -np.inf)
    np.testing.assert_array_equal(np.isnan(found), unknown)


def paired(body: Any, *beside: Any) -> bool:
    x = tensor(n, m, dtype="bfloat16")
    out = compute((n, m), lambda i, j: body(x, i, j))
    (stage,) = stages_of(te.create_prim_func([x, *beside, out])) or ()
    return has_pairs(stage, stage.axes[-1])


def test_where_there_are_pairs() -> None:
    wide, row = tensor(n, m, name="wide"), tensor(n, name="row")
    assert paired(lambda x, i, j: x[i, j] * x[i, j])
    assert paired(lambda x, i, j: (x[i, j].astype("float32") * row[i]).astype("bfloat16"), row)
    assert paired(lambda x, i, j: x[i, j].astype("float32") * wide[i, j], wide)
    assert not paired(lambda x, i, j: wide[i, j], wide)
    assert not paired(lambda x, i, j: x[i, j].astype("float32") * wide[i, 2 * j], wide)
    assert not paired(lambda x, i, j: x[i, m - 1 - j])
    assert not paired(lambda x, i, j: x[i, j] * j.astype("bfloat16"))
    assert not paired(lambda x, i, j: x[i, i64(0)])
