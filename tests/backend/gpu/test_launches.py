"""Programs in launches: one for each nest, with workspaces between them."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.backend.gpu.launches import launches_of, outer_parallel
from relaxpy.ir.dim import SymVar
from relaxpy.ir.module import IRModule
from relaxpy.testing.op_samples import program_of, samples
from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.sort import sort_rows
from tests.backend.gpu.support import MATMUL, ROWS, TWO, program


def test_one_nest_is_one_launch() -> None:
    assert launches_of(program(MATMUL)) is None


def test_nests_follow_one_another() -> None:
    """What one leaves for the next is a workspace, however small."""
    found = launches_of(program(TWO))
    assert found is not None
    assert [w.shape for w in found.workspaces] == [(1,)]
    assert [each.args for each in found.launches] == [(0, 2), (0, 2, 1)]


def test_rows_of_memory() -> None:
    """What the body of a parallel loop allocates is a row of a workspace, over the program's own symbols."""
    whole = program(ROWS)
    found = launches_of(whole)
    assert found is not None
    assert [w.shape for w in found.workspaces] == [whole.params[0].shape]  # type: ignore[union-attr]
    (launch,) = found.launches
    assert launch.args == (0, 1, 2)
    assert outer_parallel(launch.program.func.body) is not None
    assert "alloc_buffer" not in launch.program.script()


def test_memory_of_rows_of_several_axes() -> None:
    """A sort has its keys in a workspace, two rows of them for each row."""
    shape = tuple(SymVar(name).dim for name in "nkm")
    x = te.placeholder(shape, "float32", "x")
    whole = PrimFunc.from_te([x], sort_rows(x, shape, 1))
    found = launches_of(whole)
    assert found is not None
    (keys,) = found.workspaces
    assert [str(size) for size in keys.shape] == ["n", "m", "k * 2"]
    (launch,) = found.launches
    assert "keys[v_row0, v_row1, i]" in launch.program.script()


def test_symbols_that_no_buffer_says() -> None:
    """A launch is given the sizes that its buffers do not say."""
    text = """
        def main(x: T.Buffer(("n * m",), "float32"), y: T.Buffer(("n", "m"), "float32")):
            n = T.int64()
            m = T.int64()
            twice = T.sblock_alloc_buffer((n * m,), "float32")
            for i in T.serial(n * m):
                with T.sblock("twice"):
                    vi = T.axis.spatial(n * m, i)
                    twice[vi] = x[vi] * T.float32(2)
            for i, j in T.grid(n, m):
                with T.sblock("y"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi, vj] = twice[vi * m + vj]
    """
    whole = program(text)
    found = launches_of(whole)
    assert found is not None
    symbols = [arg for arg in found.launches[0].args if isinstance(arg, SymVar)]
    assert {symbol.name for symbol in symbols} == {"n", "m"}
    own = {var for param in whole.params for dim in param.shape for var in dim.vars}  # type: ignore[union-attr]
    assert set(symbols) <= own


@pytest.mark.parametrize("name", ["nn.softmax", "sort", "topk", "nn.attention", "cumsum"])
def test_launches_are_programs(name: str) -> None:
    """Each prints as script that parses back to it."""
    sample = next(s for s in samples(name) if not s.code)
    whole, _, _ = program_of(sample, bool(sample.dims))
    found = launches_of(whole)
    for each in found.launches if found else ():
        mod = IRModule({"main": each.program})
        again = relaxpy.parse(mod.script())
        assert again["main"].structural_equal(each.program), each.program.script()  # type: ignore[union-attr]
