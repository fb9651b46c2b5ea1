"""Figures 6 and 12 of the Relax paper: partial lowering, analysis feedback, cross-level transformation, each alone and
together. What a figure shows is compared with text, and the program with numbers, for sizes that nobody compiled for."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.fusion_graph import FusionGraph
from relaxpy.build.blas import BLAS
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir import DataflowBlock, Function, IRModule, TensorType
from relaxpy.ir.pattern import is_call_tir, is_op, wildcard
from relaxpy.runtime import Tensor
from relaxpy.schedule import schedule_kernel
from relaxpy.testing.interpret import interpret
from relaxpy.tir.pattern_kind import PatternKind
from relaxpy.transform.fuse_ops import FuseOps
from relaxpy.transform.fuse_ops_by_pattern import FuseOpsByPattern, FusionPattern
from relaxpy.transform.fuse_tensor_ir import FuseTensorIR
from relaxpy.transform.legalize_ops import LegalizeOps
from relaxpy.transform.lower_to_library import LibraryPattern, LowerToLibrary
from relaxpy.transform.normalize import Normalize
from relaxpy.transform.outline import PRIMITIVE

SIZES = (0, 1, 7)
LAYER = """
@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 32), "float32"), b: R.Tensor((32,), "float32")
    ) -> R.Tensor(("n", 32), "float32"):
        with R.dataflow():
            a = R.matmul(x, w)
            c = R.add(a, b)
            r = R.nn.relu(c)
            e = R.exp(r)
            s = R.subtract(e, R.const(1.0))
            gv = R.nn.softmax(s, axis=-1)
            R.output(gv)
        return gv
"""


def layer_arguments(n: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(n)
    return tuple(rng.uniform(-1, 1, s).astype(np.float32) for s in ((n, 64), (64, 32), (32,)))


def same_numbers(
    before: IRModule, after: IRModule, arguments: Callable[[int], tuple[np.ndarray, ...]]
) -> relaxpy.Executable:
    """Both modules interpreted, and the second built once for all sizes."""
    exe = relaxpy.build(after)
    vm = relaxpy.VirtualMachine(exe)
    for n in SIZES:
        args = arguments(n)
        want = np.asarray(interpret(before, "main", *args))
        for got in (interpret(after, "main", *args), vm["main"](*args).numpy()):
            np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-3)
    return exe


def calls(mod: IRModule) -> list[str]:
    """What `main` calls, binding by binding."""
    found = re.findall(r"^ +\w+(?:: [^=]+)? = (?:R|cls)\.(.*)$", mod["main"].script("main"), re.M)  # type: ignore[union-attr]
    return [
        re.sub(r", (out_ty|axis).*|, dtype=\S+", "", text) for text in found if "T." not in text
    ]


# Figure 6, left, and 12 (a): partial lowering


def test_figure_6_partial_lowering() -> None:
    """The product and its epilogue go to a library; what is left is lowered later, by other passes."""
    mod = Normalize()(relaxpy.parse(LAYER))
    lowered = LowerToLibrary(BLAS)(mod)
    text = lowered.script()
    assert (
        'r = R.call_dps_library("blas.matmul_bias_relu", (x, w, b), out_ty=R.Tensor((n, 32)' in text
    )
    assert [op for op in ("matmul", "add", "nn.relu") if f"R.{op}(" in text] == []
    assert [op for op in ("exp", "subtract", "nn.softmax") if f"R.{op}(" in text] == [
        "exp", "subtract", "nn.softmax",
    ]  # fmt: skip
    exe = same_numbers(mod, lowered, layer_arguments)
    assert exe.libraries == ("blas.matmul_bias_relu",)
    assert [kernel.name for kernel in exe.kernels] == ["fused_exp_subtract_softmax"]


def test_the_same_operator_by_different_means() -> None:
    """A decision for a part of the calls of one operator: the wide product for the library, the other for a kernel."""
    w = wildcard()
    wide = LibraryPattern(
        "wide products",
        is_op("matmul")(wildcard(), w),
        "blas.matmul",
        condition=lambda m: m.annotation(w) == TensorType((64, 128), "float32"),
    )
    mod = relaxpy.parse(
        """
@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 128), "float32"), v: R.Tensor((128, 3), "float32")
    ) -> R.Tensor(("n", 3), "float32"):
        with R.dataflow():
            a = R.matmul(x, w)
            gv = R.matmul(a, v)
            R.output(gv)
        return gv
