"""Workspaces: which memory is shared, programs that are given theirs, and programs as launches."""

from __future__ import annotations

from typing import Any

import pytest

import relaxpy
from relaxpy.tir.lowering.workspace import (
    Launches,
    allocated,
    buffer_count,
    divided,
    handed_on,
    lifted,
    not_given,
    source,
    split,
)
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx
from relaxpy.tir.walk import walk

HEAD = """
@I.ir_module
class Module:
    @T.prim_func
    def main(x: T.Buffer(("n", 8), "float32"), y: T.Buffer(("n", 8), "float32")):
        n = T.int64()
"""

TWO_STEPS = """
        small = T.sblock_alloc_buffer((8,), "float32")
        double = T.sblock_alloc_buffer((n, 8), "float32")
        alone = T.sblock_alloc_buffer((n, 8), "float32")
        for j in range(8):
            with T.sblock("small"):
                v = T.axis.spatial(8, j)
                small[v] = T.Cast("float32", v)
        for i, j in T.grid(n, 8):
            with T.sblock("double"):
                vi, vj = T.axis.remap("SS", [i, j])
                double[vi, vj] = x[vi, vj] + small[vj]
        for i, j in T.grid(n, 8):
            with T.sblock("alone"):
                vi, vj = T.axis.remap("SS", [i, j])
                alone[vi, vj] = double[n - 1 - vi, vj]
                y[vi, vj] = alone[vi, vj] + small[vj]
"""

ONE_BLOCK = """
        with T.sblock("all"):
            T.reads(x[0:n, 0:8])
            T.writes(y[0:n, 0:8])
            row = T.sblock_alloc_buffer((n,), "float32")
            for i in range(n):
                row[i] = x[i, 0]
            for i, j in T.grid(n, 8):
                y[i, j] = row[n - 1 - i]
"""


def program(body: str, head: str = HEAD) -> PrimFunc:
    found = relaxpy.parse(head + body)["main"]
    assert isinstance(found, PrimFunc)
    return found


def names(buffers: Any) -> list[str]:
    return [str(buffer.name) for buffer in buffers]


def test_what_several_statements_use_is_handed_on() -> None:
    """Neither what lies on the stack nor what one statement has for itself."""
    assert names(handed_on(program(TWO_STEPS).func)) == ["double"]


def test_a_block_without_axes_hands_on_too() -> None:
    assert names(handed_on(program(ONE_BLOCK).func)) == ["row"]


@pytest.mark.parametrize("body", [TWO_STEPS, ONE_BLOCK])
def test_a_program_is_given_its_workspaces(body: str) -> None:
    """They come before its outputs, and it says which they are; printed, it is the same."""
    plain = program(body)
    buffers = handed_on(plain.func)
    found = lifted(plain, buffers)
    assert found is not None
    (launch,) = found.launches
    assert launch.args == (0, 2, 1)
    assert [param.name for param in launch.program.params] == ["x", *names(buffers), "y"]
    assert launch.program.attrs["relaxpy.workspaces"] == [1]
    assert launch.program.written == {1, 2}
    assert handed_on(launch.program.func) == []
    again = relaxpy.parse(
        "@I.ir_module\nclass M:\n"
        + "\n".join("    " + line for line in launch.program.script().splitlines())
    )["main"]
    assert again.structural_equal(launch.program)  # type: ignore[union-attr]


@pytest.mark.parametrize("body", [TWO_STEPS, ONE_BLOCK])
def test_the_source_of_both_is_the_same(body: str) -> None:
    plain = program(body)
    found = lifted(plain, handed_on(plain.func))
    assert found is not None
    given = found.launches[0].program
    assert source(given).full_text() == source(plain).full_text()
    assert source(source(given)).full_text() == source(given).full_text()


def test_nothing_is_lifted_whose_size_is_not_known() -> None:
    """A size that depends on what the program computes."""
    plain = program("""
        for i in range(n):
            k: T.int64 = T.Cast("int64", x[i, 0])
            own = T.alloc_buffer((k,), "float32")
            for j in range(k):
                own[j] = x[i, 0]
            y[i, 0] = own[0]
""")
    found: list[Any] = []
    walk(plain.func.body, (tirx.AllocBuffer, lambda stmt: found.append(stmt.buffer)))
    assert "own" in names(found)
    assert lifted(plain, [buffer for buffer in found if str(buffer.name) == "own"]) is None


def test_a_workspace_that_the_text_does_not_use() -> None:
    """A buffer of a rule's own: given once, it is not asked for again."""
    plain = program(ONE_BLOCK)
    extents = plain.func.params[0].shape
    own = tirx.decl_buffer([extents[0] * 2], "float32", "own", layout=None)
    found = lifted(plain, [own])
    assert found is not None
    given = found.launches[0].program
    assert [str(dim) for dim in given.params[1].shape] == ["n * 2"]  # type: ignore[union-attr]
    other = given.func.params[0].shape[0]
    again = tirx.decl_buffer([other * 2], "float32", "own", layout=None)
    half = tirx.decl_buffer([other * 2], "float16", "own", layout=None)
    assert not_given(given.func, [again]) == []
    assert not_given(given.func, [half, again]) == [half]
    assert source(given).full_text() == source(plain).full_text()


