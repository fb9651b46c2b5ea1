"""One code for a kernel on all threads and alone: a second library, switched to the calling thread."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cpu import alone
from relaxpy.backend.cpu.compile import compile_object
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.runtime.bytecode import Alone, KernelImage, KernelInfo
from relaxpy.runtime.devices.cpu.kernels import Handle, KernelHandles, load_kernels
from relaxpy.target import Target
from relaxpy.tir.tvm import te, tirx
from tests.backend.support import HOST, as_tensor, compute, f32, n, normal, tensor

THREADS = """
from tests.backend.cpu.test_alone import handles, threads_used
kernel = handles()
print(threads_used(kernel.serial), threads_used(kernel.parallel))
"""


def program() -> tirx.PrimFunc:
    """Each row of the result holds the number of the thread pool's task that wrote it, and a sum."""
    x = tensor(n, 64)
    func = te.create_prim_func([x, compute((n, 64), lambda i, j: tirx.exp(x[i, j]) + f32(1.0))])
    return schedule_kernel(func, HOST).parallel


def handles() -> KernelHandles:
    """The kernel in both ways, of one object."""
    code = compile_object({"k": program(), **alone.switch("k")}, HOST)
    info = KernelInfo(
        "k", (KernelImage("k", "k", 0, Alone(alone.switch_symbol("k"), alone.RUNNER, 1)),)
    )
    return load_kernels([code, alone.runner_object()], [info])[0]


def threads_used(call: Handle) -> int:
    """OS threads of this process after a call."""
    a = normal(4096, 64)
    call(as_tensor(a), as_tensor(np.empty_like(a)))
    return len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("rows", [0, 1, 5, 1000])
def test_both_give_the_same_bits(rows: int) -> None:
    kernel = handles()
    a = normal(rows, 64)
    results = []
    for call in (kernel.parallel, kernel.serial, kernel.parallel_release, kernel.serial_release):
        out = np.full_like(a, np.nan)
        call(as_tensor(a), as_tensor(out))
        results.append(out)
    np.testing.assert_allclose(results[0], np.exp(a) + 1, rtol=1e-5)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_one_starts_threads_and_the_other_does_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True,
        env={"TVM_NUM_THREADS": "4", "PATH": "", "PYTHONPATH": ":".join(p for p in sys.path if p) + ":."},
    )  # fmt: skip
    serial, parallel = map(int, done.stdout.split())
    assert parallel > serial


def test_only_large_parallel_programs_of_this_machine_share_code() -> None:
    x = tensor(n)
    small = te.create_prim_func([x, compute((n,), lambda i: x[i] + f32(1.0))])
    assert not alone.shares_code(schedule_kernel(small, HOST).parallel, HOST)
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 64), "float32")):
    y = R.matmul(x, w)
    return y
""")
    (kernel,) = relaxpy.build(mod).kernels
    assert kernel.image.alone is not None
    assert kernel.image.symbol == kernel.image.serial_symbol
    assert load_kernels(relaxpy.build(mod).objects, [kernel])
    foreign = Target.parse("llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=generic")
    (kernel,) = relaxpy.build(mod, foreign).kernels
    assert kernel.image.alone is None


def test_saved_and_loaded(tmp_path: Path) -> None:
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 64), "float32")):
    y = R.matmul(x, w)
    return y
""")
    relaxpy.build(mod).save(tmp_path / "m.rxe")
    vm = relaxpy.VirtualMachine(relaxpy.load(tmp_path / "m.rxe"))
    for rows in (1, 3, 500):  # alone, and on all threads
        x, w = normal(rows, 64), normal(64, 64)
        np.testing.assert_allclose(vm["main"](x, w).numpy(), x @ w, rtol=1e-4, atol=1e-4)


def test_a_handle_is_enough() -> None:
    """The code that it calls by address stays, whatever else is loaded and dropped."""
    call = handles().serial
    for _ in range(3):
        handles()
        gc.collect()
        a = normal(100, 64)
        out = np.empty_like(a)
        call(as_tensor(a), as_tensor(out))
        np.testing.assert_allclose(out, np.exp(a) + 1, rtol=1e-5)
