"""Dot-product instructions compute what the table says they mean."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.dot import DOTS, Dot, dot_of
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs import loops
from relaxpy.tir.tvm import te
from tests.backend.cpu.levels import LEVELS, running

CASES = [
    (dot, lanes, pair)
    for dot in DOTS
    for lanes in dot.versions
    for pair in dot.takes
    if "int16" not in pair or pair == ("int16", "int16")
]
LEVEL = {
    "": "SSE2", "avx2": "AVX2", "avx512bw": "AVX-512", "avxvnni": "AVX-VNNI", "avx512vnni": "AVX512_VNNI",
    "avx512bf16": "AVX512_BF16",
}  # fmt: skip
"""Feature → an instruction set whose fastest arithmetic it is."""


def program(arithmetic: Arithmetic) -> PrimFunc:
    """`out = sums + left · right`, a vector of each."""
    lanes, width = arithmetic.lanes, arithmetic.lanes * arithmetic.group
    kinds = ((lanes, arithmetic.total), (width, arithmetic.lhs), (width, arithmetic.rhs))
    given = [te.placeholder((size,), dtype) for size, dtype in kinds]

    def same(i: Any) -> Any:
        return given[0](i)

    func = PrimFunc.from_te(given, [te.compute((lanes,), same)]).func
    p: Any = loops.Program()
    sums, left, right, result = (p.flat_view(buffer) for buffer in func.params)
    words = arithmetic.left_words(left, 0), arithmetic.right_words(right, 0)
    p.store(result, 0, arithmetic.add_product(loops.load(sums, 0, lanes), *words), lanes)
    return PrimFunc(loops.finished(func, arithmetic.around(p.body())))


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """All codes; those of bytes have their ends."""
    if dtype in ("float32", "bfloat16"):
        return rng.standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype))
    info = np.iinfo(dtype)
    found = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    found.flat[:3] = (info.min, info.max, info.min)
    return found


@pytest.mark.parametrize(
    ("dot", "lanes", "pair"), CASES, ids=[f"{d.versions[n][1]} {a} {b}" for d, n, (a, b) in CASES]
)
def test_the_meaning(dot: Dot, lanes: int, pair: tuple[str, str]) -> None:
    """By numpy; sums of integers wrap. Where signs are flipped, 128 times the right factors is too much."""
    rng = np.random.default_rng(0)
    with running(LEVELS[LEVEL[dot.versions[lanes][0]]]) as target:
        arithmetic = Arithmetic.of(*pair, dot.total, target)
        assert (arithmetic.dot, arithmetic.lanes) == (dot, lanes)
        sums = numbers(rng, (lanes,), dot.total)
        left, right = (numbers(rng, (lanes, dot.group), each) for each in pair)
        out = np.empty(lanes, dot.total)
        kernels = Kernels({"f": program(arithmetic)}, target, schedule=False)
        kernels.run("f", (sums, left.reshape(-1), right.reshape(-1)), (out,))
    wanted = dot.meaning(sums, left, right)
    if arithmetic.flips:
        wanted = wanted + 128 * right.astype(dot.total).sum(axis=1, dtype=dot.total)
    np.testing.assert_allclose(out, wanted, rtol=1e-6 if dot.total == "float32" else 0)


def test_a_processor_has_the_fastest() -> None:
    """In the order of the table, and none that is slow."""

    def name(mcpu: str, lhs: str, rhs: str, total: str) -> str:
        target = CpuTarget.read(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={mcpu}")
        dot = dot_of(lhs, rhs, total, target)
        return "" if dot is None else dot.versions[target.lanes()][1]

    assert name("znver4", "bfloat16", "bfloat16", "float32") == "x86.avx512bf16.dpbf16ps.512"
    assert name("emeraldrapids", "bfloat16", "bfloat16", "float32") == ""
    assert name("alderlake", "uint8", "int8", "int32") == "x86.avx512.vpdpbusd.256"
    assert name("znver4", "uint8", "uint8", "int32") == "x86.avx512.pmaddw.d.512"
    assert name("x86-64", "int8", "int8", "int32") == "x86.sse2.pmadd.wd"
    assert name("znver4", "float32", "float32", "float32") == ""
    arm = CpuTarget.read("llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-n1")
    assert dot_of("int8", "int8", "int32", arm) is None
