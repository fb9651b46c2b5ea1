"""What the processor's arithmetic can do at most."""

from __future__ import annotations

import numpy as np

from relaxpy.backend.cpu.peak import CHAINS, STEPS, argument, multiply_adds, peak_flops
from relaxpy.backend.cpu.target import CpuTarget


def test_operations_are_those_of_the_loop() -> None:
    """Two a lane of a chain, a step, a task."""
    target = CpuTarget.host()
    flops, run = multiply_adds("float32", 1, target)
    assert flops == 2 * 4 * target.lanes() * CHAINS * STEPS
    run()


def test_more_than_python_can() -> None:
    a = np.ones((64, 64), np.float32)
    assert peak_flops(CpuTarget.host()) > 1e8
    assert argument(a).shape == (64, 64)
