"""Programs on the emulated CUDA device: numbers of all sizes, names of the language, one tensor twice, saved files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import relaxpy
from tests.e2e.devices import NUMBERS, machine, number_program
from tests.runtime.devices.cuda import compiled as cuda
from tests.sweeps import full, sweep

pytestmark = cuda.needs_cuda


@pytest.fixture(scope="module", autouse=True)
def device() -> Iterator[None]:
    with cuda.emulated_compiled():
        yield


@sweep(2)
@pytest.mark.parametrize(("dtype", "value"), NUMBERS)
def test_numbers_of_tensor_programs(dtype: str, value: float) -> None:
    vm = machine(relaxpy.parse(number_program(dtype)), cuda.TARGET)
    assert vm["main"](np.zeros(3, np.float32), value).numpy().tolist() == [np.float32(value)] * 3


@sweep(3)
@pytest.mark.parametrize(
    "name",
    "max min new int uint half expf threadIdx blockIdx memcpy relaxpy_bits class asm float4 nv_bfloat16 template".split(),
)
def test_names_of_the_language(name: str) -> None:
    """A tensor, a size and a loop may be called so."""
    if name in ("class",):
        name = f"{name}_"  # Python's own
    text = f"""
@I.ir_module
class Names:
    @T.prim_func
    def k(x: T.Buffer(("n",), "float32"), z: T.Buffer(("n",), "float32")):
        n = T.int64()
        {name} = T.alloc_buffer((n,), "float32")
        for i in T.serial(n):
            with T.sblock("y"):
                vi = T.axis.spatial(n, i)
                {name}[vi] = x[vi] * T.float32(2)
        for i in T.serial(n):
            with T.sblock("z"):
                vi = T.axis.spatial(n, i)
                z[vi] = T.max({name}[vi], T.exp(x[vi]))

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        cls = Names
        z = R.call_tir(cls.k, (x,), out_ty=R.Tensor((n,), "float32"))
        return z
"""
    x = np.float32([-1, 0, 3])
    found = machine(relaxpy.parse(text), cuda.TARGET)["main"](x).numpy()
    np.testing.assert_allclose(found, np.maximum(2 * x, np.exp(x)), rtol=1e-6)


def test_one_tensor_twice() -> None:
    """It is read through two pointers."""
    text = """
@R.function
def main(x: R.Tensor(("n", 32), "float32"), w: R.Tensor((32, 32), "float32"), y: R.Tensor(("n", 32), "float32")):
    z = R.add(R.matmul(x, w), R.multiply(x, y))
    return z
"""
    vm = machine(relaxpy.parse(text), cuda.TARGET)
    x = np.random.default_rng(0).standard_normal((32, 32), dtype=np.float32)
    there = vm.upload(x)
    np.testing.assert_allclose(
        vm["main"](there, there, there).numpy(), x @ x + x * x, rtol=1e-5, atol=1e-5
    )


def test_a_saved_program(tmp_path: Path) -> None:
    """A file has the kernels' machine code."""
    mod = relaxpy.parse(
        '@R.function\ndef main(x: R.Tensor(("n",), "float32")):\n    y = R.tanh(x)\n    return y'
    )
    exe = relaxpy.build(mod, cuda.TARGET, cache=False)
    exe.save(tmp_path / "tanh.rxe")
    vm = relaxpy.VirtualMachine(relaxpy.load(tmp_path / "tanh.rxe"))
    x = np.float32([-100, -0.5, 0, 1e-8, 20])
    found = vm["main"](x)
    assert str(found.device) == "cuda:0"
    np.testing.assert_allclose(found.numpy(), np.tanh(x), rtol=1e-6)


def test_a_device_that_is_too_old() -> None:
    """Nothing of the executable is for it."""
    mod = relaxpy.parse(
        '@R.function\ndef main(x: R.Tensor(("n",), "float32")):\n    y = R.exp(x)\n    return y'
    )
    exe = relaxpy.build(mod, "cuda -arch=sm_90,compute_90")
    with pytest.raises(relaxpy.RelaxError) as caught:
        relaxpy.VirtualMachine(exe)
    assert caught.value.code == "device-features"
    assert "sm_90" in str(caught.value)


@full("make test-devices")
def test_a_language_model() -> None:
    """The model that ships writes what it writes on the processor."""
    from relaxpy.llm import load

    prompt = "def add(a, b):"
    wanted = "".join(load().generate(prompt, max_tokens=6))
    found = "".join(load(target=cuda.TARGET, keep=False).generate(prompt, max_tokens=6))
    assert found == wanted
