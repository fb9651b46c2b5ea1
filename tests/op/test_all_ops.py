"""Every operator against its samples: deduction, reference and tensor program must say the same. The compiled programs
are in `tests/e2e/test_operator_sweeps.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import ShapeType, TensorType
from relaxpy.ir.expr import Call, Expr, Tuple, Var
from relaxpy.ir.structural import structural_equal
from relaxpy.ir.visitor import free_sym_vars, free_vars
from relaxpy.op.base import Op, Sample
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction
from relaxpy.shape.lattice import Verdict, accepts, substitute
from relaxpy.tir.to_python import to_python
from tests.op.support import (
    CLASSES,
    COMPILED,
    apply,
    assert_close,
    program_of,
    reference_arrays,
    run_reference,
    samples,
    type_of,
)
from tests.sweeps import part, sweep

each_operator = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
each_compiled = pytest.mark.parametrize("cls", COMPILED, ids=lambda cls: cls.name)
both = pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])


def right(cls: type[Op]) -> list[Sample]:
    """The samples of an operator that are to be accepted."""
    return [s for s in samples(cls.name) if not s.code]


def with_sizes(cls: type[Op], symbolic: bool) -> list[Sample]:
    """The samples to try with symbols: all that have some. And with known sizes: those that have none, and of the others
    a part, unless the sweep is in full."""
    both_ways = [s for s in right(cls) if s.dims]
    if symbolic:
        return both_ways
    return [*(s for s in right(cls) if not s.dims), *part(both_ways, 4)]


def for_all(found: Iterable[Sample], check: Callable[[Sample], None]) -> None:
    """`check` of every sample; one failure that names all that fail. (With a test for each sample there
    would be six thousand more.)"""
    failed: list[str] = []
    for s in found:
        try:
            check(s)
        except (Exception, pytest.fail.Exception) as e:
            failed.append(
                f"{s.op} of {[getattr(x, 'shape', x) for x in s.inputs]}: {type(e).__name__}: {e}"
            )
    assert not failed, f"{len(failed)} samples\n" + "\n\n".join(failed[:5])


@each_operator
def test_samples_cover(cls: type[Op]) -> None:
    """Each operator has right samples; each that takes tensors has one with symbols."""
    good = right(cls)
    assert good
    assert any(s.dims for s in good) or not cls.args
    assert (cls.__doc__ or "").strip()


@each_operator
@both
def test_deduction_is_the_reference(cls: type[Op], symbolic: bool) -> None:
    """The deduced annotation, symbols bound, is that of the reference's result."""
    for_all(right(cls), lambda s: deduced_as_computed(s, symbolic))


def deduced_as_computed(s: Sample, symbolic: bool) -> None:
    applied = apply(s, symbolic)
    deduced = deduce(applied.call)
    actual = type_of(run_reference(s), deduced)
    bound = substitute(deduced, applied.bound)
    assert accepts(bound, actual) is Verdict.YES, f"{bound} for {actual}"
    exact = Deduction(s.op, applied.call, deduce, exact=True).run()
    if s.op.legalize is not None:
        assert substitute(exact, applied.bound) == actual


@sweep
@each_operator
def test_unknown_shapes(cls: type[Op]) -> None:
    """With less known of the arguments, less is said of the result, and nothing wrong."""
    for_all(part(right(cls), 12), deduced_of_less)


def deduced_of_less(s: Sample) -> None:
    applied = apply(s, False)
    actual = type_of(run_reference(s), deduce(applied.call))
    for coarser in (
        lambda t: TensorType(None, t.dtype, t.ndim),
        lambda t: TensorType(None, t.dtype),
        lambda t: TensorType(t.shape, None),
        lambda t: TensorType(None, None, t.ndim),
        lambda t: TensorType(),
    ):
        args = tuple(_coarse(arg, coarser) for arg in applied.call.args)
        deduced = deduce(Call(s.op, args))
        assert accepts(deduced, actual) is Verdict.YES, f"{deduced} for {actual}"


def _coarse(expr: Expr, coarser: Any) -> Expr:
    if isinstance(expr, Tuple):
        return Tuple(tuple(_coarse(item, coarser) for item in expr.fields))
    if isinstance(expr, Var):
        return Var(expr.name, coarser(expr.annotation))
    return expr


@each_operator
def test_wrong_calls_are_refused(cls: type[Op]) -> None:
    """With the code, the words, and the place of the call."""
    for_all((s for s in samples(cls.name) if s.code), refused)


def refused(s: Sample) -> None:
    with pytest.raises(DeduceError) as caught:
        deduce(apply(s, False).call)
    assert caught.value.code == s.code
    assert s.match in caught.value.message
    assert caught.value.span is not None


@sweep
@each_compiled
@both
def test_programs_as_python_compute_the_reference(cls: type[Op], symbolic: bool) -> None:
    """Every sample's tensor program, translated to Python loops, gives what the reference gives; a half of the samples,
    unless the sweep is in full."""
    for s in part(with_sizes(cls, symbolic), 2):
        program, applied, scalars = program_of(s, symbolic)
        wanted = reference_arrays(s)
        outputs = [np.full(w.shape, 77, w.dtype) for w in wanted]
        with np.errstate(all="ignore"):
            sizes = [d.evaluate(applied.bound) for d in scalars]
            to_python(program.func)(*applied.arrays, *outputs, *sizes)
        for got, want in zip(outputs, wanted, strict=True):
            assert_close(got, want, s, f"{s.op} {s.dims}")


@sweep
@each_operator
@both
def test_print_and_parse(cls: type[Op], symbolic: bool) -> None:
    """A function of one call prints as script that parses back to it."""
    for_all(part(with_sizes(cls, symbolic), 2), lambda s: printed_and_parsed(s, symbolic))


def printed_and_parsed(s: Sample, symbolic: bool) -> None:
    made = apply(s, symbolic).call
    call = made.op(
        *made.args
    )  # as the parser makes it: a -1 in a shape is replaced where it is known
    bb = BlockBuilder()
    params = [v for v in free_vars(call) if isinstance(v, Var)]
    symbols = dict.fromkeys(v for a in call.args for v in free_sym_vars([deduce(a)]))
    defined = {d.symbol for p in params for d in p.annotation.dims or ()}  # type: ignore[attr-defined]
    missing = [v.dim for v in symbols if v not in defined]
    if missing:
        params.append(Var("s", ShapeType(missing)))
    with bb.function("main", params, pure=s.op.pure):
        bb.emit_func_output(bb.emit(call))
    text = bb.get().script()
    assert structural_equal(bb.get(), relaxpy.parse(text)), text
