"""SimplifyExpr: each entry of the table computes the same bits, and what is no entry stays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.errors import RelaxError
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Function
from relaxpy.ir.module import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.pass_check import check_pass
from relaxpy.transform import DeadCodeElimination, Normalize, Sequential, SimplifyExpr
from relaxpy.transform.simplify_expr import FORMULAS, Formula, formula_of, holds, is_of
from tests.sweeps import sweep

FLOAT = ("float16", "bfloat16", "float32", "float64")
INT = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
DTYPES = (*FLOAT, *INT, "bool")
SIMPLIFY = Sequential((SimplifyExpr(), DeadCodeElimination()))


def module(text: str, params: str) -> IRModule:
    body = "".join(f"    {line}\n" for line in text.splitlines())
    source = f"@R.function\ndef main({params}):\n{body}"
    return Normalize()(relaxpy.parse(f"from relaxpy.script import relax as R, tir as T\n{source}"))


TWICE = "f = R.concat((e, e), axis=0)\nreturn f"
"""The end of a function that returns no argument: e with the same bits."""


def operators(mod: IRModule) -> list[str]:
    main = mod["main"]
    assert isinstance(main, Function)
    return [b.value.op.name for b in main.body.bindings if isinstance(b.value, Call)]  # type: ignore[union-attr]


def bits(value: Any) -> tuple[Any, ...]:
    """A tensor so that equal ones are equal to the bit; all NaN are one."""
    array = np.asarray(value)
    if array.dtype.kind not in "iub":
        array = np.where(np.isnan(array.astype("float64")), np.array(np.nan, array.dtype), array)
    return array.dtype, array.shape, array.tobytes()


def values(dtype: str) -> np.ndarray:
    """Numbers of a dtype, with those at its edges."""
    kind = DType(dtype).numpy
    if dtype == "bool":
        return np.array([True, False])
    if dtype in INT:
        limits = np.iinfo(kind)
        return np.array([0, 1, 2, 5, limits.min, limits.min + 1, limits.max, limits.max - 1], kind)
    tiny = {"float16": 6e-8, "bfloat16": 1e-40, "float32": 1e-45, "float64": 5e-324}[dtype]
    large = {"float16": 65504.0, "bfloat16": 3e38, "float32": 3.4e38, "float64": 1.7e308}[dtype]
    few = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        2.5,
        -0.5,
        0.3,
        tiny,
        -tiny,
        large,
        -large,
        np.inf,
        -np.inf,
        np.nan,
    ]
    return np.array(few).astype(kind)


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    every = list(itertools.product(values(dtype), repeat=2))
    kind = DType(dtype).numpy
    return np.array([a for a, _ in every], kind), np.array([b for _, b in every], kind)


def written(formula: Formula, dtype: str) -> str:
    """A formula as script."""
    if isinstance(formula, str):
        return formula
    if isinstance(formula, tuple):
        return f"R.{formula[0]}({', '.join(written(part, dtype) for part in formula[1])})"
    if dtype not in FLOAT:
        formula = int(formula)
    return f"R.const({formula!r}, {dtype!r})"


def programs(before: str) -> Iterator[tuple[str, IRModule, Sequence[np.ndarray]]]:
    """The expression as a program, for every dtype that its operators take."""
    condition = before.startswith("where")
    for dtype in DTYPES:
        y_type = "bool" if condition else dtype
        params = f'x: R.Tensor(("n",), "{dtype}"), y: R.Tensor(("n",), "{y_type}"), z: R.Tensor(("n",), "{dtype}")'
        try:
            mod = module(f"e = {written(formula_of(before), dtype)}\n{TWICE}", params)
        except (RelaxError, OverflowError):
            continue  # not of this dtype
        x, z = pairs(dtype)
        y = np.arange(len(x)) % 2 == 0 if condition else z
        for count in (len(x), 1, 0):
            yield dtype, mod, (x[:count], y[:count], z[:count])


@sweep(2)
@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: f"{formula[0]} {formula[2]}")
def test_an_entry_computes_the_same_bits(formula: tuple[str, str, str]) -> None:
    """It applies to the dtypes that it names, with NaN, infinities, -0.0, numbers that overflow, and nothing at all."""
    before, _, dtypes = formula
    applied = 0
    for dtype, mod, data in programs(before):
        after = SimplifyExpr(formulas=(formula,))(mod)
        left = [op for op in operators(DeadCodeElimination()(after))]
        assert (len(left) < len(operators(mod)) or after is not mod) == is_of(
            DType(dtype), dtypes
        ), dtype
        if after is mod:
            continue
        applied += 1
        check_well_formed(after)
        with np.errstate(all="ignore"):
            got, want = (interpret(m, "main", *data) for m in (after, mod))
        assert bits(got) == bits(want), (dtype, data[0], got, want)
    assert applied > 0


@sweep(2)
@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: f"{formula[0]} {formula[2]}")
def test_a_table_is_applied_as_a_whole(formula: tuple[str, str, str]) -> None:
    """No other entry undoes it: a second run changes nothing."""
    for _, mod, _ in programs(formula[0]):
        after = SimplifyExpr()(mod)
        assert SimplifyExpr()(after) is after


def test_example() -> None:
    check_example(SimplifyExpr())


@sweep(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide", DTYPES)
def test_conversions(wide: str, dtype: str) -> None:
    """Two conversions become one where nothing is lost on the way."""
    for to in DTYPES if dtype != wide and holds(DType(wide), DType(dtype)) else ("float32", "int8"):
        text = f"a = R.astype(x, '{wide}')\ne = R.astype(a, '{to}')\n{TWICE}"
        mod = module(text, f'x: R.Tensor(("n",), "{dtype}")')
        after = SIMPLIFY(mod)
        if dtype != wide and holds(DType(wide), DType(dtype)):
            assert len(operators(after)) == 1 + (to != dtype)
        data = values(dtype)
        with np.errstate(all="ignore"):
            got, want = (interpret(m, "main", data) for m in (after, mod))
        assert bits(got) == bits(want), (dtype, wide, to)


@pytest.mark.parametrize(
    "text",
    [
        "a = R.reshape(x, (n * 4,))\ne = R.reshape(a, (n, 2, 2))",
        "a = R.expand_dims(x, axis=1)\ne = R.reshape(a, (4, n))",
        "a = R.flatten(x)\ne = R.expand_dims(a, axis=0)",
        "a = R.reshape(x, (n, 1, 4))\ne = R.squeeze(a, axis=[1])",
        "a = R.broadcast_to(x, (3, n, 4))\ne = R.broadcast_to(a, (2, 3, n, 4))",
        "e = R.concat((x,), axis=1)",
        "a = R.multiply(x, R.const(1.0, 'float32'))\nb = R.negative(a)\nc = R.negative(b)\ne = R.exp(c)",
    ],
)
def test_chains(text: str) -> None:
    mod = module(f"n = T.int64()\n{text}\n{TWICE}", 'x: R.Tensor(("n", 4), "float32")')
    after = SIMPLIFY(mod)
    assert len(operators(after)) <= 2
    for rows in (0, 1, 3):
        data = np.random.default_rng(0).random((rows, 4), np.float32)
        got, want = (interpret(m, "main", data) for m in (after, mod))
        assert bits(got) == bits(want)


@pytest.mark.parametrize(
    "text",
    [
        "e = R.multiply(x, R.const([[1.0], [1.0]], 'float32'))",  # has two rows
        "e = R.add(x, R.const(0.0, 'float32'))",  # 0.0 of -0.0
        "e = R.subtract(x, R.const(-0.0, 'float32'))",
        "e = R.multiply(x, R.const(0.0, 'float32'))",  # NaN of infinity
        "e = R.subtract(x, x)",
        "a = R.log(x)\ne = R.exp(a)",
        "a = R.astype(x, 'float16')\ne = R.astype(a, 'float32')",
        "a = R.less(x, x)\ne = R.logical_not(a)",  # NaN
        "a = R.ceil(x)\nb = R.exp(a)\ne = R.floor(b)",
    ],
)
def test_what_is_not_exact_stays(text: str) -> None:
    mod = module(f"{text}\n{TWICE}", 'x: R.Tensor(("n",), "float32")')
    assert SimplifyExpr()(mod) is mod


def test_a_result_is_no_argument() -> None:
    """A function that returns a new tensor goes on to."""
    text = "e = R.multiply(x, R.const(1.0, 'float32'))\nreturn e"
    mod = module(text, 'x: R.Tensor(("n",), "float32")')
    assert SimplifyExpr()(mod) is mod


def test_what_is_checked_at_run_time_stays() -> None:
    """Of x and y that may differ in size, the sum's negation is an error, too."""
    text = "a = R.negative(y)\ne = R.add(x, a)\nb = R.reshape(e, (m,))\nc = R.reshape(b, (n,))\nd = R.exp(c)\nreturn d"
    params = 'x: R.Tensor(("n",), "float32"), y: R.Tensor(("n",), "float32"), s: R.Tensor(("m",), "float32")'
    mod = module(f"n, m = T.int64(), T.int64()\n{text}", params)
    after = SimplifyExpr()(mod)
    one, two = np.ones(1, np.float32), np.ones(2, np.float32)
    for m in (mod, after):
        assert len(interpret(m, "main", two, two, two)) == 2
        with pytest.raises(relaxpy.errors.RuntimeCheckError):
            interpret(m, "main", two, two, one)


def test_branches_and_outputs_of_dataflow_blocks() -> None:
    text = """with R.dataflow():
    a = R.negative(x)
    b = R.negative(a)
    R.output(a, b)
if c:
    d = R.add(b, a)
    e = d
else:
    d = R.multiply(b, R.const(1.0, "float32"))
    e = R.exp(d)
return e"""
    mod = module(text, 'x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")')
    after = SIMPLIFY(mod)
    check_well_formed(after)
    data = np.random.default_rng(0).random(5, np.float32)
    for flag in (True, False):
        got, want = (interpret(m, "main", data, np.array(flag)) for m in (after, mod))
        assert bits(got) == bits(want)
    assert "negative" not in after.script()


def test_random_programs() -> None:
    check_pass(SimplifyExpr(), range(12), Normalize())
