"""Indices: what is proved, what is checked when the program runs, and with which error it ends."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.index_checks import checks_of, with_checks_first, with_choices
from relaxpy.errors import RuntimeCheckError
from relaxpy.ir.module import IRModule
from relaxpy.testing.interpret import interpret
from relaxpy.tir.prim_func import PrimFunc
from tests.sweeps import sweep

SAME = 'x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")'
GATHER = (
    'x: T.Buffer(("n",), "float32"), i: T.Buffer(("m",), "int64"), y: T.Buffer(("m",), "float32")'
)


def program(body: str, params: str = SAME) -> Any:
    """TVM's function of this body."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    mod = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f({params}):
        n, m = T.int64(), T.int64()
{lines}
""")
    found = mod["f"]
    assert isinstance(found, PrimFunc)
    return found.func


def over(statement: str, *extents: str, kinds: str = "") -> str:
    """A block of one statement over axes a, b, c of these extents."""
    loops, axes = "ijk"[: len(extents)], "abc"[: len(extents)]
    kinds = kinds or "S" * len(extents)
    return f"""for {", ".join(loops)} in T.grid({", ".join(extents)}):
    with T.sblock("b"):
        {", ".join(axes)} = T.axis.remap("{kinds}", [{", ".join(loops)}])
        {statement}"""


PROVED = {
    "itself": (over("y[a] = x[a]", "n"), SAME),
    "backwards": (over("y[a] = x[n - 1 - a]", "n"), SAME),
    "remainders": (over("y[a] = x[a // 2] + x[(a * 7) % n]", "n"), SAME),
    "if": ("if n > 0:\n    y[n - 1] = x[0]", SAME),
    "T.if_then_else": (over("y[a] = T.if_then_else(a > 0 and a < n, x[a - 1], T.float32(0))", "n"), SAME),
    "T.Select": (over("y[a] = T.Select(a + 1 < n, x[a + 1], x[0])", "n"), SAME),
    "and": (over("if a > 0 and x[a - 1] > T.float32(0):\n            y[a] = x[a]", "n"), SAME),
    "or": (over("if a == 0 or x[a - 1] > T.float32(0):\n            y[a] = x[a]", "n"), SAME),
    "pairs": (over("y[a] = x[a * 2] + x[a * 2 + 1]", "n // 2"), SAME),
    "half": (over("y[a] = x[a]", "n // 2 * 2"), SAME),
    "T.where": (
        "for i, j in T.grid((n + 15) // 16, 16):\n    with T.sblock('b'):\n"
        "        a = T.axis.spatial(n, i * 16 + j)\n        T.where(i * 16 + j < n)\n        y[a] = x[a]",
        SAME,
    ),
    "product": (
        over("y[a * m + b] = x[a, b]", "n", "m"),
        'x: T.Buffer(("n", "m"), "float32"), y: T.Buffer(("n * m",), "float32")',
    ),
    "quotient": (
        over("y[a] = x[a // m, a % m]", "n * m"),
        'x: T.Buffer(("n", "m"), "float32"), y: T.Buffer(("n * m",), "float32")',
    ),
    "three of a product": (
        over("y[a * m * 2 + b * 2 + c] = x[a, b]", "n", "m", "2"),
        'x: T.Buffer(("n", "m"), "float32"), y: T.Buffer(("n * m * 2",), "float32")',
    ),
    "window": (
        over("y[a] = y[a] + x[a + b]", "n", "3", kinds="SR"),
        'x: T.Buffer(("n + 2",), "float32"), y: T.Buffer(("n",), "float32")',
    ),
    "concatenation": (
        over("z[a] = T.if_then_else(a < n, x[a], y[a - n])", "n + m"),
        'x: T.Buffer(("n",), "float32"), y: T.Buffer(("m",), "float32"), z: T.Buffer(("n + m",), "float32")',
    ),
    "stride": (
        over("y[a] = x[a * 3]", "(n + 2) // 3"),
        'x: T.Buffer(("n",), "float32"), y: T.Buffer(("(n + 2) // 3",), "float32")',
    ),
    "guarded element": (
        over("y[a] = T.if_then_else(i[a] >= 0 and i[a] < n, x[i[a]], T.float32(0))", "m").replace("for i ", "for l ").replace("[i])", "[l])"),
        GATHER,
    ),
    "clamped element": (
        over("y[a] = x[T.max(0, T.min(i[a], 7))]", "m").replace("for i ", "for l ").replace("[i])", "[l])"),
        GATHER.replace('("n",)', "(8,)"),
    ),
    "clamped scalar": (over("y[a] = x[T.max(0, T.min(k, n - 1))]", "n"), SAME + ", k: T.int64"),
    "vector": ("for i in range(n // 4):\n    y[T.Ramp(i * 4, 1, 4)] = x[T.Ramp(i * 4, 1, 4)]", SAME),
    "bound variable": ("for i in range(n):\n    j: T.let = n - 1 - i\n    y[j] = x[j]", SAME),
    "T.vectorized": (
        "for i in range(n // 4):\n    for j in T.vectorized(4):\n        y[i * 4 + j] = x[i * 4 + j]",
        SAME,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROVED)
def test_proved(name: str) -> None:
    """Nothing is left to check."""
    assert not checks_of(with_choices(program(*PROVED[name])))


OPEN = {
    "next": (over("y[a] = x[a + 1]", "n"), SAME),
    "previous": (over("y[a] = x[a - 1]", "n"), SAME),
    "constant": ("y[0] = x[0]", SAME),
    "end": (over("y[a] = x[-1]", "n"), SAME),
    "other size": (over("y[a] = x[a]", "n"), SAME.replace('y: T.Buffer(("n",)', 'y: T.Buffer(("n // 2 * 2",)')),
    "scalar": (over("y[a] = x[k]", "n"), SAME + ", k: T.int64"),
    "overflow": (
        over("y[a] = T.if_then_else(k + 5 < 10 and k >= 0 and n >= 5, x[k], T.float32(0))", "n"),
        SAME + ", k: T.int64",
    ),
    "few bits": (
        over('y[a] = T.Cast("float32", x[T.Cast("int64", T.uint8(0) - x[a]) + 255])', "256"),
        'x: T.Buffer((256,), "uint8"), y: T.Buffer((256,), "float32")',
    ),
    "narrow": (over('y[a] = x[T.Cast("int64", T.Cast("int8", a))]', "n"), SAME),
    "vector": ("for i in range(n // 4):\n    y[T.Ramp(i * 4, 1, 5)] = x[T.Ramp(i * 4, 1, 5)]", SAME),
    "changed in between": (
        "for l in range(m):\n    if i[l] >= 0 and i[l] < n:\n        i[l] = i[l] + 100\n        y[l] = x[i[l]]",
        GATHER,
    ),
    "axis": (over("y[a] = x[a]", "n").replace("T.axis.remap(\"S\", [i])", "T.axis.spatial(n, i + 1)"), SAME),
}  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_open(name: str) -> None:
    assert checks_of(with_choices(program(*OPEN[name])))


def test_checks_are_as_few_as_matter() -> None:
    """A row that is looked up is checked once, not at each of its elements."""
    found = with_checks_first(
        program(
            over("y[a, b] = x[k[a], b]", "m", "n"),
            'x: T.Buffer((8, "n"), "float32"), k: T.Buffer(("m",), "int32"), y: T.Buffer(("m", "n"), "float32")',
        )
    )
    assert str(found).count("for ") == 1


# As programs run


@dataclass(frozen=True)
class Run:
    """A program, and arguments with what it says to them: a list, or the error."""

    body: str
    params: str
    annotations: str
    size: str
    calls: Sequence[tuple[Sequence[Any], Any]]


X = 'x: R.Tensor(("n",), "float32")'
INDEXED = f'{X}, i: R.Tensor(("m",), "int64")'


def outside(index: int, extent: int = 4, buffer: str = "x") -> str:
    return (
        f"main: f: index {index} is out of bounds for dimension 0 of {buffer}, of extent {extent}"
    )


ZERO = over("y[a] = T.float32(0)", "n") + "\n"
FOUR = [1.0, 2.0, 3.0, 4.0]
RUNS = {
    "next": Run(over("y[a] = x[a + 1]", "n"), SAME, X, "n", [((FOUR,), outside(4)), (([],), [])]),
    "previous": Run(over("y[a] = x[a - 1]", "n"), SAME, X, "n", [((FOUR,), outside(-1))]),
    "gather": Run(
        over("y[a] = x[i[a]]", "m").replace("for i ", "for l ").replace("[i])", "[l])"), GATHER, INDEXED, "m",
        [((FOUR, [3, 0, 0]), [4.0, 1.0, 1.0]), ((FOUR, [0, 4, -1]), outside(4)), ((FOUR, [0, -1, 4]), outside(-1)),
         ((FOUR, [2**62]), outside(2**62)), ((FOUR, []), []), (([], [0]), outside(0, 0))],
    ),
    "scatter": Run(
        over("y[a] = T.float32(0)", "m") + "\nfor l in range(n):\n    y[i[l]] = y[i[l]] + x[l]",
        'x: T.Buffer(("n",), "float32"), i: T.Buffer(("n",), "int64"), y: T.Buffer(("m",), "float32")',
        f'{X}, i: R.Tensor(("n",), "int64"), s: R.Shape(["m"])', "m",
        [((FOUR, [0, 0, 1, 1], (2,)), [3.0, 7.0]), ((FOUR, [0, 0, 2, 1], (2,)), outside(2, 2, "y"))],
    ),
    "overflow": Run(
        over('y[a] = x[T.Cast("int32", i[a]) * 65536]', "m").replace("for i ", "for l ").replace("[i])", "[l])"), GATHER, INDEXED, "m",
        [((FOUR, [0, 65536, 131072]), [1.0, 1.0, 1.0]), ((FOUR, [0, 1]), outside(65536))],
    ),
    "overflow under a name": Run(
        over('k: T.let = T.Cast("int32", i[a]) * 65536\n        y[a] = T.if_then_else(0 <= k and k < T.Cast("int32", n), x[k], T.float32(9))', "m").replace("for i ", "for l ").replace("[i])", "[l])"), GATHER, INDEXED, "m",
        [((FOUR, [0, 65536, 1]), [1.0, 1.0, 9.0])],
    ),
    "its own results": Run(
        over("y[a] = x[a]", "n") + '\nfor l in range(n):\n    y[T.Cast("int64", y[l])] = T.float32(0)', SAME, X, "n",
        [(([1.0, 1.0, 2.0],), [0.0, 0.0, 0.0]), (([1.0, 1.0, 3.0],), outside(3, 3, "y"))],
    ),
    "T.Select": Run(
        over("y[a] = T.Select(a > 0, x[a - 1], T.float32(9))", "n"), SAME, X, "n", [((FOUR,), [9.0, 1.0, 2.0, 3.0])],
    ),
    "a name in a condition": Run(
        over("y[a] = T.float32(0)", "m") + "\nfor l in range(m):\n    if T.shift_left(T.Cast('int8', l), T.Cast('int8', i[l] % -4)) > T.int8(0):\n"
        "        y[l] = x[i[l] + 1]", GATHER, INDEXED, "m",
        [((FOUR, [0, 0, 2]), [0.0, 2.0, 0.0]), ((FOUR, [0, 4]), outside(5))],
    ),
    "beyond its range": Run(
        over("y[a] = x[a]", "n").replace("T.grid(n)", "range(n + 1)").replace('T.axis.remap("S", [i])', "T.axis.spatial(n, i)"), SAME, X, "n",
        [((FOUR,), "main: f: axis a of the block b must be less than its extent 4, got 4")],
    ),
    "one place for all": Run(
        over("y[a] = x[a]", "n").replace('T.axis.remap("S", [i])', "T.axis.spatial(1, i)"), SAME, X, "n",
        [((FOUR,), "main: f: axis a of the block b must be less than its extent 1, got 1"), (([5.0],), [5.0])],
    ),
    "while": Run(
        "k = T.alloc_buffer((1,), 'int64')\nk[0] = T.int64(0)\nwhile k[0] < 3:\n    y[k[0]] = x[k[0]]\n    k[0] = k[0] + 1", SAME, X, "n",
        [(([1.0, 0.5, 0.0],), [1.0, 0.5, 0.0]), (([2.5],), outside(1, 1))],
    ),
    "memory of its own": Run(
        "t = T.alloc_buffer((n - 2,), 'float32')\nfor l in range(n - 2):\n    t[l] = x[l + 2]\nfor l in range(n):\n"
        "    y[l] = T.if_then_else(l < n - 2, t[l], T.float32(9))", SAME, X, "n",
        [((FOUR,), [3.0, 4.0, 9.0, 9.0]), (([1.0],), "main: f: dimension 0 of t must not be negative, got -1")],
    ),
    "reduced": Run(
        "for l, j in T.grid(m, 2):\n    with T.sblock('b'):\n        a, b = T.axis.remap('SR', [l, j])\n"
        "        with T.init():\n            y[a] = T.float32(0)\n        y[a] = y[a] + x[i[a] + b]", GATHER, INDEXED, "m",
        [((FOUR, [0, 2]), [3.0, 7.0]), ((FOUR, [3]), outside(4))],
    ),
}  # fmt: skip


def module(run: Run) -> IRModule:
    lines = "\n".join(f"        {line}" for line in run.body.splitlines())
    names = [
        part.split(":")[0].strip() for part in run.annotations.split(", ") if ": R.Tensor" in part
    ]
    return relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f({run.params}):
        n, m = T.int64(), T.int64()
{lines}

    @R.function
    def main({run.annotations}):
        n, m = T.int64(), T.int64()
        y = R.call_tir(M.f, ({"".join(f"{name}, " for name in names)}), out_ty=R.Tensor(({run.size},), "float32"))
        return y
""")


