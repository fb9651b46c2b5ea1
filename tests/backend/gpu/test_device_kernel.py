"""Launches as device functions, and the sizes of their grids."""

from __future__ import annotations

import pytest

from relaxpy.backend.gpu.device_kernel import DeviceKernel, Given, device_kernel
from relaxpy.backend.gpu.threads import bind_threads
from relaxpy.errors import BuildError
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
