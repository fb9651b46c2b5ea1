"""Launches as device functions, and the sizes of their grids."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.gpu.device_kernel import DeviceKernel, Given, device_kernel
from relaxpy.backend.gpu.threads import bind_threads
from relaxpy.errors import BuildError
from relaxpy.runtime.devices.registry import runtime_class
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tvm
from tests.backend.gpu.support import MATMUL, program

TARGET = tvm.target.Target({"kind": "opencl", "max_num_threads": 256})


def kernel(text: str) -> tuple[DeviceKernel, PrimFunc]:
    bound = bind_threads(program(text).func, 64)
    return device_kernel(bound, "k", TARGET), PrimFunc(bound)


def test_grid_and_arguments() -> None:
    """Groups are a formula of the program's symbols; each argument is the program's, or an integer."""
    found, bound = kernel(MATMUL)
    n, k = bound.params[0].shape  # type: ignore[union-attr]
    assert found.groups == ((n * 3 + 63) // 64, 1, 1)
    assert found.threads == (64, 1, 1)
    memory = {arg.position for arg in found.args if isinstance(arg, Given)}
    assert memory == {0, 1, 2}
    assert [arg for arg in found.args if not isinstance(arg, Given)] == [k, n]
    assert found.dtypes == ("float32",) * 3 + ("int64",) * 2


def test_scalars() -> None:
    """A scalar that is no size is given as the program has it."""
    text = """
        def main(x: T.Buffer((8,), "float32"), a: T.float32, y: T.Buffer((8,), "float32")):
            for i in T.serial(8):
                with T.sblock("y"):
                    vi = T.axis.spatial(8, i)
                    y[vi] = x[vi] * a
    """
    found, _ = kernel(text)
    assert Given(1, is_memory=False) in found.args


def test_several_launches_are_refused() -> None:
    """A kernel is one launch: programs are split before."""
    text = """
        def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32"), z: T.Buffer((8,), "float32")):
            for i in T.thread_binding(8, thread="blockIdx.x"):
                with T.sblock("y"):
                    vi = T.axis.spatial(8, i)
                    y[vi] = x[vi]
            for i in T.thread_binding(8, thread="blockIdx.x"):
                with T.sblock("z"):
                    vi = T.axis.spatial(8, i)
                    z[vi] = y[7 - vi]
    """
    with pytest.raises(BuildError) as caught:
        device_kernel(program(text).func, "k", TARGET)
    assert caught.value.code == "kernel-compile"


@pytest.mark.parametrize("target", ["opencl", "vulkan", "webgpu", "cuda", "metal"])
@pytest.mark.parametrize("scope", ["", ', scope="local"', ', scope="shared"'])
def test_memory_of_no_elements(scope: str, target: str) -> None:
    """Languages of devices have no empty arrays."""
    mod = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for v in range(n):
            none = T.alloc_buffer((0, 3), "float32"{scope})
            y[v] = x[v] + T.float32(1)
            for i, j in T.grid(0, 3):
                none[i, j] = x[v]
            for i, j in T.grid(0, 3):
                y[v] = y[v] + none[i, j]

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        return R.call_tir(M.f, (x,), out_ty=R.Tensor((n,), "float32"))
""")
    exe = relaxpy.build(mod, target, cache=False, jobs=1)
    if runtime_class(relaxpy.Target.parse(target).device).devices():
        got = relaxpy.VirtualMachine(exe)["main"](np.arange(3, dtype=np.float32)).numpy()
        assert got.tolist() == [1, 2, 3]


@pytest.mark.parametrize("target", ["opencl", "vulkan", "webgpu", "cuda", "metal"])
def test_programs_that_do_nothing(target: str) -> None:
    """Nothing is left of a loop over no elements whose author did not say that they are apart."""
    mod = relaxpy.parse("""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n", 0), "float32"), y: T.Buffer((0, 2, "n"), "float32")):
        n = T.int64()
        for i, j in T.grid(n, 0):
            for k in range(2):
                y[j, (i + k) % 2, i] = x[i, j]

    @R.function
    def main(x: R.Tensor(("n", 0), "float32")):
        n = T.int64()
        y = R.call_tir(M.f, (x,), out_ty=R.Tensor((0, 2, n), "float32"))
        z = R.layout_transform(x, index_map=T.index_map(lambda i, j: (i // 2, j, i % 2)))
        return (y, z)
""")
    exe = relaxpy.build(mod, target, cache=False, jobs=1)
    if runtime_class(relaxpy.Target.parse(target).device).devices():
        y, z = relaxpy.VirtualMachine(exe)["main"](np.zeros((5, 0), np.float32))
        assert (y.numpy().shape, z.numpy().shape) == ((0, 2, 5), (3, 0, 2))
