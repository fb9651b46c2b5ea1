"""ScheduleTensorPrograms: figure 11 of the paper for the workspaces of schedule rules."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.registry import backend_of
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.backend.schedule_tensor_programs import ScheduleTensorPrograms
from relaxpy.build.pipeline import default_pipeline
from relaxpy.build.plan import memory_plan
from relaxpy.build.tuning import Record, TuningRecords, record_key
from relaxpy.errors import BuildError
from relaxpy.ir.module import IRModule
from relaxpy.target import Target
from relaxpy.testing.before_after import check_example, read_example
from relaxpy.testing.interpret import interpret
from relaxpy.tir.lowering.heap import heap_use
from relaxpy.tir.lowering.workspace import buffer_count, source
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform import LegalizeOps, LowerCallTIR
from relaxpy.transform.base import PassContext, Sequential
from tests.sweeps import sweep

HOST = Target.host()
PASS = "schedule-tensor-programs"

UPSCALE = """
@I.ir_module
class Upscale:
    @R.function
    def main(x: R.Tensor(("n", 8, 64, 64), "float32")) -> R.Tensor(("n", 8, 64, 64), "float32"):
        a = R.nn.softmax(x)
        b = R.image.resize2d(a, R.shape([128, 128]), layout="NCHW")
        c = R.nn.softmax(b)
        d = R.image.resize2d(c, R.shape([64, 64]), layout="NCHW")
        e = R.nn.softmax(d)
        return e
"""

CALLS = {
    "in turn": "R.nn.softmax(x, axis=0)",
    "blocks of columns": "R.sum(x, axis=[0])",
    "blocks of everything": "R.sum(x)",
    "two blocks": "R.variance(x)",
    "places": "R.argmax(x)",
    "not stages": "R.sort(R.reshape(x, R.shape([n * 12])))",
    "rows": "R.multinomial_from_uniform(R.nn.softmax(x), R.full(R.shape([n, 1]), R.const(0.5, 'float32'), dtype='float32'), R.reshape(R.arange(0, n, 1, dtype='int64'), R.shape([n, 1])))",
    "tables": "R.image.resize2d(R.reshape(x, R.shape([1, n, 12, 1])), R.shape([24, 3]), layout='NCHW')",
}
"""Calls whose kernels hand memory on from part to part."""


def module(call: str) -> IRModule:
    """A function of one call, of a matrix of n rows."""
    return relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("n", 12), "float32")):
    n = T.int64()
    y = {call}
    return y
""")


def lowered(mod: IRModule) -> IRModule:
    """Tensor programs and allocations, as the pass finds them."""
    return Sequential((LegalizeOps(), LowerCallTIR()))(mod)


def programs(mod: IRModule) -> list[PrimFunc]:
    return [program for program in mod.prim_funcs.values() if isinstance(program, PrimFunc)]


def array(result: Any) -> np.ndarray:
    return np.asarray(result.numpy() if hasattr(result, "numpy") else result)


def test_example() -> None:
    check_example(ScheduleTensorPrograms())


def test_once_is_enough() -> None:
    """What was given its workspaces is given no more, as a printed module that is built."""
    after = read_example(ScheduleTensorPrograms).after
    assert ScheduleTensorPrograms()(after) is after


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_kernels_take_nothing_that_is_shared(call: str) -> None:
    """The loops are those that there were, on memory of the caller's; the module prints, parses and is interpreted."""
    before = lowered(module(call))
    after = ScheduleTensorPrograms()(before)
    assert any("relaxpy.workspaces" in program.attrs for program in programs(after))
    for program in programs(after):
        used = heap_use(schedule_kernel(program.func, HOST).parallel)
        assert used is None or used.shared.value == 0
    relaxpy.assert_structural_equal(relaxpy.parse(after.script()), after)
    x = np.linspace(-1, 1, 60, dtype=np.float32).reshape(5, 12)
    np.testing.assert_array_equal(interpret(after, "main", x), interpret(before, "main", x))


