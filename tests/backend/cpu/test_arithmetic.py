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
        ("haswell", "int8", "int32", 2),
        ("haswell", "int16", "int32", 2),
        ("haswell", "uint16", "int32", 1),
        ("x86-64", "uint8", "int32", 2),
        ("sandybridge", "int8", "int32", 1),  # vectors of 256 bits without integers
        ("skylake-avx512", "int8", "int32", 2),
        ("znver4", "uint8", "int32", 2),  # no dot products of two unsigned ones
    ],
)
def test_group(mcpu: str, dtype: str, total: str, group: int) -> None:
    target = CpuTarget.read(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={mcpu}")
    assert Arithmetic.of(dtype, dtype, total, target).group == group
