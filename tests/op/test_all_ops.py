"""Every operator against its samples: deduction, reference and tensor program must say the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import op as _operators  # noqa: F401  (fills OPS)
from relaxpy.errors import DeduceError, Span
from relaxpy.ir.annotation import Annotation, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Expr, PrimValue, ShapeExpr, Tuple, Var
from relaxpy.ir.structural import structural_equal
from relaxpy.ir.visitor import free_sym_vars, free_vars
from relaxpy.op.base import OPS, Deduction, Op, Sample
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.deduce import deduce
from relaxpy.shape.lattice import Verdict, accepts, substitute
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.te_call import legal_program
from relaxpy.tir.to_python import to_python

CLASSES = [cls for cls in OPS.values() if issubclass(cls, Op)]


@dataclass
class Applied:
    """A sample as a call: with symbols where `dims` names dimensions, and what they stand for."""

    call: Call
    bound: dict[SymVar, int]
    arrays: list[np.ndarray]


def apply(sample: Sample, symbolic: bool) -> Applied:
    """The call of a sample."""
    groups = iter(sample.dims.split(",") if symbolic and sample.dims else itertools.repeat(""))
    symbols: dict[str, SymVar] = {}
    bound: dict[SymVar, int] = {}
    arrays: list[np.ndarray] = []

    def dims(sizes: tuple[int, ...]) -> list[Dim]:
        names = next(groups, "").split()
        assert not names or len(names) == len(sizes), f"{sample.dims!r} does not fit {sizes}"
        return [dim(n, s) for n, s in itertools.zip_longest(names, sizes)]

    def dim(text: str | None, size: int) -> Dim:
        result = Dim.of(1)
        for factor in (text or str(size)).split("*"):
            if factor.lstrip("-").isdigit():
                result = result * int(factor)
            else:
                symbol = symbols.setdefault(factor, SymVar(factor))
                result = result * symbol
        # each symbol must be alone somewhere, or come out of one division
        left = [v for v in result.vars if v not in bound]
        if left:
            (var,) = left
            bound[var] = 0
            step = result.substitute({**bound, var: 1}).value or 1
            bound[var] = size // step
        return result

    def expr(value: Any, kind: type[Annotation], name: str) -> Expr:
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return Var(name, TensorType(dims(value.shape), DType(value.dtype)))
        if isinstance(value, int):
            return PrimValue(dims((value,))[0])
        if kind is ShapeType or (value and all(isinstance(v, int) for v in value)):
            return ShapeExpr(dims(value))
        return Tuple(tuple(expr(v, Annotation, f"{name}{i}") for i, v in enumerate(value)))

    specs = sample.op.args
    args = [expr(v, s.kind, s.name) for v, s in zip(sample.inputs, specs, strict=False)]
    return Applied(Call(sample.op, tuple(args), span=Span("sample.py", 1)), bound, arrays)


def type_of(value: Any, deduced: Annotation) -> Annotation:
    """The annotation of a reference's result."""
    if isinstance(value, tuple):
        if isinstance(deduced, ShapeType):
            return ShapeType(value)
        return TupleType(type_of(v, deduced) for v in value)
    return TensorType(np.shape(value), DType(np.asarray(value).dtype))


@cache
def samples(name: str) -> tuple[Sample, ...]:
    return tuple(OPS[name].samples())  # type: ignore[attr-defined]


def right() -> Iterator[Any]:
    for cls in CLASSES:
        for i, s in enumerate(samples(cls.name)):
            if not s.code:
                yield pytest.param(s, id=f"{cls.name}-{i}")


def wrong() -> Iterator[Any]:
    for cls in CLASSES:
        for i, s in enumerate(samples(cls.name)):
            if s.code:
                yield pytest.param(s, id=f"{cls.name}-{i}")


def run_reference(s: Sample) -> Any:
    with np.errstate(all="ignore"):
        return s.op.reference(*s.inputs)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_samples_cover(cls: type[Op]) -> None:
    """Each operator has right samples; each that takes tensors has one with symbols."""
    good = [s for s in samples(cls.name) if not s.code]
    assert good
    assert any(s.dims for s in good)
    assert (cls.__doc__ or "").strip()


@pytest.mark.parametrize("s", list(right()))
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_deduction_is_the_reference(s: Sample, symbolic: bool) -> None:
    """The deduced annotation, symbols bound, is that of the reference's result."""
    applied = apply(s, symbolic)
    deduced = deduce(applied.call)
    actual = type_of(run_reference(s), deduced)
    bound = substitute(deduced, applied.bound)
    assert accepts(bound, actual) is Verdict.YES, f"{bound} for {actual}"
    exact = Deduction(s.op, applied.call, deduce, exact=True).run()
    if s.op.legalize is not None:
        assert substitute(exact, applied.bound) == actual


@pytest.mark.parametrize("s", list(right()))
def test_unknown_shapes(s: Sample) -> None:
    """With less known of the arguments, less is said of the result, and nothing wrong."""
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