@sweep(6)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("n", [0, 1, 5, 30000])
def test_the_same_bits(call: str, n: int) -> None:
    if n == 0 and call == CALLS["places"]:
        pytest.skip("of nothing there is none")
    x = np.random.default_rng(0).normal(size=(n, 12)).astype(np.float32)
    results = [
        array(relaxpy.VirtualMachine(relaxpy.build(module(call), pipeline=steps))["main"](x))
        for steps in (default_pipeline(), default_pipeline(without=[PASS]))
    ]
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_loops_are_those_without(call: str) -> None:
    """Line by line, but for names, allocations, and the bytes that decide whether results are streamed: memory of the
    plan is among the parameters, and counts."""
    before = lowered(module(call))
    backend = backend_of(HOST)
    found = [(p, backend.launches(p, HOST)) for p in programs(before)]
    divided = [(p, launches.launches) for p, launches in found if launches is not None]
    assert divided
    for program, (launch,) in divided:
        texts = [_loops(each) for each in (program, launch.program)]
        assert texts[0] == texts[1]


def _loops(program: PrimFunc) -> list[str]:
    script = str(schedule_kernel(program.func, HOST).parallel.script())
    lines = [re.sub(r"_\d+\b", "", line.strip()) for line in script.splitlines()]
    skipped = (
        "def ",
        "T.func_attr",
        "@",
        "#",
        "from",
        "import",
        "T.evaluate(0)",
        "T.reads",
        "T.writes",
        "is_large:",
    )
    return [line for line in lines if not line.startswith(skipped) and "alloc_buffer" not in line]


def test_figure_11_for_a_rule() -> None:
    """What an upscaled image is summed up in lies in the plan, where other tensors lie at other times."""
    mod = relaxpy.parse(UPSCALE)
    whole = memory_plan(mod, sizes={"n": 4}, inside_kernels=True)
    apart = memory_plan(
        mod, sizes={"n": 4}, inside_kernels=True, pipeline=default_pipeline(without=[PASS])
    )
    image = 4 * 8 * 128 * 128 * 4
    assert apart["main"].workspace == 0
    assert apart["main"].planned == 2 * image
    assert max(kernel.shared for kernel in apart["main"].kernels) >= image
    assert all(kernel.shared == 0 for kernel in whole["main"].kernels)
    assert image <= whole["main"].workspace < 1.01 * image
    # A quarter of it is new.
    assert whole["main"].planned < 2 * image + 0.26 * image
    assert whole["main"].planned == whole["main"].least


def test_rules_keep_their_names() -> None:
    exe = relaxpy.build(module(CALLS["in turn"]))
    assert exe.build_report is not None
    assert [(kernel.name, kernel.rule) for kernel in exe.build_report.kernels] == [
        ("softmax_lifted", "reduction")
    ]
    (kernel,) = exe.kernels
    assert kernel.image.memory is not None
    assert kernel.image.memory.shared == 0
    assert kernel.params is not None
    assert [param.written for param in kernel.params] == [False, *[True] * (len(kernel.params) - 1)]


def test_memory_is_checked() -> None:
    """Workspaces are written, also those that the text does not use: what lies beside them is not."""
    exe = relaxpy.build(module(CALLS["in turn"]))
    x = np.random.default_rng(0).normal(size=(30000, 12)).astype(np.float32)
    checked = relaxpy.VirtualMachine(exe, check_memory=True)["main"](x)
    plain = relaxpy.VirtualMachine(exe)["main"](x)
    np.testing.assert_array_equal(array(checked), array(plain))


