"""LowerCallTIR: allocation and destination-passing calls."""

from __future__ import annotations

import relaxpy
from relaxpy.testing.before_after import check_example
from relaxpy.transform import LowerCallTIR, PlanMemory


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


def test_a_tuple_of_which_only_fields_are_used_is_not_made() -> None:
    """Its fields are planned storage then."""
    script = """
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    n = T.int64()
    lv = R.call_dps_library(
        "lib.two", (x,), out_ty=[R.Tensor((n,), dtype="float32"), R.Tensor((n,), dtype="float32")]
    )
    a = lv[1]
    y = R.call_dps_library("lib.one", (a,), out_ty=R.Tensor((n,), dtype="float32"))
    return {}
"""
    fields = LowerCallTIR()(relaxpy.parse(script.format("y"))).script()
    assert 'a: R.Tensor((n,), dtype="float32") = lv_1' in fields or "a = lv_1" in fields
    assert "(lv_0, lv_1)" not in fields
    planned = PlanMemory()(LowerCallTIR()(relaxpy.parse(script.format("y")))).script()
    assert planned.count("R.memory.alloc_storage(") == 2
    text = script.format("(lv, y)").replace('-> R.Tensor(("n",), dtype="float32")', "-> R.Object")
    assert "(lv_0, lv_1)" in LowerCallTIR()(relaxpy.parse(text)).script()


def test_an_output_stays_on_its_virtual_device() -> None:
    """Found by `relaxpy fuzz --seed 30031`: the lowered text did not say the device, and did not read as itself."""
    lowered = LowerCallTIR()(
        relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32", vdevice="llvm:0:global")) -> R.Object:
    n = T.int64()
    y = R.call_dps_library("lib.one", (x,), out_ty=R.Tensor((n,), dtype="float32", vdevice="llvm:0:global"))
    return y
""")
    )
    assert 'dtype="float32", vdevice="llvm:0:global")' in lowered.script()
    relaxpy.assert_structural_equal(relaxpy.parse(lowered.script()), lowered)
