"""From source lines to time: which operators a launch computes, and its share."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.explain import Explanation, explain
from relaxpy.explain.explanation import SourceLine
from relaxpy.explain.flow import (
    COUNTED,
    ESTIMATED,
    MEASURED,
    Flow,
    Part,
    TimedLaunch,
    duration,
    flows,
)
from relaxpy.explain.flow_graph import MOST_KERNELS, MOST_LINES, MOST_OPERATORS, flow_graph
from relaxpy.explain.flow_picture import flow_picture
from relaxpy.explain.links import Links
from relaxpy.runtime.bytecode import Location
from relaxpy.runtime.inspect.launches import Launch

MOD = relaxpy.parse(
    """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 64), "float32")):
        n = T.int64()
        a = R.matmul(x, w)
        b = R.nn.relu(a)
        c = R.nn.softmax(b)
        return c
""",
    filename="folder/model.py",
)


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    return explain(MOD, sizes={"n": 32})


@pytest.fixture(scope="module")
def flow(explanation: Explanation) -> Flow:
    (found,) = flows(explanation)
    return found


def test_a_fused_kernel_comes_from_several_lines(explanation: Explanation, flow: Flow) -> None:
    fused, softmax = flow.launches
    assert fused.launch.name == "fused_matmul_relu"
    assert [(part.var, part.program, str(part.source)) for part in fused.parts] == [
        ("a", "matmul", "model.py:7"),
        ("b", "relu", "model.py:8"),
    ]
    assert [str(part.source) for part in softmax.parts] == ["model.py:9"]
    line = fused.parts[0].source
    assert line is not None
    assert explanation.texts[line] == "a = R.matmul(x, w)"


def test_shares_add_up(flow: Flow) -> None:
    """The time of a launch is that of its operators together, and the product has most of it."""
    assert flow.basis == ESTIMATED
    for timed in flow.launches:
        assert sum(part.weight for part in timed.parts) == pytest.approx(timed.weight)
    assert sum(flow.share(timed.weight) for timed in flow.launches) == pytest.approx(1)
    product, relu = flow.launches[0].parts
    assert product.weight > relu.weight > 0


def test_without_sizes_launches_are_counted() -> None:
    (found,) = flows(explain(MOD))
    assert found.basis == COUNTED
    assert [timed.weight for timed in found.launches] == [1, 1]


def test_measured_times(explanation: Explanation) -> None:
    """Kernels and the time between them add up to the call's."""
    result = explain(MOD, sizes={"n": 32})
    assert result.executable is not None
    x, w = np.ones((32, 64), np.float32), np.ones((64, 64), np.float32)
    result.profile = relaxpy.VirtualMachine(result.executable).profile("main", x, w, repeat=3)
    (found,) = flows(result)
    assert found.basis == MEASURED
    assert all(timed.weight > 0 for timed in found.launches)
    assert found.total == pytest.approx(result.profile.seconds)
    kernels = {row.name: row.seconds for row in result.profile.by_kernel()}
    assert found.launches[0].weight == pytest.approx(kernels["fused_matmul_relu"])


def test_relations(explanation: Explanation, flow: Flow) -> None:
    """Kernel, fusion group, source lines and storage know each other."""
    links = Links(explanation, [flow])
    number = explanation.kernel_of("fused_matmul_relu")
    assert [line.line for line in links.lines_of_kernel[number]] == [7, 8]
    (group,) = links.groups_of_kernel[number]
    assert explanation.blocks[group[0]].nodes[group[1]].var == "a"
    assert list(links.kernels_of_group[group]) == [number]
    assert list(links.storages_of_kernel[number]) == [(0, 0)]
    assert list(links.kernels_of_line[next(iter(links.lines))]) == [number]
    (writer,) = links.writers["main", flow.launches[0].launch.writes[0]]
    assert writer == "fused_matmul_relu"
    assert links.kernel("nothing") == ""


