"""Table 1 and figures 2 to 5, 7 and 8 of the Relax paper: read, printed, deduced, and run where there is something to
run. Where a figure says less than the text, the text holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis import well_formed
from relaxpy.errors import RuntimeCheckError
from relaxpy.ir import Function, IRModule
from relaxpy.runtime.library import register_library
from relaxpy.runtime.tensor import Tensor
from relaxpy.testing.interpret import interpret
from relaxpy.transform.base import PassContext
from relaxpy.transform.lower_call_tir import LowerCallTIR
from tests.sweeps import optimised

pytestmark = optimised

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n\n"


def read(text: str) -> IRModule:
    """The module of a text, which is well formed and comes back when it is printed."""
    mod = relaxpy.parse(HEADER + text)
    assert well_formed(mod) == []
    relaxpy.assert_structural_equal(mod, relaxpy.parse(mod.script()))
    return mod


def annotations(mod: IRModule, name: str = "main") -> dict[str, str]:
    """What is deduced for each variable of a function, as script."""
    function = mod[name]
    assert isinstance(function, Function)
    return {binding.var.name: str(binding.var.annotation) for binding in function.body.bindings}


def run_both(mod: IRModule, *args: Any, name: str = "main") -> np.ndarray:
    """The result of a function, built and run; the interpreter gives the same."""
    got = relaxpy.VirtualMachine(relaxpy.build(mod))[name](*args).numpy()
    np.testing.assert_allclose(got, interpret(mod, name, *args), rtol=1e-5, atol=1e-6)
    return got


# Table 1: annotations


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("R.Object", "R.Object"),
        ("R.Shape([n, 4])", "R.Shape([n, 4])"),
        ("R.Shape(ndim=2)", "R.Shape(ndim=2)"),
        ('R.Tensor((n, 4), "f32")', 'R.Tensor((n, 4), dtype="float32")'),
        ('R.Tensor(ndim=None, dtype="f32")', 'R.Tensor(dtype="float32")'),
        (
            'R.Tuple[R.Tensor((n, 4), "f32"), R.Object]',
            'R.Tuple(R.Tensor((n, 4), dtype="float32"), R.Object)',
        ),
        (
            'R.Callable([R.Tensor(("n", 4), "f32")], R.Tensor(("n * 4",), "f32"))',
            'R.Callable((R.Tensor(("n", 4), dtype="float32"),), R.Tensor(("n * 4",), dtype="float32"), True)',
        ),
    ],
)
def test_table_1(written: str, shown: str) -> None:
    mod = read(f'@R.function\ndef main(s: R.Shape(["n"]), x: {written}):\n    return x\n')
    function = mod["main"]
    assert isinstance(function, Function)
    assert str(function.params[1].annotation) == shown


# Figure 2: the elements of the language

FIGURE_2 = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), c: R.Tensor((), "bool")) -> R.Object:
        n, m = T.int64(), T.int64()
        with R.dataflow():
            lv0 = R.exp(x)
            lv1 = R.nn.relu(lv0)
            R.output(lv1)
        if c:
            y = Module.subfn(lv1)
        else:
            y = R.match_cast(R.flatten(lv1), R.Tensor((n * 4,), "float32"))
        z = (y, R.shape([n, 4]))
        return z

    @R.function
    def subfn(x: R.Tensor(("n", "m"), "float32")) -> R.Tensor(("n * m",), "float32"):
        n, m = T.int64(), T.int64()
        gv = R.reshape(x, R.shape([n * m]))
        return gv
"""


def test_figure_2() -> None:
    """Dataflow blocks inside functions, branches outside of them, calls, tuples, shapes as values."""
    mod = read(FIGURE_2)
    assert annotations(mod) == {
        "lv0": 'R.Tensor((n, 4), dtype="float32")',
        "lv1": 'R.Tensor((n, 4), dtype="float32")',
        "y": 'R.Tensor((n * 4,), dtype="float32")',
        "z": 'R.Tuple(R.Tensor((n * 4,), dtype="float32"), R.Shape([n, 4]))',
    }
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    machine = relaxpy.VirtualMachine(relaxpy.build(mod))
    for condition in (True, False):
        value, shape = machine["main"](x, np.array(condition))
        np.testing.assert_allclose(value.numpy(), np.exp(x).reshape(-1), rtol=1e-5)
        assert tuple(shape) == (3, 4)


