"""Every operator compiled: its samples, and beyond them in all dtypes, with dimensions 0 and 1, with NaN, infinities,
-0.0 and the limits of integers. Compiled once, with symbols, into one object. In a full sweep LLVM optimises all;
otherwise one operator in six. Only a full sweep has all samples and dtypes."""

from __future__ import annotations

import zlib

import pytest

from relaxpy.op.base import Op
from relaxpy.testing.kernels import Kernels
from relaxpy.testing.op_check import (
    AS_IT_IS,
    Variant,
    explained,
    same_numbers,
    settings,
    variant_of,
)
from relaxpy.testing.op_samples import arrays_of, dtype_variants, samples
from tests.op.support import COMPILED
from tests.sweeps import FULL, optimised, sweep

SAMPLES = 30
"""One of so many samples is compiled, the first among them; all in a full sweep."""

OPERATORS = [
    pytest.param(cls, id=cls.name, marks=[] if zlib.crc32(cls.name.encode()) % 6 else optimised)
    for cls in COMPILED
]

DTYPES = 24
"""One of so many dtypes is compiled, not the same for each operator; all in a full sweep."""


@sweep(2)
@pytest.mark.slow
@pytest.mark.parametrize("cls", OPERATORS)
def test_every_dtype_size_and_special_value(cls: type[Op]) -> None:
    """What deduction accepts, the kernel computes as the reference does."""
    variants = accepted(cls)
    problems: list[str] = []
    kernels = Kernels({f"k{i}": variant.program for i, variant in enumerate(variants)})
    for i, variant in enumerate(variants):
        for label, s in settings(variant):
            try:
                same_numbers(kernels, f"k{i}", variant, s)
            except Exception as e:
                problems.append(f"{variant.label}, {label}: {explained(e)[:600]}")
    assert not problems, f"{len(problems)} problems\n" + "\n\n".join(problems[:6])


def accepted(cls: type[Op]) -> list[Variant]:
    """The operator's samples, as they are, and in the dtypes that it takes: all dtypes for the first, one for each
    further set of attributes."""
    found: list[Variant] = []
    seen: set[object] = set()
    for number, s in enumerate(x for x in samples(cls.name) if not x.code):
        if number % SAMPLES and not FULL:
            continue
        key = (s.op, s.dims, tuple(a.ndim for a in arrays_of(s)))
        beyond = key not in seen
        others = [*dtype_variants(s)] if not seen else []
        others = others if FULL else others[zlib.crc32(cls.name.encode()) % DTYPES :: DTYPES]
        for dtype, cast in [(AS_IT_IS, s), *others]:
            variant = variant_of(cast, s, dtype, f"sample {number} ({s.op}, {dtype})")
            if variant is not None:
                variant.beyond = beyond
                found.append(variant)
        seen.add(key)
    return found
