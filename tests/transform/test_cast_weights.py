"""CastWeights: weights in the dtype of a checkpoint, converted where they are read."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import CastWeights, QuantizeWeights
from tests.sweeps import part, quick_target, sweep

MODULE = relaxpy.parse("""
@R.function
def main(
    ids: R.Tensor(("n",), "int64"), x: R.Tensor(("n", 32), "float32"), t: R.Tensor((9, 32), "float32"),
    w: R.Tensor((32, 32), "float32"), b: R.Tensor((32,), "float32"), k: R.Tensor((2,), "int64")
):
    R.func_attr({"num_input": 2})
    with R.dataflow():
        h = R.add(x, R.take(t, ids, axis=0))
        if_any = R.take(b, k, axis=0)
        y = R.add(R.linear(h, w), b)
        z = R.linear(y, t)
        R.output(z, if_any)
    return (z, if_any)
""")


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    floats = {
        name: random.standard_normal(s, np.float32)
        for name, s in (("t", (9, 32)), ("w", (32, 32)), ("b", 32))
    }
    return {**{n: a.astype(ml_dtypes.bfloat16) for n, a in floats.items()}, "k": np.array([3, 0])}


def inputs() -> list[np.ndarray]:
    return [np.array([1, 8, 8]), np.random.default_rng(1).standard_normal((3, 32), np.float32)]


def test_example() -> None:
    check_example(CastWeights())


def test_the_numbers_of_converted_weights() -> None:
    """Every use: rows that are taken, a product, an addition; a table that is read in two ways."""
    after: Any = CastWeights()(MODULE)
    kinds = [str(param.annotation.dtype) for param in after["main"].params]
    assert kinds == ["int64", "float32", "bfloat16", "bfloat16", "bfloat16", "int64"]
    stored = arrays()
    floats = [a.astype(np.float32) if a.dtype == ml_dtypes.bfloat16 else a for a in stored.values()]
    want = interpret(MODULE, "main", *inputs(), *floats)
    for found, each in zip(
        interpret(after, "main", *inputs(), *stored.values()), want, strict=True
    ):
        np.testing.assert_array_equal(found, each)
    run: Any = relaxpy.VirtualMachine(relaxpy.build(after))["main"](*inputs(), *stored.values())
    plain: Any = relaxpy.VirtualMachine(relaxpy.build(MODULE))["main"](*inputs(), *floats)
    for found, each in zip(run, plain, strict=True):
        np.testing.assert_array_equal(found.numpy(), each.numpy())


def test_rows_are_converted_after_they_are_read() -> None:
    script = CastWeights()(MODULE).script()
    assert 'rows: R.Tensor((n, 32), dtype="bfloat16") = R.take(t, ids, axis=0)' in script


def test_a_second_run_changes_nothing() -> None:
    after = CastWeights()(MODULE)
    assert CastWeights()(after) is after
    assert CastWeights("float32")(MODULE) is MODULE


def test_a_dtype_that_no_checkpoint_has() -> None:
    with pytest.raises(
        UsageError, match="weights are stored as float32, bfloat16, float16, got 'int8'"
    ):
        CastWeights("int8")


ZEROS: list[Any] = ["symmetric", "zero_point", "minimum"]
WIDTHS = [3, 4, 8]
SCHEMES = [(bits, ZEROS[(at + shift) % 3]) for at, bits in enumerate(WIDTHS) for shift in range(3)]
"""Each number of bits with each zero. Of these one of three has every number of bits, and every zero, once."""


@sweep(3)
@pytest.mark.parametrize(("bits", "zero"), part(SCHEMES, 3))
def test_the_kernels_that_quantise_compile_for_registers_of_any_width(bits: int, zero: Any) -> None:
    """Also for those that this machine has not."""
    mod = QuantizeWeights(WeightScheme(bits, 32, zero), on_load=True)(CastWeights()(MODULE))
    exe = relaxpy.build(mod, quick_target("llvm -mcpu=x86-64-v2,x86-64-v3,x86-64-v4"), pack=True)
    assert any("quantize" in info.name for info in exe.kernels)
    assert all(len(info.images) == 3 for info in exe.kernels)


@sweep(3)
@pytest.mark.slow
@pytest.mark.parametrize("zero", ZEROS)
def test_weights_are_quantised_from_the_stored_numbers(zero: Any) -> None:
    """On load by the module, or ahead by numpy: the same bits; the table that `take` reads too stays as it is."""
    stored, scheme = arrays(), WeightScheme(4, 32, zero)
    mod = CastWeights()(MODULE)
    ahead, load = QuantizeWeights(scheme), QuantizeWeights(scheme, on_load=True)
    want = interpret(ahead(mod), "main", *inputs(), *ahead.quantized_params(mod, stored).values())
    after: Any = load(mod)
    assert load.quantized_params(mod, stored) == stored
    assert [param.name for param in after["main"].params] == ["ids", "x", *stored]
    for found, each in zip(
        interpret(after, "main", *inputs(), *stored.values()), want, strict=True
    ):
        np.testing.assert_array_equal(found, each)
    vm = relaxpy.VirtualMachine(relaxpy.build(after, quick_target(), pack=True))
    run: Any = vm["main"](*inputs(), *vm.pack(stored)["main"])
    first: Any = relaxpy.VirtualMachine(relaxpy.build(ahead(mod), quick_target()))["main"](
        *inputs(), *ahead.quantized_params(mod, stored).values()
    )
    for found, each in zip(run, first, strict=True):
        np.testing.assert_allclose(found.numpy(), each.numpy(), rtol=1e-5, atol=1e-5)