"""
    )
    lowered = LowerToLibrary((wide,))(mod)
    assert "R.matmul(a, v)" in lowered.script()

    def arguments(n: int) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(n)
        return tuple(
            rng.uniform(-1, 1, s).astype(np.float32) for s in ((n, 64), (64, 128), (128, 3))
        )

    exe = same_numbers(mod, lowered, arguments)
    assert (exe.libraries, [k.name for k in exe.kernels]) == (("blas.matmul",), ["matmul"])


# Figure 6, middle: analysis feedback

OWN_PROGRAMS = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def shifted(x: T.Buffer(("n", 32), "float32"), y: T.Buffer(("n", 32), "float32")):
        n = T.int64()
        for i, j in T.grid(n, 32):
            with T.sblock("shifted"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, (vj + 1) % 32]

    @T.prim_func(private=True)
    def scaled(x: T.Buffer(("n", 32), "float32"), s: T.Buffer((32,), "float32"), y: T.Buffer(("n", 32), "float32")):
        n = T.int64()
        for i, j in T.grid(n, 32):
            with T.sblock("scaled"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] * s[vj]

    @T.prim_func(private=True)
    def summed(x: T.Buffer(("n", 32), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i, j in T.grid(n, 32):
            with T.sblock("summed"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    y[vi] = T.float32(0)
                y[vi] = y[vi] + x[vi, vj]

    @R.function
    def main(x: R.Tensor(("n", 32), "float32"), s: R.Tensor((32,), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        with R.dataflow():
            a = R.call_tir(cls.shifted, (x,), out_ty=R.Tensor((n, 32), "float32"))
            b = R.call_tir(cls.scaled, (a, s), out_ty=R.Tensor((n, 32), "float32"))
            gv = R.call_tir(cls.summed, (b,), out_ty=R.Tensor((n,), "float32"))
            R.output(gv)
        return gv
"""


def test_figure_6_analysis_feedback() -> None:
    """Nobody annotated these programs: their loops say what they are, and fusion follows."""
    mod = relaxpy.parse(OWN_PROGRAMS)
    main = mod["main"]
    assert isinstance(main, Function)
    (block,) = (b for b in main.body.blocks if isinstance(b, DataflowBlock))
    kinds = {node.program: str(node.kind) for node in FusionGraph(block, mod).nodes}
    assert kinds == {"shifted": "Injective", "scaled": "ElementWise", "summed": "Reduction"}
    fused = FuseTensorIR()(FuseOps()(mod))
    assert list(fused.prim_funcs) == ["fused_shifted_scaled_summed"]

    def arguments(n: int) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(n)
        return tuple(rng.uniform(-1, 1, s).astype(np.float32) for s in ((n, 32), (32,)))

    same_numbers(mod, fused, arguments)


def test_analysis_feedback_into_patterns() -> None:
    """The same kinds in a pattern of the user's own, which takes less than FuseOps would."""
    mod = relaxpy.parse(OWN_PROGRAMS)
    pattern = is_call_tir(
        kind=PatternKind.ELEMENT_WISE,
        args=[is_call_tir(kind=PatternKind.INJECTIVE), wildcard()],
    )
    head = FusionPattern("head", pattern, attrs={PRIMITIVE: True})
    fused = FuseTensorIR()(FuseOpsByPattern((head,))(mod))
    assert list(fused.prim_funcs) == ["summed", "fused_head"]


# Figure 6, right: cross-level transformation


def softmax_with_workspace(x: Tensor, out: Tensor, room: Tensor) -> None:
    """Rows by way of a workspace as large as all of x."""
    exponentials = room.numpy().view(np.float32).reshape(x.shape)
    np.exp(x.numpy() - x.numpy().max(-1, keepdims=True, initial=-np.inf), out=exponentials)
    np.divide(exponentials, exponentials.sum(-1, keepdims=True), out=out.numpy())


def test_figure_6_cross_level_workspace() -> None:
    """What a call needs besides its result becomes a value of the graph, of a symbolic size, and takes part in the
    memory plan: it lies in the memory of the product, which is dead by then."""
    relaxpy.register_library("tests.softmax_with_workspace", softmax_with_workspace)
    x = wildcard().has_shape(("rows", "columns"))
    pattern = LibraryPattern(
        "softmax",
        is_op("nn.softmax")(x),
        "tests.softmax_with_workspace",
        workspace=lambda match: match.dim("rows") * match.dim("columns") * 4,
    )
    mod = relaxpy.parse(
        """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 32), "float32")) -> R.Tensor(("n", 32), "float32"):
        with R.dataflow():
            a = R.matmul(x, w)
            c = R.cumsum(a, axis=1)
            gv = R.nn.softmax(c, axis=-1)
            R.output(gv)
        return gv
"""
    )
    lowered = LowerToLibrary((pattern,))(mod)
    outputs = '[R.Tensor((n, 32), dtype="float32"), R.Tensor((n * 128,), dtype="uint8")]'
    assert f"out_ty={outputs}" in lowered.script()
    exe = same_numbers(mod, lowered, lambda n: layer_arguments(n)[:2])
    plan = exe.as_text()
    assert len(re.findall(r"^ *storage m\d+:", plan, re.M)) == 2
    product = re.search(r"alloc float32\[.*\] in (m\d+) *# a,", plan)
    assert product is not None
    assert re.search(rf"alloc uint8\[.*\] in {product[1]} ", plan)


