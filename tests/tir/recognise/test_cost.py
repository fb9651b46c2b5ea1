"""About how much a tensor program does."""

from __future__ import annotations

import ast

from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.module import BufferParam, ScalarParam
from relaxpy.tir import te
from relaxpy.tir.numerics import scalar
from relaxpy.tir.parse import parse_prim_func
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.elementary import written_out
from relaxpy.tir.recognise.cost import bytes_moved, flops, length, loads, product_flops


def parse(text: str) -> PrimFunc:
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.FunctionDef)
    return parse_prim_func(node, text, "cost.py", {})


def at(func: PrimFunc, amount: Dim | None, **sizes: int) -> int:
    """The amount where the program's symbols have these values: over the symbols of `params`."""
    assert amount is not None
    values: dict[SymVar, int] = {}
    for param in func.params:
        if isinstance(param, BufferParam):
            values.update({v: sizes[v.name] for size in param.shape for v in size.vars})
        elif isinstance(param, ScalarParam):
            values[param.var] = sizes[param.var.name]
    return amount.evaluate(values)


def matmul() -> PrimFunc:
    n, m = SymVar("n"), SymVar("m")
    x, w = te.placeholder((n, 8), "float32", "x"), te.placeholder((8, m), "float32", "w")
    return PrimFunc.from_te([x, w], [te.topi.matmul(x, w)])


def test_products() -> None:
    """A matrix product does a store, a multiplication and an addition in each of n · m · k iterations."""
    func = matmul()
    assert at(func, func.work, n=3, m=5) == 3 * 5 * 8 * 3


def test_flops_of_products() -> None:
    """Two a product that is summed, whatever is done besides: here an exponential of each element of the result."""
    plain = matmul()
    assert at(plain, product_flops(plain.func), n=3, m=5) == 2 * 3 * 5 * 8
    n, m = SymVar("n"), SymVar("m")
    x, w = te.placeholder((n, 8), "float32", "x"), te.placeholder((8, m), "float32", "w")
    fused = PrimFunc.from_te([x, w], [te.topi.exp(te.topi.matmul(x, w))])
    assert at(fused, product_flops(fused.func), n=3, m=5) == 2 * 3 * 5 * 8


def test_flops_are_operations_of_floats() -> None:
    """A product and a sum each count one, an exponential too; conversions, choices and integers none."""
    product = matmul()
    assert at(product, product.flops, n=3, m=5) == 2 * 3 * 5 * 8
    n = SymVar("n")
    x, i = te.placeholder((n,), "float32", "x"), te.placeholder((n,), "int32", "i")
    for value, count in (
        (te.topi.exp(te.topi.add(x, x)), 2),
        (te.topi.divide(te.topi.maximum(x, x), x), 2),
        (te.topi.cast(te.topi.add(i, i), "float32"), 0),
        (te.topi.where(te.topi.greater(x, x), x, x), 0),
    ):
        func = PrimFunc.from_te([x, i], [value])
        assert at(func, flops(func.func), n=7) == 7 * count


def test_products_that_are_not_summed() -> None:
    n = SymVar("n")
    x = te.placeholder((n, 4), "float32", "x")
    assert product_flops(PrimFunc.from_te([x], [te.topi.multiply(x, x)]).func) == Dim.of(0)
    sums = PrimFunc.from_te([x], [te.topi.sum(x, 1)])
    assert product_flops(sums.func) == Dim.of(0)


def test_loads() -> None:
    """Of a table, as many elements as are looked up; of a factor, one in each iteration; of a result, none."""
    n, m = SymVar("n"), SymVar("m")
    table, rows = te.placeholder((m, 8), "float32", "t"), te.placeholder((n,), "int64", "r")
    taken = te.compute((n, 8), lambda i, j: table[rows[i], j] + 1.0)
    lookup = PrimFunc.from_te([table, rows], [taken])
    assert [at(lookup, c, n=3, m=100) for c in loads(lookup.func)] == [24, 24, 0]
    plain = matmul()
    assert [at(plain, c, n=3, m=5) for c in loads(plain.func)] == [120, 120, 120]


def test_functions_cost_more() -> None:
    """exp counts more than an addition."""
    n = SymVar("n")
    x = te.placeholder((n,), "float32", "x")
    cheap = PrimFunc.from_te([x], [te.compute((n,), lambda i: x[i] + x[i])])
    dear = PrimFunc.from_te([x], [te.topi.exp(x)])
    assert at(dear, dear.work, n=10) > 3 * at(cheap, cheap.work, n=10)


def test_extent_that_depends_on_a_loop() -> None:
    """A triangle counts as its largest row times the rows."""
    func = parse(
        '@T.prim_func\ndef f(x: T.Buffer(("n", "n"), "float32")):\n'
        "    for i in range(n):\n        for j in range(i + 1):\n            x[i, j] = 0.0\n"
    )
    assert at(func, func.work, n=6) == 36


def test_unknown_extent() -> None:
    """How often a loop runs that reads its extent is not known."""
    func = parse(
        '@T.prim_func\ndef f(k: T.Buffer((1,), "int64"), x: T.Buffer((8,), "float32")):\n'
        "    for i in range(k[0]):\n        x[i] = 0.0\n"
    )
    assert func.work is None


def test_scalars_are_the_symbols_of_params() -> None:
    """A scalar parameter may be in the amount."""
    func = parse(
        '@T.prim_func\ndef f(x: T.Buffer((8,), "float32"), k: T.int64):\n'
        "    for i in range(k):\n        x[i] = 0.0\n"
    )
    assert at(func, func.work, k=7) == 7


def test_bytes() -> None:
    """What the parameters hold, each element once, however often it is read."""
    func = matmul()
    assert at(func, func.bytes_moved, n=3, m=5) == 4 * (3 * 8 + 8 * 5 + 3 * 5)
    assert "min" not in str(func.bytes_moved)


def test_bytes_of_a_table() -> None:
    """Rows that are looked up, not the table; each row once where more are looked up than there are."""
    n = SymVar("n")
    table, i = te.placeholder((1000, 8), "float32", "t"), te.placeholder((n,), "int32", "i")
    func = PrimFunc.from_te([table, i], [te.topi.take(table, i, 0)])
    assert at(func, bytes_moved(func.func), n=3) == 4 * (3 * 8 + 3 * 8) + 4 * 3
    assert at(func, bytes_moved(func.func), n=2000) == 4 * (1000 * 8 + 2000 * 8) + 4 * 2000


def test_elementary_functions_are_written_out_for_length_and_work() -> None:
    """They cost what they become; as operations of floats they count one each."""
    n = SymVar("n")
    x = te.placeholder((n,), "float32", "x")
    called = PrimFunc.from_te([x], [te.compute((n,), lambda i: scalar.exp(x[i]))])
    written = PrimFunc(written_out(called.func))
    assert "T.exp" in called.script()
    assert "T.exp" not in written.script()
    assert length(called.func) == length(written.func) > 30
    assert at(called, called.work, n=1) == at(written, written.work, n=1) > 20
    assert at(called, called.flops, n=7) == 7
