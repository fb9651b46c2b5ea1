"""The backend of OpenCL: programs bound to threads, images, and what it refuses."""

from __future__ import annotations

import pytest

from relaxpy.backend.base import CompileOptions
from relaxpy.backend.opencl.backend import OpenCLBackend
from relaxpy.backend.opencl.target import OpenCLTarget
from relaxpy.backend.registry import backend_of
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.errors import BuildError
from relaxpy.ir.module import CHECK_INDICES
from relaxpy.runtime.devices.image import Image
from tests.backend.gpu.support import MATMUL, TWO, program

TARGET = OpenCLTarget()


def test_it_is_found_by_its_kind() -> None:
    assert isinstance(backend_of(TARGET), OpenCLBackend)


def test_launches() -> None:
    """One for each nest of loops."""
    found = OpenCLBackend().launches(program(TWO), TARGET)
    assert found is not None
    assert len(found.launches) == 2


def test_images() -> None:
    """One for each kernel, under its symbol."""
    kernels = {name: schedule_kernel(program(MATMUL).func, TARGET) for name in ("a", "b")}
    found = OpenCLBackend().compile(kernels, TARGET, CompileOptions())
    assert {name: info.object for name, info in found.kernels.items()} == {"a": 0, "b": 1}
    names = [Image.decode(image).kernel for image in found.objects]
    assert names == [info.symbol for info in found.kernels.values()]
    assert len(set(names)) == 2


def test_programs_that_may_fail() -> None:
    """A kernel cannot tell anybody."""
    func = program(MATMUL).func.with_attr(CHECK_INDICES, "look_up")
    with pytest.raises(BuildError, match='"look_up" may raise an error at run time') as caught:
        schedule_kernel(func, TARGET)
    assert caught.value.code == "device-assert"


def test_what_does_not_compile() -> None:
    """The error names the kernel, and shows the program."""
    text = """
        def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
            for i in T.thread_binding(8, thread="warp"):
                with T.sblock("y"):
                    vi = T.axis.spatial(8, i)
                    y[vi] = x[vi]
    """
    kernels = {"k": schedule_kernel(program(text).func, TARGET)}
    with pytest.raises(BuildError, match='"strange"') as caught:
        OpenCLBackend().compile(kernels, TARGET, CompileOptions(), called="strange")
    assert caught.value.code == "kernel-compile"