# Figure 3: symbolic shapes, lost at a data-dependent operator and found again

FIGURE_3 = """
@R.function
def main(x: R.Tensor(("n", 2, 2), "float32")):
    n, m = T.int64(), T.int64()
    lv0 = R.reshape(x, R.shape([n, 4]))
    lv1 = R.flatten(lv0)
    lv2 = R.unique(lv1)
    lv3 = R.match_cast(lv2, R.Tensor((m,), "float32"))
    gv0 = R.exp(lv3)
    return gv0
"""


def test_figure_3() -> None:
    mod = read(FIGURE_3)
    assert annotations(mod) == {
        "lv0": 'R.Tensor((n, 4), dtype="float32")',
        "lv1": 'R.Tensor((n * 4,), dtype="float32")',
        "lv2": 'R.Tensor(dtype="float32", ndim=1)',
        "lv3": 'R.Tensor((m,), dtype="float32")',
        "gv0": 'R.Tensor((m,), dtype="float32")',
    }
    function = mod["main"]
    assert isinstance(function, Function)
    assert str(function.ret) == 'R.Tensor(dtype="float32", ndim=1)'  # m is the body's own


def test_figure_3_without_symbols() -> None:
    """The left side of the figure: what is unknown stays unknown, of known rank."""
    mod = read("""
@R.function
def main(x: R.Tensor("float32", ndim=3)):
    lv0 = R.flatten(x)
    lv1 = R.unique(lv0)
    gv0 = R.exp(lv1)
    return gv0
""")
    assert set(annotations(mod).values()) == {'R.Tensor(dtype="float32", ndim=1)'}


# Figures 4 and 5: calls across levels

MM = """
    @T.prim_func
    def mm(x: T.Buffer(("n", 128), "float32"), w: T.Buffer((128, 256), "float32"), y: T.Buffer(("n", 256), "float32")):
        n = T.int64()
        for i, j, k in T.grid(n, 256, 128):
            with T.sblock("mm"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    y[vi, vj] = T.float32(0)
                y[vi, vj] = y[vi, vj] + x[vi, vk] * w[vk, vj]
"""

FIGURE_4 = f"""
@I.ir_module
class Module:{MM}
    @R.function
    def main(x: R.Tensor(("n", 128), "float32"), w: R.Tensor((128, 256), "float32")):
        n = T.int64()
        cls = Module
        lv0 = R.call_tir(cls.mm, [x, w], R.Tensor((n, 256), "float32"))
        lv1 = R.call_dps_library("paper.rms_norm", [lv0], R.Tensor((n, 256), "float32"))
        return lv1
"""

FIGURE_5 = f"""
@I.ir_module
class Module:{MM}
    @R.function
    def main(x: R.Tensor(("n", 128), "float32"), w: R.Tensor((128, 256), "float32")):
        n = T.int64()
        cls = Module
        lv0 = R.call_tir(cls.mm, [x, w], R.Tensor((n, 256), "float32"))
        return lv0
"""


def matrices(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.random((n, 128), np.float32), rng.random((128, 256), np.float32)


def rms_norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5)


@register_library("paper.rms_norm")
def library_rms_norm(x: Tensor, out: Tensor) -> None:
    """Stands for CUTLASS's of the figure."""
    out.numpy()[...] = rms_norm(x.numpy())


def test_figure_4() -> None:
    """The graph level calls a tensor program of its module and a function of a library, symbol n across both."""
    mod = read(FIGURE_4)
    assert set(annotations(mod).values()) == {'R.Tensor((n, 256), dtype="float32")'}
    for n in (1, 5):
        x, w = matrices(n)
        got = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x, w).numpy()
        np.testing.assert_allclose(got, rms_norm(x @ w), rtol=1e-4)
    assert [str(dim) for dim in mod.prim_funcs["mm"].params[0].shape] == ["n", "128"]  # type: ignore[union-attr]


def test_figure_5() -> None:
    """`call_tir` is: allocate the output, call the program with it, give it (here as a pass says it)."""
    mod = read(FIGURE_5)
    lowered = LowerCallTIR().run(mod, PassContext())
    text = lowered.script()
    alloc, call = text.index("alloc_tensor"), text.index("R.vm.call_dps(cls.mm, x, w, lv0)")
    assert alloc < call < text.index("return ")
    assert "call_tir" not in text
    for n in (1, 5):
        x, w = matrices(n)
        np.testing.assert_allclose(run_both(mod, x, w), x @ w, rtol=1e-4)


