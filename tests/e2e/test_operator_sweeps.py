"""Every operator compiled: its samples, and beyond them in all dtypes, with dimensions 0 and 1, with NaN, infinities,
-0.0 and the limits of integers. Compiled once, with symbols; one object for all that is optimised of an operator, and one
for what is quickly made. In a full sweep all is optimised; otherwise only samples in their own dtypes, of one operator in
six. Only a full sweep has all samples and dtypes."""

from __future__ import annotations

import zlib

import pytest

from relaxpy.op.base import Op
from relaxpy.target import Target
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
from tests.sweeps import FULL, quick_target, sweep

SAMPLES = 30
"""One of so many samples is compiled, the first among them; all in a full sweep."""

OPTIMISED = 6
"""Samples of one of so many operators are compiled as users' programs are; all in a full sweep."""

DTYPES = 24
"""One of so many dtypes is compiled, not the same for each operator; all in a full sweep."""


@sweep
@pytest.mark.slow
@pytest.mark.parametrize("cls", COMPILED, ids=lambda c: c.name)
def test_every_dtype_size_and_special_value(cls: type[Op]) -> None:
    """What deduction accepts, the kernel computes as the reference does."""
    variants = [*accepted(cls)]
    problems: list[str] = []
    for quick, target in ((False, Target.host()), (True, quick_target())):
        some = [variant for variant, is_quick in variants if is_quick == quick]
        if not some:
            continue
        kernels = Kernels({f"k{i}": v.program for i, v in enumerate(some)}, target)
        for i, variant in enumerate(some):
            for label, s in settings(variant):
                try:
                    same_numbers(kernels, f"k{i}", variant, s)
                except Exception as e:
                    problems.append(f"{variant.label}, {label}: {explained(e)[:600]}")
    assert not problems, f"{len(problems)} problems\n" + "\n\n".join(problems[:6])


def accepted(cls: type[Op]) -> list[tuple[Variant, bool]]:
    """The operator's samples, as they are, and in the dtypes that it takes: all dtypes for the first, one for each
    further set of attributes. With each, whether it is compiled without LLVM's optimisations."""
    found: list[tuple[Variant, bool]] = []
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
                quick = dtype != AS_IT_IS or zlib.crc32(cls.name.encode()) % OPTIMISED != 0
                found.append((variant, quick))
        seen.add(key)
    return found
