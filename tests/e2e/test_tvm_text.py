"""What TVM 0.27 prints is read unchanged but for its import lines: modules of every kind of value, and one module after
every stage of TVM's own lowering, which then runs here."""

# ruff: noqa: F841, RET504  (programs of the language, in which a value need not be used)
from __future__ import annotations

import re
import sys
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.testing.interpret import interpret
from tests.sweeps import sweep

hook = sys.excepthook
import tvm  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.script import ir as I  # noqa: E402
from tvm.script import relax as R  # noqa: E402
from tvm.script import tirx as T  # noqa: E402

sys.excepthook = hook

STAGES = (
    "LegalizeOps", "AnnotateTIROpPattern", "FoldConstant", "FuseOps", "FuseTIR", "ToNonDataflow",
    "RemovePurityChecking", "CallTIRRewrite", "StaticPlanBlockMemory", "LowerAllocTensor", "KillAfterLastUse",
    "LowerRuntimeBuiltin", "ComputePrimValue", "VMShapeLower", "AttachGlobalSymbol",
)  # fmt: skip
"""TVM's lowering, in its order."""
RUN = frozenset(STAGES[4:5] + STAGES[7:12] + STAGES[13:14])
"""Stages whose program is built and run here; the others' differ little from these."""


def text_of(mod: Any) -> str:
    """What TVM prints, with our import lines."""
    return mod.script(show_meta=True).replace("tvm.script", "relaxpy.script")


def read(mod: Any) -> relaxpy.IRModule:
    """TVM's module as ours, after a round trip."""
    ours = relaxpy.parse(text_of(mod))
    again = relaxpy.parse(ours.script())
    relaxpy.assert_structural_equal(ours, again)
    assert again.script() == ours.script()
    return ours


@I.ir_module
class Pipeline:
    @R.function
    def main(
        x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 8), "float32"), s: R.Shape(["m"])
    ) -> R.Tensor(("n * 8",), "float32"):
        n = T.int64()
        with R.dataflow():
            a = R.add(x, R.const([[1.0, 2.0, 3.0, 4.0]], "float32"))
            b = R.nn.relu(R.matmul(a, w))
            c = R.call_dps_packed("l1.twice", (b,), out_ty=R.Tensor((n, 8), "float32"))
            d = R.reshape(R.exp(c), R.shape([n * 8]))
            R.output(d)
        return d


@relaxpy.register_library("l1.twice")
def twice_library(x: relaxpy.Tensor, out: relaxpy.Tensor) -> None:
    np.from_dlpack(out)[...] = np.from_dlpack(x) * 2


@relaxpy.register_function("l1.twice")
def twice(x: relaxpy.Tensor, out: relaxpy.Tensor) -> None:
    """The same called as TVM's lowered programs call a library: `call_packed` with the output behind the inputs."""
    twice_library(x, out)


@cache
def lowered() -> dict[str, Any]:
    """The module after each of TVM's stages."""
    found = {}
    mod = Pipeline
    with tvm.target.Target("llvm"):
        for stage in STAGES:
            mod = getattr(relax.transform, stage)()(mod)
            found[stage] = mod
    return found


def pipeline_inputs() -> tuple[np.ndarray, np.ndarray, tuple[int, ...], np.ndarray]:
    rng = np.random.default_rng(0)
    x, w = rng.random((3, 4), dtype="float32"), rng.random((4, 8), dtype="float32")
    bias = np.array([1, 2, 3, 4], "float32")
    return x, w, (5,), np.exp(2 * np.maximum((x + bias) @ w, 0)).reshape(-1)


@sweep(2)
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_of_lowering(stage: str) -> None:
    """The text after a stage is a program here, and gives the same numbers: interpreted, built and run."""
    mod = read(lowered()[stage])
    x, w, s, expected = pipeline_inputs()
    np.testing.assert_allclose(interpret(mod, "main", x, w, s), expected, rtol=1e-5)
    if stage not in RUN:
        return
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    first = vm["main"](x, w, s)
    vm["main"](x + 1, w, s)
    np.testing.assert_allclose(
        first.numpy(), expected, rtol=1e-5
    )  # not overwritten by the next call


