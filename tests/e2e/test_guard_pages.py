"""No kernel reads or writes beyond the end of its tensors, though it works in whole vectors."""

from __future__ import annotations

import os

import numpy as np
import pytest

import relaxpy
from relaxpy.runtime import pool, tensor
from relaxpy.testing.guard_pages import allocate, guarded, status_in_child
from tests.sweeps import part, sweep

BODIES = (
    "R.nn.softmax(x)",
    "R.nn.softmax(x, axis=0)",
    "R.sum(x, axis=1)",
    "R.max(x)",
    "R.min(x, axis=0)",
    "R.argmax(x, axis=1)",
    "R.nn.silu(x) * x",
    "R.permute_dims(x)",
    "R.cumsum(x, axis=1)",
    "R.concat((x, x), axis=1)",
    "R.matmul(x, R.permute_dims(x))",
    'R.astype(x, "bfloat16")',
    "R.sort(x)",
    "R.flip(x, axis=1)",
    'R.nn.layer_norm(x, R.ones((m,), "float32"), R.zeros((m,), "float32"), axes=-1)',
)

IMAGES = (
    "R.nn.max_pool2d(x, pool_size=3, strides=2, padding=1)",
    "R.nn.max_pool2d(x, pool_size=2, strides=2)",
    "R.nn.max_pool2d(x, pool_size=2, strides=1)",
    "R.nn.avg_pool2d(x, pool_size=3, strides=1, padding=1)",
    "R.nn.conv2d(x, w, groups=6)",
    "R.nn.conv2d(x, w, strides=2, groups=6)",
    "R.nn.conv2d(x, w, strides=3, padding=1, groups=6)",
    "R.nn.conv2d(x, w, padding=2, dilation=2, groups=6)",
    'R.nn.conv2d(R.permute_dims(x, (0, 2, 3, 1)), w, groups=6, data_layout="NHWC")',
    "R.nn.conv2d(x, R.broadcast_to(w, (6, 6, 3, 3)), padding=1)",
)


@sweep(2)
@pytest.mark.parametrize("sizes", part([(3, 4), (5, 17), (2, 100)], 2), ids=str)
@pytest.mark.parametrize("known", [True, False], ids=["static", "symbolic"])
def test_ends_of_memory(sizes: tuple[int, int], known: bool) -> None:
    """Every program, of sizes that are known and of symbolic ones, with arguments, results and what is between them
    right before a page that may not be touched."""
    shape = str(sizes) if known else '("n", "m")'
    functions = [
        f'    @R.function\n    def f{i}(x: R.Tensor({shape}, "float32")):\n'
        + ("" if known else "        n, m = T.int64(), T.int64()\n")
        + f"        return {body.replace('m,', f'{sizes[1]},') if known else body}\n"
        for i, body in enumerate(BODIES)
    ]
    mod = relaxpy.parse("@I.ir_module\nclass Module:\n" + "\n".join(functions))
    exe = relaxpy.build(mod)
    x = np.random.default_rng(0).standard_normal(sizes, dtype=np.float32)

    def call() -> None:
        tensor.allocate = pool.allocate = allocate  # type: ignore[assignment]
        vm = relaxpy.VirtualMachine(exe)
        for i, body in enumerate(BODIES):
            os.write(2, f"{body}\n".encode())  # the last one is the one that failed
            vm[f"f{i}"](guarded(x))

    assert status_in_child(call) == 0


@sweep
@pytest.mark.parametrize("sizes", part([(3, 3), (6, 16), (5, 17), (9, 33)], 2), ids=str)
def test_ends_of_images(sizes: tuple[int, int]) -> None:
    """Windows over images of any size."""
    functions = [
        f'    @R.function\n    def f{i}(x: R.Tensor(("n", 6, "h", "w_"), "float32"), '
        f'w: R.Tensor((6, 1, 3, 3), "float32")):\n        return {body}\n'
        for i, body in enumerate(IMAGES)
    ]
    exe = relaxpy.build(relaxpy.parse("@I.ir_module\nclass Module:\n" + "\n".join(functions)))
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(s, dtype=np.float32) for s in ((1, 6, *sizes), (6, 1, 3, 3)))

    def call() -> None:
        tensor.allocate = pool.allocate = allocate  # type: ignore[assignment]
        vm = relaxpy.VirtualMachine(exe)
        for i, body in enumerate(IMAGES):
            os.write(2, f"{body}\n".encode())
            vm[f"f{i}"](guarded(x), guarded(w))

    assert status_in_child(call) == 0


def test_a_read_beyond_the_end_is_a_signal() -> None:
    array = guarded(np.zeros(5, np.float32))
    assert status_in_child(lambda: array.copy()) == 0
    behind = np.lib.stride_tricks.as_strided(array, (6,))
    assert status_in_child(lambda: behind.copy()) == 11
