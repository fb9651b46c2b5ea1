"""LambdaLift: nested functions, captured variables and symbols, recursion, functions as values."""

from __future__ import annotations

import numpy as np

import relaxpy
from relaxpy.analysis.well_formed import well_formed
from relaxpy.testing.before_after import check_example
from relaxpy.transform import LambdaLift


def test_example() -> None:
    check_example(LambdaLift())


def test_a_function_of_the_module_as_a_value() -> None:
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function
    def twice(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
        y = R.add(x, x)
        return y

    @R.function
    def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
        cls = Module
        f = cls.twice
        y = f(x)
        z = f(y)
        return z
""")
    assert "R.vm.make_closure(cls.twice)" in LambdaLift()(mod).script()
    out = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](np.ones(3, "float32"))
    np.testing.assert_array_equal(out.numpy(), [4, 4, 4])


def test_functions_nested_twice_capture_through_both() -> None:
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    n = T.int64()

    @R.function
    def outer(y: R.Tensor((n,), dtype="float32")) -> R.Tensor((n,), dtype="float32"):
        @R.function
        def inner(z: R.Tensor((n,), dtype="float32")) -> R.Tensor((n,), dtype="float32"):
            a = R.add(x, y)
            b = R.multiply(a, z)
            return b

        c = inner(y)
        return c

    d = outer(x)
    return d
""")
    lifted = LambdaLift()(mod)
    assert len(lifted.graph_functions) == 3
    assert well_formed(lifted) == []
    x = np.array([1, 2, 3], "float32")
    out = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x)
    np.testing.assert_array_equal(out.numpy(), 2 * x * x)
