"""Rounds of loops of a thread: a bound, over the sizes of the program."""

from __future__ import annotations

import pytest

from relaxpy.backend.gpu.rounds import rounds_of
from relaxpy.backend.gpu.threads import bind_threads
from tests.backend.gpu.support import MATMUL, program

ALONE = """
    def main(x: T.Buffer(("n",), "float32"), p: T.Buffer((1,), "int64"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in T.serial(n):
            {}
                y[0] = y[0] + x[i]
"""


@pytest.mark.parametrize(
    ("inner", "at_5"),
    [
        ("for j in T.serial(3):", 5 * 4), ("for j in T.serial(i + 1):", 5 * 6), ("for j in T.serial(i, n):", 5 * 6),
        ("for j in T.serial(n // 2):", 5 * 3), ("if i < 3:", 5), ("for j in T.serial(p[0]):", 5 * 2),
    ],
)  # fmt: skip
def test_one_thread(inner: str, at_5: int) -> None:
    """A loop whose extent is read counts once."""
    func = bind_threads(program(ALONE.format(inner)).func, 64)
    found = rounds_of(func)
    (n,) = found.vars
    assert found.evaluate({n: 5}) == at_5


def test_a_product() -> None:
    """Threads are no rounds."""
    found = rounds_of(bind_threads(program(MATMUL).func, 64))
    assert {str(symbol.name) for symbol in found.vars} == {"k"}