def test_an_authors_program_without_blocks() -> None:
    """What its outermost statements allocate is lifted, what a loop allocates is not."""
    plain = program("""
        T.func_attr({"tirx.is_scheduled": True})
        whole = T.alloc_buffer((n, 8), "float32")
        for i in T.parallel(n):
            row = T.alloc_buffer((n,), "float32")
            for j in range(8):
                row[j] = x[i, j]
                whole[i, j] = row[j]
        for i in T.parallel(n):
            for j in range(8):
                y[i, j] = whole[n - 1 - i, j]
""")
    assert names(allocated(plain.func)) == ["whole"]
    found = lifted(plain, allocated(plain.func))
    assert found is not None
    text = found.launches[0].program.script()
    assert text.count("alloc_buffer") == 1


def test_a_launch_for_each_statement() -> None:
    """Each is given what it uses, and the sizes that its buffers do not say."""
    found = split(program(TWO_STEPS))
    assert isinstance(found, Launches)
    assert [str(space.name) for space in found.workspaces] == ["small", "double", "alone"]
    assert len(found.launches) == 3
    assert [len(launch.program.params) for launch in found.launches] == [1, 3, 4]
    assert found.launches[0].program.params[-1].name == "small"


def test_a_size_that_no_buffer_says() -> None:
    """`n` is a dimension of nothing that the second statement uses."""
    plain = program(
        """
        for i in range(n):
            with T.sblock("y"):
                v = T.axis.spatial(n, i)
                y[v] = x[v]
        for i in range(1):
            with T.sblock("z"):
                v = T.axis.spatial(1, i)
                z[v] = T.Cast("float32", n)
""",
        """
@I.ir_module
class Module:
    @T.prim_func
    def main(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32"), z: T.Buffer((1,), "float32")):
        n = T.int64()
""",
    )
    found = split(plain)
    assert found is not None
    first, second = found.launches
    assert first.args == (0, 1)
    z, size = second.args
    assert z == 2
    assert str(size) == "n"
    assert [type(param).__name__ for param in second.program.params] == [
        "BufferParam",
        "ScalarParam",
    ]


FOUR_STEPS = """
@I.ir_module
class Module:
    @T.prim_func
    def main({params}):
        n = T.int64()
        w = T.sblock_alloc_buffer((n,), "float32")
        z = T.sblock_alloc_buffer((n,), "float32")
        {steps}
"""
STEP = """
        for i in range(n):
            with T.sblock("{0}"):
                v = T.axis.spatial(n, i)
                {0}[v] = {1}[v] + {2}[v]
"""


def steps(*given: tuple[str, str, str]) -> PrimFunc:
    """A program of five parameters and two buffers of its own, in these steps."""
    params = ", ".join(f'{name}: T.Buffer(("n",), "float32")' for name in "abcop")
    text = "".join(STEP.format(*step) for step in given).strip()
    program = relaxpy.parse(FOUR_STEPS.format(params=params, steps=text))["main"]
    assert isinstance(program, PrimFunc)
    return program


@pytest.mark.parametrize(
    ("given", "most", "want"),
    [
        # w is handed on between launches, z lies within one
        ([("w", "a", "b"), ("z", "w", "c"), ("o", "z", "c"), ("p", "w", "o")], 4, [3, 4]),
        ([("w", "a", "b"), ("z", "w", "c"), ("o", "z", "w"), ("p", "w", "o")], 4, [3, 4]),
        ([("w", "a", "b"), ("z", "w", "c"), ("o", "z", "c"), ("p", "w", "o")], 3, [3, 3, 3]),
        # more than there may be in one step: a launch by itself
        ([("o", "a", "b"), ("p", "b", "c")], 2, [3, 3]),
    ],
)
def test_a_program_is_divided_where_a_launch_is_full(
    given: list[tuple[str, str, str]], most: int, want: list[int]
) -> None:
    """Statements join as long as there is room. What one launch alone uses of the program's own stays its own."""
    found = divided(steps(*given), most)
    assert found is not None
    counts = [buffer_count(launch.program) for launch in found.launches]
    assert counts == want
    assert all(count <= max(most, 3) for count in counts)


def test_what_is_not_divided() -> None:
    """One step, all that fits, and what its author arranged."""
    assert divided(steps(("o", "a", "b")), 2) is None
    two = steps(("o", "a", "b"), ("p", "o", "c"))
    assert divided(two, 5) is None
    assert divided(two, 3) is not None
    arranged = PrimFunc(two.func.with_attr("tirx.is_scheduled", True))
    assert divided(arranged, 3) is None


def test_workspaces_that_a_launch_has_no_room_for() -> None:
    """The first ones are given to the program, the others it allocates."""
    program = steps(("w", "a", "b"), ("z", "w", "c"), ("o", "z", "w"), ("p", "w", "o"))
    spaces = handed_on(program.func)
    assert [space.name for space in spaces] == ["w", "z"]
    for most, count in ((None, 7), (7, 7), (6, 6)):
        found = lifted(program, spaces, most)
        assert found is not None
        (launch,) = found.launches
        assert buffer_count(launch.program) == count
        assert len(not_given(launch.program.func, spaces)) in (0, 7 - count, 2)
    assert lifted(program, spaces, 5) is None
    assert lifted(program, spaces, 3) is None