# Figure 7: deduction through calls of functions

FIGURE_7 = """
@I.ir_module
class Module:
    @R.function
    def subfn(s: R.Shape(["n", "m"])) -> R.Tensor(("n * m",), "float32"):
        n, m = T.int64(), T.int64()
        return R.ones((n * m,), "float32")

    @R.function
    def main(x: R.Tensor(("n",), "float32"), s: R.Shape(ndim=2)):
        n = T.int64()
        cls = Module
        f0 = cls.subfn
        lv0 = cls.subfn(R.shape([n, 4]))
        lv1 = cls.subfn(R.shape([3, 4]))
        lv2 = f0(R.shape([n, 4]))
        lv3 = cls.subfn(s)
        lv4 = f0(s)
        return (lv0, lv1, lv2, lv3, lv4)
"""

DEDUCED = {
    "lv0": 'R.Tensor((n * 4,), dtype="float32")',
    "lv1": 'R.Tensor((12,), dtype="float32")',
    "lv2": 'R.Tensor((n * 4,), dtype="float32")',
    "lv3": 'R.Tensor(dtype="float32", ndim=1)',
    "lv4": 'R.Tensor(dtype="float32", ndim=1)',
}


@pytest.mark.parametrize("name", DEDUCED)
def test_figure_7(name: str) -> None:
    """From the signature alone; a coarser argument is allowed, and gives a coarser result."""
    assert annotations(read(FIGURE_7))[name] == DEDUCED[name]


def test_figure_7_function_as_a_value() -> None:
    mod = relaxpy.parse(HEADER + FIGURE_7)
    annotation = mod.annotation_of("subfn")
    text = 'R.Callable((R.Shape(["n", "m"]),), R.Tensor(("m * n",), dtype="float32"), True)'
    assert str(annotation) == text
    main = mod["main"]
    assert isinstance(main, Function)
    assert str(next(iter(main.body.bindings)).var.annotation) == text


def test_figure_7_runs() -> None:
    """What the coarser argument has to be is checked when it comes."""
    machine = relaxpy.VirtualMachine(relaxpy.build(read(FIGURE_7)))
    results = machine["main"](np.zeros(2, np.float32), (5, 6))
    assert [result.numpy().shape for result in results] == [(8,), (12,), (8,), (30,), (30,)]
    with pytest.raises(RuntimeCheckError):
        machine["main"](np.zeros(2, np.float32), (5, 6, 7))


# Figure 8: expressions in the annotations of parameters

FIGURE_8 = """
@I.ir_module
class Module:
    @R.function
    def fused_add_relu(
        x: R.Tensor(("n * 2",), "float32"), y: R.Tensor(("n * 2",), "float32"), s: R.Shape(["n"])
    ) -> R.Tensor(("n * 2",), "float32"):
        lv = R.add(x, y)
        gv = R.nn.relu(lv)
        return gv

    @R.function
    def main(x: R.Tensor(("n", 2), "float32"), y: R.Tensor(("n * 2",), "float32")):
        n = T.int64()
        cls = Module
        lv0 = R.flatten(x)
        gv0 = cls.fused_add_relu(lv0, y, R.shape([n]))
        return gv0
"""


def test_figure_8() -> None:
    mod = read(FIGURE_8)
    assert annotations(mod)["gv0"] == 'R.Tensor((n * 2,), dtype="float32")'
    assert annotations(mod, "fused_add_relu")["lv"] == 'R.Tensor((n * 2,), dtype="float32")'
    x = np.arange(6, dtype=np.float32).reshape(3, 2) - 3
    y = np.ones(6, np.float32)
    np.testing.assert_allclose(run_both(mod, x, y), np.maximum(x.reshape(-1) + y, 0))


def test_figure_8_checks_its_arguments() -> None:
    """n comes from the shape: 5 elements are not n * 2 for any n."""
    machine = relaxpy.VirtualMachine(relaxpy.build(read(FIGURE_8)))
    with pytest.raises(RuntimeCheckError):
        machine["fused_add_relu"](np.zeros(5, np.float32), np.zeros(5, np.float32), (3,))
