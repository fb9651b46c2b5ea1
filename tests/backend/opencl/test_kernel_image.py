"""Images: OpenCL C, and how it is called."""

from __future__ import annotations

import pytest

from relaxpy.backend.gpu.launch_args import size_numbers
from relaxpy.backend.gpu.threads import bind_threads
from relaxpy.backend.opencl.kernel_image import kernel_image
from relaxpy.backend.opencl.target import OpenCLTarget
from relaxpy.build.kernels import kernel_params
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.expr import Var
from relaxpy.op.deduce import deduce
from relaxpy.op.sorting import Topk
from relaxpy.runtime.bytecode import Heap, IntOp
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.te_call import legal_program
from tests.backend.gpu.support import MATMUL, ROWS, program


def test_arguments_and_launch() -> None:
    """Memory, sizes, and first elements, in the order in which the text has them; groups over the kernel's sizes."""
    image, launch = kernel_image(bind_threads(program(MATMUL).func, 64), "k", OpenCLTarget())
    assert image.kernel in image.source
    memory = [arg["memory"] for arg in image.args if "memory" in arg]
    assert sorted(memory) == [0, 1, 2]
    assert [arg["first"] for arg in image.args if "first" in arg] == memory
    count = IntOp("floordiv", (IntOp("add", (IntOp("mul", (Heap(0), 3)), 63)), 64))
    assert launch[:6] == (count, 1, 1, 64, 1, 1)
    sizes = [arg for arg in image.args if "size" in arg]
    assert [launch[arg["size"]] for arg in sizes] == [Heap(1), Heap(0)]
    assert all(arg["dtype"] == "int64" for arg in sizes)


def test_sizes_are_numbered_as_in_the_file() -> None:
    """A formula's `Heap(i)` is the size that the kernel's parameters call so."""
    for text in (MATMUL, ROWS):
        whole = PrimFunc(program(text).func)
        numbers = size_numbers(whole)
        for param, said in zip(whole.params, kernel_params(whole), strict=True):
            for dim, size in zip(param.shape, said.shape or (), strict=True):  # type: ignore[union-attr]
                if dim in numbers:
                    assert size == Heap(numbers[dim])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_unsigned_values_are_compared_in_conditions(dtype: str) -> None:
    """As those of `R.topk`: the values that decide are read, and kept in local buffers."""
    call = Topk(k=3)(Var("x", TensorType((5, 7), dtype)))
    ty = deduce(call)
    func, _ = legal_program(call.op, [deduce(call.args[0])], ty)
    image, _ = kernel_image(bind_threads(func.func, 64), "k", OpenCLTarget())
    assert " < " in image.source


def test_same_bytes() -> None:
    """The same program gives the same image."""
    made = [
        kernel_image(bind_threads(program(MATMUL).func, 64), "k", OpenCLTarget())[0].encode()
        for _ in range(2)
    ]
    assert made[0] == made[1]
