"""Products by tiles against numpy: any number of rows, ragged columns, parts of the depth, and epilogues; the bits of a
row are the same among any others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from relaxpy.backend.cpu.panels import Packing, wanted_packing, with_packed
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.dim import SymVar
from relaxpy.op import te
from relaxpy.runtime.host.features import host_features
from relaxpy.runtime.host.tile_registers import FEATURES, may_use_tiles
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from tests.backend.cpu.rules.test_matmul_factors import agrees, numbers, product
from tests.backend.cpu.tile_places import PLACES, tiles_at
from tests.sweeps import sweep

SERVER = CpuTarget.read("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=sapphirerapids")
PAIRS = (("bfloat16", "bfloat16"), ("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"))
ROWS = (0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 256, 257, 300)


def packed(func: PrimFunc, target: CpuTarget) -> tuple[PrimFunc, Packing]:
    packing = wanted_packing(func, target)
    assert packing is not None
    return with_packed(func, packing), packing


@pytest.mark.parametrize("depth", [64, 65])
@pytest.mark.parametrize("pair", PAIRS)
def test_the_rule_takes_depths_of_whole_tiles(pair: tuple[str, str], depth: int) -> None:
    """Others are multiplied in vectors; bfloat16 is packed in pairs only for tiles there."""
    func = product(*pair, "plain", depth, 48)
    program, packing = packed(func, SERVER)
    assert (packing.group == 1) is (depth == 65 and pair[0] == "bfloat16")
    rule = schedule_kernel(program.func, SERVER).rule
    assert rule == ("tile_matmul" if depth == 64 else "matmul")


def test_it_takes_nothing_that_is_not_packed_or_not_contiguous() -> None:
    plain = product("bfloat16", "bfloat16", "plain", 64, 48)
    assert schedule_kernel(plain.func, SERVER).rule == "matmul"
    program, _ = packed(product("bfloat16", "bfloat16", "left", 64, 48), SERVER)
    assert schedule_kernel(program.func, SERVER).rule == "matmul"


def test_processors_without_tiles() -> None:
    znver4 = CpuTarget.read("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver4")
    program, packing = packed(product("bfloat16", "bfloat16", "plain", 64, 48), znver4)
    assert packing.group == 2
    assert schedule_kernel(program.func, znver4).rule == "matmul"
    both = CpuTarget.read("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=sapphirerapids,znver4")
    program, packing = packed(product("bfloat16", "bfloat16", "plain", 64, 48), both)
    assert (packing.group, packing.width) == (2, 32)
    rules = [schedule_kernel(program.func, each).rule for each in both.alternatives]
    assert sorted(rules) == ["matmul", "tile_matmul"]


@pytest.fixture(scope="module", params=PLACES)
def target(request: pytest.FixtureRequest) -> Iterator[CpuTarget]:
    with tiles_at(str(request.param)) as target:
        yield target


@cache
def kernels(target: CpuTarget, depth: int, columns: int) -> tuple[Kernels, dict[str, Packing]]:
    made = {
        "_".join(pair): packed(product(*pair, "plain", depth, columns), target) for pair in PAIRS
    }
    programs = {name: program for name, (program, _) in made.items()}
    compiled = Kernels(programs, target)
    assert compiled.rules == dict.fromkeys(programs, "tile_matmul")
    return compiled, {name: packing for name, (_, packing) in made.items()}


@sweep(3)
@pytest.mark.parametrize("columns", [31, 32, 300])
@pytest.mark.parametrize("depth", [64, 1152])
@pytest.mark.parametrize("pair", PAIRS)
def test_products(target: CpuTarget, pair: tuple[str, str], depth: int, columns: int) -> None:
    """Rows have the same bits among any others, at any place."""
    lhs, rhs = pair
    compiled, packings = kernels(target, depth, columns)
    name = "_".join(pair)
    right = numbers((depth, columns), rhs, 1)
    panels = packings[name].pack(right)
    whole = numbers((max(ROWS), depth), lhs, 2)
    kind = whole.dtype if lhs == "bfloat16" else np.dtype("int32")

    def run(left: np.ndarray) -> np.ndarray:
        out = np.full((len(left), columns), 77, kind)
        compiled.run(name, [left, panels], [out])
        return out

    every = run(whole)
    agrees(every, whole, right)
    for rows in ROWS:
        np.testing.assert_array_equal(run(whole[:rows]), every[:rows])
    np.testing.assert_array_equal(run(whole[::-1].copy()), every[::-1])


def test_batches_and_epilogues(target: CpuTarget) -> None:
    """Rows of several products are those of one; a residual is added once, where blocks of rows overlap, too."""
    m, n, k = SymVar("m"), 80, 64
    x, w, r = (
        te.placeholder(shape, dtype, name)
        for shape, dtype, name in (
            ((3, m, k), "bfloat16", "X"),
            ((k, n), "bfloat16", "W"),
            ((3, m, n), "float32", "R"),
        )
    )
    inner = te.reduce_axis(k)

    def product_of(b: Any, i: Any, j: Any) -> Any:
        left, right = (te.element(v).astype("float32") for v in (x(b, i, inner), w(inner, j)))
        return te.sum(left * right, inner)

    total = te.compute((3, m, n), product_of, "T")

    def added(b: Any, i: Any, j: Any) -> Any:
        return te.element(total(b, i, j)) + te.element(r(b, i, j))

    out = te.compute((3, m, n), added, "O")
    program, packing = packed(PrimFunc.from_te([x, w, r], [out]), target)
    assert schedule_kernel(program.func, target).rule == "tile_matmul"
    compiled = Kernels({"f": program}, target)
    right = numbers((k, n), "bfloat16", 1)
    for rows in (0, 1, 11, 13, 70):
        left, residual = numbers((3, rows, k), "bfloat16", 2), numbers((3, rows, n), "float32", 3)
        result = np.empty((3, rows, n), np.float32)
        compiled.run("f", [left, packing.pack(right), residual], [result])
        expected = left.astype(np.float64) @ right.astype(np.float64) + residual
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_permission_is_asked_for_once() -> None:
    """Whoever may use tiles sees their features; who may not, sees none of them."""
    assert may_use_tiles() is may_use_tiles()
    named = host_features() & FEATURES
    assert may_use_tiles() or not named
