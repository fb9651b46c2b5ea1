"""Pattern kinds: algorithm 1 of the paper, corrected."""

from __future__ import annotations

import itertools

import pytest

import relaxpy
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.pattern_kind import PatternKind, analyse_pattern, pattern_kind

K = PatternKind


def program(text: str) -> PrimFunc:
    """The one tensor program of a text."""
    mod = relaxpy.parse("from relaxpy.script import tir as T\n@T.prim_func\n" + text)
    (found,) = mod.prim_funcs.values()
    assert isinstance(found, PrimFunc)
    return found


def loops(value: str, *, b: str = '("n", "m")', ids: bool = False) -> PrimFunc:
    """`C[i, j] = value`, of A of shape (n, m), B, and perhaps integers ids of shape (n,)."""
    extra = ', ids: T.Buffer(("n",), "int64")' if ids else ""
    return program(f"""def f(A: T.Buffer(("n", "m"), "float32"), B: T.Buffer({b}, "float32"){extra}, C: T.Buffer(("n", "m"), "float32")):
    n = T.int64()
    m = T.int64()
    for i, j in T.grid(n, m):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = {value}
""")


@pytest.mark.parametrize(
    ("value", "b", "kind"),
    [
        ("T.exp(A[vi, vj])", '("n", "m")', K.ELEMENT_WISE),
        ("A[vi, vj] + B[vj]", '("m",)', K.ELEMENT_WISE),
        ("B[vj]", '("m",)', K.BROADCAST),
        ("B[0, vj] * B[0, vj]", '(1, "m")', K.BROADCAST),
        ("T.float32(0)", '("m",)', K.BROADCAST),
        ("B[vj, vi]", '("m", "n")', K.INJECTIVE),
        ("A[vi, m - 1 - vj]", '("m",)', K.INJECTIVE),
        ("A[vi, vj] + A[vi, vj // 8]", '("m",)', K.INJECTIVE),
        ("C[vi, vj] + A[vi, vj]", '("m",)', K.OPAQUE),
    ],
)
def test_one_block(value: str, b: str, kind: PatternKind) -> None:
    assert pattern_kind(loops(value, b=b)) is kind


def test_a_gather_is_injective() -> None:
    """A place that data say is still determined by the place written."""
    found = analyse_pattern(loops("A[ids[vi], vj]", ids=True))
    assert found.kind is K.INJECTIVE
    assert found.reads[0] is K.INJECTIVE
    assert found.reads[2] is K.BROADCAST


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["A[vi, vj]", "B[vj]", "B2[vj, vi]"]))
)
def test_the_order_of_reads_does_not_matter(order: tuple[str, ...]) -> None:
    """As printed in the paper, the last read would decide."""
    text = f"""def f(A: T.Buffer((4, 5), "float32"), B: T.Buffer((5,), "float32"), B2: T.Buffer((5, 4), "float32"), C: T.Buffer((4, 5), "float32")):
    for i, j in T.grid(4, 5):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = {" + ".join(order)}
"""
    assert pattern_kind(program(text)) is K.INJECTIVE


def reduction(value: str, out: str = "C[vi, vj]", axes: str = "SSR") -> PrimFunc:
    return program(f'''def f(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32"), C: T.Buffer((8, 8), "float32")):
    for i, j, k in T.grid(8, 8, 8):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("{axes}", [i, j, k])
            with T.init():
                {out} = T.float32(0)
            {out} = {value}
''')


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("C[vi, vj] + A[vi, vk] * B[vk, vj]", K.OUTPUT_EWISE_FUSIBLE),
        ("C[vi, vj] + A[vi, vk] * B[vj, vk]", K.OUTPUT_EWISE_FUSIBLE),
        ("C[vi, vj] + A[vi, vk]", K.REDUCTION),
        ("T.max(C[vi, vj], A[vi, vk])", K.REDUCTION),
        ("C[vi, vj] + T.exp(A[vi, vk] * B[vk, vj])", K.REDUCTION),
        ("C[vj, vi] + A[vi, vk]", K.OPAQUE),
    ],
)
def test_reductions(value: str, kind: PatternKind) -> None:
    assert pattern_kind(reduction(value)) is kind


