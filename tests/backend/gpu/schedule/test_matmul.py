"""Matrix products on devices: which programs, with which sizes, and the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.gpu.schedule.group import SHARED_BYTES
from relaxpy.backend.knobs import Choices
from relaxpy.backend.schedule import ScheduledKernel, schedule_kernel
from relaxpy.backend.webgpu.backend import WebGPUBackend
from relaxpy.backend.webgpu.target import WebGPUTarget
from relaxpy.build.pipeline import default_pipeline
from relaxpy.runtime.bytecode import Kernel
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx
from relaxpy.tir.walk import walk
from relaxpy.transform.base import PassContext
from tests.backend.gpu.support import printed
from tests.runtime.devices.opencl.support import needs_opencl
from tests.runtime.devices.webgpu.support import needs_vulkan
from tests.sweeps import full

BIAS = """
@R.function
def main(x: R.Tensor(("m", "k"), "float32"), w: R.Tensor(("k", "n"), "float32"), b: R.Tensor(("n",), "float32")):
    y = R.nn.gelu(R.add(R.matmul(x, w), b))
    return y
"""
TURNED = """
@R.function
def main(x: R.Tensor(("b", "m", 3, "k"), "float32"), w: R.Tensor(("b", "n", 3, "k"), "float32")):
    q = R.permute_dims(x, axes=[0, 2, 1, 3])
    k = R.permute_dims(w, axes=[0, 2, 3, 1])
    y = R.matmul(q, k)
    return y
"""
SMALL = """
@R.function
def main(x: R.Tensor(("m", "k"), "int8"), w: R.Tensor(("k", "n"), "int8")):
    y = R.matmul(x, w, out_dtype="int32")
    return y
"""
FOUR_BITS = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def decode(
        data: T.Buffer((37, 8), "uint32"), scale: T.Buffer((37, 2), "float32"), w: T.Buffer((64, 37), "float32")
    ):
        for k, j in T.grid(64, 37):
            with T.sblock("w"):
                vk, vj = T.axis.remap("SS", [k, j])
                w[vk, vj] = (
                    T.Cast("float32", T.bitwise_and(
                        T.shift_right(data[vj, vk // 8], T.Cast("uint32", vk % 8 * 4)), T.uint32(15)
                    )) - T.float32(8)
                ) * scale[vj, vk // 32]

    @R.function
    def main(x: R.Tensor(("m", 64), "float32"), data: R.Tensor((37, 8), "uint32"), scale: R.Tensor((37, 2), "float32")):
        cls = Module
        with R.dataflow():
            w = R.call_tir(cls.decode, (data, scale), out_ty=R.Tensor((64, 37), dtype="float32"))
            y = R.matmul(x, w)
            R.output(y)
        return y
"""
SIZES = [
    (1, 5, 3),
    (0, 5, 3),
    (5, 0, 7),
    (3, 5, 0),
    (4, 17, 16),
    (5, 31, 33),
    (31, 16, 32),
    (33, 47, 65),
]
"""Rows, depth, columns: nothing, one, primes, a tile and one beside it; few rows and many."""


def program_of(text: str) -> PrimFunc:
    """The only tensor program of a text, with its operators fused."""
    mod, context = relaxpy.parse(text), PassContext(target=WebGPUTarget())
    for each in default_pipeline(WebGPUTarget()).passes:
        mod = each.run(mod, context)
        if each.name == "lambda-lift":
            break
    (program,) = mod.prim_funcs.values()
    assert isinstance(program, PrimFunc)
    return program


def scheduled(text: str, choices: Choices | None = None, threads: int = 64) -> ScheduledKernel:
    """The schedule of the only kernel of a program."""
    return schedule_kernel(program_of(text).func, WebGPUTarget(threads=threads), choices)


def launches(text: str) -> int:
    """The number of launches in a call."""
    (main,) = relaxpy.build(relaxpy.parse(text), "webgpu").functions
    return sum(isinstance(instr, Kernel) for instr in main.code)


@pytest.mark.parametrize("text", [BIAS, TURNED, SMALL, FOUR_BITS])
def test_products_are_one_launch(text: str) -> None:
    """With what is before and behind them: a transposition, a bias, a weight of small integers with scales."""
    assert launches(text) == 1
    assert scheduled(text).rule == "matmul"


def test_rows_that_are_known() -> None:
    """Then one of the two programs is left."""
    one = printed(scheduled(BIAS.replace('("m", "k")', '(1, "k")')).parallel)
    assert "partial" in one
    assert "finished" not in one
    many = printed(scheduled(BIAS.replace('("m", "k")', '(16, "k")')).parallel)
    assert "partial" not in many
    assert "finished" in many


@full
def test_knobs() -> None:
    """The choices of `relaxpy tune`; shared memory suffices for each of them."""
    offered = WebGPUBackend().knobs(program_of(BIAS).func, WebGPUTarget())["matmul"]
    assert set(offered) == {"few", "tile", "depth", "columns"}
    wide = scheduled(BIAS, {"tile": 8, "depth": 32}, threads=256)
    assert len(printed(wide.parallel)) > len(printed(scheduled(BIAS).parallel))
    sizes: list[int] = []

    def shared(node: Any) -> None:
        if str(node.buffer.scope()) == "shared":
            sizes.append(int(node.buffer.shape[0]))

    walk(wide.parallel.body, (tirx.AllocBuffer, shared))
    assert len(sizes) == 3
    assert sum(sizes) * 4 <= SHARED_BYTES
    assert scheduled(BIAS, {"rule": "rows"}).rule == "rows"


def check(target: str) -> None:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    def small(*shape: int) -> np.ndarray:
        return rng.integers(-128, 128, shape).astype(np.int8)

    same_at(BIAS, target, [(normal(m, k), normal(k, n), normal(n)) for m, k, n in SIZES])
    turned = [(2, 3, 5, 4), (1, 33, 17, 34), (0, 2, 2, 2), (2, 1, 7, 9)]
    same_at(TURNED, target, [(normal(b, m, 3, k), normal(b, n, 3, k)) for b, m, k, n in turned])
    same_at(SMALL, target, [(small(m, k), small(k, n)) for m, k, n in SIZES[3:6]])
    words = rng.integers(0, 1 << 32, (37, 8), dtype=np.uint32)
    same_at(FOUR_BITS, target, [(normal(m, 64), words, normal(37, 2)) for m in (1, 4, 35)])


def same_at(text: str, target: str, calls: Sequence[Sequence[np.ndarray]]) -> None:
    """One executable, these arguments; the numbers are the processor's."""
    exe = relaxpy.build(relaxpy.parse(text), target)
    device = relaxpy.VirtualMachine(exe, check_memory=True)
    for args in calls:
        found, expected = device(*args).numpy(), host(text)(*args).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@cache
def host(text: str) -> relaxpy.VirtualMachine:
    """The program on the processor."""
    return relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text)))


@full
@needs_opencl
def test_on_opencl() -> None:
    check("opencl")


@full
@needs_vulkan
def test_on_vulkan() -> None:
    check("vulkan -threads=100")
