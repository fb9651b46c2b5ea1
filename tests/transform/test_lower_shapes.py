"""LowerShapes: symbols to heap slots, solved where they stand alone nowhere, relations checked."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import PassError, RuntimeCheckError
from relaxpy.ir import (
    Dim,
    Function,
    IRModule,
    SeqExpr,
    ShapeExpr,
    ShapeType,
    TensorType,
    Var,
)
from relaxpy.testing.before_after import check_example
from relaxpy.transform import LegalizeOps, LowerCallTIR, LowerShapes, Normalize


def lower(text: str) -> str:
    return LowerShapes()(relaxpy.parse(text)).script()


def test_example() -> None:
    check_example(LowerShapes())


def test_a_relation_is_checked() -> None:
    text = lower("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32"), y: R.Tensor(("n * 2",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    return x
""")
    assert "R.vm.check_equal(" in text


def test_a_symbol_is_solved_for() -> None:
    text = lower("""
@R.function
def main(x: R.Tensor(("n * 4 + 2",), dtype="float32")) -> R.Shape(["n"]):
    n = T.int64()
    s = R.shape([n])
    return s
""")
    assert "// 4" in text
    assert "R.vm.check_equal(" in text


def test_two_unknowns_cannot_be_solved() -> None:
    n, m = Dim.var("n"), Dim.var("m")
    x = Var("x", TensorType((n * m, n + m), "float32"))
    function = Function((x,), SeqExpr((), ShapeExpr((n,))), ShapeType((n,)))
    with pytest.raises(PassError) as error:
        LowerShapes()(IRModule({"main": function}))
    assert error.value.code == "undefined-symbol"


def test_a_return_annotation_that_is_not_proved_is_checked() -> None:
    n, m = Dim.var("n"), Dim.var("m")
    x, y = Var("x", TensorType((n,), "float32")), Var("y", TensorType((m,), "float32"))
    mod = IRModule({"main": Function((x, y), SeqExpr((), y), TensorType((n,), "float32"))})
    assert 'what="return value"' in LowerShapes()(mod).script()


def test_a_proved_one_is_not() -> None:
    text = lower("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    return x
""")
    assert "return value" not in text


def test_a_truth_is_a_symbol() -> None:
    """A truth that defines a symbol, or is compared with a formula: printed, read again, checked at run time."""
    mod = relaxpy.parse(
        """
@I.ir_module
class Module:
    @R.function
    def defines(x: R.Tensor(("n",), "float32"), b: R.Prim("bool", value="t")) -> R.Tensor(("t", "n"), "float32"):
        return R.zeros((t, n), "float32")

    @R.function
    def compares(x: R.Tensor(("n",), "float32"), b: R.Prim("bool", value="n == 2")) -> R.Tensor(("n",), "float32"):
        return x
"""
    )
    lowered = LowerShapes()(LowerCallTIR()(LegalizeOps()(Normalize()(mod))))
    relaxpy.assert_structural_equal(relaxpy.parse(lowered.script()), lowered)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    two, three = np.ones(2, np.float32), np.ones(3, np.float32)
    assert vm["defines"](three, True).shape == (1, 3)
    assert vm["defines"](three, False).shape == (0, 3)
    assert vm["compares"](two, True).shape == (2,)
    assert vm["compares"](three, False).shape == (3,)
    for x, b in ((two, False), (three, True)):
        with pytest.raises(RuntimeCheckError, match=r"n == 2"):
            vm["compares"](x, b)
