"""Checks an operator on its samples: deduction, tensor program, reference and script must say the same.

`check_op` is for an operator that lives anywhere; relaxpy's own tests use the functions below it, on a part of the
samples of every operator. Each raises an exception for a sample that does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.errors import DeduceError, RelaxError, raised_in
from relaxpy.ir.annotation import Annotation, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Expr, Tuple, Var
from relaxpy.ir.module import IRModule
from relaxpy.ir.structural import structural_equal
from relaxpy.ir.visitor import free_sym_vars, free_vars
from relaxpy.op.base import OPS, Op, Sample
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction
from relaxpy.script import parse
from relaxpy.shape.lattice import Verdict, accepts, substitute
from relaxpy.target import Target
from relaxpy.testing.interpret import interpret
from relaxpy.testing.kernels import Kernels
from relaxpy.testing.op_samples import (
    Applied,
    apply,
    arrays_of,
    assert_close,
    dtype_variants,
    program_of,
    reference_arrays,
    resized,
    run_in_memory,
    run_reference,
    samples,
    special,
    type_of,
)
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.to_python import to_python
from relaxpy.transform.decompose_ops import DecomposeOps

SHOWN = 10
"""The number of problems in the error of `check_op`."""


def check_op(op: type[Op], target: Target | str | None = None) -> int:
    """Checks an operator, one of `define_op`, on its samples. Returns the number of checks.

    For each sample that must work, with its own sizes and with symbols where it names dimensions:

    * the deduced annotation is that of the reference's result; with less known of the arguments (no shape, no dtype,
      no rank), less is said, and nothing wrong;
    * a program of the call prints as script that parses back to it;
    * the calls of other operators that it consists of, if it does, give the reference's numbers;
    * the tensor program gives the reference's numbers: as loops in Python, and compiled for `target` (default: this
      machine), in every dtype that the operator accepts, with sizes 0 and 1, and with NaN, infinities, -0.0 and the
      limits of integers.

    Each sample that is wrong must be refused with its code and text.

    Raises: AssertionError with all that does not hold.
    """
    chosen = Target.parse(target) if isinstance(target, str) else target
    if not (isinstance(op, type) and issubclass(op, Op) and OPS.get(getattr(op, "name", "")) is op):
        raise TypeError(
            f"check_op takes an operator's class, decorated with @define_op, got {op!r}"
        )
    found = samples(op.name)
    right, bad = [s for s in found if not s.code], [s for s in found if s.code]
    both = [(s, symbolic) for s in right for symbolic in ([False, True] if s.dims else [False])]
    checks = _Checks(op)
    checks.run("samples", covered, op)
    for s in right:
        checks.run(f"deduce, with less known: {shown(s)}", deduced_of_less, s)
    for s in bad:
        checks.run(f"refusal: {shown(s)}", refused, s)
    for s, symbolic in both:
        what = f"{shown(s)}{f', dimensions {s.dims}' if symbolic else ''}"
        checks.run(f"deduce: {what}", deduced_as_computed, s, symbolic)
        checks.run(f"script: {what}", printed_and_parsed, s, symbolic)
        if op.legalize is not None:
            checks.run(f"legalize, as Python: {what}", computed_by_loops, s, symbolic)
        if op.decompose is not None:
            checks.run(f"decompose: {what}", decomposed, s, symbolic)
    if not checks.problems and op.legalize is not None:
        variants = [*checks.variants(right)]
        if variants and not checks.problems:
            kernels = Kernels(
                {f"k{i}": v.program for i, v in enumerate(variants)}, chosen or Target.host()
            )
            for i, variant in enumerate(variants):
                for label, s in settings(variant):
                    what = f"legalize, compiled: {variant.label}, {label}"
                    checks.run(what, same_numbers, kernels, f"k{i}", variant, s)
    checks.raise_if_any()
    return checks.count


class _Checks:
    """Runs checks of an operator, and collects what does not hold."""

    def __init__(self, op: type[Op]) -> None:
        self.op = op
        self.count = 0
        self.problems: list[str] = []

    def run(self, what: str, check: Callable[..., Any], *args: Any) -> Any:
        self.count += 1
        try:
            return check(*args)
        except Exception as error:
            self.problems.append(f"{what}\n{_indented(explained(error))}")

    def variants(self, right: Iterable[Sample]) -> Iterator[Variant]:
        """The samples in their own dtypes, and each that differs in more than sizes in all others."""
        seen: set[object] = set()
        for number, s in enumerate(right):
            key = (s.op, s.dims, tuple(a.ndim for a in arrays_of(s)))
            beyond = key not in seen
            seen.add(key)
            for dtype, cast in [(AS_IT_IS, s), *(dtype_variants(s) if beyond else ())]:
                label = f"sample {number} ({s.op}, {dtype})"
                made = self.run(f"legalize: {label}", variant_of, cast, s, dtype, label)
                if made is not None:
                    made.beyond = beyond
                    yield made

    def raise_if_any(self) -> None:
        if not self.problems:
            return
        count = len(self.problems)
        more = f"\n\n... and {count - SHOWN} more" if count > SHOWN else ""
        raise AssertionError(
            f"{self.op.name}: {count} of {self.count} checks failed\n\n"
            + "\n\n".join(self.problems[:SHOWN])
            + more
        )


def shown(s: Sample) -> str:
    """A sample in a line: the operator, and its arguments' shapes and dtypes."""
    given = (
        f"{a.dtype}{list(a.shape)}" if isinstance(a, np.ndarray) else repr(a) for a in s.inputs
    )
    return f"{s.op} of {', '.join(given)}"


