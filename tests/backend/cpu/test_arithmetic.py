"""The arithmetic that a processor multiplies its factors with."""

from __future__ import annotations

import pytest

from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.target import CpuTarget


@pytest.mark.parametrize(
    ("mcpu", "dtype", "total", "group"),
    [
        ("znver4", "bfloat16", "float32", 2),
        ("emeraldrapids", "bfloat16", "float32", 1),  # widened: its dot products are the slower way
        ("skylake-avx512", "bfloat16", "float32", 1),
        ("emeraldrapids", "int8", "int32", 4),
        ("znver4", "float32", "float32", 1),
        ("haswell", "int8", "int32", 1),
    ],
)
def test_group(mcpu: str, dtype: str, total: str, group: int) -> None:
    target = CpuTarget.read(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={mcpu}")
    assert Arithmetic.of(dtype, dtype, total, target).group == group
