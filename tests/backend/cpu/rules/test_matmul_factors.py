"""Products of narrow factors against numpy: by dot instructions and widened, as they lie, turned and packed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import ml_dtypes
import numpy as np
import pytest

from relaxpy.backend.cpu.compile import compile_source
from relaxpy.backend.cpu.panels import wanted_packing, with_packed
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.dim import SymVar
from relaxpy.op import te
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from tests.sweeps import optimised, part, quick_target, sweep

TARGETS = ("llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64")
SUMS = {
    ("bfloat16", "bfloat16"): "float32",
    ("float16", "float16"): "float32",
    ("int8", "int8"): "int32",
    ("uint8", "int8"): "int32",
    ("int8", "uint8"): "int32",
    ("uint8", "uint8"): "int32",
}
LAYOUTS = ("plain", "turned", "left")
"""`a @ b`, `a @ b.T`, `a.T @ b`."""


def product(
    lhs: str,
    rhs: str,
    layout: str,
    depth: int | None = None,
    columns: int | None = None,
    rows: int | None = None,
) -> PrimFunc:
    """The product, its sum converted to the left type where that is a float."""
    m, k, n = rows or SymVar("m"), depth or SymVar("k"), columns or SymVar("n")
    total = SUMS[lhs, rhs]
    a = te.placeholder((k, m) if layout == "left" else (m, k), lhs, "A")
    b = te.placeholder((n, k) if layout == "turned" else (k, n), rhs, "B")
    inner = te.reduce_axis(k)

    def element(i: object, j: object) -> object:
        left = a(inner, i) if layout == "left" else a(i, inner)
        right = b(j, inner) if layout == "turned" else b(inner, j)
        return te.sum(left.astype(total) * right.astype(total), inner)

    out = te.compute((m, n), element, "C")
    if total == "float32":
        summed = out
        out = te.compute((m, n), lambda i, j: summed(i, j).astype(lhs), "D")
    return PrimFunc.from_te([a, b], [out])


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """All values of a byte; normal numbers."""
    random = np.random.default_rng(seed)
    if "int" in dtype:
        bounds = np.iinfo(dtype)
        return random.integers(bounds.min, bounds.max + 1, shape).astype(dtype)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return random.standard_normal(shape).astype(kind)


def pairs(target: str) -> list[tuple[str, str]]:
    """What is run on a target: where there are no dot products of bytes, all are widened to pairs alike."""
    few = (("bfloat16", "bfloat16"), ("float16", "float16"), ("uint8", "int8"), ("int8", "int8"))
    return list(SUMS) if target == "llvm" else list(few)


@cache
def kernels(target: str, layout: str) -> Kernels:
    """One kernel for every pair of types, all extents unknown; optimised for this processor and the plain layout, and
    for all in a full sweep."""
    host = Target.host() if (target, layout) == ("llvm", "plain") else quick_target(target)
    if not host.is_host_loadable:
        pytest.skip(f"{target} does not run here")
    programs = {f"{lhs}_{rhs}": product(lhs, rhs, layout) for lhs, rhs in pairs(target)}
    compiled = Kernels(programs, host)
    assert compiled.rules == dict.fromkeys(programs, "matmul")
    return compiled


def sizes() -> Iterator[tuple[int, int, int]]:
    """Rows, depth, columns: none, one, and around groups, tiles, panels and blocks."""
    yield from ((0, 5, 7), (1, 1, 1), (1, 4, 16), (3, 0, 5), (2, 2, 33), (5, 3, 17), (8, 63, 31))
    yield from ((9, 65, 32), (16, 8, 64), (17, 7, 40), (1, 2051, 35), (10, 2050, 9), (200, 13, 70))


def agrees(actual: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Integers to the bit; floats within the rounding of the result and of sums in float32."""
    if "int" in str(a.dtype):
        np.testing.assert_array_equal(actual, a.astype("int32") @ b.astype("int32"))
        return
    wide, by = a.astype("float64"), b.astype("float64")
    step = float(ml_dtypes.finfo(actual.dtype).eps)
    bound = step * np.abs(wide @ by) + 1e-5 * (np.abs(wide) @ np.abs(by))
    assert (np.abs(actual.astype("float64") - wide @ by) <= bound).all()


@sweep(6)
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", part(LAYOUTS, 2))
def test_every_type_and_layout(target: str, layout: str) -> None:
    for lhs, rhs in pairs(target):
        for m, k, n in sizes():
            a, b = numbers((m, k), lhs, 1), numbers((k, n), rhs, 2)
            kind = a.dtype if SUMS[lhs, rhs] == "float32" else np.dtype("int32")
            out = np.full((m, n), 77, kind)
            given = (
                np.ascontiguousarray(a.T) if layout == "left" else a,
                np.ascontiguousarray(b.T) if layout == "turned" else b,
            )
            kernels(target, layout).run(f"{lhs}_{rhs}", given, [out])
            agrees(out, a, b)


