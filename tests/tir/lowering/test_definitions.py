"""Definitions in LLVM's language: a kernel calls them; the same ones may be given twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaxpy.tir.lowering.definitions import with_definitions
from relaxpy.tir.tvm import te, tirx
from tests.backend.support import as_tensor, compute, load, n, tensor

TWICE = """
define float @relaxpy_test_twice(float %x) alwaysinline nounwind {
  %y = fadd float %x, %x
  ret float %y
}
"""


@pytest.mark.parametrize("times", [1, 2])
def test_a_kernel_calls_them(tmp_path: Path, times: int) -> None:
    x = tensor(n)
    out = compute((n,), lambda i: tirx.call_pure_extern("float32", "relaxpy_test_twice", x[i]))
    func = te.create_prim_func([x, out])
    for _ in range(times):
        func = func.with_body(with_definitions(TWICE, func.body))
    a, found = np.arange(5, dtype="float32"), np.zeros(5, "float32")
    load(tmp_path, {"k": func})["k"](as_tensor(a), as_tensor(found))
    np.testing.assert_array_equal(found, 2 * a)
