"""Figures 6, 8, 9, 12 and 13 of the Relax paper: partial lowering, analysis feedback, cross-level transformation, each
alone and together, and the pipeline. What a figure shows is printed (`pytest -s`) and compared with text, and the program
with numbers, for sizes that nobody compiled for."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.fusion_graph import FusionGraph
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.build.blas import BLAS
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir import DataflowBlock, Function, IRModule, TensorType
from relaxpy.ir.pattern import is_call_tir, is_op, wildcard
from relaxpy.runtime import Tensor
from relaxpy.testing.interpret import interpret
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.pattern_kind import PatternKind, pattern_kind
from relaxpy.transform.base import PassContext
from relaxpy.transform.fuse_ops import FuseOps
from relaxpy.transform.fuse_ops_by_pattern import FuseOpsByPattern, FusionPattern
from relaxpy.transform.fuse_tensor_ir import FuseTensorIR
from relaxpy.transform.legalize_ops import LegalizeOps
from relaxpy.transform.lower_to_library import LibraryPattern, LowerToLibrary
from relaxpy.transform.normalize import Normalize
from relaxpy.transform.outline import PRIMITIVE
from tests.sweeps import optimised

pytestmark = optimised

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


def show(title: str, *parts: IRModule | str) -> None:
    """Print what a figure shows: the graph functions of modules, and text."""
    lines = [f"\n== {title} =="]
    for part in parts:
        if isinstance(part, str):
            lines.append(part)
        else:
            lines += [f.script(name) for name, f in part.graph_functions.items()]
    print("\n".join(lines))  # noqa: T201  (what `pytest -s` is for)


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
    show("Figure 6: partial lowering", mod, "-- LowerToLibrary(BLAS) -->", lowered)
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
    feedback = "\n".join(f"{name}: {kind}" for name, kind in kinds.items())
    show("Figure 6: analysis feedback", mod, feedback, "-- FuseOps, FuseTensorIR -->", fused)
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
    show("Figure 6: cross-level transformation", mod, "-- a workspace of the graph -->", lowered)
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
    show("Figure 12", mod)
    for name in ("lower-to-library", "legalize-ops", "fuse-tensor-ir"):
        show(name, seen[name])
    show("kernels and libraries", exe.as_text())
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


# Figure 8: a group that cuts out an expression of a symbol

DOUBLED = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 2), "float32"), y: R.Tensor(("n * 2",), "float32")) -> R.Tensor(("n * 2",), "float32"):
        n = T.int64()
        with R.dataflow():
            lv0 = R.flatten(x)
            lv1 = R.add(lv0, y)
            gv0 = R.nn.relu(lv1)
            R.output(gv0)
        return gv0
"""


def test_figure_8() -> None:
    """A region over n * 2 elements becomes a function: n comes in a shape beside its tensors. Where the loops of the one
    tensor program that is made of it can tell n from a buffer, it is no argument any more."""
    mod = Normalize()(relaxpy.parse(DOUBLED))
    cut = FuseOpsByPattern(
        (FusionPattern("add_relu", is_op("nn.relu")(is_op("add")(wildcard(), wildcard()))),)
    )(mod)
    (name,) = [name for name in cut.graph_functions if name != "main"]
    text = cut.script()
    assert f'gv0: R.Tensor((n * 2,), dtype="float32") = cls.{name}(lv0, y, R.shape([n]))' in text
    assert 's: R.Shape(["n"])' in text
    fused = FuseTensorIR()(FuseOps()(LegalizeOps()(mod)))
    show("Figure 8", mod, "-- FuseOpsByPattern -->", cut, "-- as one tensor program -->", fused)
    (program,) = fused.prim_funcs
    assert f"R.call_tir(cls.{program}, (x, y), out_ty=" in fused.script()

    def arguments(n: int) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(n)
        return tuple(rng.uniform(-1, 1, s).astype(np.float32) for s in ((n, 2), (n * 2,)))

    same_numbers(mod, cut, arguments)
    same_numbers(mod, fused, arguments)


# Figure 9: from two tensor programs, by a function of the graph, to one

