"""The page that explains a build: what it says, and that a browser shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import BuildError
from relaxpy.explain import Explanation, explain
from relaxpy.explain.page import page
from relaxpy.ir.module import IRModule
from relaxpy.transform.base import Pass, PassContext
from tests.server.chromium import Page, browser, chromium

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


def test_relayouts_are_counted() -> None:
    """Of images in NHWC, whose axes a network of NCHW moves at both ends, convert-layout leaves none."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 8, 8, 3), "float32"), w: R.Tensor((16, 3, 3, 3), "float32"), v: R.Tensor((16, 16, 3, 3), "float32")):
    with R.dataflow():
        a = R.permute_dims(x, (0, 3, 1, 2))
        b = R.nn.relu(R.nn.conv2d(a, w))
        c = R.strided_slice(b, axes=[1], begin=[0], end=[16])
        d = R.nn.relu(R.nn.conv2d(c, v))
        e = R.permute_dims(d, (0, 2, 3, 1))
        R.output(e)
    return e
""")
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.random((16, 3, 3, 3), np.float32),
        "v": rng.random((16, 16, 3, 3), np.float32),
    }
    result = explain(mod, "llvm -mcpu=x86-64-v3", params=weights)
    assert result.relayouts is not None
    before, after = result.relayouts
    assert (before, after) == (2, 0)
    assert f"{before} operators moved axes before convert-layout, {after} after it" in page(result)
    assert result.as_json()["relayouts"] == {"before": before, "after": after}
    assert (
        explain(mod, "opencl", pipeline=default_pipeline("opencl").until("legalise")).relayouts
        is None
    )


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


@pytest.fixture(scope="module")
def shown(explanation: Explanation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page in a browser."""
    if chromium() is None:
        pytest.skip("there is no Chromium here")
    folder = tmp_path_factory.mktemp("explain")
    (folder / "page.html").write_text(page(explanation), encoding="utf-8")
    with browser(folder / "chromium", 1280, 900) as found:
        found.open((folder / "page.html").as_uri())
        yield found


@contextmanager
def sized(shown: Page, width: int) -> Iterator[None]:
    shown.send(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=800,
        deviceScaleFactor=1,
        mobile=width < 500,
    )
    yield
    shown.send("Emulation.clearDeviceMetricsOverride")


ABOUT = "document.querySelector('.about').innerText"
KERNEL = "[...document.querySelectorAll('.flow .node')].find((one) => one.dataset.o === 'k0')"


def test_the_filter(shown: Page) -> None:
    typed = "{const box = document.getElementById('filter'); box.value = %r; box.dispatchEvent(new Event('input'))}"
    rows = "document.querySelectorAll('.row%s').length"
    shown.run(typed % "matmul")
    assert 0 < shown.run(rows % ".hidden") < shown.run(rows % "")
    shown.run(typed % "")
    assert shown.run(rows % ".hidden") == 0


@pytest.mark.parametrize("width", [390, 600, 861, 1280])
def test_nothing_is_cut_off(shown: Page, width: int) -> None:
    """The page does not scroll sideways, names of bars are whole, and the flow is a picture or a list."""
    with sized(shown, width):
        assert shown.run("document.documentElement.scrollWidth") <= width
        assert (
            shown.run(
                "[...document.querySelectorAll('.bar .label')].filter((one) => one.scrollWidth > one.clientWidth).length"
            )
            == 0
        )
        visible = "[...document.querySelectorAll('.flow, .steps')].map((one) => getComputedStyle(one).display !== 'none')"
        assert shown.run(visible) == ([True, False] if width > 860 else [False, True])
        if width <= 860:
            listed = shown.run("document.querySelector('.steps').innerText")
            for each in ("fused_matmul_relu", "matmul", "relu", "<text>:7", "tests.<lib>"):
                assert each in listed
            inside = "[...document.querySelectorAll('.steps *')].every((one) => one.getBoundingClientRect().right <= innerWidth)"
            assert shown.run(inside)


def test_whole_names(shown: Page) -> None:
    """Under the flow: of the node that the mouse points at, that has the focus, or that was tapped first; a second tap
    follows its link."""
    with sized(shown, 1280):
        shown.run(f"{KERNEL}.scrollIntoView({{block: 'center'}})")
        box = shown.run(
            f"(({{x, y}}) => [x + 4, y + 4])({KERNEL}.querySelector('rect').getBoundingClientRect())"
        )
        at = {"x": box[0], "y": box[1]}
        shown.send("Input.dispatchMouseEvent", type="mouseMoved", **at)
        shown.until(f"{ABOUT}.startsWith('fused_matmul_relu: ')")
        shown.send("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        shown.run(
            "[...document.querySelectorAll('.flow .node')].find((one) => one.dataset.o === 'o1').focus()"
        )
        assert shown.run(ABOUT).startswith("relu: ")
        shown.run("document.activeElement.blur()")
        shown.send("Emulation.setTouchEmulationEnabled", enabled=True)
        for expected in ("", "#kernel-"):
            for kind in ("touchStart", "touchEnd"):
                shown.send(
                    "Input.dispatchTouchEvent",
                    type=kind,
                    touchPoints=[at] if kind == "touchStart" else [],
                )
            shown.until(f"{ABOUT}.startsWith('fused_matmul_relu: ')")
            shown.until(f"location.hash.startsWith({expected!r})")
            if not expected:
                assert shown.run("location.hash") == ""
        shown.send("Emulation.setTouchEmulationEnabled", enabled=False)
        assert shown.mistakes() == []
