"""The page that explains a build: what it says, and that a browser shows it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import BuildError
from relaxpy.explain import Explanation, explain
from relaxpy.explain.page import page
from relaxpy.ir.module import IRModule
from relaxpy.transform.base import Pass, PassContext

MOD = relaxpy.parse(
    """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 8), dtype="float32"), w: R.Tensor((8, 8), dtype="float32")):
        a = R.matmul(x, w)
        b = R.nn.relu(a)
        c = R.sum(b, axis=[1])
        d = R.exp(c)
        e = R.call_dps_library("tests.<lib>", (d,), out_ty=R.Tensor((n,), dtype="float32"))
        return e
""".replace("class Module:\n", "class Module:\n", 1).replace(
        "        a =", "        n = T.int64()\n        a ="
    )
)
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    return explain(MOD, bounds={"n": 64}, title="a <model>")


def test_what_is_noted(explanation: Explanation) -> None:
    assert explanation.error is None
    assert explanation.failed == ""
    assert [run.name for run in explanation.passes] == [p.name for p in default_pipeline().passes]
    assert [run.number for run in explanation.passes] == list(range(1, len(explanation.passes) + 1))
    scripts = {run.name: run.script for run in explanation.passes}
    assert "call_tir" in (scripts["legalize-ops"] or "")
    assert scripts["bind-params"] is None
    kernels = {kernel.name: kernel for kernel in explanation.kernels}
    product = kernels["fused_matmul_relu"]
    assert product.rule == "matmul"
    assert product.calls == 1
    assert "n" in product.flops
    seconds = [kernel.seconds for kernel in explanation.kernels]
    assert seconds == sorted(seconds, reverse=True)
    assert "n" in product.nbytes
    assert product.program != product.scheduled
    assert explanation.libraries == {"tests.<lib>": 1}
    steps = [name for name, _ in explanation.steps]
    assert steps.index("fuse-ops") < steps.index("kernels")


def test_fusion_is_told_with_reasons(explanation: Explanation) -> None:
    (block,) = explanation.blocks
    var = [node.var for node in block.nodes]
    told = {(var[d.producer], var[d.consumer]): d for d in block.decisions}
    assert told["a", "b"].fused
    assert "element by element" in told["b", "c"].reason
    groups = {node.var: node.group for node in block.nodes}
    assert groups["a"] == groups["b"] >= 0
    assert groups["d"] == -1
    assert [str(node.source) for node in block.nodes[:2]] == ["<text>:7", "<text>:8"]
    assert block.nodes[0].flops == 2 * 64 * 8 * 8


def test_decisions_are_recorded_where_nothing_is_fused() -> None:
    """The reasons are of interest then, above all."""
    mod = relaxpy.parse(
        """
@R.function
def main(x: R.Tensor((8, 8), dtype="float32")):
    y = R.cumsum(x, axis=0)
    z = R.nn.softmax(y)
    return z
"""
    )
    (block,) = explain(mod).blocks
    assert [decision.fused for decision in block.decisions] == [False]


def test_alternatives() -> None:
    """Of a target with several CPUs each kernel is listed once, with the times of its images."""
    result = explain(MOD, "llvm -mcpu=x86-64-v2,x86-64-v3", bounds={"n": 64})
    assert result.error is None
    product = result.kernels[result.kernel_of("fused_matmul_relu")]
    assert [time.rule for time in product.times] == ["matmul", "matmul"]
    assert product.rule == "matmul"
    assert {image.name: image.images for image in result.images} == dict.fromkeys(
        ("x86-64-v3", "x86-64-v2"), len(result.kernels)
    )
    text = page(result)
    assert '<section id="images">' in text
    assert "in order of preference" in text


def test_equal_programs_are_one_kernel() -> None:
    mod = relaxpy.parse(
        """
@R.function
def main(x: R.Tensor((8, 8), dtype="float32"), y: R.Tensor((8, 8), dtype="float32")):
    a = R.cumsum(x, axis=0)
    b = R.cumsum(y, axis=0)
    return (a, b)
"""
    )
    (kernel,) = explain(mod).kernels
    assert kernel.calls == 2


@dataclass(frozen=True)
class Fails(Pass):
    """Does not work."""

    name: ClassVar[str] = "fails"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        raise BuildError("nothing", "it does <not> work")


def test_a_build_that_fails_is_shown_as_far_as_it_came() -> None:
    result = explain(MOD, pipeline=default_pipeline().after("legalize-ops", Fails()))
    assert result.error is not None
    assert result.failed == "fails"
    assert result.passes[-1].name == "legalize-ops"
    assert result.kernels == []
    text = page(result)
    assert "The build fails at <b>fails</b>" in text
    assert "it does &lt;not&gt; work" in text
    assert 'id="passes"' in text


def test_a_program_that_is_not_right() -> None:
    mod = relaxpy.parse(
        "@R.function\ndef main(x: R.Tensor((3,), dtype='float32')):\n    return x\n"
    )
    result = explain(mod, params={"nobody": 1})
    assert result.error is not None
    assert result.failed == "bind-params"
    assert "nobody" in page(result)


def test_a_long_program(explanation: Explanation) -> None:
    lines = ["    x0 = R.exp(x)"] + [f"    x{i} = R.exp(x{i - 1})" for i in range(1, 300)]
    mod = relaxpy.parse(
        "@R.function\ndef main(x: R.Tensor(('n',), dtype='float32')):\n"
        + "\n".join(lines)
        + "\n    return x299\n"
    )
    result = explain(mod, pipeline=default_pipeline(without=["fuse-ops", "fuse-tensor-ir"]))
    text = page(result)
    assert len(text) < 3e6
    assert len(result.kernels) == 1  # the same program three hundred times


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_in_a_browser(explanation: Explanation, tmp_path: Path) -> None:
    """The page as a browser has it after somebody typed into its filter."""
    typed = (
        "<script>const box=document.getElementById('filter');box.value='matmul';"
        "box.dispatchEvent(new Event('input'));document.title='hidden '+"
        "document.querySelectorAll('.row.hidden').length+' of '+document.querySelectorAll('.row').length;"
        "document.body.dataset.wide=String(document.documentElement.scrollWidth<=window.innerWidth);</script>"
    )
    path = tmp_path / "page.html"
    path.write_text(page(explanation).replace("</body>", typed + "</body>"), encoding="utf-8")
    assert BROWSER is not None
    options = "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --dump-dom"
    background = "--disable-background-networking --disable-component-update --disable-sync"
    done = subprocess.run(
        [
            BROWSER,
            *options.split(),
            *background.split(),
            f"--user-data-dir={tmp_path}/user",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    title = done.stdout.split("<title>")[1].split("</title>")[0]
    hidden, _, rows = title.removeprefix("hidden ").partition(" of ")
    assert 0 < int(hidden) < int(rows)
    assert 'data-wide="true"' in done.stdout