QUANTISED = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def decode_q4(
        data: T.Buffer((128, 8), "uint32"), scale: T.Buffer((128, 2), "float32"), w: T.Buffer((128, 64), "float32")
    ):
        for k, j in T.grid(128, 64):
            with T.sblock("decode"):
                vk, vj = T.axis.remap("SS", [k, j])
                w[vk, vj] = (
                    T.Cast("float32", T.bitwise_and(
                        T.shift_right(data[vk, vj // 8], T.Cast("uint32", vj % 8 * 4)), T.uint32(15)
                    )) - T.float32(7)
                ) * scale[vk, vj // 32]

    @T.prim_func(private=True)
    def mm(x: T.Buffer(("n", 128), "float32"), w: T.Buffer((128, 64), "float32"), o: T.Buffer(("n", 64), "float32")):
        n = T.int64()
        for i, j, k in T.grid(n, 64, 128):
            with T.sblock("mm"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    o[vi, vj] = T.float32(0)
                o[vi, vj] = o[vi, vj] + x[vi, vk] * w[vk, vj]

    @R.function
    def main(
        x: R.Tensor(("n", 128), "float32"), data: R.Tensor((128, 8), "uint32"), scale: R.Tensor((128, 2), "float32")
    ) -> R.Tensor(("n", 64), "float32"):
        n = T.int64()
        cls = Module
        with R.dataflow():
            w = R.call_tir(cls.decode_q4, (data, scale), out_ty=R.Tensor((128, 64), "float32"))
            y = R.call_tir(cls.mm, (x, w), out_ty=R.Tensor((n, 64), "float32"))
            R.output(y)
        return y
"""


def test_figure_9() -> None:
    mod = relaxpy.parse(QUANTISED)
    kinds = {name: str(pattern_kind(program)) for name, program in programs(mod).items()}
    assert kinds == {"decode_q4": "Injective", "mm": "OutputEwiseFusible"}
    grouped = FuseOps()(mod)
    assert list(grouped.graph_functions) == ["main", "fused_decode_q4_mm"]
    fused = FuseTensorIR()(grouped)
    show(
        "Figure 9", mod, "\n".join(f"{name}: {kind}" for name, kind in kinds.items()),
        "-- FuseOps -->", grouped,
        "-- FuseTensorIR -->", fused, programs(fused)["fused_decode_q4_mm"].script("fused_decode_q4_mm"),
    )  # fmt: skip
    assert list(fused.functions) == ["main", "fused_decode_q4_mm"]
    assert calls(fused) == ["call_tir(fused_decode_q4_mm, (data, scale, x)"]

    def arguments(n: int) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(n)
        x = rng.normal(size=(n, 128)).astype(np.float32)
        data = rng.integers(0, 2**32, (128, 8), dtype=np.uint32)
        return x, data, rng.uniform(0.1, 1, (128, 2)).astype(np.float32)

    exe = same_numbers(mod, fused, arguments)
    assert [kernel.name for kernel in exe.kernels] == ["fused_decode_q4_mm"]
    assert "storage" not in exe.as_text()  # the decoded weight exists nowhere


def programs(mod: IRModule) -> dict[str, PrimFunc]:
    """The tensor programs of a module."""
    return {name: f for name, f in mod.prim_funcs.items() if isinstance(f, PrimFunc)}


# Figure 13: the pipeline

SIGNS = {
    "operators": r"= R\.(?!call_tir|call_dps|memory|vm|shape|prim_value)[\w.]+\(",
    "call_tir": r"R\.call_tir\(",
    "library": r"R\.call_dps_library\(|R\.vm\.call_dps\((?:R\.ExternFunc\()?\"",
    "allocations": r"R\.memory\.alloc_tensor\(",
    "storages": r"R\.memory\.alloc_storage\(",
    "heap slots": r"slots=\[",
}
"""What tells the levels of a program apart, and how it is found in the text."""


def test_figure_13() -> None:
    """Each phase takes its kind of construct away and leaves the next one's: partial library lowering, legalisation,
    analysis feedback and fusion, explicit memory and its plan, shapes lowered, a module that runs."""
    mod = relaxpy.parse(LAYER)
    pipeline = default_pipeline().before("match", LowerToLibrary(BLAS))
    context = PassContext(relaxpy.Target.parse("llvm"))
    rows: dict[str, dict[str, int]] = {}
    step = mod
    for phase in pipeline.phases:
        for each in phase.passes:
            step = each.run(step, context)
        text = "".join(f.script(name) for name, f in step.graph_functions.items())
        rows[phase.name] = {sign: len(re.findall(found, text)) for sign, found in SIGNS.items()}
    lines = [f"{'after':10}" + "".join(f"{sign:>12}" for sign in SIGNS)]
    lines += [f"{name:10}" + "".join(f"{n:12}" for n in row.values()) for name, row in rows.items()]
    exe = relaxpy.build(mod, pipeline=pipeline)
    show("Figure 13", *lines, exe.as_text())
    found = {name: tuple(row.values()) for name, row in rows.items()}
    assert found == {
        "prepare": (6, 0, 0, 0, 0, 0),
        "simplify": (6, 0, 0, 0, 0, 0),
        "normalise": (6, 0, 0, 0, 0, 0),
        "match": (3, 0, 1, 0, 0, 0),
        "legalise": (0, 3, 1, 0, 0, 0),
        "fuse": (0, 1, 1, 0, 0, 0),
        "layout": (0, 1, 1, 0, 0, 0),
        "lower": (0, 0, 1, 2, 0, 0),
        "memory": (0, 0, 1, 2, 1, 0),
        "shapes": (0, 0, 1, 2, 1, 3),
    }
    vm = relaxpy.VirtualMachine(exe)
    for n in SIZES:
        args = layer_arguments(n)
        want = interpret(mod, "main", *args)
        np.testing.assert_allclose(vm["main"](*args).numpy(), want, rtol=1e-4, atol=1e-6)
