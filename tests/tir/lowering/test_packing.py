"""Programs that use more buffers than a launch may take: parts of fewer buffers."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.backend.gpu.launches import launches_of
from relaxpy.ir.module import BufferParam
from relaxpy.tir.prim_func import PrimFunc
from tests.backend.gpu.support import program
from tests.e2e.devices import leaves, machine
from tests.runtime.devices.opencl.support import needs_opencl
from tests.runtime.devices.webgpu.support import needs_vulkan
from tests.sweeps import full

MANY = """
    def main(a: T.Buffer(("n", "m"), "float32"), b: T.Buffer(("m",), "float32"), c: T.Buffer(("n",), "float32"),
             d: T.Buffer(("k",), "int32"), e: T.Buffer((3,), "int32"), y: T.Buffer(("n", "m"), "float32")):
        n = T.int64()
        m = T.int64()
        k = T.int64()
        for i, j in T.grid(n, m):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = a[vi, vj] * b[vj] + c[vi] + T.Cast("float32", d[0] + e[2])
"""


def taken(func: PrimFunc) -> int:
    return sum(isinstance(param, BufferParam) for param in func.params)


@pytest.mark.parametrize(("most", "copies"), [(6, 0), (5, 2), (4, 4)])
def test_as_few_as_needed(most: int, copies: int) -> None:
    """Inputs of the fewest dimensions are copied first; each copy is a launch."""
    found = launches_of(program(MANY), most_buffers=most)
    made = [] if found is None else [each.program for each in found.launches]
    assert len(made) == (copies + 1 if copies else 0)
    assert all(taken(each) <= most for each in made)


def test_launches_are_programs() -> None:
    """They are printed, and parsed again."""
    found = launches_of(program(MANY), most_buffers=4)
    assert found is not None
    for each in found.launches:
        assert program(each.program.script()).structural_equal(each.program)


def test_a_buffer_that_is_written_is_left() -> None:
    """There are no more inputs than these."""
    found = launches_of(program(MANY), most_buffers=2)
    assert found is not None
    assert taken(found.launches[-1].program) == 3


CONCAT = """
@R.function
def main(x: R.Tensor(("n", 2), "float32"), s: R.Tensor(("n",), "float16"), t: R.Tensor((2,), "float16")):
    n = T.int64()
    a = R.concat((x, x + R.const(1.0), R.exp(x), x, R.cos(x), x, R.abs(x), R.sin(x), x), axis=1)
    return a, R.add(s, s), t
"""
DEVICES = [
    pytest.param("webgpu", marks=needs_vulkan),
    pytest.param("opencl -max-buffers=8", marks=needs_opencl),
]


class _Sample(nn.Module):
    def sample(self, **arguments: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        return nn.sample(**arguments)  # type: ignore[arg-type]


@full("make test-devices")
@pytest.mark.parametrize("device", DEVICES)
def test_tokens(device: str) -> None:
    """With all options: 9 inputs, and memory of the rows besides."""
    vocab, rows = 131, 5
    mod, _ = _Sample().export({"sample": nn.sampling_spec(vocab)})
    rng = np.random.default_rng(0)

    def floats(*values: float) -> np.ndarray:
        return rng.choice(np.array(values, np.float32), rows)

    args = [
        rng.standard_normal((rows, vocab), np.float32), floats(0, 0.7, 1.5), rng.integers(0, 40, rows),
        floats(1, 0.9, 0.3), floats(0, 0.05), floats(1, 1.3), floats(0, 0.5), floats(0, 0.2),
        rng.integers(-1, vocab, (rows, 3)).astype("i4"), rng.standard_normal((rows, 3), np.float32),
        rng.integers(-(2**31), 2**31, (rows, -(-vocab // 32))).astype("i4"),
        rng.integers(0, vocab, (rows, 7)).astype("i4"), rng.integers(0, 9, rows),
        *(rng.integers(0, 1 << 40, rows) for _ in range(3)),
    ]  # fmt: skip
    got, want = (leaves(machine(mod, each)["sample"](*args)) for each in (device, "llvm"))
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_operators_of_many_tensors(device: str) -> None:
    mod = relaxpy.parse(CONCAT)
    for n in (0, 1, 13):
        x = np.linspace(-1, 1, 2 * n, dtype="f4").reshape(n, 2)
        args = [x, np.ones(n, "f2"), np.ones(2, "f2")]
        for got, want in zip(
            *(leaves(machine(mod, t)["main"](*args)) for t in (device, "llvm")), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("target", ["metal", "webgpu"])
def test_targets_that_sample(target: str) -> None:
    """Without float64, and with 8 buffers."""
    mod, _ = _Sample().export({"sample": nn.sampling_spec(67)})
    assert relaxpy.build(mod, target).kernels
