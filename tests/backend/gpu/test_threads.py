"""A thread for each element, or each row; what is sequential on one thread."""

from __future__ import annotations

import pytest

from relaxpy.backend.gpu.launches import launches_of
from relaxpy.backend.gpu.threads import bind_threads
from relaxpy.errors import BuildError
from relaxpy.ir.module import APART
from relaxpy.testing.op_samples import program_of, samples
from tests.backend.gpu.support import MATMUL, ROWS, SCAN, printed, program


def test_a_thread_for_each_element() -> None:
    """The independent axes are numbered as one; what is reduced over is a loop, with its total in a register."""
    text = printed(bind_threads(program(MATMUL).func, 64))
    assert text.strip() == MATMUL_BOUND.strip(), text


MATMUL_BOUND = """
@T.prim_func
def main(x: T.Buffer(("n", "k"), "float32"), w: T.Buffer(("k", T.int64(3)), "float32"), y: T.Buffer(("n", T.int64(3)), "float32")):
    with T.sblock("root"):
        T.reads()
        T.writes()
        for group in T.thread_binding((n * T.int64(3) + T.int64(63)) // T.int64(64), thread="blockIdx.x"):
            for thread in T.thread_binding(T.int64(64), thread="threadIdx.x"):
                element: T.let[T.int64] = group * T.int64(64) + thread
                if element < n * T.int64(3):
                    j: T.let[T.int64] = T.truncmod(element, T.int64(3))
                    rest: T.let[T.int64] = T.Div(element, T.int64(3))
                    i: T.let[T.int64] = rest
                    y_total: T.float32 = T.float32(0.0)
                    for l in range(k):
                        y_total = y_total + x[i, l] * w[l, j]
                    y[i, j] = y_total
"""


def test_no_division_by_an_extent_of_0() -> None:
    """TVM refuses it, though no thread ever gets there."""
    text = """
        def main(x: T.Buffer((2, 0), "float32"), y: T.Buffer((2, 0), "float32")):
            for i, j in T.grid(2, 0):
                with T.sblock("y"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi, vj] = x[vi, vj]
    """
    assert "rest: T.let[T.int64] = element" in printed(bind_threads(program(text).func, 64))


def test_rows_are_threads() -> None:
    """A parallel loop is spread as it is."""
    found = launches_of(program(ROWS))
    assert found is not None
    text = printed(bind_threads(found.launches[0].program.func, 32))
    assert 'T.thread_binding((n + 31) // 32, thread="blockIdx.x")' in text
    assert "for i in range(m):" in text


@pytest.mark.parametrize("name", ["sort", "topk", "grad.avg_pool2d_backward", "vision.roi_align"])
def test_rows_of_operators_are_threads(name: str) -> None:
    """Each row by itself, which is proved: sorts read what they write, and gradients add to it."""
    sample = next(s for s in samples(name) if not s.code and s.dims)
    whole, _, _ = program_of(sample, True)
    found = launches_of(whole)
    launches = [whole] if found is None else [each.program for each in found.launches]
    for launch in launches:
        text = printed(bind_threads(launch.func, 32))
        assert 'thread="threadIdx.x"' in text
        assert "T.thread_binding(1" not in text
        assert "T.parallel" not in text


def test_dependent_rows_run_on_one_thread() -> None:
    text = """
        def main(x: T.Buffer(("n", "m"), "float32"), y: T.Buffer(("m",), "float32")):
            n = T.int64()
            m = T.int64()
            for i in range(n):
                with T.sblock("row"):
                    v = T.axis.spatial(n, i)
                    for j in range(m):
                        y[j] = y[j] + x[v, j]
    """
    bound = printed(bind_threads(program(text).func, 64))
    assert 'T.thread_binding(1, thread="blockIdx.x")' in bound
    assert "for i in range(n):" in bound


def test_what_reads_its_own_result_runs_on_one_thread() -> None:
    """An axis that its author calls independent is not, where the block reads what another place writes."""
    text = printed(bind_threads(program(SCAN).func, 64))
    assert 'T.thread_binding(1, thread="blockIdx.x")' in text
    assert "for i in range(n):" in text


def test_bound_programs_stay() -> None:
    """A program whose author bound its loops is left alone."""
    bound = bind_threads(program(MATMUL).func, 64)
    assert bind_threads(bound, 32) is bound


