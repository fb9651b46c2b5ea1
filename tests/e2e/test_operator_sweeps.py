"""Every operator compiled: its samples, and beyond them in all dtypes, with dimensions 0 and 1, with NaN, infinities,
-0.0 and the limits of integers. Compiled once, with symbols; one object for all that is optimised of an operator, and one
for what is quickly made. In a full sweep all is optimised; otherwise only samples in their own dtypes, of one operator in
six. Only a full sweep has all samples and dtypes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import pytest

from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import TupleType
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.op.base import Op, Sample
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction
from relaxpy.shape.lattice import substitute
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from tests.op.support import (
    COMPILED,
    Applied,
    apply,
    arrays_of,
    assert_close,
    dtype_variants,
    program_of,
    reference_arrays,
    resized,
    samples,
    special,
    type_of,
)
from tests.sweeps import FULL, quick_target, sweep

SAMPLES = 20
"""One of so many samples is compiled, the first among them; all in a full sweep."""

OPTIMISED = 6
"""Samples of one of so many operators are compiled as users' programs are; all in a full sweep."""

DTYPES = 16
"""One of so many dtypes is compiled, not the same for each operator; all in a full sweep."""


@dataclass
class Variant:
    """A sample in some dtype, and its compiled program."""

    label: str
    sample: Sample
    program: PrimFunc
    applied: Applied
    scalars: tuple[Dim, ...]
    """The values of the program's scalar parameters."""
    quick: bool
    """Is it compiled without LLVM's optimisations, unless the sweep is in full?"""
    beyond: bool
    """Is it tried beyond its own sizes and values?"""


@sweep
@pytest.mark.slow
@pytest.mark.parametrize("cls", COMPILED, ids=lambda c: c.name)
def test_every_dtype_size_and_special_value(cls: type[Op]) -> None:
    """What deduction accepts, the kernel computes as the reference does."""
    variants = [*accepted(cls)]
    problems: list[str] = []
    for quick, target in ((False, Target.host()), (True, quick_target())):
        some = [v for v in variants if v.quick == quick]
        if not some:
            continue
        kernels = Kernels({f"k{i}": v.program for i, v in enumerate(some)}, target)
        for i, variant in enumerate(some):
            for label, s in settings(variant):
                try:
                    check(kernels, f"k{i}", variant, s)
                except Exception as e:
                    text = "\n".join(line for line in str(e).splitlines() if line.strip())
                    problems.append(f"{variant.label}, {label}: {type(e).__name__}: {text[:600]}")
    assert not problems, f"{len(problems)} problems\n" + "\n\n".join(problems[:6])


def accepted(cls: type[Op]) -> list[Variant]:
    """The operator's samples, as they are, and in the dtypes that it takes: all dtypes for the first, one for each
    further set of attributes. A dtype is refused by its code, never by a crash."""
    found: list[Variant] = []
    seen: set[object] = set()
    for number, s in enumerate(x for x in samples(cls.name) if not x.code):
        if number % SAMPLES and not FULL:
            continue
        key = (s.op, s.dims, tuple(a.ndim for a in arrays_of(s)))
        beyond, own = key not in seen, [a.dtype for a in arrays_of(s)]
        others = [*dtype_variants(s)] if not seen else []
        others = others if FULL else others[zlib.crc32(cls.name.encode()) % DTYPES :: DTYPES]
        for dtype, cast in [("as it is", s), *others]:
            if dtype != "as it is" and [a.dtype for a in arrays_of(cast)] == own:
                continue
            try:
                program, applied, scalars = program_of(cast, bool(s.dims))
            except DeduceError as e:
                if e.code == "op-dtype" and dtype != "as it is":
                    continue
                raise AssertionError(f"{s.op} in {dtype} is refused for another reason") from e
            label = f"sample {number} ({s.op}, {dtype})"
            quick = dtype != "as it is" or zlib.crc32(cls.name.encode()) % OPTIMISED != 0
            found.append(Variant(label, cast, program, applied, scalars, quick, beyond))
        seen.add(key)
    return found


def settings(variant: Variant) -> list[tuple[str, Sample]]:
    """The variant at the sizes of its sample, and beyond them with each symbol 1 and 0 in turn and all at once, and with
    special values."""
    s, names = variant.sample, {v.name: size for v, size in variant.applied.bound.items()}
    if not variant.beyond:
        return [("as it is", s)]
    found = [("as it is", s), ("special values", special(s))]
    for size in (1, 0) if names else ():
        cases = [dict.fromkeys(names, size)]
        cases += [{**names, name: size} for name in names] if len(names) > 1 else []
        found += [(f"at {case}", resized(s, case)) for case in cases]
    return found


def check(kernels: Kernels, name: str, variant: Variant, s: Sample) -> None:
    """The kernel's results at a setting are the reference's, or deduction refuses the setting."""
    try:
        fixed = apply(s, False)
        out = Deduction(s.op, fixed.call, deduce, exact=True).run()
    except DeduceError:
        return
    applied = apply(s, True)
    sizes = {v.name: size for v, size in applied.bound.items()}
    bound = {v: sizes[v.name] for v in variant.applied.bound}
    deduction = Deduction(s.op, variant.applied.call, deduce, exact=True)
    exact = deduction.run()
    failed = [r.message for r in deduction.requirements if not r.condition.evaluate(bound)]
    assert not failed, f"refused at run time only: {failed}"
    assert substitute(exact, bound) == out
    wanted = reference_arrays(s)
    assert type_of(tuple(wanted) if isinstance(out, TupleType) else wanted[0], out) == out
    outputs = [np.full(w.shape, 77, w.dtype) for w in wanted]
    scalars = [d.evaluate(bound) for d in variant.scalars]
    kernels.run(name, arrays_of(s), outputs, scalars)
    for got, want in zip(outputs, wanted, strict=True):
        assert_close(got, want, s, "")
        if DType(want.dtype).is_float and DType(want.dtype).bits > 8:  # in 8, a residue becomes 0
            zero = (got == 0) & (want == 0)
            np.testing.assert_array_equal(
                np.signbit(got[zero]), np.signbit(want[zero]), "the sign of zero"
            )
