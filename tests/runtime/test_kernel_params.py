"""The symbols of kernels vouch for their parameters and launches."""

from __future__ import annotations

from dataclasses import replace

from relaxpy.runtime.bytecode import Heap, IntOp, KernelImage, KernelInfo, KernelParam
from relaxpy.runtime.kernel_params import launched, symbol_of, symbol_problem

PARAMS = (KernelParam("float32", (Heap(0),)), KernelParam("float32", (Heap(0),), access="write"))
LAUNCH = (IntOp("floordiv", (IntOp("add", (Heap(0), 63)), 64)), 64)


def test_a_launch_is_added_to_a_symbol() -> None:
    """Backends know it after the symbol was made."""
    symbol = symbol_of("program", PARAMS)
    assert launched(symbol, LAUNCH) == symbol_of("program", PARAMS, LAUNCH) != symbol
    assert launched(symbol, ()) == symbol


def test_another_launch_is_noticed() -> None:
    symbol = symbol_of("program", PARAMS, LAUNCH)
    kernel = KernelInfo("k", (KernelImage(symbol, symbol, launch=LAUNCH),), PARAMS)
    assert not symbol_problem(kernel)
    for other in ((), (LAUNCH[0], 65), (Heap(0), 64)):
        assert "other parameters" in symbol_problem(
            replace(kernel, images=(kernel.image, replace(kernel.image, launch=other)))
        )
