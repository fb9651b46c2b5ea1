"""Operators on many tensors at once."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

import numpy as np
import pytest

import relaxpy
from tests.sweeps import part, sweep

SECONDS = 30.0
"""Of processor time, for programs that take a tenth of it: one kernel for all tensors took minutes, or never ended."""

CASES: dict[str, tuple[str, int | None, int, Callable[[int], tuple[int | str, ...]]]] = {
    "one shape": ("concat", 0, 100, lambda i: (2, 8)),
    "one symbol": ("concat", -1, 70, lambda i: (2, "n")),
    "many symbols": ("concat", 0, 100, lambda i: (f"n{i}", 2)),
    "runs of rows": ("concat", 1, 8, lambda i: ("m", f"n{i}")),
    "levels": ("concat", 0, 1100, lambda i: (i % 3, 2)),
    "vectors": ("concat", None, 40, lambda i: (f"n{i}", 2)),
    "stack": ("stack", 1, 100, lambda i: ("n", 2)),
}


@sweep(2)
@pytest.mark.parametrize("name", part([*CASES], 2))
def test_joined(name: str) -> None:
    op, axis, count, shape = CASES[name]
    params = ", ".join(f'x{i}: R.Tensor({shape(i)}, "float32")' for i in range(count))
    tensors = ", ".join(f"x{i}" for i in range(count))
    mod = relaxpy.parse(f"""
@R.function
def main({params}):
    y = R.{op}(({tensors}), axis={axis})
    return y
""")
    sizes = {"n": 3, "m": 5} | {f"n{i}": i % 4 for i in range(count)}
    rng = np.random.default_rng(0)
    values = [
        rng.random(
            [sizes[size] if isinstance(size, str) else size for size in shape(i)], np.float32
        )
        for i in range(count)
    ]
    start = process_time()
    exe = relaxpy.build(mod, cache=False, jobs=1)
    assert process_time() - start < SECONDS
    joined = {"concat": np.concatenate, "stack": np.stack}[op](values, axis)
    np.testing.assert_array_equal(relaxpy.VirtualMachine(exe)["main"](*values), joined)


def test_sizes_in_different_groups_are_compared() -> None:
    params = ", ".join(f'x{i}: R.Tensor((1, "m{i // 35}"), "float32")' for i in range(40))
    mod = relaxpy.parse(f"""
@R.function
def main({params}):
    y = R.concat(({", ".join(f"x{i}" for i in range(40))}), axis=0)
    return y
""")
    main = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    values = [np.full((1, 3), i, np.float32) for i in range(40)]
    np.testing.assert_array_equal(main(*values), np.concatenate(values))
    with pytest.raises(relaxpy.RelaxError, match="sizes of axis 1 differ"):
        main(*values[:35], *(np.ones((1, 4), np.float32) for _ in range(5)))
