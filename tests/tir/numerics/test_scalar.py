"""Functions of one element where TVM would assume too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.structural import structural_equal
from relaxpy.testing.kernels import Kernels
from relaxpy.tir import te
from relaxpy.tir.numerics import scalar
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.to_python import to_python
from relaxpy.tir.tvm import tirx
from relaxpy.transform import LegalizeOps
from tests.backend.support import HOST
from tests.sweeps import part, quick_target, sweep


@pytest.mark.parametrize(
    ("source", "target"), [("uint64", "int64"), ("uint64", "int32"), ("uint32", "int32"), ("uint8", "int8")]
)  # fmt: skip
def test_checks_of_converted_unsigned_integers_stay(source: str, target: str) -> None:
    """A huge unsigned index is negative as a signed one: the check that keeps it out of a tensor is not dropped."""
    n = SymVar("n").dim
    x = te.placeholder([n], source, "x")

    def element(i: te.Index) -> te.Tensor:
        value = scalar.cast(x(i), DType(target))
        inside = scalar.greater_equal(value, scalar.literal(0, value))
        return te.select(inside, value, scalar.literal(-7, value))

    program = PrimFunc.from_te([x], [te.compute([n], element)])
    numbers = np.array([0, 1, np.iinfo(source).max, np.iinfo(source).max // 2 + 1], source)
    want = numbers.astype(target)
    want = np.where(want >= 0, want, -7).astype(target)
    kernel, python = np.zeros_like(want), np.zeros_like(want)
    Kernels({"k": program}).run("k", [numbers], [kernel])
    to_python(program.func)(numbers, python)
    np.testing.assert_array_equal(kernel, want)
    np.testing.assert_array_equal(python, want)


def test_comparisons_of_nan_are_not_turned_around() -> None:
    """TVM's simplifier makes `a >= b` of `not a < b`, and true of `x == x`."""
    nan = np.float32("nan")
    a = np.array([nan, 1, 2, nan, 3], np.float32)
    b = np.array([1, nan, 1, nan, 5], np.float32)
    cases = {
        "not_less": (lambda x, y: scalar.logical_not(scalar.less(x, y)), ~(a < b)),
        "not_greater": (lambda x, y: scalar.logical_not(scalar.greater(x, y)), ~(a > b)),
        "not_equal": (lambda x, y: scalar.logical_not(scalar.equal(x, y)), ~(a == b)),
        "itself": (lambda x, _: scalar.equal(x, x), ~np.isnan(a)),
        "not_both": (
            lambda x, y: scalar.logical_not(
                scalar.logical_and(scalar.less(x, y), scalar.less(y, x))
            ),
            np.ones(5, bool),
        ),
    }
    n = SymVar("n").dim
    x, y = te.placeholder([n], "float32", "x"), te.placeholder([n], "float32", "y")

    def program(function: Callable[[Any, Any], Any]) -> PrimFunc:
        return PrimFunc.from_te([x, y], [te.compute([n], lambda i: function(x(i), y(i)))])

    kernels = Kernels({name: program(function) for name, (function, _) in cases.items()})
    for name, (_, want) in cases.items():
        got = np.zeros(5, bool)
        kernels.run(name, [a, b], [got])
        np.testing.assert_array_equal(got, want, name)


def test_a_value_with_names_is_cast_to_integers_once() -> None:
    """Found by `relaxpy fuzz`, seed 410: the names were defined at every copy of the value, and the text did not parse."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "int32"), y: R.Tensor(("n",), "int32")):
    return R.log_add_exp(x, y)
""")
    legal = LegalizeOps()(mod)
    assert structural_equal(relaxpy.parse(legal.script()), legal)
    x, y = np.array([1, 5, -3], np.int32), np.array([0, 0, 7], np.int32)
    run = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    np.testing.assert_array_equal(run(x, y).numpy(), np.logaddexp(x, y).astype(np.int32))


def test_a_sum_with_a_constant_is_divided_by_a_literal() -> None:
    """Found by `relaxpy fuzz`, seed 517: TVM's simplifier failed to compare `k * 4 + 3` with the smallest integer."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor((4, "k + 1"), "float32"), y: R.Tensor(("k",), "float32")):
    return R.median(x)
""")
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    found = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x, np.zeros(3, np.float32))
    assert found.numpy() == np.sort(x.reshape(-1))[7]


