"""CheckNumbers: the first operator that makes a NaN or an infinity."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import CheckNumbers
from tests.sweeps import quick_target

NETWORK = """
@R.function
def main(x: R.Tensor(("n", 3), "float32"), w: R.Tensor((3, 3), "float32")):
    with R.dataflow():
        first = R.matmul(x, w)
        second = R.matmul(first, w)
        third = R.nn.softmax(second)
        R.output(third)
    return third
"""


def test_example() -> None:
    check_example(CheckNumbers())


def test_the_first_layer_that_overflows_float16_is_named() -> None:
    vm = relaxpy.VirtualMachine(
        relaxpy.build(
            relaxpy.parse(NETWORK), quick_target(), precision="float16", check_numbers=True
        )
    )
    x, w = np.ones((2, 3), np.float32), np.full((3, 3), 100, np.float32)
    vm["main"](x / 100, w)
    with pytest.raises(
        RuntimeCheckError, match=r"second_float16: 6 of 6 .* inf at \[0, 0\]"
    ) as caught:
        vm["main"](x, w)
    assert caught.value.code == "not-a-number"


def test_the_interpreter_checks_as_well() -> None:
    mod = CheckNumbers()(relaxpy.parse(NETWORK))
    w = np.eye(3, dtype=np.float32)
    interpret(mod, "main", np.ones((2, 3), np.float32), w)
    with pytest.raises(RuntimeCheckError, match=r"first: 1 of 3 elements"):
        interpret(
            mod, "main", np.full((1, 3), 3e38, np.float32), w * np.array([2, 1, 1], np.float32)
        )


def test_masks_and_infinite_inputs_are_no_errors() -> None:
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "float32")):
    with R.dataflow():
        y = R.where(R.greater(x, R.const(0.0, "float32")), x, R.const(float("-inf"), "float32"))
        z = R.nn.softmax(y)
        R.output(z)
    return z
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), check_numbers=True))
    got = vm["main"](np.array([1, -1, 1], np.float32)).numpy()
    np.testing.assert_allclose(got, [0.5, 0, 0.5])
    assert np.isnan(vm["main"](np.array([np.inf, np.inf], np.float32)).numpy()).all()
    assert vm["main"](np.zeros(0, np.float32)).numpy().shape == (0,)