@sweep(6)
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("depth", part([70, 64, 1030], 2))
def test_packed(target: str, depth: int) -> None:
    """Weights in panels, in groups where the target has dot instructions, and the same bits as without. Those of one
    depth are optimised for this processor, and all in a full sweep."""
    host = Target.host() if (target, depth) == ("llvm", 70) else quick_target(target)
    programs: dict[str, PrimFunc] = {}
    packings = {}
    for lhs, rhs in pairs(target):
        program = product(lhs, rhs, "plain", depth, 75)
        packing = wanted_packing(program, host)
        assert packing is not None
        packings[lhs, rhs] = packing
        programs[f"{lhs}_{rhs}"] = with_packed(program, packing)
    rules = {name: schedule_kernel(each.func, host).rule for name, each in programs.items()}
    compiled = Kernels(programs, host)
    for (lhs, rhs), packing in packings.items():
        b = numbers((depth, 75), rhs, 3)
        for m in (1, 2, 4, 5, 8, 9, 16, 17, 33):
            a = numbers((m, depth), lhs, 4)
            kind = a.dtype if SUMS[lhs, rhs] == "float32" else np.dtype("int32")
            out, plain = np.full((m, 75), 77, kind), np.full((m, 75), 78, kind)
            compiled.run(f"{lhs}_{rhs}", [a, packing.pack(b)], [out])
            agrees(out, a, b)
            kernels(target, "plain").run(f"{lhs}_{rhs}", [a, b], [plain])
            if (
                rules[f"{lhs}_{rhs}"] == "matmul" or "int" in lhs
            ):  # tiles add bfloat16 in another order
                np.testing.assert_array_equal(out, plain)


@pytest.mark.parametrize("target", TARGETS)
def test_known_rows_of_panels(target: str) -> None:
    """Panels of widened elements, in registers for a few tiles and copied for more: the bits of unknown rows."""
    host = Target.parse(target)
    if not host.is_host_loadable:
        pytest.skip(f"{target} does not run here")
    b = numbers((300, 40), "float16", 3)
    packing = wanted_packing(product("float16", "float16", "plain", 300, 40), host)
    assert packing is not None
    counts = (5, 12, 20, 24)
    programs = {
        f"rows_{rows}": with_packed(product("float16", "float16", "plain", 300, 40, rows), packing)
        for rows in (None, *counts)
    }
    compiled = Kernels(programs, host)
    for m in counts:
        a = numbers((m, 300), "float16", m)
        known, unknown = np.full((m, 40), 77, a.dtype), np.full((m, 40), 78, a.dtype)
        compiled.run(f"rows_{m}", [a, packing.pack(b)], [known])
        compiled.run("rows_None", [a, packing.pack(b)], [unknown])
        agrees(known, a, b)
        np.testing.assert_array_equal(known, unknown)


def test_groups_of_the_target() -> None:
    """Two bfloat16 or four bytes a word where there are instructions, else one, and two bytes."""
    triple = "-mtriple=x86_64-unknown-linux-gnu"
    large = Target.parse(f"llvm {triple} -mcpu=znver4")
    small = Target.parse(f"llvm {triple} -mcpu=haswell")
    for types, group, of_small in (
        (("bfloat16", "bfloat16"), 2, 1),
        (("int8", "int8"), 4, 2),
        (("uint8", "uint8"), 2, 2),
    ):
        program = product(*types, "plain", 8, 64)
        packing = wanted_packing(program, large)
        assert packing is not None
        assert packing.group == group
        packing = wanted_packing(program, small)
        assert packing is not None
        assert packing.group == of_small


def test_not_a_number_stays_one() -> None:
    """A NaN and an infinity in a factor reach their row, and zeros past a depth that is odd do not meet them."""
    name = "bfloat16_bfloat16"
    a, b = np.ones((9, 5), ml_dtypes.bfloat16), np.ones((5, 20), ml_dtypes.bfloat16)
    a[2, 4], a[7, 0] = np.nan, np.inf
    out = np.zeros((9, 20), ml_dtypes.bfloat16)
    kernels("llvm", "plain").run(name, [a, b], [out])
    assert np.isnan(out[2]).all()
    assert np.isinf(out[7]).all()
    assert (np.delete(out, (2, 7), 0) == 5).all()


@optimised
@pytest.mark.parametrize(("dtype", "dots"), [("int8", "vpdpbusd"), ("bfloat16", "vdpbf16ps")])
def test_sums_of_dot_products_stay_in_registers(dtype: str, dots: str) -> None:
    """Of whole tiles of 6 rows by 4 vectors: no loop of theirs stores."""
    target = Target.parse("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver4")
    plain = product(dtype, dtype, "plain", 2048, 128)
    packing = wanted_packing(plain, target)
    assert packing is not None
    kernel = schedule_kernel(with_packed(plain, packing).func, target)
    assert kernel.rule == "matmul"
    text = compile_source({"k": kernel.serial}, target)
    blocks = re.split(r"^\.LBB\S+:", text, flags=re.MULTILINE)
    whole = [block for block in blocks if block.count(dots) >= 24]
    assert whole
    for block in whole:
        loop = block[: block.rindex("\tj")]
        last = loop.rindex(dots)
        stores = re.findall(r"vmov\S+\s+%zmm\d+, \S*\(%r[sb]p\S*", loop[:last])
        assert not stores