def test_memory_of_unknown_size() -> None:
    """Memory whose size the program computes itself cannot be set aside before."""
    text = """
        def main(x: T.Buffer((4,), "int64"), y: T.Buffer((4,), "int64")):
            for i in T.serial(4):
                scratch = T.alloc_buffer((x[i],), "int64")
                scratch[0] = x[i]
                y[i] = scratch[0]
    """
    with pytest.raises(
        BuildError, match="scratch has a size that the program computes itself"
    ) as e:
        bind_threads(program(text).func, 64)
    assert e.value.code == "device-scratch"


SPATIAL = """
    def main(x: T.Buffer((3, 5), "float32"), y: T.Buffer((5,), "float32")):
        for i, j in T.grid(3, 5):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                {store}
"""
"""Axes that are declared spatial, though iterations write the same element."""


@pytest.mark.parametrize("store", ["y[0] = y[0] + x[vi, vj]", "y[vi + vj - 2] = x[vi, vj]"])
def test_what_meets_in_one_element_has_one_thread(store: str) -> None:
    made = printed(bind_threads(program(SPATIAL.format(store=store)).func, 64))
    assert "T.thread_binding" not in made.replace("T.thread_binding(1,", "")


@pytest.mark.parametrize("store", ["y[vj] = y[vj] + x[vi, vj]", "y[vj] = x[vi, vj]"])
def test_what_meets_along_one_axis_is_in_order(store: str) -> None:
    """A thread for each element, which runs the other axis in order."""
    made = printed(bind_threads(program(SPATIAL.format(store=store)).func, 64))
    assert 'T.thread_binding(64, thread="threadIdx.x")' in made
    assert "for i in range(3):" in made
    assert "for j in" not in made


TABLE = """
        def main(
            x: T.Buffer(("t", 4), "float32"), at: T.Buffer(("t",), "int64"), y: T.Buffer(("n", 4), "float32")
        ):
            n = T.int64()
            t = T.int64()
            for i, k in T.grid(t, 4):
                with T.sblock("y"):
                    vi, vk = T.axis.remap("SS", [i, k])
                    if at[vi] >= 0 and at[vi] < n:
                        y[at[vi], vk] = x[vi, vk]
"""


def test_rows_of_a_table_of_places_are_in_order() -> None:
    """Two rows may be written to one place; the last one stays, and elements of a row have threads of their own."""
    made = printed(bind_threads(program(TABLE).func, 64))
    assert 'T.thread_binding(64, thread="threadIdx.x")' in made
    assert "for i in range(t):" in made


def test_places_that_were_checked_are_apart() -> None:
    """The block says so: each element has a thread."""
    axes = 'vi, vk = T.axis.remap("SS", [i, k])\n'
    said = f'T.sblock_attr({{"{APART}": 1}})\n'
    text = TABLE.replace(axes, f"{axes}{' ' * 20}{said}")
    made = printed(bind_threads(program(text).func, 64))
    assert (
        'T.thread_binding((t * T.int64(4) + T.int64(63)) // T.int64(64), thread="blockIdx.x")'
        in made
    )
    assert "range(" not in made


def test_plain_loops() -> None:
    """Loops without a block, and conditions between them: what is apart has threads, what may meet is in order."""
    text = """
        def main(
            pages: T.Buffer(("n", 4), "float32"), a: T.Buffer(("m",), "int64"), b: T.Buffer(("m",), "int64")
        ):
            n = T.int64()
            m = T.int64()
            for i in range(m):
                if a[i] >= 0 and a[i] < n and b[i] >= 0 and b[i] < n:
                    for k in range(4):
                        pages[b[i], k] = pages[a[i], k]
    """
    made = printed(bind_threads(program(text).func, 64))
    assert 'T.thread_binding(64, thread="threadIdx.x")' in made
    assert "for i in range(m):" in made
    assert "for k in" not in made


def test_a_condition_on_what_is_written() -> None:
    """The order of such loops is kept."""
    text = """
        def main(x: T.Buffer((8,), "int64"), y: T.Buffer((1,), "int64")):
            for i in range(8):
                if y[0] < x[i]:
                    y[0] = x[i]
    """
    made = printed(bind_threads(program(text).func, 64))
    assert "T.thread_binding" not in made.replace("T.thread_binding(1,", "")


def test_elements_apart_are_proved() -> None:
    """A place that is no loop by itself, but another one for each iteration."""
    text = """
        def main(x: T.Buffer(("n", 4), "float32"), y: T.Buffer(("n * 4",), "float32")):
            n = T.int64()
            for i, j in T.grid(n, 4):
                with T.sblock("y"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi * 4 + vj] = x[vi, vj]
    """
    assert "T.thread_binding(T.int64(64)" in printed(bind_threads(program(text).func, 64))
