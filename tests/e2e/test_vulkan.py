"""What kernels in WGSL have to take care of: dtypes that WGSL lacks, grids, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import BuildError
from relaxpy.runtime.devices.registry import runtime_of
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.testing.op_samples import samples
from tests.e2e.devices import same, sample_key
from tests.e2e.wgsl_refusals import REFUSED
from tests.op.support import COMPILED
from tests.runtime.devices.webgpu.support import needs_vulkan


def test_the_list_of_refusals() -> None:
    """It names samples that there are."""
    keys = {sample_key(s) for cls in COMPILED for s in samples(cls.name) if not s.code}
    assert keys >= REFUSED


MIXED = """
@R.function
def main(
    x: R.Tensor(("n", "m"), "float16"), i: R.Tensor(("n",), "int64"), b: R.Tensor(("n", "m"), "int8")
):
    n = T.int64()
    m = T.int64()
    a = R.nn.softmax(R.astype(x, "float32"))
    c = R.multiply(i, R.const(4294967311, "int64"))
    d = R.floor_divide(c, R.const(7, "int64"))
    e = R.add(b, b)
    f = R.greater(a, R.const(0.25, "float32"))
    g = R.astype(a, "float16")
    return (a, c, d, e, f, g, R.cumsum(i), R.astype(c, "float32"))
"""


@needs_vulkan
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_dtypes(rows: int) -> None:
    """Integers of 64 bits are exact; elements of less than 32 bits are parts of words that threads share."""
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 7)).astype(np.float16)
    i = rng.integers(-(1 << 62), 1 << 62, rows)
    b = rng.integers(-128, 128, (rows, 7)).astype(np.int8)
    same(MIXED, "vulkan", x, i, b, rtol=1e-6)


NEXT = """
@R.function
def main(x: R.Tensor(("n",), "uint8")) -> R.Tensor(("n",), "uint8"):
    y = R.add(x, R.const(1, "uint8"))
    return y
"""


@needs_vulkan
def test_a_grid_that_is_folded() -> None:
    """More groups than an axis of the grid may have."""
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(NEXT), "vulkan -threads=1"))
    x = np.arange(200_001, dtype=np.uint32).astype(np.uint8)
    np.testing.assert_array_equal(vm(x).numpy(), x + np.uint8(1))


@needs_vulkan
def test_a_saved_program(tmp_path: Any) -> None:
    """A file has the kernels as WGSL, and says which device they are for; `webgpu` runs on the same devices."""
    exe = relaxpy.build(relaxpy.parse(NEXT), "webgpu")
    exe.save(tmp_path / "next.rxe")
    again = relaxpy.load(tmp_path / "next.rxe")
    assert again.slots[1].kind == "webgpu"
    found = relaxpy.VirtualMachine(again)(np.array([1, 255], np.uint8))
    assert isinstance(found, DeviceTensor)
    assert str(found.device) == "webgpu:0"
    assert found.numpy().tolist() == [2, 0]


def test_float64_functions_are_refused() -> None:
    """When the program is built, with the place in it."""
    text = """
@R.function
def main(x: R.Tensor(("n",), "float64")) -> R.Tensor(("n",), "float64"):
    y = R.exp(x)
    return y
"""
    with pytest.raises(BuildError, match="computes exp in float64") as caught:
        relaxpy.build(relaxpy.parse(text), "vulkan")
    assert caught.value.code == "device-dtype"
    assert caught.value.span is not None
    assert caught.value.span.line == 4


def test_the_file_is_the_same_in_every_build() -> None:
    made = [relaxpy.build(relaxpy.parse(MIXED), "webgpu", cache=False) for _ in range(2)]
    assert made[0].objects == made[1].objects


@needs_vulkan
def test_long_loops() -> None:
    """A device that ends a thread after some rounds of loops refuses what it would cut short, by name."""
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    return R.cumsum(x)
"""
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text), "vulkan"))
    runtime: Any = runtime_of("vulkan", 0)
    most = runtime._most_rounds or 100_000
    for count in (most - 1, most, most + 1):
        x = np.ones(count, np.float32)
        if runtime._most_rounds is None or count <= most:
            np.testing.assert_array_equal(vm(x).numpy(), np.arange(1, count + 1))
        else:
            with pytest.raises(relaxpy.RelaxError, match=f"{count} rounds of loops, and vulkan:0"):
                vm(x).numpy()