@sweep(2)
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("check_memory", [False, True])
def test_compiled_as_interpreted(name: str, check_memory: bool) -> None:
    """The same numbers and the same errors; a call after an error works."""
    run = RUNS[name]
    mod = module(run)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod), check_memory=check_memory)
    for args, expected in [*run.calls, *run.calls]:
        given = [
            np.asarray(a, "float32" if i == 0 else "int64") if not isinstance(a, tuple) else a
            for i, a in enumerate(args)
        ]
        if isinstance(expected, str):
            for call in (vm["main"], lambda *a: interpret(mod, "main", *a)):
                with pytest.raises(RuntimeCheckError) as caught:
                    call(*given)
                assert (caught.value.code, caught.value.message) == ("tir-bounds", expected)
                assert caught.value.span is not None
        else:
            np.testing.assert_array_equal(vm["main"](*given).numpy(), expected)
            np.testing.assert_array_equal(interpret(mod, "main", *given), expected)


def test_large_and_in_threads() -> None:
    """A parallel kernel is checked before it starts; other threads see nothing of an error."""
    vm = relaxpy.VirtualMachine(relaxpy.build(module(RUNS["gather"])))
    x = np.arange(1 << 20, dtype=np.float32)
    right = np.arange(1 << 20)[::-1].copy()
    wrong = right.copy()
    wrong[700_000] = 1 << 20
    found: list[Any] = []

    def work() -> None:
        for _ in range(3):
            np.testing.assert_array_equal(vm["main"](x, right).numpy(), x[::-1])
            with pytest.raises(RuntimeCheckError, match="index 1048576 is out of bounds"):
                vm["main"](x, wrong)
        found.append(None)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work()
    assert len(found) == 4


