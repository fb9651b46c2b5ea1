"""float16 as bits in memory and float32 in registers."""

from __future__ import annotations

from relaxpy.backend.gpu.device_kernel import device_kernel
from relaxpy.backend.gpu.half import NARROW, WIDEN, with_bits_in_memory
from relaxpy.backend.gpu.threads import bind_threads
from tests.backend.gpu.support import program
from tests.backend.gpu.test_device_kernel import TARGET


def lowered(value: str) -> str:
    """The device function of a program that computes this of halves, as text."""
    text = f"""
        def main(x: T.Buffer((8,), "float16"), y: T.Buffer((8,), "float16")):
            for i in T.serial(8):
                with T.sblock("y"):
                    vi = T.axis.spatial(8, i)
                    y[vi] = {value}
    """
    kernel = device_kernel(bind_threads(program(text).func, 8), "k", TARGET)
    return with_bits_in_memory(kernel.func).script()


def test_arithmetic_is_of_float32() -> None:
    text = lowered("x[vi] * T.float16(0.1) + x[7 - vi]")
    assert "float16" not in text
    assert text.count(WIDEN) == 2
    assert text.count(NARROW) == 1
    assert "0.0999755859375" in text  # the half next to 0.1


def test_what_moves_stays_as_it_is() -> None:
    text = lowered("x[7 - vi]")
    assert WIDEN not in text
    assert NARROW not in text
    assert 'T.handle("uint16", "global")' in text


def test_choices_and_functions() -> None:
    text = lowered("T.Select(x[vi] > T.float16(0), T.exp(x[vi]), T.float16(1))")
    assert "float16" not in text
    assert "T.exp(" in text
