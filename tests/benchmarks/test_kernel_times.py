"""The kernels of a virtual machine, timed."""

from __future__ import annotations

import numpy as np

import relaxpy
from benchmarks.kernel_times import recording

SOURCE = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    y = R.nn.softmax(x)
    return y
"""


def test_calls_are_counted() -> None:
    with recording() as times:
        vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(SOURCE)))
    for _ in range(3):
        vm["main"](np.ones((2, 4), np.float32))
    (softmax,) = times.by_time()
    assert softmax.name == "softmax"
    assert softmax.calls == 3
    assert softmax.seconds > 0