@pytest.mark.parametrize("count", [0, 1, 3, None])
def test_means_of_integers(count: int | None) -> None:
    """Rounded towards zero; 0 of nothing, whether the count is a number or a symbol."""
    n, m = SymVar("n").dim, SymVar("m").dim
    total, other = te.placeholder((n,), "int64", "total"), te.placeholder((m,), "int64", "other")
    of = m if count is None else Dim.of(count)
    program = PrimFunc.from_te(
        [total, other], [te.compute((n,), lambda i: scalar.per_count(total(i), of))]
    )
    kernels = Kernels({"mean": program})
    for size in (0, 2, 3) if count is None else (count,):
        totals = np.array([7, -7, 0, 2**62, -(2**63)]) if size else np.zeros(5, np.int64)
        got = np.full(5, 99)
        kernels.run("mean", [totals, np.zeros(size, np.int64)], [got])
        signs = np.sign(totals).tolist()
        assert got.tolist() == [
            s * (s * t // max(size, 1)) for s, t in zip(signs, totals.tolist(), strict=True)
        ]


@sweep
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_a_sum_with_a_constant_beside_any_integer(dtype: str) -> None:
    """TVM's simplifier failed to compare `k * 4 + 3` with the smallest integer: it subtracts the constant from it."""
    n, k = SymVar("n").dim, SymVar("k").dim
    x, y, z = (te.placeholder((dim,), dtype, name) for dim, name in ((n, "x"), (n, "y"), (k, "z")))
    sums: dict[str, Callable[[Any], Any]] = {
        "size": lambda i: scalar.cast(te.dim(k * 4 + 3), dtype),
        "less": lambda i: scalar.cast(te.dim(k * 4 - 3), dtype),
        "index": lambda i: scalar.cast(i * 4 + 3, dtype),
        "element": lambda i: scalar.element(x(i)) + tirx.const(3, dtype),
    }
    divisors: dict[str, Callable[[Any], Any]] = {
        "symbol": lambda i: scalar.cast(te.dim(k), dtype),
        "element": lambda i: y(i),
    }

    def program(name: str, s: str, d: str) -> PrimFunc:
        function = getattr(scalar, name)
        divisor = () if name in ("negative", "absolute") else (divisors[d],)
        value = lambda i: function(sums[s](i), *(each(i) for each in divisor))
        return PrimFunc.from_te([x, y, z], [te.compute((n,), value)])

    whole = [(name, s, d) for name in EXACT for s in sums for d in divisors]
    cases = part(whole, 3)
    kernels = Kernels({"_".join(case): program(*case) for case in cases}, quick_target())
    a, b, size = np.array([5, -6, 7, 0]), np.array([-1, 0, 3, -2]), 3
    for case in cases:
        name, s, d = case
        left = {
            "size": [15] * 4,
            "less": [9] * 4,
            "index": [3, 7, 11, 15],
            "element": (a + 3).tolist(),
        }[s]
        right = {"symbol": [size] * 4, "element": b.tolist()}[d]
        got = np.zeros(4, dtype)
        arrays = [a.astype(dtype), b.astype(dtype), np.zeros(size, dtype)]
        kernels.run("_".join(case), arrays, [got])
        assert got.tolist() == [EXACT[name](u, v) for u, v in zip(left, right, strict=True)], case


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


EXACT: dict[str, Callable[[int, int], int]] = {
    "floor_divide": lambda a, b: a // b if b else 0,
    "floor_mod": lambda a, b: a % b if b else 0,
    "divide": lambda a, b: truncated(a, b) if b else 0,
    "mod": lambda a, b: a - truncated(a, b) * b if b else 0,
    "negative": lambda a, _: -a,
    "absolute": lambda a, _: abs(a),
}


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_functions_of_narrow_floats(dtype: str) -> None:
    """Those that TVM does not have of them are computed in float32, and rounded."""
    values = np.array([-1.5, -0.0, 0.0, 0.25, 2.0, np.nan, np.inf, -3.0] * 2).astype(
        DType(dtype).numpy
    )
    others = np.roll(values, 3)
    functions = {
        "absolute": np.abs, "isfinite": np.isfinite, "isinf": np.isinf, "power": np.power, "floor_mod": np.mod,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        for name, reference in functions.items():
            of_two = name in ("power", "floor_mod")
            x, y = (te.placeholder((16,), dtype, n) for n in "xy")
            function = getattr(scalar, name)
            got = te.compute((16,), lambda i: function(x(i), *([y(i)] if of_two else [])))  # noqa: B023
            given = [x, y] if of_two else [x]
            kernels = Kernels({"k": PrimFunc.from_te(given, [got], [])}, HOST)
            wide = [a.astype(np.float32) for a in (values, others)[: len(given)]]
            want = reference(*wide)
            want = want if want.dtype == bool else want.astype(DType(dtype).numpy)
            out = np.zeros(16, want.dtype)
            kernels.run("k", [values, others][: len(given)], [out])
            np.testing.assert_array_equal(out.astype(np.float32), want.astype(np.float32), name)