@I.ir_module
class Effects:
    """What the lowered program does by functions of TVM's runtime. There is no symbol, so no heap of sizes."""

    @R.function
    def scaled(x: R.Tensor((3, 5), "float32"), by: R.Tensor((), "float32")):
        return R.multiply(x, by)

    @R.function(pure=False)
    def main(x: R.Tensor((3, 5)), by: R.Tensor((), "float32")):
        cls = Effects
        known = R.match_cast(x, R.Tensor((3, 5), "float32"))
        f = R.make_closure(cls.scaled, (by,))
        y = R.invoke_closure(f, (known,), ty_args=(R.Tensor((3, 5), "float32"),))
        values = R.unique(y, return_counts=True)
        rows = R.unique(y, sorted=True, return_index=True, axis=0)
        places = R.nonzero(y)
        _ = R.print(by, format="scaled by {}")
        _1 = R.assert_op(R.const(True), y, format="{}")
        twice = R.ExternFunc("l1.twice")
        z = R.call_dps_packed(twice, (y,), out_ty=R.Tensor((3, 5), "float32"))
        return (y, values, rows, places, z)


@pytest.mark.parametrize(
    "stage", ["LegalizeOps", "CallTIRRewrite", "LowerRuntimeBuiltin", "VMShapeLower"]
)
def test_functions_of_the_runtime(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    mod = Effects
    with tvm.target.Target("llvm"):
        for each in STAGES[: STAGES.index(stage) + 1]:
            mod = getattr(relax.transform, each)()(mod)
    ours = read(mod)
    x, by = np.float32([[1, 0, 1, 2, 2], [1, 0, 1, 2, 2], [3, 0, 0, 0, 1]]), np.array(2, "float32")
    y = x * 2
    rows, first = np.unique(y, return_index=True, axis=0)
    expected = [y, *np.unique(y, return_counts=True), rows, first, np.array(np.nonzero(y)), y * 2]
    vm = relaxpy.VirtualMachine(relaxpy.build(ours))
    for found in (interpret(ours, "main", x, by), vm["main"](x, by)):
        got, values, unique_rows, places, doubled = found
        for one, wanted in zip(
            [got, *values, *unique_rows, places, doubled], expected, strict=True
        ):
            np.testing.assert_array_equal(np.asarray(one), wanted)
    assert capsys.readouterr().out == "scaled by 2.0\n" * 2
    with pytest.raises(relaxpy.RelaxError, match=r"\(3, 5\)|must be 3|dimension 0"):
        vm["main"](x[:2], by)


def test_a_program_that_sorts_by_tvms_runtime() -> None:
    """Its call takes pointers, and values of floats, neither of which is an operation."""

    @I.ir_module
    class Middle:
        @R.function
        def main(x: R.Tensor((3, 5), "float32")):
            return R.median(x, axis=[1])

    mod = relax.transform.LegalizeOps()(Middle)
    assert "tvm.contrib.sort.argsort" in mod.script()
    vm = relaxpy.VirtualMachine(relaxpy.build(read(mod)))
    x = np.float32([[3, 1, 4, 1.5, 9], [2, 6, 5, 3.5, -8], [0, -1, -2, -3, -4]])
    values, index = vm["main"](x)
    np.testing.assert_array_equal(values.numpy(), np.median(x, 1))
    np.testing.assert_array_equal(index.numpy(), [0, 3, 2])


big = np.arange(600, dtype="float32").reshape(3, 200)


@I.ir_module(check_well_formed=False)
class Everything:
    """One of everything that TVM's parser takes."""

    I.module_attrs({"k": 1, "names": ["a", "b"]})
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0)]})

    @T.prim_func(s_tir=True)
    def inc(A: T.Buffer((T.int64(4),), "float32"), B: T.Buffer((T.int64(4),), "float32")):
        for i in range(4):
            with T.sblock("b"):
                vi = T.axis.spatial(4, i)
                B[vi] = A[vi] + T.float32(1)

    @T.prim_func(s_tir=True)
    def update(A: T.Buffer((T.int64(4),), "float32")):
        for i in range(4):
            with T.sblock("b"):
                vi = T.axis.spatial(4, i)
                A[vi] = A[vi] * T.float32(2)

    @R.function(private=True)
    def flat(x: R.Tensor(("n", 4), "float32"), s: R.Shape(["n", "m"])) -> R.Tensor(
        ("n * 4",), "float32"
    ):
        n = T.int64()
        return R.reshape(x, R.shape([n * 4]))

    @R.function(pure=False)
    def impure(x: R.Tensor((4,), "float32", "llvm"), f: R.Callable) -> R.Object:
        R.func_attr(
            {"relax.force_pure": 1, "a": [1, 2], "s": "x", "f": 1.5, "d": {"q": 2}, "b": True}
        )
        y = R.call_packed(
            "foo", x, R.prim_value(3), R.str("ab'\"\n"), R.dtype("float32"), ty_args=R.Object
        )
        _ = R.print(x, format="{}")
        _ = R.assert_op(R.const(True), x, format="bad {}")
        a = R.hint_on_device(x, R.cpu(0))
        b = R.to_vdevice(x, "llvm:0")
        c = R.builtin.stop_lift_params(x)
        d = R.null_value()
        e = R.call_inplace_packed("f", x, inplace_indices=[0], ty_args=R.Tensor((4,), "float32"))
        g = R.make_closure(Everything.inc, (x,))
        h = R.invoke_closure(g, (x,), ty_args=R.Object)
        i = R.memory.ensure_zero_offset(R.memory.view(x, R.shape([2, 2]), "float32", 0))
        j = R.const(big)
        k = R.const(np.float16(2.5))
        l = R.const([True, False])
        o = R.const([1, 2, 3], "int64")
        p = R.tensor_to_shape(o)
        q = R.shape_to_tensor(p)
        s = R.dtype("float16")
        z = R.ExternFunc("foo")
        z1 = z(x)
        z2 = R.call_packed(
            "foo",
            ty_args=[
                R.Tensor,
                R.Shape,
                R.Tuple(R.Tensor, R.Object),
                R.Callable((R.Tensor,), R.Tensor, purity=False),
            ],
        )
        z3 = R.builtin.alloc_tensor(R.shape([4]), "float32", 0)
        return y

    @R.function
    def main(
        x: R.Tensor(("n", 4), "float32"),
        c: R.Tensor((), "bool"),
        u: R.Tensor("float32"),
        w: R.Tensor((4,), "float32"),
        k: R.Prim("int64"),
        cb: R.Callable((R.Tensor((4,), "float32"),), R.Tensor((4,), "float32")),
    ):
        n, p = T.int64(), T.int64()
        cls = Everything
        with R.dataflow():
            a = R.add(x, x)
            b = R.call_tir(cls.inc, (w,), out_ty=R.Tensor((4,), "float32"))
            b2 = R.call_tir_inplace(
                cls.update, (b,), inplace_indices=[0], out_ty=R.Tensor((4,), "float32")
            )
            b3 = R.call_tir_with_grad(
                cls.inc,
                (b2,),
                out_ty=R.Tensor((4,), "float32"),
                te_grad_name="g",
                te_grad_kwargs={"k": 1.0},
            )
            t = (a, b3, R.const([1.0, 2.0], "float32"))
            d = t[0]
            e = R.call_dps_packed("ext", (d,), out_ty=R.Tensor((n, 4), "float32"))
            f = R.call_pure_packed("ext2", e, ty_args=R.Tensor((n, 4), "float32"))
            g = cls.flat(f, R.shape([n, n + 1]))
            h = R.match_cast(u, R.Tensor((p, 3), "float32"))
            R.output(g, h, d)
        if c:
            y = R.exp(w)
        else:
            y = R.add(w, w)

        @R.function
        def inner(q: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            r = R.add(q, y)
            return r

        v = inner(y)
        v2 = cb(v)
        v3 = R.invoke_pure_closure(inner, (v2,), ty_args=R.Tensor((4,), "float32"))
        s = R.shape_of(x)
        pv = R.prim_value(T.max(n, 3) // 2 + n % 3)
        iv = R.prim_value(T.if_then_else(n < 3, 1, 2))
        return (v3, g, s, pv, R.shape([n, 2]))


def test_one_of_everything() -> None:
    """Attributes, global information, closures, branches, constants, in-place calls, strings, scalars."""
    mod = read(Everything)
    assert mod.attrs == {"k": 1, "names": ["a", "b"]}
    assert mod.global_infos["vdevice"][0].device == 0
    assert mod["impure"].attrs["d"] == {"q": 2}
    assert mod["impure"].params[0].annotation.vdevice == str(mod.vdevices[0])
    constants = re.findall(r'R\.const_ref\("[^"]*", R\.Tensor\(\(3, 200\)', mod.script())
    assert len(constants) == 1


def test_constants_of_the_metadata() -> None:
    """Every constant but scalars stands in TVM's metadata."""
    values = [
        np.arange(6, dtype="int8").reshape(2, 3),
        np.zeros((0, 2), "float16"),
        np.array([True, False]),
        np.array([1.5, float("nan")], "float64"),
        np.array([2**63], "uint64"),
        np.full((2,), 3, ml_dtypes.bfloat16),
    ]
    bb = relax.BlockBuilder()
    with bb.function("main", []):
        bb.emit_func_output(relax.Tuple([relax.const(v, str(v.dtype)) for v in values]))
    found = interpret(read(bb.get()), "main")
    for value, got in zip(values, found, strict=True):
        assert value.dtype == got.dtype
        assert value.shape == got.shape
        assert value.tobytes() == got.tobytes()


def test_a_text_without_its_metadata() -> None:
    bb = relax.BlockBuilder()
    with bb.function("main", []):
        bb.emit_func_output(relax.const(np.arange(3)))
    with pytest.raises(relaxpy.RelaxError) as caught:
        relaxpy.parse(bb.get().script())
    assert caught.value.help == "print it with mod.script(show_meta=True)"


@pytest.mark.parametrize(
    "damage",
    [("P6G0", "AAAA"), ('root_index\\": ', 'root_index\\": 99'), ("}", "", 1), ("AAAAAA", "", 1)],
)
def test_damaged_metadata(damage: tuple[Any, ...]) -> None:
    bb = relax.BlockBuilder()
    with bb.function("main", []):
        bb.emit_func_output(relax.const(np.arange(3)))
    with pytest.raises(relaxpy.RelaxError) as caught:
        relaxpy.parse(text_of(bb.get()).replace(*damage))
    assert "damaged" in str(caught.value)


def test_a_tensor_inside_a_storage() -> None:
    """TVM's offset in bytes is kept; a negative one is refused."""
    text = """
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    storage = R.memory.alloc_storage(R.shape([128]), R.prim_value(0), R.str("global"), R.dtype("uint8"))
    a = R.memory.alloc_tensor(storage, R.prim_value(64), R.shape([4]), R.dtype("float32"))
    return a
"""
    mod = relaxpy.parse(text)
    assert "R.memory.alloc_tensor(R.shape([4]), storage, offset=64)" in mod.script()
    assert_structural_equal(mod, relaxpy.parse(mod.script()))
    with pytest.raises(relaxpy.RelaxError, match="a constant number of bytes, at least 0"):
        relaxpy.parse(text.replace("prim_value(64)", "prim_value(-64)"))
