"""What the benchmark of GPUs keeps in files, and what it makes where it runs."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np

from benchmarks.gpu_calls import ExpectedCall, load_calls, save_calls
from benchmarks.gpu_plan import QUICK, Prepared
from relaxpy.runtime.inspect.random_tensors import Weight, random_weight


def test_calls_are_kept(tmp_path: Path) -> None:
    """Arrays of all dtypes, numbers and tuples; how results differ."""
    path = tmp_path / "calls"
    x = np.array([1, np.nan, np.inf], ml_dtypes.bfloat16)
    y = np.arange(4, dtype=np.int32).reshape(2, 2)
    calls = [
        ExpectedCall(
            "a", "f", (x, 3, (y, True)), (x, y), (np.full(3, 0.1), np.array([[0, 0], [0, np.inf]]))
        ),
        ExpectedCall("b", "g", (), np.zeros((0, 2)), np.zeros((0, 2))),
    ]
    save_calls(path, calls)
    first, second = load_calls(path)
    assert isinstance(first, ExpectedCall)
    assert isinstance(second, ExpectedCall)
    assert first.args[0].dtype == x.dtype
    assert first.args[1:2] == (3,)
    assert first.wrong(lambda *_: (x, y)) == ""
    assert first.wrong(lambda *_: (x + x.dtype.type(0.05), y)) == ""
    assert "first (0,): 2.0 and 1.0" in first.wrong(lambda *_: (x + x.dtype.type(1), y))
    assert "first (1,): 0.0 and nan" in first.wrong(
        lambda *_: (np.array([1, 0, np.inf], x.dtype), y)
    )
    other = y.copy()
    other[1, 1] = 9  # any value
    assert first.wrong(lambda *_: (x, other)) == ""
    other[0, 0] = 9
    assert first.wrong(lambda *_: (x, other)).startswith("field 1: 1 of 4 elements differ")
    assert "tuple of 2" in first.wrong(lambda *_: x)
    assert "float32[3]" in first.wrong(lambda *_: (x.astype(np.float32), y))
    assert second.wrong(lambda: np.zeros((0, 2))) == ""


def test_weights() -> None:
    """The same numbers each time, within their scale, of any size."""
    half = random_weight(Weight((3, 5), "float16", 0.5))
    assert half.dtype == np.float16
    assert 0.2 < np.abs(half).max() <= 0.5
    np.testing.assert_array_equal(half, random_weight(Weight((3, 5), "float16", 0.5)))
    bits = random_weight(Weight((64,), "bfloat16", 1.0))
    values = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    assert bits.dtype == np.uint16
    assert 0.5 < np.abs(values).max() <= 1
    assert {*random_weight(Weight((4096,), "uint8", 1.0)).tolist()} == {*range(256)}
    large = random_weight(Weight((3, 1 << 21), "float32", 1.0)).reshape(-1)
    np.testing.assert_array_equal(large[: 1 << 21], large[1 << 22 :])
    assert random_weight(Weight((0, 4), "float32", 1.0)).shape == (0, 4)


def test_a_plan_is_read_back(tmp_path: Path) -> None:
    made = Prepared(
        tmp_path, "cuda", QUICK, {"encoder, all": [Weight((2, 3), "float32", 0.5)]}, {"a": "b"}
    )
    made.save()
    read = Prepared.load(tmp_path)
    assert read.weights == made.weights
    assert read.left_out == {"a": "b"}
    assert read.plan.decoders == QUICK.decoders
    assert read.file("a, b c").name == "a-b_c.rxe"