def test_a_private_function_runs_twice() -> None:
    """Its launches count for each call of it."""
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function(private=True)
    def inner(x: R.Tensor((8,), "float32")) -> R.Tensor((8,), "float32"):
        if R.const(True, "bool"):
            y = R.cumsum(x)
        else:
            y = R.exp(x)
        return y

    @R.function
    def main(x: R.Tensor((8,), "float32")) -> R.Tensor((8,), "float32"):
        cls = Module
        a = cls.inner(x)
        b = cls.inner(a)
        return b
""")
    result = explain(mod)
    assert result.error is None
    found = [flow for flow in flows(result) if flow.function == "main"]
    names = [timed.launch.name for flow in found for timed in flow.launches]
    assert "cumsum" in names


def layers(count: int, width: int = 4) -> str:
    """A program of `count` equal layers, each on lines of its own."""
    body = "".join(
        f"""
        a{i} = R.matmul(x{i}, w)
        b{i} = R.nn.gelu(a{i})
        c{i} = R.add(b{i}, x{i})
        x{i + 1} = R.nn.softmax(c{i})"""
        for i in range(count)
    )
    return f"""
@I.ir_module
class Module:
    @R.function
    def main(x0: R.Tensor(("n", {width}), "float32"), w: R.Tensor(({width}, {width}), "float32")):
        n = T.int64(){body}
        return x{count}
"""


def test_repeats_are_one_node() -> None:
    """Thirty layers look like one."""
    result = explain(relaxpy.parse(layers(30)), sizes={"n": 8})
    (found,) = flows(result)
    graph = flow_graph(found)
    assert [node.label for node in graph.operators] == ["matmul", "gelu", "add", "softmax"]
    assert [node.launches for node in graph.kernels] == [30, 30]
    assert [len(node.lines) for node in graph.lines] == [30, 30, 30, 30]
    assert sum(node.weight for node in graph.lines) == pytest.approx(found.total)


def test_a_program_of_many_kernels_stays_readable() -> None:
    """Four hundred kernels, each of a line and of operators of its own, and one of most of the time."""
    timed: list[TimedLaunch] = []
    for n in range(400):
        source = SourceLine("model.py", n + 1)
        parts = (Part(source, f"a{n}", f"op{n}", 1.0), Part(source, f"b{n}", f"other{n}", n + 1.0))
        launch = Launch("main", n, "kernel", f"kernel{n}", Location(f"b{n}"), None, None)
        timed.append(TimedLaunch(launch, 1, n + 2.0, parts, None))
    found = Flow("main", ESTIMATED, tuple(timed))
    graph = flow_graph(found)
    assert len(graph.lines) == len(graph.kernels) == MOST_KERNELS
    assert len(graph.operators) <= MOST_OPERATORS
    assert "369 other kernels" in [node.label for node in graph.kernels]
    for column in (graph.lines, graph.operators, graph.kernels):
        assert sum(node.weight for node in column) == pytest.approx(found.total)
    assert sum(graph.reads.values()) == pytest.approx(found.total)
    assert len(flow_picture(found, Links(Explanation("many", "llvm"), [found]))) < 200_000


def test_many_lines_in_few_kernels() -> None:
    """Each line has an operator of its own, so none are merged: the smallest are put together."""
    parts = [Part(SourceLine("model.py", n + 1), f"a{n}", f"op{n}", n + 1.0) for n in range(100)]
    launch = Launch("main", 0, "kernel", "all", Location("a"), None, None)
    timed = TimedLaunch(launch, 1, sum(part.weight for part in parts), tuple(parts), None)
    graph = flow_graph(Flow("main", ESTIMATED, (timed,)))
    assert len(graph.lines) == MOST_LINES
    assert graph.lines[0].label == "model.py:1 and 60 other lines"
    assert sum(graph.reads.values()) == pytest.approx(timed.weight)


def test_units() -> None:
    assert [duration(s) for s in (2.5e-6, 0.0123, 4.0)] == ["2.5 µs", "12.3 ms", "4.00 s"]
