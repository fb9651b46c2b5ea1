"""Kernels that are told where in their memory a tensor begins."""

from __future__ import annotations

from relaxpy.backend.gpu.device_kernel import device_kernel
from relaxpy.backend.gpu.offsets import with_offsets
from relaxpy.backend.gpu.threads import bind_threads
from tests.backend.gpu.support import MATMUL, program
from tests.backend.gpu.test_device_kernel import TARGET


def test_an_offset_for_each_buffer() -> None:
    """Behind the other parameters, and part of every index."""
    func = device_kernel(bind_threads(program(MATMUL).func, 64), "k", TARGET).func
    moved = with_offsets(func)
    names = [param.name for param in moved.params]
    assert names[len(func.params) :] == [f"{name}_first" for name in names[:3]]
    text = moved.script()
    assert "w[w_ptr_first + " in text
    assert "x[x_ptr_first + " in text
    assert "y[y_ptr_first + " in text
