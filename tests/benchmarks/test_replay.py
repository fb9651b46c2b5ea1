"""What kernels compile to, before and after: digests see no names, and do see what is called."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("elftools.elf.elffile")
import relaxpy
from benchmarks.replay import Arguments, Timed, at_a_page, differences, loaded
from benchmarks.replay_cases import Case, kernels
from benchmarks.replay_table import REFUSED, Line, table, without_names
from relaxpy.target import Target

SUM = """
@I.ir_module
class Module:
    @T.prim_func
    def add(FIRST: T.Buffer((97,), "float32"), y: T.Buffer((97,), "float32"), z: T.Buffer((97,), "float32")):
        for INDEX in range(97):
            with T.block("BLOCK"):
                vi = T.axis.spatial(97, INDEX)
                z[vi] = FIRST[vi] OPERATOR y[vi]

    @R.function
    def main(x: R.Tensor((97,), "float32"), y: R.Tensor((97,), "float32")):
        cls = Module
        z = R.call_tir(cls.add, (x, y), out_sinfo=R.Tensor((97,), "float32"))
        return z
"""


def case(operator: str = "+", **names: str) -> Case:
    text = SUM.replace("OPERATOR", operator)
    for name in ("FIRST", "INDEX", "BLOCK"):
        text = text.replace(name, names.get(name, name.lower()))
    return Case("sum", relaxpy.parse(text), ({},))


def lines_for(
    target: str, of: Case, objects: Path | None = None, *, quick: bool = False
) -> list[Line]:
    return list(table([of], Target.parse(target), quick=quick, objects=objects))


@pytest.mark.parametrize("target", ["llvm -mcpu=haswell -opt-level=0", "webgpu", "opencl"])
def test_names_do_not_count(target: str) -> None:
    """Of a buffer, a loop and a block; an operator does."""
    if target == "opencl":
        pytest.importorskip("pyopencl")
    (own,) = lines_for(target, case())
    assert own.rule != REFUSED, own.kernel
    (renamed,) = lines_for(target, case(FIRST="left", INDEX="j", BLOCK="other"))
    assert renamed == own
    (other,) = lines_for(target, case("*"))
    assert {own.program, own.schedule, own.code}.isdisjoint(
        (other.program, other.schedule, other.code)
    )
    (quick,) = lines_for(target, case(), quick=True)
    assert (quick.schedule, quick.code) == (own.schedule, "")


def test_a_call_counts() -> None:
    """By its name, in a source and in an object."""
    source = b"float y0 = exp(x) + z; return y0;"
    assert without_names(source) == without_names(b"float r = exp(a) + b; return r;")
    assert without_names(source) != without_names(b"float y0 = log(x) + z; return y0;")
    assert without_names(source) != without_names(b"float y0 = exp(z) + z; return y0;")
    text = """
@I.ir_module
class Module:
    @T.prim_func
    def f(x: T.Buffer((3,), "float64"), y: T.Buffer((3,), "float64")):
        for i in range(3):
            with T.block("b"):
                vi = T.axis.spatial(3, i)
                y[vi] = T.call_extern("float64", "CALLED", x[vi])

    @R.function
    def main(x: R.Tensor((3,), "float64")):
        cls = Module
        y = R.call_tir(cls.f, (x,), out_sinfo=R.Tensor((3,), "float64"))
        return y
"""
    found: list[Line] = []
    for called in ("cbrt", "expm1", "cbrt"):
        of = Case("call", relaxpy.parse(text.replace("CALLED", called)))
        found += lines_for("llvm -mcpu=haswell -opt-level=0", of)
    first, second, third = found
    assert first.rule != REFUSED, first.kernel
    assert first == third
    assert first.code != second.code


def test_what_differs_is_named() -> None:
    line = Line("llvm", "case", "kernel", "matmul", "p", "s", "c")
    key = line.key

    def told(other: Line) -> list[str]:
        return [what for _, what in differences({key: line}, {key: other})]

    assert told(line) == []
    assert told(Line(*key, "rows", "p2", "s2", "c")) == []  # the same code by another way
    assert told(Line(*key, "rows", "p", "s2", "c2")) == ["rule, schedule, code"]
    assert [what for _, what in differences({key: line}, {})] == ["is gone"]
    assert [what for _, what in differences({}, {key: line})] == ["is new"]
    quick = Line(*key, "matmul", "p", "s")
    assert [w for _, w in differences({key: quick}, {key: Line(*key, "matmul", "p", "t")})] == [
        "schedule"
    ]


def test_a_kernel_comes_back(tmp_path: Path) -> None:
    """With arguments at the beginning of pages, and the same numbers."""
    of = case()
    (line,) = lines_for(str(Target.host()), of, tmp_path)
    x, y = of.arguments({})
    arguments = Arguments([x, y, np.zeros(97, np.float32)])
    assert all(array.ctypes.data % 4096 == 0 for array in arguments.arrays)
    loaded(tmp_path, of.name, line.kernel)(*arguments.passed)
    np.testing.assert_array_equal(arguments.arrays[2], x + y)
    assert at_a_page(np.empty((0, 3), np.int8)).shape == (0, 3)


@pytest.mark.parametrize(
    ("ratios", "controls", "slower"),
    [
        ((1.05, 1.06, 1.04), (0.99, 1.01, 1.0), True),
        ((1.05, 1.06, 1.02), (0.99, 1.01, 1.0), False),
        ((1.05, 1.06, 1.04), (0.99, 1.05, 1.0), False),
    ],
)
def test_slower_is_outside_of_the_control(
    ratios: tuple[float, ...], controls: tuple[float, ...], slower: bool
) -> None:
    assert Timed("case", {}, "kernel", 30.0, ratios, controls, True).slower is slower


def test_cases_can_be_run() -> None:
    """Names are those of one case each, and there are arguments of each size."""
    found = list(kernels())
    assert len({each.name for each in found}) == len(found)
    for each in found:
        for sizes in each.sizes[:1]:
            params = each.mod.graph_functions["main"].params
            assert len(each.arguments(sizes)) == len(params)