def test_a_sum_of_squares_is_a_reduction() -> None:
    """It multiplies and adds, but reads nothing twice."""
    text = """def f(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8,), "float32")):
    for i, k in T.grid(8, 8):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk] * A[vi, vk]
"""
    assert pattern_kind(program(text)) is K.REDUCTION


def blocks(
    *stages: tuple[str, str], outputs: str = 'C: T.Buffer((4, 4), "float32")', local: str = ""
) -> PrimFunc:
    """Stages `target = value` over (4, 4)."""
    text = f'def f(A: T.Buffer((4, 4), "float32"), {outputs}):\n' + (
        f"    {local}\n" if local else ""
    )
    for number, (target, value) in enumerate(stages):
        text += f"""    for i, j in T.grid(4, 4):
        with T.sblock("b{number}"):
            vi, vj = T.axis.remap("SS", [i, j])
            {target} = {value}
"""
    return program(text)


def test_several_blocks_have_the_kind_of_the_coarsest() -> None:
    local = "D = T.sblock_alloc_buffer((4, 4))"
    two = blocks(("D[vi, vj]", "A[vj, vi]"), ("C[vi, vj]", "T.exp(D[vi, vj])"), local=local)
    assert pattern_kind(two) is K.INJECTIVE
    same = blocks(("D[vi, vj]", "A[vi, vj]"), ("C[vi, vj]", "T.exp(D[vi, vj])"), local=local)
    assert pattern_kind(same) is K.ELEMENT_WISE


def test_several_outputs() -> None:
    """Written at the same places they are like one; else the program is opaque."""
    same = 'C: T.Buffer((4, 4), "float32"), D: T.Buffer((4, 4), "float32")'
    both = blocks(("C[vi, vj]", "A[vi, vj]"), ("D[vi, vj]", "T.exp(A[vi, vj])"), outputs=same)
    assert pattern_kind(both) is K.ELEMENT_WISE
    other = 'C: T.Buffer((4, 4), "float32"), D: T.Buffer((16,), "float32")'
    apart = blocks(("C[vi, vj]", "A[vi, vj]"), ("D[vi * 4 + vj]", "A[vi, vj]"), outputs=other)
    assert pattern_kind(apart) is K.OPAQUE


def test_a_slice_from_the_beginning_is_injective() -> None:
    """It reads where it writes, in a larger tensor."""
    text = """def f(A: T.Buffer((8, 4), "float32"), C: T.Buffer((3, 4), "float32")):
    for i, j in T.grid(3, 4):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj]
"""
    assert pattern_kind(program(text)) is K.INJECTIVE


def test_a_scatter_is_opaque() -> None:
    text = """def f(A: T.Buffer((8,), "float32"), ids: T.Buffer((8,), "int64"), C: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("C"):
            vi = T.axis.spatial(8, i)
            C[ids[vi]] = A[vi]
"""
    assert pattern_kind(program(text)) is K.OPAQUE


def test_decode_q4_of_the_paper_is_injective() -> None:
    """Figure 9."""
    text = """def decode_q4(data: T.Buffer((64, 8), "uint32"), scale: T.Buffer((64, 2), "float16"), W: T.Buffer((64, 64), "float16")):
    for i, j in T.grid(64, 64):
        with T.sblock("W"):
            vi, vj = T.axis.remap("SS", [i, j])
            W[vi, vj] = T.Cast("float16", T.bitwise_and(T.shift_right(data[vi, vj // 8], T.Cast("uint32", vj % 8 * 4)), T.uint32(15))) * scale[vi, vj // 32]
"""
    found = analyse_pattern(program(text))
    assert found.kind is K.INJECTIVE
    assert str(found.kind) == "Injective"
    assert found.reads[:2] == (K.INJECTIVE, K.INJECTIVE)
