"""Edges of operators that their samples do not reach."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy


def run(op: str, arity: int, *inputs: np.ndarray) -> np.ndarray:
    dtype = inputs[0].dtype.name
    params = ", ".join(f'x{i}: R.Tensor(("n",), "{dtype}")' for i in range(arity))
    args = ", ".join(f"x{i}" for i in range(arity))
    result = "bool" if "equal" in op else dtype
    mod = relaxpy.parse(f"""
@R.function
def main({params}) -> R.Tensor(("n",), "{result}"):
    y = R.{op}({args})
    return y
""")
    return relaxpy.VirtualMachine(relaxpy.build(mod))["main"](*inputs).numpy()


@pytest.mark.parametrize("op", ["equal", "not_equal"])
def test_bools_compare(op: str) -> None:
    a, b = np.array([True, True, False, False] * 5), np.array([True, False, True, False] * 5)
    np.testing.assert_array_equal(run(op, 2, a, b), getattr(np, op)(a, b))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int64"])
def test_negation_wraps(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([0, 1, 2, info.max, info.min, info.max - 1] * 4, dtype)
    np.testing.assert_array_equal(run("negative", 1, x), np.negative(x))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint32", "int8"])
def test_fused_integers_wrap(dtype: str) -> None:
    """What one operator adds and the next compares is in one kernel: the sum still wraps around."""
    mod = relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("n",), "{dtype}"), one: R.Tensor((), "{dtype}")) -> R.Tensor(("n",), "bool"):
    with R.dataflow():
        y = R.add(x, one)
        z = R.greater(y, x)
        R.output(z)
    return z
""")
    executable = relaxpy.build(mod)
    assert [kernel.name for kernel in executable.kernels] == ["fused_add_greater"]
    info = np.iinfo(dtype)
    x = np.array([info.max, info.min, 0, 1, info.max - 1] * 9, dtype)
    got = relaxpy.VirtualMachine(executable)["main"](x, np.array(1, dtype)).numpy()
    np.testing.assert_array_equal(got, x != info.max)


def test_fused_floats_keep_nan() -> None:
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", "m"), "float32")) -> R.Tensor(("n",), "float32"):
    with R.dataflow():
        y = R.subtract(x, x)
        z = R.sum(y, axis=[1])
        R.output(z)
    return z
""")
    x = np.array([[1, 2, 3], [1, np.nan, 3], [np.inf, 2, 3]], np.float32)
    got = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x).numpy()
    np.testing.assert_array_equal(got, [0, np.nan, np.nan])