def test_records_of_what_was_measured_hold() -> None:
    """A record of a program is one of the same program on memory that it is given."""
    before = lowered(module(CALLS["in turn"]))
    after = ScheduleTensorPrograms()(before)
    (plain,), (given,) = (
        [p for p in programs(m) if len(p.params) > 1][-1:] for m in (before, after)
    )
    assert record_key(plain, HOST) == record_key(given, HOST)
    records = TuningRecords({record_key(plain, HOST): Record("main", {"rule": "fallback"})})
    record = records.record(given, HOST)
    assert record is not None
    assert record.choices == {"rule": "fallback"}
    exe = relaxpy.build(module(CALLS["in turn"]), pipeline=None, tuning=False)
    assert exe.build_report is not None
    assert source(given).structural_equal(source(plain))


def test_a_size_that_is_not_known_stays_inside() -> None:
    """Nothing says how large the workspace of a call through an unknown shape is: the kernel asks for it itself."""
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def centre(x: T.Buffer(("n", 12), "float32"), y: T.Buffer(("n", 12), "float32")):
        n = T.int64()
        total = T.sblock_alloc_buffer((n, 12), "float32")
        for i, j in T.grid(n, 12):
            with T.sblock("total"):
                vi, vj = T.axis.remap("SS", [i, j])
                total[vi, vj] = x[n - 1 - vi, vj] + x[vi, vj]
        for i, j in T.grid(n, 12):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = total[vi, 11 - vj] * total[n - 1 - vi, vj]

    @R.function
    def main(x: R.Tensor(ndim=2, dtype="float32"), y: R.Tensor(ndim=2, dtype="float32")) -> R.Tensor(ndim=2, dtype="float32"):
        cls = Module
        _y = R.vm.call_dps(cls.centre, x, y)
        return y
""")
    assert "lifted" not in ScheduleTensorPrograms()(mod).script()


SPLIT = """
@R.function
def main(x: R.Tensor((20, "n"), "float32")):
    y = R.split(x, 10, axis=0)
    return y
"""


def test_programs_are_divided_for_devices_that_take_few_buffers() -> None:
    """As many parts a launch as fit; processors take them whole."""

    def lowered(target: str) -> IRModule:
        mod = relaxpy.parse(SPLIT)
        resolved = Target.parse(target)
        steps = Sequential((LegalizeOps(), LowerCallTIR(), ScheduleTensorPrograms()))
        return steps(mod, PassContext(resolved))

    few = lowered("opencl -max-buffers=4")
    assert {buffer_count(program) for program in few.prim_funcs.values()} == {2, 4}
    assert [buffer_count(program) for program in lowered("llvm").prim_funcs.values()] == [11]
    x = np.arange(60, dtype=np.float32).reshape(20, 3)
    for part, want in zip(interpret(few, "main", x), np.split(x, 10), strict=True):
        np.testing.assert_array_equal(part, want)


def test_a_program_that_takes_more_buffers_than_a_launch() -> None:
    """And cannot do with fewer: results of several dtypes. The error is where the program is."""
    dtypes = ("float32", "int32", "float16", "int8")
    outs = ", ".join(f'o{n}: T.Buffer(("n",), "{dtype}")' for n, dtype in enumerate(dtypes))
    stores = "\n".join(
        f'                o{n}[v] = T.Cast("{dtype}", x[v])' for n, dtype in enumerate(dtypes)
    )
    types = ", ".join(f'R.Tensor((n,), "{dtype}")' for dtype in dtypes)
    text = f"""
@I.ir_module
class Module:
    @T.prim_func
    def several(x: T.Buffer(("n",), "float32"), {outs}):
        n = T.int64()
        for i in range(n):
            with T.sblock("b"):
                v = T.axis.spatial(n, i)
{stores}

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.several, (x,), out_ty=[{types}])
        return y
"""
    mod = relaxpy.parse(text, filename="order.py")
    relaxpy.build(mod, "opencl -max-buffers=5")
    with pytest.raises(BuildError) as caught:
        relaxpy.build(mod, "opencl -max-buffers=4")
    assert caught.value.code == "launch-buffers"
    assert "has 5 buffers, but a launch on opencl -max-buffers=4 can have at most 4" in str(
        caught.value
    )
    assert "order.py:5" in caught.value.render()
