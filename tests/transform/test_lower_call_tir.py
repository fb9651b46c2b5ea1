"""LowerCallTIR: allocation and destination-passing calls."""

from __future__ import annotations

import relaxpy
from relaxpy.testing.before_after import check_example
from relaxpy.transform import LowerCallTIR


def test_example() -> None:
    check_example(LowerCallTIR())


def test_a_library_call_and_several_outputs() -> None:
    text = LowerCallTIR()(
        relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    n = T.int64()
    pair = R.call_dps_library("lib.split", (x,), out_ty=[R.Tensor((n,), dtype="float32"), R.Tensor((n, 3), dtype="float32")])
    first = pair[0]
    return first
""")
    ).script()
    assert text.count("R.memory.alloc_tensor(") == 2
    assert "call_dps_library" not in text
    assert "pair_0, pair_1" in text
