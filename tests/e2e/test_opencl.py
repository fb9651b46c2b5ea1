"""Whole programs on an OpenCL device: control flow, memory, queues; the numbers are the processor's. What all devices
have in common is in `test_devices`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.runtime.devices.tensor import DeviceTensor
from tests.e2e.devices import machine, same
from tests.runtime.devices.opencl.support import needs_opencl

pytestmark = needs_opencl


HALVES = """
@R.function
def main(x: R.Tensor(("n", 8), "float16")) -> R.Tensor(("n", 8), "float16"):
    y = R.nn.softmax(R.nn.gelu(x))
    return y
"""


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_float16(rows: int) -> None:
    """A device need not compute in it."""
    x = np.random.default_rng(0).standard_normal((rows, 8)).astype(np.float16)
    same(HALVES, "opencl", x, rtol=2e-3)


def test_tanh_is_1_at_infinity() -> None:
    """PoCL's is a unit less, so that `1 + tanh(-inf)` was not 0."""
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
    y = R.nn.gelu_tanh(x)
    return y
"""
    same(text, "opencl", np.array([0, 1, -1, 30, -30, np.inf, -np.inf, np.nan], np.float32))


CONDITION = """
@R.function
def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")) -> R.Tensor(("n",), "float32"):
    n = T.int64()
    if c:
        y = R.exp(x)
        z = R.add(y, y)
    else:
        z = R.cumsum(x)
    return z
"""


@pytest.mark.parametrize("condition", [True, False])
def test_a_condition_on_the_device(condition: bool) -> None:
    """The host reads it."""
    same(CONDITION, "opencl", np.linspace(0, 1, 9, dtype=np.float32), np.array(condition))


UPDATED = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tuple(R.Tensor(("n", 4), "float32"), R.Tensor(("n",), "int64")):
    n = T.int64()
    a = R.exp(x)
    b = R.negative(a)
    c = R.sort(b, axis=1)
    d = R.argmax(c, axis=1)
    return (R.nn.relu(R.add(c, b)), d)
"""


def test_results_live_on_the_device() -> None:
    """Memory that the plan shares, workspaces, several results."""
    x = np.random.default_rng(1).standard_normal((7, 4)).astype(np.float32)
    first, _ = same(UPDATED, "opencl", x)
    assert isinstance(first, DeviceTensor)
    assert str(first.device) == "opencl:0"


def test_a_saved_program(tmp_path: Any) -> None:
    """A file has the kernels as text, and says which device they are for."""
    exe = relaxpy.build(relaxpy.parse(HALVES), "opencl")
    exe.save(tmp_path / "halves.rxe")
    again = relaxpy.load(tmp_path / "halves.rxe")
    assert again.slots[1].kind == "opencl"
    x = np.ones((2, 8), np.float16)
    np.testing.assert_allclose(relaxpy.VirtualMachine(again)["main"](x).numpy(), 1 / 8, rtol=1e-3)


LAYERS = """
@R.function
def main(x: R.Tensor(("n", 16), "float32"), w: R.Tensor((16, 16), "float32")) -> R.Tensor(("n", 16), "float32"):
    y = R.nn.softmax(R.matmul(x, w))
    z = R.nn.relu(R.add(R.matmul(y, w), x))
    v = R.nn.softmax(R.matmul(z, w))
    return v
"""


@pytest.mark.parametrize("shared", [False, True])
def test_threads_on_queues(shared: bool) -> None:
    """A queue each, or one together; every thread goes on with what another one has made."""
    w = np.random.default_rng(0).standard_normal((16, 16), dtype=np.float32)
    mod = relaxpy.parse(LAYERS)
    vm = machine(mod, "opencl", {"w": w})
    host = relaxpy.VirtualMachine(relaxpy.build(mod, params={"w": w}))
    made: list[tuple[Any, np.ndarray]] = []
    for n in (3, 200, 1):
        x = np.random.default_rng(n).standard_normal((n, 16), dtype=np.float32)
        made.append((vm(x), host(x).numpy()))

    def work(seed: int) -> None:
        mine = vm if shared else vm.on(vm.open_queue())
        rng = np.random.default_rng(seed)
        for _ in range(8):
            value, wanted = made[int(rng.integers(len(made)))]
            out, expected = mine(value), host(wanted).numpy()
            made.append((out, expected))
            np.testing.assert_allclose(out.numpy(), expected, atol=2e-5)
        mine.synchronise()

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work, seed) for seed in range(3)]:
            done.result()
    for value, expected in made:
        np.testing.assert_allclose(value.numpy(), expected, atol=2e-5)


def test_the_file_is_the_same_in_every_build() -> None:
    made = [relaxpy.build(relaxpy.parse(UPDATED), "opencl", cache=False) for _ in range(2)]
    assert made[0].objects == made[1].objects
    assert made[0].as_text() == made[1].as_text()
