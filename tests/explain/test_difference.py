"""What changed between two builds."""

from __future__ import annotations

import json

import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.explain import compare, explain, explain_executable, page
from relaxpy.explain.difference import Difference, changed_lines

TEXT = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 64), "float32")):
        n = T.int64()
        a = R.matmul(x, w)
        b = R.nn.relu(a)
        c = R.nn.softmax(b)
        return c
"""
MOD = relaxpy.parse(TEXT)
OTHER = relaxpy.parse(TEXT.replace("R.nn.softmax(b)", "R.cumsum(b, axis=1)"))


@pytest.fixture(scope="module")
def apart() -> Difference:
    """The same program without fusion."""
    before = explain(MOD, sizes={"n": 32}, title="fused")
    without = default_pipeline(without=["fuse-ops", "fuse-tensor-ir"])
    return compare(before, explain(MOD, sizes={"n": 32}, title="apart", pipeline=without))


def test_nothing_changed() -> None:
    found = compare(explain(MOD, title="a"), explain(MOD, title="b"))
    assert found.is_empty
    assert found.diverges is None
    assert found.kernels == ()
    assert found.same_kernels == 2
    assert "the same code and the same memory" in str(found)
    assert "Nothing: the same code and the same memory." in page(found.after, found)


def test_kernels_and_passes(apart: Difference) -> None:
    status = {change.name: change.status for change in apart.kernels}
    assert status == {"matmul": "added", "relu": "added", "fused_matmul_relu": "removed"}
    assert apart.same_kernels == 1
    only = {pair.name for pair in apart.passes if pair.after is None}
    assert only == {"fuse-ops", "fuse-tensor-ir"}
    assert apart.diverges == "fuse-ops"
    facts = {fact.name: fact for fact in apart.facts}
    assert facts["launches"].before == "2"
    assert facts["launches"].after == "3"
    assert "2 added, 1 removed" in facts["kernels"].after
    assert facts["estimated cost of main"].differs


def test_in_words(apart: Difference) -> None:
    text = str(apart)
    assert text.startswith("fused → apart\n")
    assert "  - fused_matmul_relu" in text
    assert "  + matmul: matmul, 1 call" in text
    assert "pass fuse-ops: only in fused" in text
    assert "bytecode: " in text


def test_as_json(apart: Difference) -> None:
    data = json.loads(json.dumps(apart.as_json()))
    assert data["same"] is False
    assert {each["status"] for each in data["kernels"]} == {"added", "removed"}
    assert data["before"]["title"] == "fused"
    assert data["memory"][0]["function"] == "main"


def test_on_the_page(apart: Difference) -> None:
    text = page(apart.after, apart).replace("<wbr>", "")
    assert '<section id="changes">' in text
    assert "From <bdi>fused</bdi> to <bdi>apart</bdi>" in text
    assert "<b class='minus'>- removed</b> <bdi>fused_matmul_relu</bdi>" in text
    number = apart.after.kernel_of("matmul")
    assert f"<b class='plus'>+ added</b> <a href=\"#kernel-{number}\"><bdi>matmul</bdi></a>" in text
    assert "The modules differ from pass <bdi>fuse-ops</bdi> on." in text


def test_another_source() -> None:
    found = compare(explain(MOD, title="a"), explain(OTHER, title="b"))
    assert found.diverges == ""
    assert {c.name: c.status for c in found.kernels} == {"softmax": "removed", "cumsum": "added"}
    assert "the modules differ from the source on" in str(found)


def test_a_changed_and_a_renamed_kernel() -> None:
    """The same name for another program is a change; the same program under another name is none of its code."""
    wide = relaxpy.parse(TEXT.replace(", 64)", ", 48)").replace("(64,", "(48,"))
    changes = {c.name: c for c in compare(explain(MOD), explain(wide)).kernels}
    assert changes["softmax"].status == "changed"
    assert changes["softmax"].what[0] == "another tensor program"
    renamed = relaxpy.parse("""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def twice(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("twice"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi] * T.float32(2)

    @R.function
    def main(x: R.Tensor((8,), "float32")):
        y = R.call_tir(Module.twice, (x,), out_ty=R.Tensor((8,), "float32"))
        return y
""")
    again = relaxpy.parse(
        renamed.script().replace("def twice", "def doubled").replace("cls.twice", "cls.doubled")
    )
    (change,) = compare(explain(renamed), explain(again)).kernels
    assert (change.status, change.name) == ("renamed", "doubled")
    assert change.what == ("was twice",)


def test_memory() -> None:
    before, after = explain(MOD, sizes={"n": 32}), explain(MOD, sizes={"n": 64})
    found = compare(before, after)
    (pair,) = found.memory
    assert pair.differs
    assert not found.is_empty
    assert "memory of main: 8192 B in 1 storage" in str(found)


def test_executables_from_files() -> None:
    """Their passes are not known; kernels, bytecode and memory are."""
    first, second = relaxpy.build(MOD), relaxpy.build(OTHER)
    found = compare(
        explain_executable(first, {"n": 8}, title="a.rxe"),
        explain_executable(second, {"n": 8}, title="b.rxe"),
    )
    assert found.passes == ()
    assert found.diverges is None
    assert {c.name: c.status for c in found.kernels} == {"softmax": "removed", "cumsum": "added"}
    assert any("cumsum" in line for line in found.bytecode)
    assert "<h3>Bytecode</h3>" in page(found.after, found)


def test_a_build_that_fails() -> None:
    broken = explain(MOD, params={"nobody": 1}, title="broken")
    good = explain(MOD, title="good")
    assert "The build fails at" in page(broken, compare(good, broken))
    assert "The build of <bdi>broken</bdi> fails" in page(good, compare(broken, good))
    assert "Nothing: the same" not in page(broken, compare(broken, broken))


def test_changed_lines() -> None:
    assert changed_lines("a\nb", "a\nb") == []
    assert changed_lines("--- a\nb", "b") == ["@@ -1,2 +1 @@", "---- a", " b"]
