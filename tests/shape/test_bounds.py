"""Ranges of symbols that functions declare: proofs in their bodies use them."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.analysis import well_formed
from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir import Function, SymVar
from relaxpy.ir.dim import dim_op
from relaxpy.shape.bounds import assuming, bounds_of, declared_bounds, narrowed
from relaxpy.shape.lattice import Verdict
from relaxpy.shape.prove import equal, prove

n, m = SymVar("n"), SymVar("m")
PROGRAM = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), s: R.Shape(["m"])) -> R.Tensor(("{ret}", 4), "float32"):
    R.func_attr({{"tir_var_upper_bound": {{"n": 16, "m": 8}}, "tir_var_lower_bound": {{"m": 1}}}})
    return x
"""


def read(ret: str) -> Function:
    found = relaxpy.parse(PROGRAM.format(ret=ret))["main"]
    assert isinstance(found, Function)
    return found


def test_declared() -> None:
    attrs = {"tir_var_upper_bound": {"n": 7, "other": 3}, "tir_var_lower_bound": {"m": 2}}
    assert declared_bounds(attrs, [n, m]) == {n: (0, 7), m: (2, None)}
    assert declared_bounds({}, [n, m]) == {}


@pytest.mark.parametrize("given", [3, {"n": "8"}, {"n": None}, {"n": True}])
def test_what_declares_nothing(given: object) -> None:
    with pytest.raises(UsageError, match="must map names of symbolic variables to integers"):
        declared_bounds({"tir_var_upper_bound": given}, [n])


def test_narrowed() -> None:
    assert narrowed(None, (1, 2)) == (1, 2)
    assert narrowed((0, 7), (2, None)) == (2, 7)
    assert narrowed((None, 7), (2, 5)) == (2, 5)


def test_assumed_inside_only() -> None:
    condition = dim_op("lt", n, 8)
    assert not prove(condition)
    with assuming({n: (0, 7)}):
        assert prove(condition)
        with assuming({m: (1, 1)}):
            assert prove(condition)
            assert equal(m.dim, 1) is Verdict.YES
        assert equal(m.dim, 1) is Verdict.MAYBE
    assert not prove(condition)


def test_bounds_of_a_function() -> None:
    bounds = {symbol.name: limits for symbol, limits in bounds_of(read("n")).items()}
    assert bounds == {"n": (0, 16), "m": (1, 8)}


@pytest.mark.parametrize("ret", ["T.min(n, 16)", "n + m // 9", "n % 17"])
def test_used_in_the_body(ret: str) -> None:
    """With its bounds the declared result is proved: no check is made at run time."""
    function = read(ret)
    assert list(function.body.bindings) == []
    assert well_formed(relaxpy.IRModule({"main": function})) == []


def test_not_proved_under_other_bounds() -> None:
    assert len(list(read("T.min(n, 15)").body.bindings)) == 1


def test_refuted_by_bounds() -> None:
    with pytest.raises(RelaxError, match="return-mismatch"):
        read("n + m")


def test_located_in_the_script() -> None:
    text = PROGRAM.format(ret="n").replace('"n": 16', '"n": "16"')
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(text)
    assert caught.value.code == "bad-value"
    assert caught.value.span is not None
    assert caught.value.span.line == 4
