"""Programs of independent rows in one launch: which programs have rows, and what their launch does."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.backend.base import Backend
from relaxpy.backend.gpu.schedule.row_plan import RowPlan, row_plan
from relaxpy.backend.gpu.schedule.rows import arrange_rows
from relaxpy.backend.opencl.backend import OpenCLBackend
from relaxpy.backend.opencl.target import OpenCLTarget
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.backend.webgpu.backend import WebGPUBackend
from relaxpy.backend.webgpu.target import WebGPUTarget
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.legalize_ops import LegalizeOps
from tests.backend.gpu.support import MATMUL, SCAN, TWO, printed, program

SHAPES = {
    "x": '("n", "m")',
    "q": '("b", "n", 2, 8)',
    "k": '("b", "m", 2, 8)',
    "v": '("b", "m", 2, 8)',
}


def legalised(call: str, *names: str) -> PrimFunc:
    """The tensor program of an operator."""
    params = ", ".join(f'{name}: R.Tensor({SHAPES[name]}, "float32")' for name in names)
    mod = relaxpy.parse(f"@R.function\ndef main({params}):\n    y = {call}\n    return y\n")
    (func,) = LegalizeOps().run(mod, relaxpy.transform.base.PassContext()).prim_funcs.values()
    assert isinstance(func, PrimFunc)
    return func


def plan(text: str) -> RowPlan:
    found = row_plan(program(text).func)
    assert found is not None
    return found


def test_a_product_has_a_thread_for_each_element() -> None:
    """All its axes are rows."""
    found = plan(MATMUL)
    assert len(found.rows) == 2
    assert not found.is_shared
    assert not found.workspaces


def test_softmax_is_one_launch_without_memory() -> None:
    """The exponentials lie where the quotients will."""
    softmax = legalised("R.nn.softmax(x)", "x")
    found = row_plan(softmax.func)
    assert found is not None
    assert len(found.rows) == 1
    assert found.is_shared
    assert [len(part.inner) for part in found.parts] == [0, 1, 0, 0, 1]
    assert not found.workspaces
    assert WebGPUBackend().launches(softmax, WebGPUTarget()) is None


def test_attention_is_one_launch() -> None:
    """Its buffers have batch, head and query in different orders. Scores are in memory, and fit the buffers of a launch."""
    attention = legalised("R.nn.attention(q, k, v)", "q", "k", "v")
    found = row_plan(attention.func)
    assert found is not None
    assert len(found.rows) == 3
    assert [buffer.name for buffer in found.workspaces] == ["products", "powers"]
    launches = WebGPUBackend().launches(attention, WebGPUTarget())
    assert launches is not None
    (launch,) = launches.launches
    assert [w.name for w in launches.workspaces] == ["products", "powers"]
    assert schedule_kernel(launch.program.func, WebGPUTarget()).rule == "rows"


def test_too_many_buffers_for_one_launch() -> None:
    """Then there are several."""
    attention = legalised("R.nn.attention(q, k, v)", "q", "k", "v")
    launches = WebGPUBackend().launches(attention, WebGPUTarget(max_buffers=5))
    assert launches is not None
    assert len(launches.launches) > 1
    assert all(len(each.program.params) >= 2 for each in launches.launches)


COLUMNS = """
    def main(x: T.Buffer(("n", "n"), "float32"), y: T.Buffer(("n", "n"), "float32")):
        n = T.int64()
        total = T.sblock_alloc_buffer((n,), "float32")
        for j, i in T.grid(n, n):
            with T.sblock("total"):
                vj, vi = T.axis.remap("SR", [j, i])
                with T.init():
                    total[vj] = T.float32(0)
                total[vj] = total[vj] + x[vi, vj]
        for i, j in T.grid(n, n):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] - total[vi] - total[vj]
"""


@pytest.mark.parametrize("backend", [OpenCLBackend(), WebGPUBackend()])
def test_rows_that_read_each_other(backend: Backend) -> None:
    """Nothing in a launch makes rows wait for each other: there are two launches."""
    assert row_plan(program(COLUMNS).func) is None
    target = backend.parse(backend.kinds[0])
    found = backend.launches(program(COLUMNS), target)
    assert found is not None
    assert len(found.launches) == 2


@pytest.mark.parametrize("text", [TWO, SCAN])
def test_programs_without_rows(text: str) -> None:
    """A total that every element needs, a running total."""
    assert row_plan(program(text).func) is None


def test_a_group_meets_between_its_parts() -> None:
    """Each thread reduces its elements, then pairs of threads their totals: 2 steps for 4 threads."""
    func = legalised("R.sum(x, axis=1)", "x").func
    arrangement = arrange_rows(func, OpenCLTarget(threads=5))
    assert arrangement is not None
    text = printed(arrangement.write())
    assert 'T.thread_binding(n, thread="blockIdx.x")' in text
    assert (
        'T.thread_binding(T.int64(4), thread="threadIdx.x")' in text or "T.thread_binding(4" in text
    )
    assert text.count("tvm_storage_sync") == 4
    assert "totals[thread + T.int64(2)]" in text
    assert "totals[thread + T.int64(1)]" in text


def test_short_rows_are_a_thread_each() -> None:
    text = """
        def main(x: T.Buffer(("n", 4), "float32"), y: T.Buffer(("n",), "float32")):
            n = T.int64()
            for i, k in T.grid(n, 4):
                with T.sblock("y"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        y[vi] = T.float32(0)
                    y[vi] = y[vi] + x[vi, vk]
    """
    assert not plan(text).is_shared
    assert plan(text.replace("4)", "400)")).is_shared