def explained(error: Exception) -> str:
    """What a check raised, with the line of the user's code that raised it, if there is one."""
    text = "\n".join(line for line in str(error).splitlines() if line.strip())
    if isinstance(error, (AssertionError, RelaxError)):
        return text
    place = raised_in(error)
    where = "" if place is None else f" ({place.file}:{place.line})"
    return f"{type(error).__name__}: {text}{where}"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


# What must hold of one sample


def covered(op: type[Op]) -> None:
    """An operator has a docstring and right samples; one that takes arguments has a sample with symbols."""
    right = [s for s in samples(op.name) if not s.code]
    written = (op.__doc__ or "").removeprefix(f"{op.__name__}(")  # what `dataclass` makes of none
    require(written.strip() and written == op.__doc__, "the class has no docstring")
    require(right, "no sample must work")
    named = any(s.dims for s in right) or not op.args
    require(named, 'no sample names dimensions: sample(cls(), rand(3, 5), dims="n 5")')


def deduced_as_computed(s: Sample, symbolic: bool) -> None:
    """The deduced annotation, symbols bound, is that of the reference's result."""
    applied = apply(s, symbolic)
    deduced = deduce(applied.call)
    actual = type_of(run_reference(s), deduced)
    bound = substitute(deduced, applied.bound)
    require(
        accepts(bound, actual) is Verdict.YES,
        f"deduce says {bound}, and the reference gives {actual}",
    )
    exact = Deduction(s.op, applied.call, deduce, exact=True).run()
    if s.op.legalize is not None:
        known = substitute(exact, applied.bound)
        require(known == actual, f"deduce says {known}, and the reference gives {actual}")


COARSER: tuple[Callable[[TensorType], TensorType], ...] = (
    lambda t: TensorType(None, t.dtype, t.ndim),
    lambda t: TensorType(None, t.dtype),
    lambda t: TensorType(t.shape, None),
    lambda t: TensorType(None, None, t.ndim),
    lambda _: TensorType(),
)
"""Ways to know less of a tensor."""


def deduced_of_less(s: Sample) -> None:
    """With less known of the arguments, less is said of the result, and nothing wrong."""
    applied = apply(s, False)
    actual = type_of(run_reference(s), deduce(applied.call))
    for coarser in COARSER:
        args = tuple(_coarse(arg, coarser) for arg in applied.call.args)
        deduced = deduce(Call(s.op, args))
        given = ", ".join(str(deduce(arg)) for arg in args)
        require(
            accepts(deduced, actual) is Verdict.YES,
            f"deduce of {given} says {deduced}, and the reference gives {actual}",
        )


def _coarse(expr: Expr, coarser: Callable[[TensorType], TensorType]) -> Expr:
    if isinstance(expr, Tuple):
        return Tuple(tuple(_coarse(item, coarser) for item in expr.fields))
    if isinstance(expr, Var) and isinstance(expr.annotation, TensorType):
        return Var(expr.name, coarser(expr.annotation))
    return expr


def refused(s: Sample) -> None:
    """A wrong call is refused with the code, the words, and the place of the call."""
    try:
        found = deduce(apply(s, False).call)
    except DeduceError as error:
        require(error.code == s.code, f"refused as {error.code}, not as {s.code}: {error.message}")
        require(s.match in error.message, f"{s.match!r} is not in {error.message!r}")
        require(error.span is not None, f"{error.message!r} has no place in the source")
        return
    raise AssertionError(f"it must be refused ({s.code}), and is deduced as {found}")


def computed_by_loops(s: Sample, symbolic: bool) -> None:
    """The tensor program, translated to Python loops, gives what the reference gives."""
    program, applied, scalars = program_of(s, symbolic)
    wanted = reference_arrays(s)
    with np.errstate(all="ignore"):
        sizes = [d.evaluate(applied.bound) for d in scalars]
        run = to_python(program.func)
        outputs = run_in_memory(
            lambda given, made: run(*given, *made, *sizes), applied.call, applied.arrays, wanted
        )
    for got, want in zip(outputs, wanted, strict=True):
        assert_close(got, want, s, f"{s.op} {s.dims}")


def printed_and_parsed(s: Sample, symbolic: bool) -> None:
    """A function of the one call prints as script that parses back to it."""
    mod = module_of(s, symbolic)
    text = mod.script()
    require(structural_equal(mod, parse(text)), f"this parses to another program:\n{text}")


