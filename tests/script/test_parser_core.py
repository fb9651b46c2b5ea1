"""Texts that would take the machine's time, memory or stack: each is refused, at its place, soon."""

from __future__ import annotations

import re
import time

import pytest

import relaxpy
from relaxpy.errors import RelaxError, ScriptError
from relaxpy.script import ir as I
from relaxpy.script import relax as R
from relaxpy.script import tir as T
from tests.sweeps import sweep

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n"


def function(body: str, params: str = 'x: R.Tensor(("n",), "float32")') -> str:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return f"{HEADER}@R.function\ndef f({params}):\n    n = T.int64()\n{lines}"


def program(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    params = 'x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")'
    return f"{HEADER}@T.prim_func(s_tir=True)\ndef k({params}):\n{lines}"


def nested(depth: int, text: str = "n") -> str:
    for _ in range(depth):
        text = f"({text} // 2 + 1)"
    return text


def chain(count: int, step: str) -> str:
    """`m0 = n`, and each next one by `step` of the one before."""
    lines = [f"m{i + 1} = " + step.replace("m", f"m{i}") for i in range(count)]
    return "\n".join(["m0 = n", *lines, f"return R.zeros((m{count},), 'float32')"])


LAYERS = "\n".join(
    f"x{i + 1} = R.nn.max_pool2d(x{i}, [3, 3], strides=[2, 2], padding=[1, 1, 1, 1])" for i in range(40)
)  # fmt: skip
HUGE = "0x" + "f" * 20_000

REFUSED = {
    "power of a size": (function(f"return R.zeros(({'*'.join('n' * 3000)},), 'float32')"), "64 factors"),
    "power in quotes": (function("return x", f'x: R.Tensor(("n", "{"*".join("n" * 3000)}"))'), "64 factors"),
    "power step by step": (function(chain(3000, "m * n")), "64 factors"),
    "squares": (function(chain(60, "m * m")), "64 factors"),
    "squares of sums": (
        function(chain(8, "m * m").replace("m0 = n", "m0 = n + k + 1"), 'x: R.Tensor(("n", "k"))').replace(
            "n = T", "k = T.int64()\n    n = T"), "1024 products"),
    "quotients": (function(f"return R.zeros(({nested(80)},), 'float32')"), "12 nested functions"),
    "quotients in quotes": (function("return x", f'x: R.Tensor(("n", "{nested(80)}"))'), "12 nested functions"),
    "quotients step by step": (function(chain(2000, "m // 2 + 1")), "12 nested functions"),
    "doubled quotients": (function(chain(40, "m // 2 + m // 3")), "12 nested functions"),
    "layers": (function(LAYERS + "\nreturn x40", 'x0: R.Tensor((1, 1, "n", "n"), "float32")'), "12 nested functions"),
    "parts": (function("return R.split(x, 10**9)"), "must be at most"),
    "parts of a known size": (function("return R.split(x, 10**9)", "x: R.Tensor((1000000000,))"), "must be at most"),
    "new axes": (function(f"return R.expand_dims(x, {list(range(100_000))})"), "64 dimensions"),
    "places": (function(f"return R.split(x, {list(range(1, 10_000))})"), "must be at most"),
    "integer": (function(f"return R.zeros(({HUGE},), 'float32')"), "80000 bits"),
    "integer as an axis": (function(f"return R.sum(x, axis={HUGE})"), "80000 bits"),
    "integer as an index": (function(f"return x[{HUGE}]"), "80000 bits"),
    "integer as an attribute": (function(f'R.func_attr({{"a": {HUGE}}})\nreturn x'), "80000 bits"),
    "integer of a program": (program(f"y[{HUGE}] = x[0]"), "80000 bits"),
    "unpaired surrogate": (function('R.func_attr({"a": "\\ud800"})\nreturn x'), "unpaired surrogate"),
    "name of unpaired surrogate": (
        function("return x").replace("@R.function", '@R.function(name="\\ud800")'), "unpaired surrogate"),
    "half a character in a program": (program('T.func_attr({"a": "\\ud800"})\ny[0] = x[0]'), "unpaired surrogate"),
    "sum": (program("y[0] = " + " + ".join(["x[0]"] * 5000)), "at most 500 deep"),
    "signs": (program("y[0] = " + "-" * 5000 + "x[0]"), "at most 500 deep"),
    "conditions": (program("if " + " and ".join(["x[0] > T.float32(0)"] * 5000) + ":\n    y[0] = x[0]"), "at most 500 deep"),
    "calls": (program("y[0] = " + "T.max(" * 3000 + "x[0]" + ", x[0])" * 3000), "at most 500 deep"),
    "indices": (program("for i in range(4):\n    y[" + " + ".join("i" * 5000) + "] = x[0]"), "at most 500 deep"),
    "branches": (
        program("".join(f"{' ' * i}if x[0] < T.float32({i}):\n" for i in range(3000)) + " " * 3000 + "y[0] = x[0]"),
        "at most 90 deep"),
    "alternatives": (
        program("if x[0] < 0:\n    y[0] = x[0]" + "\nelif x[0] < 1:\n    y[0] = x[0]" * 5000), "at most 90 deep"),
    "loops": (program(f"for i in T.grid({', '.join('4' * 100_000)}):\n    y[0] = x[0]"), "at most 90 deep"),
    "loops of a list": (program("for i in T.grid(*[4] * 100_000):\n    y[0] = x[0]"), "too many"),
    "parameters": (
        program("x[0] = y[0]").replace("k(", f"k({', '.join(f'x{i}: T.int32' for i in range(5000))}, "), "1024"),
    "list of a range": (program("a = T.meta_var(list(range(10**9)))\ny[0] = x[0]"), "too long"),
    "comprehension": (program("y[0] = x[len([i for i in range(10**9)])]"), "too long"),
    "loops of a comprehension": (program("y[0] = x[sum([1 for i in range(9000) for j in range(9000)])]"), "too long"),
    "unrolled": (program("for i in T.unroll(10**9):\n    y[0] = x[0]"), "65536"),
    "vectorized": (program("for i in T.vectorized(10**9):\n    y[0] = x[0]"), "4096"),
}  # fmt: skip


@sweep(3)
@pytest.mark.parametrize(("text", "match"), REFUSED.values(), ids=list(REFUSED))
def test_is_refused_soon(text: str, match: str) -> None:
    begin = time.process_time()
    with pytest.raises(RelaxError, match=re.escape(match)) as caught:
        relaxpy.parse(text)
    errors = getattr(caught.value, "errors", [caught.value])
    assert all(error.span is not None for error in errors)
    assert len(str(errors[0])) < 10_000
    assert time.process_time() - begin < 20


def test_deep_programs_of_decorated_python() -> None:
    """Python's own limit of recursion is not the program's."""

    @T.prim_func(s_tir=True)
    def k(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        y[0] = x[0] + x[1] + x[2] + x[3]

    source = program("y[0] = " + " + ".join(["x[0]"] * 450))
    again = relaxpy.parse(relaxpy.parse(source).script())
    assert relaxpy.structural_equal(relaxpy.parse(source), again)
    assert k.script()


@pytest.mark.slow
def test_what_is_long_but_flat_is_read() -> None:
    body = "\n".join(f"y[0] = x[0] + T.float32({i})" for i in range(300))
    assert relaxpy.parse(program(body)).script().count("y[0] = ") == 300
    total = ", ".join(f'R.Tensor(("n{i}",), "float32")' for i in range(600))
    text = function("return R.concat(t, axis=0)", f"t: R.Tuple({total})").replace(
        "    n = T.int64()\n", ""
    )
    mod = relaxpy.parse(text)
    assert relaxpy.structural_equal(relaxpy.parse(mod.script()), mod)


@pytest.mark.parametrize("kind", ["macro", "macro(hygienic=False)"])
def test_macros_inside_of_a_program(kind: str) -> None:
    inside = program(
        f"@T.{kind}\ndef put(i, v):\n    w = v + T.float32(1)\n    y[i] = w\nfor i in range(4):\n    put(i, x[i])"
    )
    plain = program("for i in range(4):\n    w = x[i] + T.float32(1)\n    y[i] = w")
    assert relaxpy.structural_equal(relaxpy.parse(inside), relaxpy.parse(plain))


def test_a_macro_inside_of_a_decorated_program() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def k(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
            @T.macro
            def put(i):
                y[i] = x[i]

            for i in range(4):
                put(i)

        @R.function
        def main(x: R.Tensor((4,), "float32")):
            cls = Module
            return R.call_tir(cls.k, (x,), out_ty=R.Tensor((4,), "float32"))

    assert "y[i] = x[i]" in Module.script()


def test_a_macro_that_uses_itself() -> None:
    text = program("@T.macro\ndef put(i):\n    put(i)\nput(0)")
    with pytest.raises(ScriptError, match="is recursive"):
        relaxpy.parse(text)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('y = R.ccl.allreduce(x, op_type="sum")', "R.ccl"),
        ('y = R.dist.redistribute(x, "mesh[0]", "R")', "R.dist"),
        ('y: R.DTensor((4,), "float32", "mesh[0]", "R") = x', "R.DTensor"),
    ],
)
def test_programs_of_several_workers_are_not_read(line: str, name: str) -> None:
    """The error says so, and what there is in their place."""
    with pytest.raises(RelaxError, match="spread over several workers") as caught:
        relaxpy.parse(
            f'@R.function\ndef main(x: R.Tensor((4,), "float32")):\n    {line}\n    return y\n'
        )
    assert caught.value.code == "unknown-op"
    assert "communicator" in str(caught.value.help)
    span = caught.value.span
    assert span is not None
    assert (span.line, span.column) == (3, 4 + line.index(name))
