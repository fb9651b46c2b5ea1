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