@pytest.mark.parametrize("transposed", [False, True])
def test_figure_6_cross_level_fusion(transposed: bool) -> None:
    """Graph and loops change together: two calls become one, two programs become one, and the value between them
    exists at neither level."""
    read = "w[vk, vj]" if not transposed else "w[vj, vk]"
    shape = "(64, 32)" if not transposed else "(32, 64)"
    mod = relaxpy.parse(
        f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def widened(q: T.Buffer({shape}, "int8"), w: T.Buffer({shape}, "float32")):
        for i, j in T.grid({shape[1:-1]}):
            with T.sblock("w"):
                vi, vj = T.axis.remap("SS", [i, j])
                w[vi, vj] = T.Cast("float32", q[vi, vj]) * T.float32(0.125)

    @T.prim_func(private=True)
    def mm(x: T.Buffer(("n", 64), "float32"), w: T.Buffer({shape}, "float32"), y: T.Buffer(("n", 32), "float32")):
        n = T.int64()
        for i, j, k in T.grid(n, 32, 64):
            with T.sblock("y"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    y[vi, vj] = T.float32(0)
                y[vi, vj] = y[vi, vj] + x[vi, vk] * {read}

    @R.function
    def main(x: R.Tensor(("n", 64), "float32"), q: R.Tensor({shape}, "int8")) -> R.Tensor(("n", 32), "float32"):
        n = T.int64()
        cls = Module
        with R.dataflow():
            w = R.call_tir(cls.widened, (q,), out_ty=R.Tensor({shape}, "float32"))
            gv = R.call_tir(cls.mm, (x, w), out_ty=R.Tensor((n, 32), "float32"))
            R.output(gv)
        return gv
"""
    )
    fused = FuseTensorIR()(FuseOps()(mod))
    assert list(fused.prim_funcs) == ["fused_widened_mm"]
    assert fused.script().count("R.call_tir(") == 1

    def arguments(n: int) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(n)
        x = rng.uniform(-1, 1, (n, 64)).astype(np.float32)
        return x, rng.integers(-8, 8, (32, 64) if transposed else (64, 32), dtype=np.int8)

    exe = same_numbers(mod, fused, arguments)
    assert "storage" not in exe.as_text()


# Figure 12: libraries for what is registered, analysis-based schedules for the rest


def test_figure_12() -> None:
    mod = Normalize()(relaxpy.parse(LAYER))
    pipeline = default_pipeline().before("match", LowerToLibrary(BLAS))
    seen: dict[str, IRModule] = {}
    exe = relaxpy.build(
        mod,
        pipeline=pipeline,
        instruments=[lambda number, step, before, after: seen.update({step.name: after})],
    )
    # (a) the pattern's region is a library call, before anything is legalised
    first = seen["lower-to-library"].script()
    assert "blas.matmul_bias_relu" in first
    assert not seen["lower-to-library"].prim_funcs
    # the rest went on to fusion ...
    last = seen["fuse-tensor-ir"]
    assert list(last.prim_funcs) == ["fused_exp_subtract_softmax"]
    # (b) ... and the loops of what came of it, of any number of rows, have a rule of their own
    target = relaxpy.Target.parse("llvm")
    rule = schedule_kernel(last["fused_exp_subtract_softmax"].func, target).rule  # type: ignore[union-attr]
    assert rule != "fallback"
    vm = relaxpy.VirtualMachine(exe)
    for n in SIZES:
        args = layer_arguments(n)
        np.testing.assert_allclose(
            vm["main"](*args).numpy(), interpret(mod, "main", *args), rtol=1e-4, atol=1e-6
        )


def test_figures_6_and_12_together() -> None:
    """A library for the product, a special fusion that the user registered, FuseOps for the rest."""
    mod = Normalize()(relaxpy.parse(LAYER))
    special = FusionPattern(
        "shifted", is_op("subtract")(is_op("exp"), wildcard()), attrs={PRIMITIVE: True}
    )
    step = LowerToLibrary(BLAS)(mod)
    step = FuseOpsByPattern((special,))(step)
    step = FuseTensorIR()(FuseOps()(LegalizeOps()(step)))
    assert list(step.prim_funcs) == ["softmax", "fused_shifted"]
    same_numbers(mod, step, layer_arguments)
