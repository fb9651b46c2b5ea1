"""The option `precision` of a build."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.build import default_pipeline
from relaxpy.build.precision_option import chosen_precision
from relaxpy.errors import UsageError
from relaxpy.target import Target
from relaxpy.transform import MixedPrecision, Sequential
from tests.sweeps import quick_target

MODULE = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 3), "float32"), w: R.Tensor((3, 5), "float32")):
    R.func_attr({"num_input": 1})
    y = R.matmul(x, w)
    return y
""")


@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        ("llvm -mcpu=haswell", "float32"),
        ("llvm -mcpu=cascadelake", "float32"),
        ("llvm -mcpu=znver4", "bfloat16"),
        ("llvm -mcpu=sapphirerapids -mattr=-amx-bf16", "float32"),  # half the rate of float32
        ("llvm -mcpu=haswell,znver4", "float32"),
        ("opencl", "float32"),
    ],
)
def test_auto_is_the_fastest_of_the_target(target: str, dtype: str) -> None:
    assert chosen_precision("auto", Target.parse(target)) == dtype


def test_the_report_says_which() -> None:
    exe = relaxpy.build(MODULE, "llvm -mcpu=znver4 -opt-level=0", precision="auto")
    assert exe.build_report is not None
    assert exe.build_report.precision == "bfloat16"
    assert "products in bfloat16" in str(exe.build_report)
    assert relaxpy.build(MODULE, quick_target()).build_report.precision == ""  # type: ignore[union-attr]


def test_names_of_dtypes_and_the_cache() -> None:
    """`bf16` is bfloat16; a build in float32 is another one, from the cache as well."""
    x, w = np.array([[1, 1.001, 3]], np.float32), np.eye(3, 5, dtype=np.float32)
    results = {}
    for precision in ("bf16", "float32", "bfloat16", None):
        exe = relaxpy.build(MODULE, quick_target(), precision=precision)
        results[precision] = relaxpy.VirtualMachine(exe)["main"](x, w).numpy()[0, 1]
    assert results["bf16"] == results["bfloat16"] == 1
    assert results["float32"] == results[None] == np.float32(1.001)


def test_weights_are_converted_once_by_their_packer() -> None:
    given = {"w": np.full((3, 5), 1.001, np.float32)}
    vm, wide = (
        relaxpy.VirtualMachine(relaxpy.build(MODULE, quick_target(), pack=True, precision=p))
        for p in ("bfloat16", None)
    )
    packed = vm.pack(given)
    assert packed.nbytes * 2 == wide.pack(given).nbytes
    got = vm["main"](np.ones((2, 3), np.float32), *packed["main"]).numpy()
    np.testing.assert_array_equal(got, np.full((2, 5), 3, np.float32))


def test_wrong_words_and_pipelines() -> None:
    for word in ("int8", "half-ish", "float64", ""):
        with pytest.raises(UsageError, match="float32, bfloat16, float16 or auto") as caught:
            relaxpy.build(MODULE, quick_target(), precision=word)
        assert caught.value.code == "mixed-precision"
    own = default_pipeline(quick_target()).before("lift-packers", MixedPrecision())
    with pytest.raises(UsageError, match="has mixed-precision already"):
        relaxpy.build(MODULE, quick_target(), pipeline=own, precision="bfloat16")
    with pytest.raises(UsageError, match="has no lift-packers"):
        relaxpy.build(MODULE, quick_target(), pipeline=Sequential(()), precision="bfloat16")