def test_in_a_row_of_large_kernels() -> None:
    """The error is of the binding whose kernel found it."""
    mod = relaxpy.parse("""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "float32"), i: T.Buffer(("m",), "int64"), y: T.Buffer(("m",), "float32")):
        n, m = T.int64(), T.int64()
        for k in range(m):
            with T.sblock("y"):
                v = T.axis.spatial(m, k)
                y[v] = x[i[v]]

    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), i: R.Tensor(("m",), "int64")):
        n, m = T.int64(), T.int64()
        a = R.sum(x, axis=[1])
        b = R.call_tir(M.f, (a, i), out_ty=R.Tensor((m,), "float32"))
        c = R.cumsum(b, axis=0)
        return c
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    x, i = np.ones((1 << 19, 8), np.float32), np.arange(1 << 19)
    assert vm["main"](x, i).numpy()[-1] == 8 << 19
    with pytest.raises(RuntimeCheckError, match="main: f: index 524288 is out of bounds") as caught:
        vm["main"](x, i + 1)
    assert caught.value.span is not None
    assert caught.value.span.line == 16


def test_arguments_may_be_checked_as_well() -> None:
    mod = module(RUNS["gather"])
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, check_arguments=True))
    with pytest.raises(RuntimeCheckError, match="index 9 is out of bounds"):
        vm["main"](np.zeros(3, np.float32), np.array([9]))
    assert vm["main"](np.ones(3, np.float32), np.array([1])).numpy().tolist() == [1]


TOO_LARGE = "main: the kernel f failed: RuntimeError: too large"


def test_assertions_of_a_program() -> None:
    """In a parallel loop, too: the same error whatever the thread, and the pool works on."""
    body = over('assert x[a] < T.float32(5), "too large"\n        y[a] = x[a]', "n").replace(
        "T.grid(n)", "T.parallel(n)"
    )
    mod = module(Run(body, SAME, X, "n", []))
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    for size in (8, 1 << 20):
        for _ in range(2):
            x = np.zeros(size, np.float32)
            np.testing.assert_array_equal(vm["main"](x).numpy(), x)
            x[-1] = 7
            with pytest.raises(RuntimeCheckError) as caught:
                vm["main"](x)
            assert caught.value.message == TOO_LARGE
    with pytest.raises(RuntimeCheckError) as interpreted:
        interpret(mod, "main", np.full(3, 9, np.float32))
    assert interpreted.value.message == TOO_LARGE
