"""Bits, powers and choices in sizes: against Python's own integers; `a if c else b` of values is an `If`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.ir import SymVar
from relaxpy.script.dims import parse_dim
from relaxpy.testing.interpret import interpret

FORMS = {
    "n << 1": "n * 2",
    "n << 0": "n",
    "(n + 3) >> 2": "(n + 3) // 4",
    "n & 7": "n % 8",
    "7 & n": "n % 8",
    "n & 0": "0",
    "n & -1": "n",
    "n & 12": "n % 16 - n % 4",
    "(n + 7) & ~7": "n - (n + 7) % 8 + 7",
    "n | 8": "n + n % 8 - n % 16 + 8",
    "5 ^ n": None,
    "n & -6": None,
    "~n": "-n - 1",
    "abs(n - m)": "T.max(n - m, m - n)",
    "abs(-3) + n": "n + 3",
    "n ** 3": "n * n * n",
    "(n - m) ** 2": None,
    "n ** 0": "1",
    "n if n > m else m": "T.Select((m < n), n, m)",
    "12 // m if m != 0 else n": "T.Select((0 != m), 12 // T.Select((0 != m), m, 1), n)",
    "n if m == 0 else n % m + 1": None,
    "n if m == 0 else (n // m if m > 3 else -n % m)": None,
    "4 * ((n == 3) if m == 2 else (m < n))": None,
    "(n < 3) & (m > 2)": "T.And((n < 3), (2 < m))",
    "(n < 3) ^ (m > 2)": None,
    "(n < 3) | (m > 2)": "T.Or((n < 3), (2 < m))",
}
"""What is written → how it is printed, or None where that is long."""

VALUES = (-(2**40) - 3, -17, -8, -3, -1, 0, 1, 2, 3, 5, 7, 8, 13, 12345678901)


@pytest.mark.parametrize("text", FORMS)
def test_forms_are_those_of_python(text: str) -> None:
    symbols = {name: SymVar(name, signed=True) for name in ("n", "m")}
    dim = parse_dim(text, lambda name: symbols[name].dim)
    assert FORMS[text] in (None, str(dim))
    assert parse_dim(str(dim), lambda name: symbols[name].dim) is dim
    for n in VALUES:
        for m in VALUES[1:-1]:
            wanted = eval(text, {"n": n, "m": m})
            assert dim.evaluate({symbols["n"]: n, symbols["m"]: m}) == wanted


TEXT = "\n".join(
    [
        "@R.function",
        'def main(n: R.Prim("int64"), m: R.Prim("int64")):',
        "    with R.dataflow():",
        *(f"        v{i} = R.prim_value({text})" for i, text in enumerate(FORMS)),
        f"        R.output({', '.join(f'v{i}' for i in range(len(FORMS)))})",
        f"    return ({', '.join(f'v{i}' for i in range(len(FORMS)))})",
    ]
)


def test_interpreter_and_executable_compute_what_python_does() -> None:
    mod = relaxpy.parse(TEXT)
    relaxpy.assert_structural_equal(relaxpy.parse(mod.script()), mod)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    for n, m in ((-13, 5), (0, 0), (7, -3), (13, 2), (3, 2), (-(2**20) - 1, 2**19 + 1)):
        wanted = [eval(text, {"n": n, "m": m}) for text in FORMS]
        for got in (vm["main"](n, m), interpret(mod, "main", n, m)):
            assert [int(each) for each in got] == wanted


CHOICES = """
@R.function
def main(x: R.Tensor(("n",), "float32"), k: R.Prim("int64"), c: R.Tensor((), "bool")):
    n = T.int64()
    y = (x if c else R.exp(x) * 2) + 1
    z = R.add(x[0:1] if n == 3 else x, R.zeros((abs(k), n if k << 1 > 4 else 1), "float32"))
    w = 1.5 if c else 2.5
    i = 0
    while i < 9 if c else i < 4:
        i = i + (k if c else 2)
    return (y, z, w, i) if k > 0 else (-y if k < 0 else y, z, w, i)
