"""How many buffers the programs of fusion groups take."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.analysis import group_buffers
from relaxpy.analysis.fusion_graph import FusionGraph
from relaxpy.analysis.group_buffers import GroupBuffers, Need
from relaxpy.ir.expr import DataflowBlock
from relaxpy.transform.base import PassContext
from relaxpy.transform.fuse_ops import FuseOps
from relaxpy.transform.legalize_ops import LegalizeOps
from relaxpy.transform.normalize import Normalize

PARAMS = ", ".join(f'{name}: R.Tensor(("n", 6), "float32")' for name in "abcd")


def graph_of(body: str, results: str = "gv") -> tuple[FusionGraph, GroupBuffers, dict[str, int]]:
    """A dataflow block, what its groups take, and its variables' numbers."""
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    mod = LegalizeOps()(
        Normalize()(
            relaxpy.parse(
                f"@R.function\ndef main({PARAMS}):\n    with R.dataflow():\n{lines}\n"
                f"        R.output({results})\n    return ({results},)\n"
            )
        )
    )
    (block,) = mod["main"].body.blocks[:1]
    assert isinstance(block, DataflowBlock)
    graph = FusionGraph(block, mod)
    names = {node.binding.var.name: i for i, node in enumerate(graph.nodes)}
    return graph, GroupBuffers(graph, mod), names


def together(body: str, group: str, results: str = "gv") -> Need:
    """What the group of these variables takes."""
    _, buffers, names = graph_of(body, results)
    members = {names[name] for name in group.split()}
    return buffers.together(members, lambda node: node)


SPLIT = """
s = R.split(a, 3, axis=1)
p = s[0]
q = s[1]
r = s[2]
x = R.add(p, q)
gv = R.multiply(x, r)
"""


@pytest.mark.parametrize(
    ("body", "group", "results", "want"),
    [
        ("gv = R.exp(a)", "gv", "gv", 2),
        ("gv = R.add(a, a)", "gv", "gv", 2),
        ("x = R.add(a, b)\ngv = R.add(x, c)", "x gv", "gv", 4),
        ("x = R.add(a, b)\ngv = R.add(x, a)", "x gv", "gv", 3),
        ("x = R.exp(a)\ngv = R.add(x, x)", "x gv", "gv", 2),
        ("x = R.exp(a)\ny = R.exp(x)\ngv = R.add(x, y)", "x y", "gv", 3),
        ("x = R.exp(a)\ny = R.exp(x)\ngv = R.add(x, y)", "x y gv", "gv", 2),
        ("x = R.exp(a)\ngv = R.exp(x)", "x gv", "x, gv", 3),
        (
            'c1 = R.add(a, R.const([1.0, 2, 3, 4, 5, 6], "float32"))\ngv = R.add(c1, b)',
            "c1 gv",
            "gv",
            4,
        ),
        ("x = R.exp(a)\nt = (x, b)\ngv = R.concat(t)", "x", "gv", 2),
        ("x = R.exp(a)\ngv = (x, x)", "x", "gv", 2),
        ("gv = R.nn.softmax(a)", "gv", "gv", 2),
        (SPLIT, "s p q r", "gv", 4),
        (SPLIT, "x", "gv", 3),
        (SPLIT, "x gv", "gv", 4),
        (SPLIT, "s p q r x gv", "gv", 2),
        (SPLIT, "s p q r x gv", "q, gv", 5),
    ],
)
def test_inputs_and_outputs(body: str, group: str, results: str, want: int) -> None:
    """Each tensor once; what is used inside alone is none, and fields of tuples are tensors. Results of a program of
    which one is used outside all are: it is written whole."""
    assert together(body, group, results).buffers == want


def test_groups_of_groups() -> None:
    """Needs are put together from those of parts."""
    _, buffers, names = graph_of("x = R.add(a, b)\ny = R.add(x, c)\nz = R.exp(y)\ngv = R.add(z, d)")
    x, y, z, gv = (names[name] for name in ("x", "y", "z", "gv"))
    root = {x: y, y: y, z: z, gv: gv}
    buffers.needs[y] = buffers.together({x, y}, lambda node: node)
    assert buffers.needs[y].buffers == 4
    assert buffers.together({y, z, gv}, lambda node: root[node]).buffers == 5


def test_counting_grows_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the operators take four times the work: tensors looked at, in all groups that are tried."""

    def work(count: int) -> int:
        seen = 0
        counted = GroupBuffers.together

        def together(self: GroupBuffers, roots: set[int], root: object) -> Need:
            nonlocal seen
            seen += sum(1 + len(self.needs[r].read) + len(self.needs[r].used) for r in roots)
            return counted(self, roots, root)  # type: ignore[arg-type]

        params = ", ".join(f'x{i}: R.Tensor(("n",), "float32")' for i in range(count))
        lines = "\n".join(f"        y{i} = R.add(y{i - 1}, x{i})" for i in range(1, count))
        text = f"@R.function\ndef main({params}):\n    with R.dataflow():\n        y0 = R.negative(x0)\n{lines}\n"
        text += f"        R.output(y{count - 1})\n    return y{count - 1}\n"
        target = relaxpy.Target.parse("opencl -max-buffers=8")
        mod = LegalizeOps()(relaxpy.parse(text))
        with monkeypatch.context() as patch:
            patch.setattr(group_buffers.GroupBuffers, "together", together)
            FuseOps()(mod, PassContext(target))
        return seen

    assert 0 < work(800) <= 4.2 * work(200)