@pytest.mark.parametrize("s", list(wrong()))
def test_wrong_calls_are_refused(s: Sample) -> None:
    """With the code, the words, and the place of the call."""
    with pytest.raises(DeduceError) as caught:
        deduce(apply(s, False).call)
    assert caught.value.code == s.code
    assert s.match in caught.value.message
    assert caught.value.span is not None


def program_of(s: Sample, symbolic: bool) -> tuple[Any, Applied, list[int]]:
    """The tensor program of a sample, its call, and the values of its scalar parameters."""
    applied = apply(s, symbolic)
    out = Deduction(s.op, applied.call, deduce, exact=True).run()
    specs = list(s.op.args)
    types: list[Annotation | None] = [deduce(arg) for arg in applied.call.args]
    types += [None] * (len(specs) - len(types))
    program, tir_vars = legal_program(s.op, types, out)
    values: Mapping[SymVar, int] = applied.bound
    return program, applied, [d.evaluate(values) for d in tir_vars.dims] if tir_vars else []


COMPILED = [c for c in CLASSES if c.legalize is not None]


@pytest.mark.slow
@pytest.mark.parametrize("cls", COMPILED, ids=lambda c: c.name)
def test_kernels_compute_the_reference(cls: type[Op]) -> None:
    """Every sample's tensor program, with symbols, scheduled and compiled, gives what the reference gives."""
    good = [s for s in samples(cls.name) if not s.code]
    made = [program_of(s, bool(s.dims)) for s in good]
    kernels = Kernels({f"k{i}": program for i, (program, _, _) in enumerate(made)})
    for i, (s, (_, applied, scalars)) in enumerate(zip(good, made, strict=True)):
        wanted = reference_arrays(s)
        outputs = [np.full(w.shape, 77, w.dtype) for w in wanted]
        kernels.run(f"k{i}", applied.arrays, outputs, scalars)
        for got, want in zip(outputs, wanted, strict=True):
            assert_close(got, want, s, f"{s.op} sample {i} {s.dims}")


@pytest.mark.parametrize("cls", COMPILED, ids=lambda c: c.name)
def test_programs_as_python_compute_the_reference(cls: type[Op]) -> None:
    """Every sample's tensor program, static and symbolic, translated to Python loops, gives what
    the reference gives."""
    for s in samples(cls.name):
        for symbolic in (False, True):
            if s.code or (symbolic and not s.dims):
                continue
            program, applied, scalars = program_of(s, symbolic)
            wanted = reference_arrays(s)
            outputs = [np.full(w.shape, 77, w.dtype) for w in wanted]
            with np.errstate(all="ignore"):
                to_python(program.func)(*applied.arrays, *outputs, *scalars)
            for got, want in zip(outputs, wanted, strict=True):
                assert_close(got, want, s, f"{s.op} {s.dims}")


def reference_arrays(s: Sample) -> list[np.ndarray]:
    """The results of the reference, one or several."""
    expected = run_reference(s)
    return [np.asarray(e) for e in (expected if isinstance(expected, tuple) else (expected,))]


def assert_close(got: np.ndarray, want: np.ndarray, s: Sample, what: str) -> None:
    if DType(want.dtype).is_float:
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=s.rtol, atol=s.atol, err_msg=what
        )
    else:
        np.testing.assert_array_equal(got, want, err_msg=what)


@pytest.mark.parametrize("s", list(right()))
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_print_and_parse(s: Sample, symbolic: bool) -> None:
    """A function of one call prints as script that parses back to it."""
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


JAX: dict[str, Any] = {
    "erf": lambda jax: jax.lax.erf, "sigmoid": lambda jax: jax.nn.sigmoid, "nn.relu": lambda jax: jax.nn.relu,
    "nn.gelu": lambda jax: lambda x: jax.nn.gelu(x, approximate=False), "nn.gelu_tanh": lambda jax: jax.nn.gelu,
    "nn.silu": lambda jax: jax.nn.silu, "rsqrt": lambda jax: jax.lax.rsqrt, "matmul": lambda jax: jax.numpy.matmul,
    "where": lambda jax: jax.numpy.where, "maximum": lambda jax: jax.numpy.maximum, "exp": lambda jax: jax.numpy.exp,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", JAX)
def test_reference_is_that_of_jax(name: str) -> None:
    """The references that are not numpy's own words, beside somebody else's."""
    jax = pytest.importorskip("jax")
    function = JAX[name](jax)
    for s in samples(name):
        if s.code or any(a.dtype == np.float64 for a in s.inputs) or s.op != type(s.op)():
            continue
        got = run_reference(s)
        want = np.asarray(function(*map(jax.numpy.asarray, s.inputs)))
        np.testing.assert_allclose(
            got.astype(np.float32),
            want.astype(np.float32),
            rtol=max(1e-5, s.rtol),
            atol=max(1e-5, s.atol),
        )
