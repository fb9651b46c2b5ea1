"""Images of CUDA: what they hold, and how they are called."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cuda.kernel_image import kernel_image
from relaxpy.backend.cuda.source import PREAMBLE, cuda_source
from relaxpy.backend.cuda.target import CudaTarget
from relaxpy.backend.gpu.device_kernel import device_kernel
from relaxpy.backend.gpu.threads import bind_threads
from relaxpy.runtime.bytecode import Heap, IntOp
from relaxpy.runtime.devices.image import Image
from tests.backend.gpu.support import MATMUL, program

SM_80 = CudaTarget(archs=("sm_80",))


def test_arguments_and_launch() -> None:
    """Pointers and sizes, and no first elements: a pointer is the address of one."""
    image, launch = kernel_image(bind_threads(program(MATMUL).func, 64), "k", "matmul", SM_80)
    assert image.format == "cubin"
    assert image.kernel.encode() in image.code
    assert sorted(arg["memory"] for arg in image.args if "memory" in arg) == [0, 1, 2]
    assert not any("first" in arg for arg in image.args)
    count = IntOp("floordiv", (IntOp("add", (IntOp("mul", (Heap(0), 3)), 63)), 64))
    assert launch[:6] == (count, 1, 1, 64, 1, 1)
    assert image.limits == {"threads": 64}
    assert set(image.resources) == {"registers", "stack", "spills", "shared"}


def test_formats() -> None:
    func = bind_threads(program(MATMUL).func, 64)
    ptx, _ = kernel_image(func, "k", "rows", CudaTarget(archs=("compute_90",)))
    assert ptx.format == "ptx"
    assert not ptx.resources
    assert f".entry {ptx.kernel}(".encode() in ptx.code


def test_same_bytes() -> None:
    func = bind_threads(program(MATMUL).func, 64)
    first, second = (kernel_image(func, "k", "matmul", SM_80)[0].encode() for _ in range(2))
    assert first == second


def test_the_source_needs_no_header() -> None:
    func = bind_threads(program(MATMUL).func, 64)
    target = SM_80.to_tvm()
    source = cuda_source(device_kernel(func, "k", target).func, target)
    assert source.startswith(PREAMBLE)
    assert "#include" not in source
    assert "__restrict__" not in source  # a tensor may be passed twice


PROGRAM = """
@R.function
def main(x: R.Tensor(("n", 1024), "{dtype}"), w: R.Tensor((64, 1024), "{dtype}")):
    y = R.linear(x, w)
    return y
"""


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_few_rows_are_read_by_vectors(dtype: str) -> None:
    """A weight of few rows is read 16 bytes at once."""
    mod = relaxpy.parse(PROGRAM.format(dtype=dtype))
    exe = relaxpy.build(mod, "cuda -arch=compute_80")
    (image,) = map(Image.decode, exe.objects)
    assert b"ld.global.v4." in image.code


def test_an_executable_has_an_image_for_each_architecture() -> None:
    exe = relaxpy.build(relaxpy.parse(PROGRAM.format(dtype="float32")), "cuda")
    images = [Image.decode(data) for data in exe.objects]
    assert [image.format for image in images] == ["cubin", "ptx", "cubin"]
    assert [r.arch for r in exe.requirements if r.arch] == ["sm_90", "compute_90", "sm_80"]
    with pytest.raises(relaxpy.RelaxError):
        relaxpy.VirtualMachine(exe)["main"](
            np.zeros((1, 1024), np.float32), np.zeros((64, 1024), np.float32)
        )