def decomposed(s: Sample, symbolic: bool) -> None:
    """The calls of other operators that it consists of give the reference's numbers."""
    mod = DecomposeOps()(module_of(s, symbolic))
    found = interpret(mod, "main", *arrays_of(s))
    results = found if isinstance(found, tuple) else (found,)
    for got, want in zip(results, reference_arrays(s), strict=True):
        assert_close(np.asarray(got), want, s, "the calls of others")


def module_of(s: Sample, symbolic: bool) -> IRModule:
    """A module of a function with the one call."""
    made = apply(s, symbolic).call
    # as the parser makes it: a -1 in a shape is replaced where it is known
    call = made.op(*made.args)  # type: ignore[operator]
    bb = BlockBuilder()
    params = [v for v in free_vars(call) if isinstance(v, Var)]
    symbols = dict.fromkeys(v for a in call.args for v in free_sym_vars([deduce(a)]))
    defined = {d.symbol for p in params for d in p.annotation.dims or ()}  # type: ignore[attr-defined]
    missing = [v.dim for v in symbols if v not in defined]
    if missing:
        params.append(Var("s", ShapeType(missing)))
    with bb.function("main", params, pure=s.op.pure):
        bb.emit_func_output(bb.emit(call))
    return bb.get()


def require(holds: Any, otherwise: str) -> None:
    """Raises AssertionError with a text unless a condition holds."""
    if not holds:
        raise AssertionError(otherwise)


# Compiled, in all dtypes and beyond the sizes and values of the samples

AS_IT_IS = "as it is"


@dataclass
class Variant:
    """A sample in some dtype, and its tensor program."""

    label: str
    sample: Sample
    program: PrimFunc
    applied: Applied
    scalars: tuple[Dim, ...]
    """The values of the program's scalar parameters."""
    beyond: bool = True
    """Is it tried beyond its own sizes and values?"""


def variant_of(cast: Sample, original: Sample, dtype: str, label: str) -> Variant | None:
    """The sample `original` in another dtype; None if the operator refuses that dtype (by its code, never by a crash),
    or if it is the sample's own."""
    is_own = [a.dtype for a in arrays_of(cast)] == [a.dtype for a in arrays_of(original)]
    if dtype != AS_IT_IS and is_own:
        return None
    try:
        program, applied, scalars = program_of(cast, bool(original.dims))
    except DeduceError as error:
        if error.code == "op-dtype" and dtype != AS_IT_IS:
            return None
        raise AssertionError(f"{original.op} in {dtype} is refused for another reason") from error
    return Variant(label, cast, program, applied, scalars)


def settings(variant: Variant) -> list[tuple[str, Sample]]:
    """The variant at the sizes of its sample, and beyond them with each symbol 1 and 0, in turn and all at once, and
    with special values."""
    s, names = variant.sample, {v.name: size for v, size in variant.applied.bound.items()}
    if not variant.beyond:
        return [(AS_IT_IS, s)]
    found = [(AS_IT_IS, s), ("special values", special(s))]
    for size in (1, 0) if names else ():
        cases: list[Mapping[str, int]] = [dict.fromkeys(names, size)]
        cases += [{**names, name: size} for name in names] if len(names) > 1 else []
        found += [(f"at {case}", resized(s, case)) for case in cases]
    return found


def same_numbers(kernels: Kernels, name: str, variant: Variant, s: Sample) -> None:
    """A kernel's results at a setting of its variant are the reference's, or deduction refuses the setting."""
    try:
        fixed = apply(s, False)
        out = Deduction(s.op, fixed.call, deduce, exact=True).run()
    except DeduceError:
        return
    applied = apply(s, True)
    sizes = {v.name: size for v, size in applied.bound.items()}
    bound = {v: sizes[v.name] for v in variant.applied.bound}
    deduction = Deduction(s.op, variant.applied.call, deduce, exact=True)
    exact: Annotation = deduction.run()
    failed = [r.message for r in deduction.requirements if not r.condition.evaluate(bound)]
    require(not failed, f"refused at run time only: {failed}")
    known = substitute(exact, bound)
    require(known == out, f"deduced with symbols: {known}, with these sizes: {out}")
    wanted = reference_arrays(s)
    actual = type_of(tuple(wanted) if isinstance(out, TupleType) else wanted[0], out)
    require(actual == out, f"deduce says {out}, and the reference gives {actual}")
    scalars = [d.evaluate(bound) for d in variant.scalars]
    outputs = run_in_memory(
        lambda given, made: kernels.run(name, given, made, scalars),
        variant.applied.call,
        arrays_of(s),
        wanted,
    )
    for got, want in zip(outputs, wanted, strict=True):
        assert_close(got, want, s, "")
        if DType(want.dtype).is_float and DType(want.dtype).bits > 8:  # in 8, a residue becomes 0
            zero = (got == 0) & (want == 0)
            np.testing.assert_array_equal(
                np.signbit(got[zero]), np.signbit(want[zero]), "the sign of zero"
            )
