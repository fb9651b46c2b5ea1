"""Tensor programs read back as stages, and what is inlined."""

from __future__ import annotations

from typing import Any

import pytest

from relaxpy.script.parser import parse
from relaxpy.tir.numerics import math as tir_math
from relaxpy.tir.numerics import scalar
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise import stages
from relaxpy.tir.recognise.stages import common_rows, inline_stages, is_expensive, read_stages, step
from relaxpy.tir.tvm import te, tirx
from tests.backend.support import compute, f32, m, n, over, tensor


def stages_of(*tensors: Any) -> tuple[Any, list[Any]]:
    func = te.create_prim_func(list(tensors))
    stages = read_stages(func)
    assert stages is not None
    return func, stages


def test_a_program_is_read_once() -> None:
    """Whoever asks gets the same stages, which nobody can change."""
    x = tensor(n, m)
    twice = compute((n, m), lambda *i: x[i] * f32(2.0), "twice")
    func = te.create_prim_func([x, compute((n, m), lambda *i: twice[i] + twice[i], "out")])
    found = stages.stages_of(func)
    assert isinstance(found, tuple)
    assert [stage.name for stage in found] == ["out"]
    assert stages.stages_of(func) is found
    assert stages.stages_of(func.with_body(tirx.Evaluate(tirx.const(0)))) is None


def test_a_cheap_intermediate_is_inlined_everywhere() -> None:
    x = tensor(n, m)
    twice = compute((n, m), lambda *i: x[i] * f32(2.0), "twice")
    out = compute((n, m), lambda *i: twice[i] + twice[i])
    func, stages = stages_of(x, out)
    assert [stage.name for stage in stages] == ["twice", "out"]
    (only,) = inline_stages(stages, func)
    assert len(only.loads) == 2
    assert all(load.source.same_as(func.params[0]) for load in only.loads)


def test_an_expensive_value_of_a_row_stays_a_stage() -> None:
    """Inlined, the root would be taken once an element instead of once a row."""
    x, y = tensor(n), tensor(n, m, name="y")
    root = compute((n,), lambda i: tirx.sqrt(x[i]), "root")
    func, stages = stages_of(x, y, compute((n, m), lambda i, j: y[i, j] * root[i]))
    inlined = inline_stages(stages, func)
    assert [stage.name for stage in inlined] == ["root", "out"]
    assert common_rows(inlined) == 1


def test_an_expensive_value_of_an_element_is_inlined() -> None:
    x = tensor(n, m)
    exp = compute((n, m), lambda *i: tir_math.exp(x[i]), "exp")
    func, stages = stages_of(x, compute((n, m), lambda *i: exp[i] + f32(1.0)))
    assert len(inline_stages(stages, func)) == 1


def test_what_several_stages_read_lives_in_the_output() -> None:
    x, k = tensor(n, m), over(m)
    exp = compute((n, m), lambda *i: tir_math.exp(x[i]), "exp")
    total = compute((n,), lambda i: te.sum(exp[i, k], axis=k), "total")
    func, stages = stages_of(x, compute((n, m), lambda i, j: exp[i, j] / total[i]))
    inlined = inline_stages(stages, func)
    assert [stage.name for stage in inlined] == ["exp", "total", "out"]
    assert inlined[0].buffer.same_as(func.params[-1])


@pytest.mark.parametrize(
    ("reduce", "kind"),
    [
        (te.sum, "add"), (te.max, "max"), (te.min, "min"),
        (scalar.reduce_max, "maximum"), (scalar.reduce_min, "minimum"),
        (te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t)), "mul"),
    ],
)  # fmt: skip
def test_combiners(reduce: Any, kind: str) -> None:
    x, k = tensor(n, m), over(m)
    _, (stage,) = stages_of(x, compute((n,), lambda i: reduce(x[i, k], axis=k)))
    assert stage.combiner is not None
    assert stage.combiner.kind == kind
    assert len(stage.loads) == 1


def test_a_pair_of_results_is_not_a_stage() -> None:
    """The place of the greatest element: two values that are reduced together."""
    x, k = tensor(n, m), over(m)

    def greater(a: Any, b: Any) -> Any:
        return tirx.Select(a[1] >= b[1], a[0], b[0]), tirx.Select(a[1] >= b[1], a[1], b[1])

    argmax = te.comm_reducer(greater, lambda a, b: (tirx.const(-1, a), te.min_value(b)))
    place, _ = te.compute((n,), lambda i: argmax((k.var, x[i, k]), axis=k), name="argmax")
    assert read_stages(te.create_prim_func([x, place])) is None


def test_axes_of_extent_one_are_no_axes() -> None:
    x, k = tensor(n, m), over(m)
    _, (stage,) = stages_of(x, compute((n, 1), lambda i, _: te.sum(x[i, k], axis=k)))
    assert len(stage.axes) == 1
    assert stage.index[1].value == 0


def test_step_of_an_access() -> None:
    """Elements apart, as the axis advances by one: a constant, or None for a gather."""
    x, index = tensor(n, m), tensor(n, dtype="int64", name="index")
    out = compute((n, 8), lambda i, j: x[index[i], j * 2 + 1])
    func, (stage,) = stages_of(x, index, out)
    i, j = stage.axes
    (read,) = stage.reads(func.params[0])
    assert step(read.indices, read.source.shape, j) == 2
    assert step(read.indices, read.source.shape, i) is None


@pytest.mark.parametrize(
    ("value", "expensive"),
    [
        (lambda x: x * f32(2.0) + f32(1.0), False),
        (lambda x: tirx.Max(x, f32(0.0)), False),
        (lambda x: tirx.sqrt(x), True),
        (lambda x: f32(1.0) / x, True),
        (tir_math.exp, True),
    ],
)
def test_what_is_expensive(value: Any, expensive: bool) -> None:
    x = tensor(n)
    _, (stage,) = stages_of(x, compute((n,), lambda i: value(x[i].asobject())))
    assert is_expensive(stage.value) is expensive


def test_extents_are_those_of_the_buffer_however_they_are_written() -> None:
    """A product of three dimensions, of which TVM's analyser does not change the order."""
    mod = parse("""
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @T.prim_func
    def main(x: T.Buffer(("n * (m // 2) * (n // 3)",), "float32"), y: T.Buffer(("n * (m // 2) * (n // 3)",), "float32"), n: T.int64, m: T.int64):
        for i in range((n // 3) * (m // 2) * n):
            with T.sblock("y"):
                v = T.axis.spatial((n // 3) * (m // 2) * n, i)
                y[v] = x[v] + T.float32(1)
""")
    program = mod["main"]
    assert isinstance(program, PrimFunc)
    assert [stage.name for stage in read_stages(program.func) or ()] == ["y"]


def test_an_expensive_scalar_that_several_read_lives_in_the_output() -> None:
    """Found by `relaxpy fuzz`, seed 963: a tensor without dimensions was read with an index."""
    x, y = tensor(), tensor()
    costly = compute((), lambda: tir_math.exp(x[()]), "costly")
    less = compute((), lambda: y[()] < costly[()], "less")
    out = compute((), lambda: tirx.Select(less[()], y[()], costly[()] + f32(1.0)), "out")
    found = stages.stages_of(te.create_prim_func([x, y, out]))
    assert found is not None
    assert [stage.name for stage in found] == ["costly", "out"]
    assert found[0].buffer.same_as(found[1].buffer)
    assert all(not load.indices for load in found[1].reads(found[0].buffer))
