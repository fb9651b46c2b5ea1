"""The runner of kernels: every thread runs once, barriers wait for all, and what is undefined is an error."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.device_emulation.runner import (
    KernelFailure,
    Kernels,
    check_syntax,
    compiled,
    needs_compiler,
)

pytestmark = needs_compiler

HEAD = """
#include <metal_stdlib>
using namespace metal;
struct numbers_t { long n; };
kernel void k(device float* x [[ buffer(0) ]], constant numbers_t& arg [[ buffer(1) ]],
  uint3 group [[threadgroup_position_in_grid]], uint3 own [[thread_position_in_threadgroup]]) {
"""
MEET = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def kernel(body: str) -> Kernels:
    return compiled("metal_shim.h", f"{HEAD}{body}\n}}\n", ("k",))


def run(
    body: str,
    x: np.ndarray,
    n: int = 0,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (1, 1, 1),
    backwards: bool = False,
) -> np.ndarray:
    """What the kernel leaves in `x`."""
    found = x.astype(np.float32)
    memory = ctypes.c_void_p(found.ctypes.data)
    kernel(body).launch("k", grid, block, [memory, ctypes.c_int64(n)], backwards=backwards)
    return found


@pytest.mark.parametrize("backwards", [False, True])
def test_every_thread_runs_once(backwards: bool) -> None:
    body = "long t = own.x + 3 * (own.y + 2 * own.z); long g = group.x + 2 * group.y; x[g * 30 + t] += float(t + arg.n);"
    found = run(body, np.zeros(180), 7, (2, 3, 1), (3, 2, 5), backwards)
    assert found.tolist() == [t + 7 for _ in range(6) for t in range(30)]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 64, 256])
def test_barriers(threads: int, backwards: bool) -> None:
    """Each thread reads what its neighbours have written, in a loop."""
    body = f"""
        threadgroup float all[256];
        for (int i = 0; i < 5; i++) {{
          all[own.x] = x[group.x * {threads} + own.x];
          {MEET}
          x[group.x * {threads} + own.x] = all[(own.x + 1) % {threads}];
          {MEET}
        }}
    """
    x = np.arange(3 * threads, dtype=np.float32)
    found = run(body, x, 0, (3, 1, 1), (threads, 1, 1), backwards).reshape(3, -1)
    np.testing.assert_array_equal(found, np.roll(x.reshape(3, -1), -5, axis=1))


def test_threads_that_end_before_a_barrier() -> None:
    with pytest.raises(KernelFailure, match="have ended, and others wait for them"):
        run(f"if (own.x < 3) {{ {MEET} }}", np.zeros(1), block=(4, 1, 1))


def test_different_barriers() -> None:
    with pytest.raises(KernelFailure, match="wait at different barriers"):
        run(f"if (own.x < 2) {{ {MEET} }} else {{\n {MEET} }}", np.zeros(1), block=(4, 1, 1))


def test_a_launch_after_a_failure() -> None:
    """It starts anew."""
    body = f"if (arg.n > own.x) {{ {MEET} }} x[own.x] = 1.0f;"
    with pytest.raises(KernelFailure):
        run(body, np.zeros(4), 2, block=(4, 1, 1))
    assert run(body, np.zeros(4), 4, block=(4, 1, 1)).tolist() == [1] * 4


def test_memory_of_a_group_is_unknown() -> None:
    """Also in the second group, which would see what the first has left."""
    body = (
        f"threadgroup float all[2]; x[2 * group.x + own.x] = all[own.x]; {MEET} all[own.x] = 1.0f;"
    )
    assert np.isnan(run(body, np.zeros(4), grid=(2, 1, 1), block=(2, 1, 1))).all()


def test_results_that_depend_on_the_order() -> None:
    """They differ where the order does: a race is seen."""
    body = "x[0] = float(own.x);"
    found = [run(body, np.zeros(1), block=(4, 1, 1), backwards=b)[0] for b in (False, True)]
    assert found == [3, 0]


def test_no_groups() -> None:
    assert run("x[0] = 1.0f;", np.zeros(1), grid=(0, 1, 1)).tolist() == [0]


@pytest.mark.parametrize(
    "body",
    [
        "double y = 1; x[0] = y;",
        "x[0] = erff(x[0]);",
        "x[0] = hypot(x[0], x[0]);",
        "x[0] = unknown(x[0]);",
    ],
)
def test_what_the_language_lacks(body: str) -> None:
    with pytest.raises(AssertionError, match="error"):
        check_syntax("metal_shim.h", f"{HEAD}{body}\n}}\n")


def test_halves() -> None:
    """All of them, to float32 and back; and rounding to the nearest, ties to even."""
    every = np.arange(1 << 16, dtype=np.uint16)
    x = every.view(np.float16).astype(np.float32)
    body = "long i = own.x + 256 * group.x; x[i] = float(half(x[i]));"
    found = run(body, x, grid=(256, 1, 1), block=(256, 1, 1))
    np.testing.assert_array_equal(found, x)
    between = np.nextafter(x[:0x7C00], np.float32(0)), (x[1:0x7C00] + x[:0x7BFF]) / 2
    for values in between:
        with np.errstate(over="ignore"):
            wanted = values.astype(np.float16).astype(np.float32)
        padded = np.zeros(1 << 16, np.float32)
        padded[: len(values)] = values
        found = run(body, padded, grid=(256, 1, 1), block=(256, 1, 1))
        np.testing.assert_array_equal(found[: len(values)], wanted)
