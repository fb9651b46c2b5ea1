"""Which launches are put into graphs, and why others are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import relaxpy
from relaxpy.backend.lift_graphs import GraphDecision, LiftGraphs
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import BuildError
from relaxpy.ir.module import IRModule
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.target import Target
from relaxpy.testing.before_after import check_example
from relaxpy.transform.base import PassContext
from tests.hostile.backend import hostile_targets


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with hostile_targets(monkeypatch):
        yield


def lowered(source: str, target: str = "hostile", least: int = 2) -> IRModule:
    """The module after the pipeline."""
    pipeline = default_pipeline(target)
    if any(step.name == "lift-graphs" for step in pipeline.passes):
        pipeline = pipeline.replace("lift-graphs", LiftGraphs(least=least))
    return pipeline(relaxpy.parse(source), PassContext(target=Target.parse(target)))


def decisions(source: str, target: str = "hostile") -> list[GraphDecision]:
    pipeline = default_pipeline(target).until("lift-graphs")
    context = PassContext(target=Target.parse(target))
    return list(LiftGraphs().decisions(pipeline(relaxpy.parse(source), context), context.target))


def shape(mod: IRModule, name: str = "main") -> list[str]:
    """The body of a function: `(` and `)` around graphs, names of tensor programs and instructions."""
    found: list[str] = []
    for line in mod.script().split(f"def {name}(")[1].split("    return")[0].splitlines():
        for word, text in (
            ("begin_graph", "("),
            ("end_graph", ")"),
            ("if ", "if"),
            ("else", "else"),
        ):
            if word in line:
                found.append(text)
        if "call_dps(" in line:
            found.append(line.split("call_dps(")[1].split(",")[0].removeprefix("cls."))
        elif "alloc_tensor" in line:
            found.append("planned" if "storage" in line else "own")
    return found


CHAIN = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    y = R.nn.softmax(x)
    z = R.nn.softmax(y)
    return R.nn.softmax(z)
"""


def test_the_example() -> None:
    check_example(LiftGraphs())


def test_results_are_allocated_before_and_the_rest_inside() -> None:
    body = ["own", "(", "planned", "softmax", "planned", "softmax", "softmax", ")"]
    assert shape(lowered(CHAIN)) == body


def test_it_prints_and_parses_back() -> None:
    mod = lowered(CHAIN)
    assert_structural_equal(relaxpy.parse(mod.script()), mod)


def test_the_default_pipeline_without() -> None:
    pipeline = default_pipeline("hostile", without=("lift-graphs",))
    mod = pipeline(relaxpy.parse(CHAIN), PassContext(target=Target.parse("hostile")))
    assert "(" not in shape(mod)


def test_a_target_without_graphs_changes_nothing() -> None:
    mod = default_pipeline("llvm").until("lift-graphs")(relaxpy.parse(CHAIN))
    assert LiftGraphs()(mod) is mod
    assert decisions(CHAIN, "llvm") == []


def test_few_launches() -> None:
    assert shape(lowered(CHAIN, least=4)) == shape(
        default_pipeline("hostile", without=("lift-graphs",))(
            relaxpy.parse(CHAIN), PassContext(target=Target.parse("hostile"))
        )
    )
    (only,) = decisions(
        '@R.function\ndef main(x: R.Tensor(("n",), "float32")):\n    return R.exp(x)'
    )
    assert (only.callee, only.graph) == ("exp", -1)
    assert only.reason == (
        "a graph has 2 launches or more; between the beginning and the end there is 1"
    )


IN_PLACE = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def increase(x: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("increase"):
                vi = T.axis.spatial(n, i)
                x[vi] = x[vi] + T.float32(1)

    @R.function(pure=False)
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("n",), "float32")):
        cls = Module
        n = T.int64()
        a = R.call_tir_inplace(cls.increase, (x,), inplace_indices=[0], out_ty=R.Tensor((n,), "float32"))
        b = R.call_tir_inplace(cls.increase, (y,), inplace_indices=[0], out_ty=R.Tensor((n,), "float32"))
        return (a, b, R.exp(b))
"""


def test_aliases_and_tuples_are_no_end() -> None:
    assert shape(lowered(IN_PLACE)) == ["own", "(", "increase", "increase", "exp", ")"]


BETWEEN = """
@R.function(pure=False)
def main(x: R.Tensor(("n", 4), "float32"), c: R.Tensor((), "bool")):
    y = R.nn.softmax(R.nn.softmax(x))
    _ = R.call_packed("tests.look", y, ty_args=(R.Tuple,))
    z = R.nn.softmax(R.nn.softmax(y))
    if c:
        w = R.nn.softmax(R.nn.softmax(z))
    else:
        w = R.nn.softmax(z)
    u = R.unique(w)
    return u
"""


def test_what_ends_a_graph() -> None:
    found = [word for word in shape(lowered(BETWEEN)) if word not in ("own", "planned")]
    graph = ["(", "softmax", "softmax", ")"]
    assert found[:12] == [*graph, *graph, "if", *graph[:3]]
    reasons = [each.reason for each in decisions(BETWEEN) if each.graph < 0]
    assert reasons == [
        "it is no launch, but a call",
        "a graph has 2 launches or more; between the beginning and the end there is 1",
        "it is no launch, but a call",
    ]
    assert [each.graph for each in decisions(BETWEEN) if each.callee == "softmax"][:4] == [
        0,
        0,
        1,
        1,
    ]


def test_markers_that_do_not_fit() -> None:
    text = lowered(CHAIN).script()
    begin = next(line for line in text.splitlines() if "begin_graph" in line)
    for wrong, problem in (
        (
            text.replace(begin, f"{begin}\n{begin.replace('_graph:', '_graph2:')}"),
            "inside of another",
        ),
        (text.replace(f"{begin}\n", ""), "that has not begun"),
    ):
        with pytest.raises(BuildError, match=problem) as caught:
            relaxpy.build(
                relaxpy.parse(wrong),
                "hostile",
                pipeline=default_pipeline("hostile").until("prepare"),
            )
        assert caught.value.code == "not-lowered"
