"""Marked loops: LLVM keeps one copy of them, and they compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaxpy.backend.cpu.compile import compile_source
from relaxpy.target import Target
from relaxpy.tir.lowering.rolled import kept_rolled
from relaxpy.tir.programs import loops
from relaxpy.tir.tvm import tirx, tvm_ffi
from tests.backend.support import AVX2, as_tensor, load, n
from tests.sweeps import optimised


def copying(*, rolled: bool, outer: int = 1) -> tirx.PrimFunc:
    """A program that copies vectors of 8, `outer` times, and adds 1 to them."""
    x, y = (tirx.decl_buffer([n, loops.int64(8)], "float32", name, layout=None) for name in "xy")
    p = loops.Program()
    from_, to = p.flat_view(x), p.flat_view(y)
    with p.loop("again", outer, rolled=rolled), p.loop("i", n, rolled=rolled) as i:
        p.store(to, i * 8, loops.load(from_, i * 8, 8) + loops.broadcast(tirx.const(1.0), 8), 8)
    return loops.finished(tirx.PrimFunc([x, y], tirx.Evaluate(0)), p.body())


@optimised
@pytest.mark.parametrize("outer", [1, 4])
def test_one_copy(outer: int) -> None:
    plain, rolled = (
        compile_source({"k": copying(rolled=marked, outer=outer)}, AVX2).count("vaddps")
        for marked in (False, True)
    )
    assert rolled == 1
    assert plain > 1


@pytest.mark.parametrize("extent", [0, 1, 3, 100])
@pytest.mark.parametrize("outer", [1, 4])
def test_the_same_results(extent: int, outer: int, tmp_path: Path) -> None:
    kernel = load(tmp_path, {"k": copying(rolled=True, outer=outer)})["k"]
    x = np.arange(extent * 8, dtype=np.float32).reshape(extent, 8)
    y = np.zeros_like(x)
    kernel(as_tensor(x), as_tensor(y))
    np.testing.assert_array_equal(y, x + 1)


def test_programs_without_marks_stay() -> None:
    func = copying(rolled=False)
    assert kept_rolled(func).same_as(func)


def test_only_marked_loops_change() -> None:
    p = loops.Program()
    x = tirx.decl_buffer([64], "float32", "x", layout=None)
    with p.loop("i", 4) as i, p.loop("j", 16, rolled=True) as j:
        p.store(x, i * 16 + j, tirx.const(1.0))
    func = kept_rolled(loops.finished(tirx.PrimFunc([x], tirx.Evaluate(0)), p.body()))
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(func.body, (tirx.For, found.append), order="pre")
    outer, inner = found
    assert isinstance(outer.body, tirx.For)
    assert isinstance(inner.body, tirx.SeqStmt)


def test_c_has_no_such_loops() -> None:
    text = compile_source({"k": copying(rolled=True)}, Target.parse("c"))
    assert "relaxpy" not in text