"""


def choices(x: Any, k: int, c: bool) -> tuple[Any, ...]:
    n = len(x)
    y = (x if c else np.exp(x) * 2) + 1
    z = (x[0:1] if n == 3 else x) + np.zeros((abs(k), n if k << 1 > 4 else 1), np.float32)
    i = 0
    while i < 9 if c else i < 4:
        i = i + (k if c else 2)
    return (y, z, 1.5 if c else 2.5, i) if k > 0 else (-y if k < 0 else y, z, 1.5 if c else 2.5, i)


def test_choices_of_values_are_branches() -> None:
    mod = relaxpy.parse(CHOICES)
    again = relaxpy.parse(mod.script())
    relaxpy.assert_structural_equal(again, mod)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    for n, k, c in ((3, 5, True), (5, 1, True), (3, -2, False), (2, 0, False)):
        x = np.linspace(-1, 1, n).astype(np.float32)
        wanted = choices(x, k, c)
        for got in (vm["main"](x, k, np.array(c)), interpret(mod, "main", x, k, np.array(c))):
            for ours, theirs in zip(got, wanted, strict=True):
                np.testing.assert_allclose(
                    np.asarray(getattr(ours, "numpy", lambda o=ours: o)()), theirs, 1e-6
                )


def test_only_the_side_that_is_chosen_runs() -> None:
    seen: list[int] = []

    def look(x: Any) -> Any:
        seen.append(1)
        return x

    relaxpy.register_function("tests.dims.seen", look)
    vm = relaxpy.VirtualMachine(
        relaxpy.build(
            relaxpy.parse("""
@R.function(pure=False)
def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")):
    y = x if c else R.call_packed("tests.dims.seen", x, ty_args=R.Tensor(ndim=1))
    return y
""")
        )
    )
    x = np.ones(3, np.float32)
    assert vm["main"](x, np.array(True)).numpy().tolist() == [1, 1, 1]
    assert not seen
    assert vm["main"](x, np.array(False)).numpy().tolist() == [1, 1, 1]
    assert seen


def test_what_leaves_64_bits_is_an_error() -> None:
    mod = relaxpy.parse("""
@R.function
def main(k: R.Prim("int64")):
    y = R.prim_value(k << 3)
    return y
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    calls: list[Callable[[int], Any]] = [vm["main"], lambda k: interpret(mod, "main", k)]
    for call in calls:
        assert int(call(-(2**60))) == -(2**63)
        for k in (2**60, -(2**60) - 1):
            with pytest.raises(RelaxError, match="64 bits"):
                call(k)


WRONG = {
    "n & m": ("n & m is no dimension", "n & k"),
    "1 << n": ("1 << n is no dimension", "a number k from 0 to 63"),
    "n << -1": ("n << -1 is no dimension", "a number k from 0 to 63"),
    "n << 64": ("n << 64 is no dimension", "a number k from 0 to 63"),
    "n ^ 2 ** 70": ("is no dimension", "at most 64 bits"),
    "2 ** n": ("2 ** n is no dimension", "n ** k takes a number k"),
    "n ** -1": ("n ** (-1) is no dimension", "n ** k takes a number k"),
    "n & None": ("a dimension has no operator with None", "sizes are integers"),
    "n / 2": ("n / 2 is no dimension", "write //"),
    "m if n else 3": ("n is a number, no bool", "compare it: n != 0"),
    "n ** 99": ("product of at most 64 factors", "match_cast"),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_dimension_is_told_at_its_place(text: str) -> None:
    body = f"""
@R.function
def main(x: R.Tensor(("n", "m"), "float32")):
    n, m = T.int64(), T.int64()
    y = R.zeros(({text},), "int8")
    return y
"""
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(body)
    message, help = WRONG[text]
    assert message in caught.value.message
    assert help in (caught.value.help or "")
    assert caught.value.span is not None
    assert caught.value.span.line == 5
    quoted = f"""
@R.function
def main(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("{text}",), "int8")):
    return x
"""
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(quoted)
    assert caught.value.span is not None
    assert caught.value.span.line == 3


def test_values_are_not_chosen_inside_dataflow() -> None:
    with pytest.raises(RelaxError, match="no control flow") as caught:
        relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")):
    with R.dataflow():
        y = x if c else -x
        R.output(y)
    return y
""")
    assert caught.value.span is not None
    assert caught.value.span.line == 5
    assert "R.where(c, a, b)" in (caught.value.help or "")


def test_sizes_of_tensor_programs_have_them() -> None:
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @T.prim_func
    def double(x: T.Buffer(("n",), "float32"), out: T.Buffer(("n << 1",), "float32")):
        n = T.int64()
        for i in range(n << 1):
            with T.sblock("out"):
                v = T.axis.spatial(n << 1, i)
                out[v] = x[v >> 1]

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        cls = Module
        return R.call_tir(cls.double, (x,), out_ty=R.Tensor((n << 1,), "float32"))
""")
    x = np.array([3, 5, 7], np.float32)
    got = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x)
    assert got.numpy().tolist() == np.repeat(x, 2).tolist()
